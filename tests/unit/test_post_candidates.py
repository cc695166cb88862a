"""What passes: thresholds to the last bit, ties, NaN of either sign, and bounded time for the worst tensors."""

from __future__ import annotations

import time

import numpy as np
import pytest
from made.specs import model_spec

from stages.errors import BadItem
from stages.model import TensorSpec
from stages.postprocess import candidates as steps
from stages.postprocess.nms import suppress
from stages.postprocess.registry import head_for

LAYOUTS = {"ssd": (1917, 84), "yolov5": (25200, 85), "yolov8": (84, 8400), "yolox": (8400, 85), "end2end": (300, 6)}
NEGATIVE_NAN = {"float16": np.array([0xFE00], np.uint16), "float32": np.array([0xFFC00000], np.uint32)}


def head_of(layout, shape=None, dtype="float32", labels=80):
    shape = shape or LAYOUTS[layout]
    return head_for(
        model_spec(
            width=640,
            height=640,
            layout=layout,
            labels=tuple(f"c{i}" for i in range(labels)),
            outputs=(TensorSpec("out", shape, dtype),),
        )
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_integer_threshold_agrees_with_float32_for_every_float16_value(dtype):
    values = np.arange(0x10000, dtype=np.uint16).view(np.float16).astype(dtype)
    for confidence in (0.0, -0.0, 1e-9, 6e-8, 0.1, 0.25, 0.3333, 0.4, 0.45, 0.5, 0.999, 0.9999, 1.0):
        with np.errstate(invalid="ignore"):
            expected = (values.astype(np.float32) > np.float32(confidence)) & np.isfinite(values)
        assert steps.above(values, confidence).tolist() == np.flatnonzero(expected).tolist()


@pytest.mark.parametrize("layout", ["ssd", "yolov5"])
def test_a_score_equal_to_the_confidence_does_not_pass(layout):
    columns = [8, 8, 4, 4, 1, 0.5] if layout == "yolov5" else [8, 8, 4, 4, 0.5]
    raw = np.array([columns], np.float32)
    head = head_of(layout, raw.shape, labels=1)
    assert len(head.candidates([raw], 0.5)[0]) == 0
    assert len(head.candidates([raw], np.nextafter(0.5, 0, dtype=np.float32))[0]) == 1


def test_rows_of_zeros_that_pad_an_end_to_end_output_are_no_objects_at_confidence_0():
    assert len(head_of("end2end").candidates([np.zeros((300, 6), np.float32)], 0.0)[0]) == 0


def test_of_equal_class_scores_the_lowest_class_wins_and_the_filter_looks_at_it_alone():
    raw = np.array([[8, 8, 4, 4, 0.1, 0.9, 0.9]], np.float32)
    head = head_of("ssd", raw.shape, labels=3)
    assert head.candidates([raw], 0.5)[0].class_ids.tolist() == [1]
    assert len(head.candidates([raw], 0.5, (1,))[0]) == 1
    assert len(head.candidates([raw], 0.5, (2,))[0]) == 0
    assert len(head.candidates([raw], 0.5, ())[0]) == 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("layout", ["ssd", "yolov5", "yolov8"])
def test_a_nan_with_its_sign_bit_set_drops_the_anchor_like_any_nan(layout, dtype):
    columns = 7 if layout == "yolov5" else 6
    raw = np.full((3, columns), 0.5, dtype)
    raw[:, :4] = 8
    raw[0, -1] = np.nan
    raw[1, -1:] = NEGATIVE_NAN[dtype].view(dtype)
    raw = np.ascontiguousarray(raw.T) if layout == "yolov8" else raw
    found, _ = head_of(layout, raw.shape, dtype, labels=2).candidates([raw], 0.1)
    assert len(found) == 1


def test_top_k_keeps_the_best_and_of_equals_the_first():
    scores = np.array([0.5, 0.9, 0.5, 0.7, 0.5, 0.5], np.float32)
    boxes = np.tile(np.array([0, 0, 1, 1], np.float32), (6, 1)) + np.arange(6, dtype=np.float32)[:, None]
    found, cut = steps.finish(boxes, scores, np.arange(6), 4)
    assert (found.class_ids.tolist(), cut) == ([0, 1, 2, 3], 2)
    found, cut = steps.finish(boxes, scores, np.arange(6), 0)
    assert (len(found), cut) == (0, 6)


@pytest.mark.parametrize("bad", [(np.nan, 0, 1, 1), (0, 0, np.inf, 1), (-np.inf, 0, 1, 1), (2, 0, 1, 1), (0, 1, 1, 1)])
def test_boxes_that_are_not_finite_or_have_no_area_are_dropped_and_not_counted_as_cut(bad):
    boxes = np.array([bad, (0, 0, 1, 1)], np.float32)
    found, cut = steps.finish(boxes, np.array([0.9, 0.8], np.float32), np.array([3, 4]), 1)
    assert (found.class_ids.tolist(), cut) == ([4], 0)


@pytest.mark.parametrize("number", [80.0, -1.0, 0.5, 1e30])
def test_an_end_to_end_class_without_label_fails_the_frame_instead_of_naming_a_wrong_class(number):
    raw = np.zeros((300, 6), np.float32)
    raw[7] = [1, 1, 5, 5, 0.9, number]
    with pytest.raises(BadItem, match="layout and labels"):
        head_of("end2end").candidates([raw], 0.4)


DEGENERATE = {
    "nan": lambda raw: np.full_like(raw, np.nan),
    "negative nan": lambda raw: np.full_like(raw, -np.nan),
    "inf": lambda raw: np.full_like(raw, np.inf),
    "largest": lambda raw: np.full_like(raw, np.finfo(raw.dtype).max),
    "zero": np.zeros_like,
    "minus one": lambda raw: np.full_like(raw, -1),
    "all above with equal scores": lambda raw: np.full_like(raw, 0.9),
    "all above": lambda raw: np.random.default_rng(0).uniform(0.7, 1, raw.shape).astype(raw.dtype),
    "any bits": lambda raw: np.frombuffer(np.random.default_rng(0).bytes(raw.nbytes), raw.dtype).reshape(raw.shape),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_tensors_end_in_bounded_time_with_the_same_result_each_time(kind, layout, dtype):
    with np.errstate(over="ignore"):
        raw = DEGENERATE[kind](np.zeros(LAYOUTS[layout], dtype))
    if layout == "end2end":
        raw = raw.copy()
        raw[:, 5] = 3
    head = head_of(layout, dtype=dtype)
    results = []
    start = time.thread_time()
    for _ in range(2):
        found, cut = head.candidates([raw], 0.4)
        kept = suppress(found.boxes, found.scores, found.class_ids, 0.45, class_agnostic=False)
        results.append((found.boxes.tobytes(), found.scores.tobytes(), kept.tolist(), cut))
    assert time.thread_time() - start < 1  # 0.04 s measured for the worst; the bound is for slow machines
    assert results[0] == results[1]
    assert len(found) <= steps.TOP_K
    assert np.isfinite(found.boxes).all()
    assert np.isfinite(found.scores).all()
