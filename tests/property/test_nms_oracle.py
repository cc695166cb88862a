"""The fast NMS against the O(n²) oracle: the same indices in the same order, whatever the boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from oracles.naive_nms import naive_suppress
from searching import examples

from stages.postprocess import nms

KINDS = ("scattered", "clusters", "grid", "equal scores", "identical", "touching", "huge", "no area")


def random_case(rng: np.random.Generator, n: int, kind: str):
    scores = rng.random(n, np.float32)
    class_ids = rng.integers(0, rng.integers(1, 6), n).astype(np.int32)
    centres, sizes = rng.random((n, 2)) * 300, rng.random((n, 2)) * 120 + 0.5
    if kind == "clusters":
        objects = rng.random((max(n // 8, 1), 4)) * [300, 300, 100, 100] + [0, 0, 5, 5]
        of = objects[rng.integers(0, len(objects), n)]
        centres, sizes = of[:, :2] + rng.normal(0, 4, (n, 2)), of[:, 2:] * rng.normal(1, 0.1, (n, 2)).clip(0.5)
    elif kind == "grid":  # whole numbers: many overlaps fall exactly on thresholds such as 1/2 and 1/3
        centres, sizes = rng.integers(0, 12, (n, 2)), rng.integers(1, 5, (n, 2)) * 2
        scores = (rng.integers(0, 4, n) / 4).astype(np.float32)
    elif kind == "equal scores":
        scores[:] = 0.5
    elif kind == "identical":
        centres[:], sizes[:] = 50, 20
    elif kind == "touching":
        centres, sizes = np.stack((np.arange(n) * 10.0, np.zeros(n)), 1), np.full((n, 2), 10.0)
    elif kind == "huge":
        sizes *= 10.0 ** rng.integers(0, 38, (n, 1))
    elif kind == "no area":
        sizes[rng.random(n) < 0.5] = 0
    with np.errstate(over="ignore"):
        boxes = np.concatenate((centres - sizes / 2, centres + sizes / 2), 1).astype(np.float32)
    return boxes, scores, class_ids


def check(boxes, scores, class_ids, iou, class_agnostic):
    kept = nms.suppress(boxes, scores, class_ids, iou, class_agnostic)
    assert kept.tolist() == naive_suppress(boxes, scores, class_ids, iou, class_agnostic)


def by(monkeypatch, way):
    """``sweep`` over pairs that share x, or, as for crowds, blocks of so many boxes."""
    monkeypatch.setattr(nms, "PAIRS_OF_A_BOX", 10**9 if way == "sweep" else -1)
    if way != "sweep":
        monkeypatch.setattr(nms, "BLOCK", way)


@pytest.mark.parametrize("way", ["sweep", 3, nms.BLOCK])
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_random_cases_keep_the_same_set(kind, way, monkeypatch):
    # 8 kinds x 3 ways x 430 cases = 10,320; a block of 3 makes small cases cross many block borders
    by(monkeypatch, way)
    rng = np.random.default_rng([KINDS.index(kind), 1 if way == "sweep" else way])
    for _ in range(430):
        case = random_case(rng, int(rng.integers(0, 25)), kind)
        check(*case, float(rng.choice([0, 0.25, 1 / 3, 0.45, 0.5, 0.7, 1])), bool(rng.integers(2)))


@pytest.mark.parametrize("way", ["sweep", nms.BLOCK])
@pytest.mark.parametrize("kind", KINDS)
def test_cases_of_several_blocks_keep_the_same_set(kind, way, monkeypatch):
    by(monkeypatch, way)
    rng = np.random.default_rng(KINDS.index(kind))
    for n in (nms.BLOCK, nms.BLOCK + 1, 2 * nms.BLOCK, 200):
        check(*random_case(rng, n, kind), 0.45, bool(rng.integers(2)))


@pytest.mark.parametrize("pairs", [nms.PAIRS, 40])
def test_frames_never_suppress_each_other_and_each_has_its_own_iou(pairs, monkeypatch):
    monkeypatch.setattr(nms, "PAIRS", pairs)
    rng = np.random.default_rng(pairs)
    for _ in range(200):
        kinds = rng.choice(KINDS, int(rng.integers(1, 6)))
        cases = [random_case(rng, int(rng.integers(0, 20)), kind) for kind in kinds]
        ious = rng.choice([0.3, 0.45, 0.7], len(cases)).tolist()
        counts = [len(case[1]) for case in cases]
        together = [np.concatenate(parts) for parts in zip(*cases, strict=True)]
        kept, of_each = nms.suppress_frames(*together, counts, ious)
        starts = np.cumsum([0, *counts])
        wanted = [naive_suppress(*case, iou, False) for case, iou in zip(cases, ious, strict=True)]
        assert kept.tolist() == [at + start for part, start in zip(wanted, starts, strict=False) for at in part]
        assert of_each == [len(part) for part in wanted]


finite = st.floats(-1e6, 1e6, width=32)


@st.composite
def arbitrary_case(draw):
    n = draw(st.integers(0, 12))
    corners = draw(hnp.arrays(np.float32, (n, 4), elements=finite | st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.0, 4.0])))
    boxes = np.concatenate((np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])), 1)
    scores = draw(
        hnp.arrays(np.float32, n, elements=st.sampled_from([0.125, 0.5, 0.5, 1.0]) | st.floats(0, 1, width=32))
    )
    class_ids = draw(hnp.arrays(np.int32, n, elements=st.integers(0, 2)))
    return boxes, scores, class_ids


@settings(max_examples=examples(1000))
@given(arbitrary_case(), st.floats(0, 1), st.booleans())
def test_arbitrary_boxes_keep_the_same_set(case, iou, class_agnostic):
    check(*case, iou, class_agnostic)


@settings(max_examples=examples(200))
@given(arbitrary_case(), st.floats(0, 1), st.booleans())
def test_suppressing_twice_changes_nothing(case, iou, class_agnostic):
    boxes, scores, class_ids = case
    kept = nms.suppress(boxes, scores, class_ids, iou, class_agnostic)
    again = nms.suppress(boxes[kept], scores[kept], class_ids[kept], iou, class_agnostic)
    assert again.tolist() == list(range(len(kept)))
