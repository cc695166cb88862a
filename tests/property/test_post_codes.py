"""Quantised outputs are read as the floats that they stand for, to the bit, in every layout."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.specs import model_spec

from stages.accelerators.canned_rows import canned_rows
from stages.errors import UserError
from stages.letterbox import geometry
from stages.model import HeadOptions, TensorSpec
from stages.postprocess.codes import Codes
from stages.postprocess.head import DetailedHead
from stages.postprocess.quantised import codes_of, floats_of, values_of_codes
from stages.postprocess.registry import LAYOUTS, head_for

CLASSES = 3
SHAPES = {
    "ssd": [(60, 7)],
    "yolov5": [(60, 8)],
    "yolov5_raw": [(24, 8, 8), (24, 4, 4), (24, 2, 2)],
    "yolov6": [(84, 8)],
    "yolov8": [(7, 84)],
    "yolov8_rows": [(84, 7)],
    "yolov8_seg": [(11, 84), (4, 16, 16)],
    "yolov8_pose": [(13, 84)],
    "yolov8_obb": [(8, 84)],
    "yolox": [(84, 8)],
    "yolonas": [(84, 4), (84, 3)],
    "rtdetr": [(84, 4), (84, 3)],
    "nanodet": [(85, 35)],
    "picodet": [*((n, 3) for n in (64, 16, 4, 1)), *((n, 32) for n in (64, 16, 4, 1))],
    "end2end": [(40, 6)],
    "classify": [(3,)],
}
GEOMETRY = geometry(128, 96, 64, 64, "center")


def coded_and_floats(layout, shapes, dtype, scale, zero_point, **options):
    outputs = tuple(TensorSpec(f"out{i}", shape, dtype, scale, zero_point) for i, shape in enumerate(shapes))
    coded = model_spec(layout=layout, outputs=outputs, head=HeadOptions(**options))
    floats = tuple(TensorSpec(t.name, t.shape, "float32") for t in outputs)
    return coded, dataclasses.replace(coded, outputs=floats)


def same(found, expected):
    assert found[1] == expected[1]
    for name in ("boxes", "scores", "class_ids", "rotated", "extra"):
        mine, theirs = getattr(found[0], name), getattr(expected[0], name)
        assert (mine is None) == (theirs is None)
        assert mine is None or (mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes())


def test_every_layout_is_tried():
    assert set(SHAPES) == set(LAYOUTS)


@pytest.mark.parametrize("layout", SHAPES)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_codes_are_read_as_what_they_stand_for(layout, data):
    dtype = data.draw(st.sampled_from(["uint8", "int8"]))
    limits = np.iinfo(dtype)
    zero_point = data.draw(st.integers(int(limits.min), int(limits.max)))
    scale = data.draw(st.sampled_from([1 / 256, 0.0039, 0.05, 0.25, 1.7]))
    confidence = data.draw(st.sampled_from([0, 0.001, 0.25, 0.4, 0.5, 0.9, 1]))
    classes = data.draw(st.sampled_from([None, (1,), (0, 2)]))
    scores = data.draw(st.sampled_from(["auto", "logits", "probabilities"]))
    if layout == "rtdetr" and scores == "auto":
        scores = "logits"
    coded, floats = coded_and_floats(layout, SHAPES[layout], dtype, scale, zero_point, scores=scores)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    raw = [rng.integers(limits.min, limits.max, shape, endpoint=True, dtype=dtype) for shape in SHAPES[layout]]
    if layout == "end2end":  # classes that there are
        raw[0][:, 5] = min(max(zero_point, int(limits.min)), int(limits.max))
    for each in raw:
        each.flags.writeable = False
    heads = head_for(coded), head_for(floats)
    values = [floats_of(t, each) for t, each in zip(coded.outputs, raw, strict=True)]
    if layout == "classify" and scores != "logits":
        values = [np.clip(each, 0, 1) for each in values]
        raw = [codes_of(t, each) for t, each in zip(coded.outputs, values, strict=True)]
        values = [floats_of(t, each) for t, each in zip(coded.outputs, raw, strict=True)]
        if max(each.max() for each in values) > 1 or min(each.min() for each in values) < 0:
            return
    assert heads[0].suppresses == heads[1].suppresses
    found = heads[0].candidates(raw, confidence, classes, 50)
    same(found, heads[1].candidates(values, confidence, classes, 50))
    assert isinstance(heads[0], DetailedHead) == isinstance(heads[1], DetailedHead)
    if isinstance(heads[0], DetailedHead) and isinstance(heads[1], DetailedHead) and len(found[0]):
        kept = np.arange(min(len(found[0]), 3))
        boxes = GEOMETRY.inverse(found[0].boxes[kept])
        mine = heads[0].details(raw, found[0], kept, boxes, GEOMETRY)
        theirs = heads[1].details(values, found[0], kept, boxes, GEOMETRY)
        assert mine.masks == theirs.masks
        for a, b in ((mine.keypoints, theirs.keypoints), (mine.corners, theirs.corners)):
            assert (a is None) == (b is None)
            assert a is None or a.tobytes() == b.tobytes()


@pytest.mark.parametrize("shape", [(3, 8, 8, 10), (3, 10, 8, 8)])
def test_codes_of_raw_heads_in_five_dimensions(shape):
    shapes = [shape, tuple(4 if n == 8 else n for n in shape), tuple(2 if n == 8 else n for n in shape)]
    outputs = tuple(TensorSpec(f"o{i}", each, "int8", 0.0625, 3) for i, each in enumerate(shapes))
    coded = model_spec(layout="yolov5_raw", labels=tuple("abcde"), outputs=outputs)
    raw = canned_rows(coded, 1, 3)
    floats = dataclasses.replace(coded, outputs=tuple(TensorSpec(t.name, t.shape, "float32") for t in outputs))
    found = head_for(coded).candidates(raw, 0.3)
    assert len(found[0]) > 3
    same(found, head_for(floats).candidates([floats_of(t, r) for t, r in zip(outputs, raw, strict=True)], 0.3))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_all_256_codes_are_worth_what_onnx_says(dtype):
    limits = np.iinfo(dtype)
    codes = np.arange(limits.min, limits.max + 1).astype(dtype)
    for zero_point, scale in ((0, 1 / 255), (int(limits.max), 0.5), (int(limits.min), 1e-3)):
        expected = (codes.astype(np.int32) - zero_point).astype(np.float32) * np.float32(scale)
        assert values_of_codes(dtype, scale, zero_point).tobytes() == expected.tobytes()
        tensor = TensorSpec("o", codes.shape, dtype, scale, zero_point)
        assert floats_of(tensor, codes).tobytes() == expected.tobytes()
        assert (codes_of(tensor, expected) == codes).all()
        for limit in (*expected[::17].tolist(), -1e9, 1e9):
            assert (Codes(codes, expected).above(limit) == (expected > np.float32(limit))).all()


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point", "says"),
    [
        ("float32", 0.1, 0, "is float32 and has a scale"),
        ("uint8", 0.0, 0, "has scale 0"),
        ("uint8", -1.0, 0, "has scale -1"),
        ("uint8", float("nan"), 0, "has scale nan"),
        ("uint8", float("inf"), 0, "has scale inf"),
        ("uint8", 1e-60, 0, "has scale 1e-60"),
        ("uint8", 0.1, -1, "zero_point -1; for uint8 it is 0 to 255"),
        ("int8", 0.1, 128, "zero_point 128"),
        ("uint8", None, 0, "give the output's `scale` and `zero_point`"),
    ],
)
def test_scales_that_cannot_be_right_are_refused(dtype, scale, zero_point, says):
    coded, _ = coded_and_floats("ssd", [(60, 7)], dtype, scale, zero_point)
    with pytest.raises(UserError) as caught:
        head_for(coded)
    assert says in str(caught.value)
