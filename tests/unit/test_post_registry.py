"""Which layout a model may claim: what contradicts its outputs or labels is refused, with the remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made.specs import model_spec

from stages.errors import UserError
from stages.model import HeadOptions, TensorSpec
from stages.postprocess.registry import LAYOUTS, fitting, head_for


def model_of(layout, *shapes, labels=80, dtype="float32", size=(640, 640)):
    outputs = tuple(TensorSpec(f"out{i}", shape, dtype) for i, shape in enumerate(shapes))
    return model_spec(
        width=size[0], height=size[1], layout=layout, labels=tuple(f"c{i}" for i in range(labels)), outputs=outputs
    )


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
    ("yolov6", (8400, 85), 80, (640, 640)),
    ("yolov8", (8400, 84), 80, (640, 640)),  # transposed
    ("yolov8", (84, 84), 80, (640, 640)),  # both would fit: channels first
    ("yolov8_rows", (84, 84), 80, (640, 640)),
    ("yolov8_rows", (8400, 84), 80, (640, 640)),
    ("yolov8_pose", (56, 8400), 1, (640, 640)),
    ("yolov8_pose", (8400, 56), 1, (640, 640)),
    ("yolov8_obb", (20, 21504), 15, (1024, 1024)),
    ("yolov8_obb", (21504, 20), 15, (1024, 1024)),
    ("rtdetr", (300, 84), 80, (640, 640)),
    ("nanodet", (3598, 112), 80, (416, 416)),  # 52² + 26² + 13² + 7²
    ("nanodet", (2125, 112), 80, (320, 320)),
    ("picodet", (2125, 112), 80, (320, 320)),
    ("classify", (1000,), 1000, (224, 224)),
    ("classify", (1000, 1, 1), 1000, (224, 224)),
]

GOOD_OF_SEVERAL = [
    ("yolov5_raw", [(255, 80, 80), (255, 40, 40), (255, 20, 20)], ["a", "b", "c"]),
    ("yolov5_raw", [(255, 20, 20), (255, 80, 80), (255, 40, 40)], ["a", "b", "c"]),
    ("yolov5_raw", [(3, 80, 80, 85), (3, 40, 40, 85), (3, 20, 20, 85)], ["a", "b", "c"]),
    ("yolov5_raw", [(3, 85, 80, 80), (3, 85, 40, 40), (3, 85, 20, 20)], ["a", "b", "c"]),
    ("yolov5_raw", [(255, 80, 80), (255, 40, 40), (255, 20, 20), (255, 10, 10)], ["a", "b", "c", "d"]),
    ("yolonas", [(8400, 4), (8400, 80)], ["pred_bboxes", "pred_scores"]),
    ("yolonas", [(8400, 80), (8400, 4)], ["graph2_scores", "graph2_boxes"]),
    ("rtdetr", [(300, 80), (300, 4)], ["pred_logits", "pred_boxes"]),
    ("yolov8_seg", [(116, 8400), (32, 160, 160)], ["output0", "output1"]),
    ("yolov8_seg", [(32, 160, 160), (8400, 116)], ["output1", "output0"]),
    ("picodet", [(n, c) for c in (80, 32) for n in (1600, 400, 100, 25)], list("abcdefgh")),
    ("nanodet", [(n, c) for n in (1600, 400, 100) for c in (80, 32)], list("abcdef")),
]


@pytest.mark.parametrize(("layout", "shapes", "names"), GOOD_OF_SEVERAL)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_model_of_several_outputs_gets_a_head(layout, shapes, names, dtype):
    size = (320, 320) if layout in {"picodet", "nanodet"} else (640, 640)
    model = model_of(layout, *shapes, dtype=dtype, size=size)
    outputs = tuple(TensorSpec(name, shape, dtype) for name, shape in zip(names, shapes, strict=True))
    model = replace(model, outputs=outputs)
    assert isinstance(head_for(model), LAYOUTS[layout])
    assert layout in fitting(model)


def test_anchors_of_the_description_go_before_the_known_ones():
    shapes = [(170, 80, 80), (170, 40, 40)]
    head = HeadOptions(anchors=((10, 14, 23, 27), (37, 58, 81, 82)))
    model = replace(model_of("yolov5_raw", *shapes), head=head)
    assert [each.tolist() for each in head_for(model).anchors] == [[[10, 14], [23, 27]], [[37, 58], [81, 82]]]


def test_which_of_two_outputs_of_four_columns_is_the_boxes_is_told_by_the_name():
    model = model_of("yolonas", (8400, 4), (8400, 4), labels=4)
    named = replace(model, outputs=(TensorSpec("cls", (8400, 4), "float32"), TensorSpec("boxes", (8400, 4), "float32")))
    assert head_for(named).places == (1, 0)


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
    ("yolov8_rows", [(84, 8400)], 80, ["8396 classes", "its shape fits: yolov8"]),
    ("yolov5", [(84, 8400)], 80, ["its shape fits: yolov8"]),
    ("yolov5_raw", [(255, 80, 80), (255, 40, 40)], 80, ["three and of four heads", "has 2 outputs", "`anchors`"]),
    ("yolov5_raw", [(255, 80, 80), (255, 40, 40), (255, 21, 21)], 80, ["out2 is 255x21x21", "640x640"]),
    ("yolov5_raw", [(255, 80, 80), (255, 40, 40), (255, 20, 20)], 79, ["79 labels", "out0 is 255x80x80"]),
    ("yolov5_raw", [(255, 80, 80), (255, 40, 40), (170, 20, 20)], 80, ["heads of 3, 3, 3 anchors", "have 3, 3, 2"]),
    ("yolov5_raw", [(255, 80, 80), (255, 80, 80), (255, 20, 20)], 80, ["anchors"]),
    ("yolov5_raw", [(25200, 85)], 80, ["out0 is 25200x85", "its shape fits: yolov5, yolov6"]),
    ("yolov6", [(8400, 84)], 80, ["79 classes"]),
    ("yolonas", [(8400, 84)], 80, ["two outputs", "out0 8400x84"]),
    ("yolonas", [(8400, 4), (8400, 80)], 79, ["79 labels", "out0 8400x4", "one label per class"]),
    ("yolonas", [(8400, 4), (8400, 4)], 4, ["'box' in it"]),
    ("rtdetr", [(300, 4), (300, 80)], 80, ["can't tell by its name", "out1", "`scores: logits`"]),
    ("rtdetr", [(300, 84)], 20, ["80 classes", "20 labels"]),
    ("nanodet", [(8500, 112)], 81, ["81 class scores", "8500x112"]),
    ("nanodet", [(8499, 112)], 80, ["8499 anchors", "8 16 32 64", "640x640", "`strides`"]),
    ("nanodet", [(6400, 80), (6400, 32), (1600, 80), (1600, 36)], 80, ["6400x80, 6400x32"]),
    ("yolov8_seg", [(116, 8400)], 80, ["prototypes", "116x8400"]),
    ("yolov8_seg", [(84, 8400), (32, 160, 160)], 80, ["48 classes", "32 for the mask"]),
    ("yolov8_pose", [(84, 8400)], 80, ["3 for each keypoint", "84x8400", "its shape fits: yolov8"]),
    ("yolov8_obb", [(84, 8400)], 80, ["79 classes", "1 for its angle"]),
    ("classify", [(1000, 2)], 1000, ["a score per class", "1000x2"]),
    ("classify", [(1000,)], 999, ["1000 classes", "999 labels"]),
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
    assert "ssd, yolov5, yolov5_raw, yolov6, yolov8, yolov8_rows" in str(caught.value)


def test_a_layout_like_none_gets_no_hint():
    with pytest.raises(UserError, match="known layouts") as caught:
        head_for(model_of("", (1917, 84)))
    assert "did you mean" not in str(caught.value)
