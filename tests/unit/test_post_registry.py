"""Which layout a model may claim: what contradicts its outputs or labels is refused, with the remedy."""

from __future__ import annotations

import pytest

from stages.errors import UserError
from stages.model import ModelSpec, TensorSpec
from stages.postprocess.registry import LAYOUTS, fitting, head_for


def model_of(layout, *shapes, labels=80, dtype="float32", size=(640, 640)):
    outputs = tuple(TensorSpec(f"out{i}", shape, dtype) for i, shape in enumerate(shapes))
    return ModelSpec(
        name="m", path="/m.onnx", sha256="", width=size[0], height=size[1], channels="rgb", input_layout="nchw",
        input_dtype="float32", mean=(0, 0, 0), std=(1, 1, 1), pad_value=114, placement="center", layout=layout,
        labels=tuple(f"c{i}" for i in range(labels)), outputs=outputs, fixed_batch=None, confidence=0.4, iou=0.45,
    )  # fmt: skip


GOOD = [
    ("ssd", (1917, 84), 80, (300, 300)),
    ("ssd", (10, 5), 1, (300, 300)),
    ("yolov5", (25200, 85), 80, (640, 640)),
    ("yolov5", (8400, 6), 1, (640, 640)),  # YOLOX or YOLOv6 decoded in the file
    ("yolov8", (84, 8400), 80, (640, 640)),
    ("yolov8", (1004, 8400), 1000, (640, 640)),
    ("yolox", (3549, 85), 80, (416, 416)),
    ("yolox", (42, 6), 1, (64, 32)),
    ("end2end", (300, 6), 80, (640, 640)),
]


@pytest.mark.parametrize(("layout", "shape", "labels", "size"), GOOD)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_model_that_fits_its_layout_gets_a_head(layout, shape, labels, size, dtype):
    model = model_of(layout, shape, labels=labels, size=size, dtype=dtype)
    assert isinstance(head_for(model), LAYOUTS[layout])
    assert layout in fitting(model)


BAD = [
    # layout, shapes, labels, what the message must contain
    ("ssd", [(1917, 84)], 79, ["1917x84", "80 classes", "79 labels", "one label per class"]),
    ("ssd", [(1917, 84)], 0, ["0 labels"]),
    ("ssd", [(3,)], 80, ["2 dimensions", "3"]),
    ("ssd", [(1, 1917, 84)], 80, ["1x1917x84"]),
    ("ssd", [(1917, 80), (1917, 4)], 80, ["one output", "2 (out0, out1)"]),
    ("ssd", [], 80, ["one output", "none"]),
    ("yolov8", [(25200, 85)], 80, ["25200x85", "its shape fits: yolov5"]),
    ("yolov8", [(8400, 84)], 80, ["its shape fits: ssd"]),
    ("yolov5", [(84, 8400)], 80, ["its shape fits: yolov8"]),
    ("yolov5", [(25200, 4)], 80, ["0 classes"]),
    ("yolox", [(25200, 85)], 80, ["8400 anchors", "640x640", "has 25200", "its shape fits: yolov5"]),
    ("end2end", [(84, 8400)], 80, ["rows of 6", "its shape fits: yolov8"]),
    ("end2end", [(300, 6)], 0, ["no labels"]),
]


@pytest.mark.parametrize(("layout", "shapes", "labels", "words"), BAD)
def test_a_contradiction_between_layout_and_outputs_is_refused_with_the_remedy(layout, shapes, labels, words):
    with pytest.raises(UserError) as caught:
        head_for(model_of(layout, *shapes, labels=labels))
    (problem,) = caught.value.problems
    for word in ["model m", *words]:
        assert word in problem


def test_integer_outputs_are_refused():
    with pytest.raises(UserError, match="out0 is uint8"):
        head_for(model_of("ssd", (1917, 84), dtype="uint8"))


@pytest.mark.parametrize(("name", "hint"), [("yolov88", "yolov8"), ("YOLOX", "yolox"), ("endtoend", "end2end")])
def test_a_misspelt_layout_is_told_the_nearest_and_all(name, hint):
    with pytest.raises(UserError) as caught:
        head_for(model_of(name, (1917, 84)))
    assert f"did you mean {hint}?" in str(caught.value)
    assert "ssd, yolov5, yolov8, yolox, end2end" in str(caught.value)


def test_a_layout_like_none_gets_no_hint():
    with pytest.raises(UserError, match="known layouts") as caught:
        head_for(model_of("", (1917, 84)))
    assert "did you mean" not in str(caught.value)
