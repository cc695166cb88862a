"""The one pass over class scores finds the anchors that a plain comparison of all scores finds."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searching import examples

from stages.postprocess import highest
from stages.postprocess.codes import Codes
from stages.postprocess.quantised import values_of_codes


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    anchors=st.integers(8, 90),
    class_count=st.sampled_from([1, 3, 16, 17, 18, 45]),
    share=st.sampled_from([0, 0.002, 0.02, 0.3, 1]),
    confidence=st.sampled_from([0.0, 0.25, 0.4, 1.0]),
    classes=st.sampled_from([None, (0,), tuple(range(12))]),
    before=st.integers(0, 5),
)
def test_the_same_anchors_as_by_comparing_all_scores(
    dtype, seed, anchors, class_count, share, confidence, classes, before
):
    rng = np.random.default_rng(seed)
    floats = rng.uniform(0, 0.2, (anchors, before + class_count)) * (rng.random((anchors, before + class_count)) < 0.9)
    floats[:, :before] = 50
    hits = rng.random((anchors, class_count)) < share
    floats[:, before:][hits] = rng.choice([0.25, 0.4, 0.41, 0.9, 1], int(hits.sum()))
    if dtype.startswith("float"):
        rows: Any = floats.astype(dtype)
        values = rows.astype(np.float32)
    else:
        table = values_of_codes(dtype, 1 / 128, int(np.iinfo(dtype).min))
        raw = (floats.clip(0, 1) * 128).astype(int) + int(np.iinfo(dtype).min)
        rows = cast("Any", Codes(raw.astype(dtype), table))
        values = np.asarray(rows)
    scores = values[:, before:]
    wanted = scores
    if classes is not None and 4 * len(classes) <= class_count:
        wanted = scores[:, list(classes)]  # only theirs are read
    expected = np.flatnonzero((wanted > np.float32(confidence)).any(axis=1)).tolist()
    if classes is not None and max(classes) >= class_count:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(highest, "MANY_ANCHORS", 8)
        patch.setattr(highest, "CLASSES_AT_A_TIME", 5)
        columns = slice(before, None)
        assert highest.rows_above(rows, columns, confidence, classes).tolist() == expected
        first = Codes(np.ascontiguousarray(rows.raw.T), table) if isinstance(rows, Codes) else rows.T.copy()
        assert highest.anchors_above(first[before:], confidence, classes).tolist() == expected
