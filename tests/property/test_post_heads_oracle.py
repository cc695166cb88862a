"""The fast heads against naive loops: the same candidates, in the same order, for any numbers a tensor can hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.specs import model_spec
from oracles import naive_heads
from searching import examples

from stages.model import ModelSpec, TensorSpec
from stages.postprocess.registry import head_for

LAYOUTS = ("ssd", "yolov8", "yolov5", "yolox", "end2end")
WIDTH, HEIGHT = 64, 32  # 8x4 + 4x2 + 2x1 = 42 anchors of YOLOX


def model_of(layout: str, shape: tuple[int, int], dtype: str, classes: int) -> ModelSpec:
    return model_spec(
        width=WIDTH,
        height=HEIGHT,
        layout=layout,
        labels=tuple(f"c{i}" for i in range(classes)),
        outputs=(TensorSpec("out", shape, dtype),),
    )


def random_raw(rng: np.random.Generator, layout: str, classes: int, dtype: str, odd: float) -> np.ndarray:
    """A raw output; a share ``odd`` of its numbers is replaced by NaN, infinities, extremes and zeros."""
    anchors = 42 if layout == "yolox" else int(rng.integers(1, 60))
    columns = {"ssd": 4 + classes, "yolov8": 4 + classes, "end2end": 6}.get(layout, 5 + classes)
    raw = rng.random((anchors, columns)) ** 2
    if rng.random() < 0.5:
        raw[:, 4:] = np.round(raw[:, 4:] * 8) / 8  # ties, and scores exactly on the confidence
    raw[:, :4] = rng.random((anchors, 4)) * 4 - 1 if layout == "yolox" else rng.random((anchors, 4)) * 60 + 2
    if layout == "end2end":
        raw[:, 2:4] += raw[:, :2] * 0.5
        raw[:, 5] = rng.integers(0, classes, anchors)
    raw = raw.astype(dtype)
    limits = np.finfo(dtype)
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, limits.max, -limits.max, limits.tiny, 0, -0.0, -1], dtype)
    where = rng.random(raw.shape) < odd
    if layout == "end2end":
        where[:, 5] = False
    raw[where] = rng.choice(values, int(where.sum()))
    raw = raw.T.copy() if layout == "yolov8" else raw
    raw.flags.writeable = False
    return raw


def naive(layout: str, raw: np.ndarray, confidence, classes, top_k):
    if layout == "yolox":
        return naive_heads.yolox(raw, WIDTH, HEIGHT, confidence, classes, top_k)
    return getattr(naive_heads, layout)(raw, confidence, classes, top_k)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=examples(150))
@given(
    seed=st.integers(0, 2**32 - 1),
    class_count=st.sampled_from([1, 2, 3, 12]),
    odd=st.sampled_from([0, 0, 0.02, 0.3]),
    confidence=st.sampled_from([0.0, 0.125, 0.4, 0.5, 0.001, 1.0]) | st.floats(0, 1),
    wanted=st.none() | st.frozensets(st.integers(0, 11), max_size=12),
    top_k=st.sampled_from([1000, 1000, 5, 1]),
)
def test_candidates_are_those_of_the_naive_loop(layout, dtype, seed, class_count, odd, confidence, wanted, top_k):
    raw = random_raw(np.random.default_rng(seed), layout, class_count, dtype, odd)
    classes = None if wanted is None else tuple(sorted(c for c in wanted if c < class_count))
    found, cut = head_for(model_of(layout, raw.shape, dtype, class_count)).candidates([raw], confidence, classes, top_k)
    expected, expected_cut = naive(layout, raw, confidence, classes, top_k)

    assert cut == expected_cut
    assert found.class_ids.tolist() == [c[5] for c in expected]
    assert found.scores.tolist() == [float(c[4]) for c in expected]
    boxes = np.array([c[:4] for c in expected], np.float32).reshape(-1, 4)
    if layout == "yolox":  # exp() differs in the last bits between libraries
        np.testing.assert_allclose(found.boxes, boxes, rtol=1e-5, atol=1e-4)
    else:
        np.testing.assert_array_equal(found.boxes, boxes)
    assert (found.boxes.dtype, found.scores.dtype, found.class_ids.dtype) == (np.float32, np.float32, np.int32)
    assert not any(np.may_share_memory(raw, a) for a in (found.boxes, found.scores, found.class_ids))
