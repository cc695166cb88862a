"""Optional fields of objects on their way through the stage and to subscribers, groups of classes, batches."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.specs import model_spec
from oracles.naive_nms import naive_suppress

from pipeline.runtime.camera_line import CameraLine
from stages.camera import CameraSpec
from stages.errors import UserError
from stages.frames import HeapRing
from stages.letterbox import geometry
from stages.messages import DetectedObject, Mask, Objects, PostItem, PostTask
from stages.model import HeadOptions, ModelSpec, TensorSpec, output_slot_bytes, output_views
from stages.postprocess.nms import group_ids, suppress
from stages.postprocess.stage import Postprocess

WIDTH = HEIGHT = 64
CLASSES = 3
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "ssd": [(40, 7)],
    "yolov5": [(40, 8)],
    "yolov5_raw": [(24, 8, 8), (24, 4, 4), (24, 2, 2)],
    "yolov6": [(40, 8)],
    "yolov8": [(7, 40)],
    "yolov8_rows": [(40, 7)],
    "yolov8_seg": [(39, 90), (32, 16, 16)],
    "yolov8_pose": [(58, 90)],
    "yolov8_obb": [(8, 40)],
    "yolox": [(84, 8)],
    "yolonas": [(40, 4), (40, 3)],
    "rtdetr": [(40, 7)],
    "nanodet": [(85, 35)],
    "picodet": [(64, 3), (16, 3), (4, 3), (64, 32), (16, 32), (4, 32)],
    "classify": [(3,)],
}


def model_of(layout: str, dtype: str = "float32", **changes: Any) -> ModelSpec:
    outputs = tuple(TensorSpec(f"out{i}", shape, dtype) for i, shape in enumerate(SHAPES[layout]))
    return model_spec(
        width=WIDTH,
        height=HEIGHT,
        layout=layout,
        labels=tuple(f"c{i}" for i in range(CLASSES)),
        outputs=outputs,
        **changes,
    )


def posted(model: ModelSpec, frames: list[list[np.ndarray]], max_batch: int, **settings: Any) -> list[Objects]:
    """What the stage makes of frames that share one slot."""
    ring = HeapRing("outputs/m", 1, output_slot_bytes(model, max_batch))
    views = output_views(model, ring.begin_write(0), max_batch, max_batch)
    for row, frame in enumerate(frames):
        for view, raw in zip(views, frame, strict=True):
            view[row] = raw
    generation = ring.end_write(0)
    stage = Postprocess(
        [model], [CameraSpec("cam", "/clip", "m", **settings)], {"m": ring}, {"m": max_batch}, lambda: 0
    )
    stage.open()
    items = [PostItem(i, "cam", 200, 120) for i in range(len(frames))]
    (done,) = stage.step(PostTask(1, "m", 0, generation, items))
    assert done.failed == []
    return done.objects


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", SHAPES)
def test_a_frame_gives_the_same_alone_and_in_a_batch_of_any_size(layout: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    model = model_of(layout, dtype)
    low, high = (-3, 3) if layout in {"yolov5_raw", "yolox"} else (0, 1)

    def numbers(shape: tuple[int, ...]) -> np.ndarray:
        raw = rng.uniform(low, high, shape)
        if layout == "yolox":
            raw[:, 4:] = rng.random((shape[0], 4))
        elif layout == "yolonas" and shape[1] == 4:
            raw[:, 2:] += 20
        elif layout.startswith("yolov8") and layout != "yolov8_rows" and len(shape) == 2:
            raw[:4] *= 40
        elif len(shape) == 2 and layout in {"ssd", "yolov5", "yolov6", "yolov8_rows"}:
            raw[:, :4] *= 40
        return raw.astype(dtype)

    frames = [[numbers(shape) for shape in SHAPES[layout]] for _ in range(8)]
    alone = [posted(model, [frame], 1, confidence=0.3)[0] for frame in frames]
    assert sum(len(each.scores) for each in alone) > 0
    for n in range(1, 9):
        together = posted(model, frames[:n], 8, confidence=0.3)
        assert together == [msgspec.structs.replace(alone[i], index=i) for i in range(n)]


def test_what_only_some_models_find_is_left_out_of_the_message_of_others() -> None:
    found = DetectedObject(box=[1.0, 2.0, 3.0, 4.0], score=0.5, class_id=2, label="car")
    assert msgspec.json.encode(found) == b'{"box":[1.0,2.0,3.0,4.0],"score":0.5,"class_id":2,"label":"car"}'
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found)) == {
        "box": [1.0, 2.0, 3.0, 4.0],
        "score": 0.5,
        "class_id": 2,
        "label": "car",
    }


def test_optional_fields_survive_the_wire() -> None:
    found = DetectedObject(
        box=[1.0, 2.0, 3.0, 4.0],
        score=0.5,
        class_id=2,
        label="car",
        keypoints=[[1.0, 2.0, 0.5]],
        corners=[[0.0, 1.0]] * 4,
        mask=Mask(x=1, y=2, width=2, height=2, counts=[1, 3]),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=DetectedObject) == found
    assert json.loads(msgspec.json.encode(found))["mask"] == {"x": 1, "y": 2, "width": 2, "height": 2, "counts": [1, 3]}


def line(layout: str) -> CameraLine:
    return CameraLine(CameraSpec("cam", "/clip", "m"), model_of(layout), 4, trace=False)


def test_keypoints_are_rounded_like_boxes_and_scores() -> None:
    model = model_of("yolov8_pose")
    raw = np.zeros((58, 90), np.float32)
    raw[:7, 4] = 32, 32, 20, 20, 0, 0.9, 0
    raw[7:, 4] = np.tile([10.123456, 20.654321, 0.123456], 17)
    (objects,) = posted(model, [[raw]], 1)
    (found,) = line("yolov8_pose")._objects(objects)
    assert (
        found.keypoints == [[31.64, 24.17, 0.1235]] * 17
    )  # 64 px across are 200, 38 px down (below a border of 13) are 120
    assert found.corners is None
    assert found.mask is None


def test_masks_and_corners_stay_with_their_objects_when_some_are_cut() -> None:
    model = model_of("yolov8_seg")
    rows = np.zeros((39, 90), np.float32)
    rows[:4, :3] = np.array([[16, 32, 12, 12], [32, 32, 12, 12], [48, 32, 12, 12]]).T
    rows[4, :3] = 0.5, 0.9, 0.7
    rows[7, :3] = 1, -1, 1
    prototypes = np.zeros((32, 16, 16), np.float32)
    prototypes[0] = 1
    (objects,) = posted(model, [[rows, prototypes]], 1, max_objects=2, confidence=0.4)
    assert [sum(mask.counts[1::2]) > 0 for mask in objects.masks] == [False, True]
    assert objects.cut_after == 1
    found = line("yolov8_seg")._objects(objects)
    assert [item.mask for item in found] == objects.masks


def test_no_object_no_details() -> None:
    raw = [np.zeros(shape, np.float32) for shape in SHAPES["yolov8_seg"]]
    (objects,) = posted(model_of("yolov8_seg"), [raw], 1)
    assert (objects.scores, objects.masks, objects.keypoints, objects.corners) == (b"", [], b"", b"")


def test_oriented_boxes_suppress_by_their_own_overlap() -> None:
    """Two crossing bars of which the enclosing boxes are the same, but not the bars."""
    raw = np.zeros((8, 40), np.float32)
    raw[:, 1] = 32, 32, 40, 4, 0.9, 0, 0, math.pi / 4
    raw[:, 2] = 32, 32, 40, 4, 0.8, 0, 0, -math.pi / 4
    raw[:, 3] = 32, 32, 40, 4.2, 0.7, 0, 0, math.pi / 4
    (objects,) = posted(model_of("yolov8_obb"), [[raw]], 1)
    assert np.frombuffer(objects.scores, np.float32).tolist() == pytest.approx([0.9, 0.8])
    corners = np.frombuffer(objects.corners, np.float32).reshape(2, 4, 2)
    scale = 200 / 64
    np.testing.assert_allclose(corners.mean(axis=1), [[100, 60]] * 2, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(corners[:, 0] - corners[:, 1], axis=1), 4 * scale, rtol=0.01)
    np.testing.assert_allclose(np.linalg.norm(corners[:, 1] - corners[:, 2], axis=1), 40 * scale, rtol=0.01)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([[[0, 1]], [[0, 2], [1, 3]], [[0, 1, 2, 3]], []]))
def test_groups_suppress_as_if_they_were_one_class(seed: int, groups: list[list[int]]) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 24))
    boxes = np.concatenate((low := rng.random((n, 2)) * 30, low + rng.random((n, 2)) * 30 + 1), 1).astype(np.float32)
    scores, ids = rng.random(n, np.float32), rng.integers(0, 5, n)
    group_of = {c: min(group) for group in groups for c in group}
    kept = suppress(boxes, scores, group_ids(groups, 5)[ids], 0.3, False)
    assert kept.tolist() == naive_suppress(boxes, scores, [group_of.get(c, c) for c in ids.tolist()], 0.3, False)


@pytest.mark.parametrize(
    ("groups", "words"), [(((0, 3),), "nms_groups has class 3"), (((0, 1), (1, 2)), "a class in two groups")]
)
def test_groups_that_cannot_be_right_are_refused(groups: Any, words: str) -> None:
    camera = CameraSpec("cam", "/clip", "m", nms_groups=groups)
    stage = Postprocess([model_of("ssd")], [camera], {}, {}, lambda: 0)
    with pytest.raises(UserError, match=words):
        stage.open()


def test_a_picture_that_was_not_enlarged_gets_its_boxes_back_unscaled() -> None:
    model = model_of("ssd", scale_up=False)
    ring = HeapRing("outputs/m", 1, output_slot_bytes(model, 1))
    (view,) = output_views(model, ring.begin_write(0), 1, 1)
    view[0] = 0
    lies = geometry(20, 10, WIDTH, HEIGHT, "center", scale_up=False)
    assert (lies.left, lies.top, lies.width, lies.height) == (22, 27, 20, 10)
    view[0, 3] = 22 + 6, 27 + 5, 4, 6, 0.9, 0, 0
    generation = ring.end_write(0)
    stage = Postprocess([model], [CameraSpec("cam", "/clip", "m")], {"m": ring}, {"m": 1}, lambda: 0)
    stage.open()
    (done,) = stage.step(PostTask(1, "m", 0, generation, [PostItem(0, "cam", 20, 10)]))
    assert np.frombuffer(done.objects[0].boxes, np.float32).tolist() == [4, 2, 8, 8]


def test_scores_that_are_logits_by_mistake_are_told() -> None:
    model = model_of("classify")
    ring = HeapRing("outputs/m", 1, output_slot_bytes(model, 1))
    (view,) = output_views(model, ring.begin_write(0), 1, 1)
    view[0] = 3.5, -2, 8
    generation = ring.end_write(0)
    stage = Postprocess([model], [CameraSpec("cam", "/clip", "m")], {"m": ring}, {"m": 1}, lambda: 0)
    stage.open()
    (done,) = stage.step(PostTask(1, "m", 0, generation, [PostItem(0, "cam", 20, 10)]))
    (failed,) = done.failed
    assert "`scores: logits`" in failed.detail
    assert HeadOptions().scores == "auto"
