"""Real model files on a real picture: the way from pixels to objects, and the naive reading of the same output."""

from __future__ import annotations

import cv2
import numpy as np
import onnxruntime
import pytest
from made.specs import model_spec
from oracles import naive_heads
from oracles.naive_nms import naive_suppress

from stages.camera import CameraSpec
from stages.frames import HeapRing
from stages.letterbox import geometry, place
from stages.messages import PostItem, PostTask
from stages.model import TensorSpec, output_slot_bytes, output_views
from stages.postprocess.stage import Postprocess

PERSON, BUS = 0, 5
# file, layout, size, channels, value of 255, placement, output shape
FILES = [
    ("yolox_nano", "yolox", 416, "bgr", 255, "top_left", (3549, 85)),
    ("yolov5n_concat_fp16", "yolov5", 640, "rgb", 1, "center", (25200, 85)),
    ("yolov8n_int8", "yolov8", 640, "rgb", 1, "center", (84, 8400)),
    ("yolo26n_end2end_int8", "end2end", 640, "rgb", 1, "center", (300, 6)),
]


@pytest.fixture(scope="module", params=FILES, ids=[f[0] for f in FILES])
def ran(request, shared_dir):
    """(model, raw output of bus.jpg, width and height of the picture)."""
    name, layout, size, channels, white, placement, shape = request.param
    path = shared_dir / "models" / f"{name}.onnx"
    picture = shared_dir / "images" / "bus.jpg"
    if not (path.is_file() and picture.is_file()):
        pytest.skip(f"needs models/{path.name} and images/{picture.name} in the data folder")
    image = cv2.imread(str(picture))
    height, width = image.shape[:2]
    if channels == "rgb":
        image = np.ascontiguousarray(image[:, :, ::-1])
    frame = np.empty((size, size, 3), np.uint8)
    place(image, geometry(width, height, size, size, placement), 114, frame)

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (wanted,) = session.get_inputs()
    dtype = "float16" if wanted.type == "tensor(float16)" else "float32"
    pixels = (frame.astype(np.float32) * (white / 255)).transpose(2, 0, 1)[None].astype(dtype)
    (raw,) = session.run(None, {wanted.name: pixels})
    model = model_spec(
        name=name,
        path=str(path),
        width=size,
        height=size,
        channels=channels,
        input_dtype=dtype,
        std=(255 / white,) * 3,
        placement=placement,
        layout=layout,
        labels=tuple(f"class {i}" for i in range(80)),
        outputs=(TensorSpec("out", shape, raw.dtype.name),),
    )
    return model, raw[0], width, height


def objects_of(model, raw, width, height, **settings):
    """Boxes, scores and classes that the stage gives; the row is the second of a slot for three."""
    ring = HeapRing("outputs/m", 1, output_slot_bytes(model, 3))
    (view,) = output_views(model, ring.begin_write(0), 3, 3)
    view[1] = raw
    generation = ring.end_write(0)
    camera = CameraSpec("cam", "/clip", model.name, **settings)
    stage = Postprocess([model], [camera], {model.name: ring}, {model.name: 3}, lambda: 0)
    stage.open()
    (done,) = stage.step(PostTask(1, model.name, 0, generation, [PostItem(1, "cam", width, height)]))
    assert done.failed == []
    (found,) = done.objects
    return (
        np.frombuffer(found.boxes, "<f4").reshape(-1, 4),
        np.frombuffer(found.scores, "<f4"),
        np.frombuffer(found.class_ids, "<i4"),
    )


def iou_of(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    inter = max(width, 0) * max(height, 0)
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)


def test_it_finds_one_bus_and_at_least_three_people(ran):
    boxes, _, ids = objects_of(*ran)
    assert (ids == BUS).sum() == 1
    assert (ids == PERSON).sum() >= 3
    assert max(iou_of(box, (51, 397, 213, 906)) for box in boxes[ids == PERSON]) > 0.8


def test_a_class_filter_gives_those_objects_and_no_others(ran):
    boxes, scores, ids = objects_of(*ran)
    only_boxes, only_scores, only_ids = objects_of(*ran, classes=(BUS,))
    assert only_ids.tolist() == [BUS]
    np.testing.assert_array_equal(only_boxes, boxes[ids == BUS])
    np.testing.assert_array_equal(only_scores, scores[ids == BUS])


@pytest.mark.parametrize("confidence", [0.05, 0.4])
def test_objects_are_those_of_the_naive_reading_of_the_same_output(ran, confidence):
    model, raw, width, height = ran
    boxes, scores, ids = objects_of(*ran, confidence=confidence, max_objects=1000)
    if model.layout == "yolox":
        found, _ = naive_heads.yolox(raw, model.width, model.height, confidence)
    else:
        found, _ = getattr(naive_heads, model.layout)(raw, confidence)
    if model.layout == "end2end":
        found.sort(key=lambda c: -c[4])
    else:
        columns = [list(column) for column in zip(*found, strict=True)]
        kept = naive_suppress([c[:4] for c in found], columns[4], columns[5], 0.45, False)
        found = [found[i] for i in kept]

    # back to the picture by the definition of the placement, worked out by hand
    scale = min(model.width / width, model.height / height)
    left = (model.width - round(width * scale)) // 2 if model.placement == "center" else 0
    top = (model.height - round(height * scale)) // 2 if model.placement == "center" else 0
    expected = [
        [min(max((float(v) - (left, top)[i % 2]) / scale, 0), (width, height)[i % 2]) for i, v in enumerate(c[:4])]
        for c in found
    ]
    assert len(boxes) == len(found) > 3
    np.testing.assert_allclose(scores, [min(float(c[4]), 1) for c in found], rtol=1e-6)
    assert ids.tolist() == [c[5] for c in found]
    np.testing.assert_allclose(boxes, expected, atol=0.01)
