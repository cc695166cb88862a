"""A task of several frames gives, to the bit, what tasks of one frame each give, whatever the frames and cameras."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.specs import model_spec
from searching import examples

from stages.camera import CameraSpec
from stages.frames import HeapRing
from stages.messages import PostItem, PostTask
from stages.model import HeadOptions, TensorSpec, output_slot_bytes, output_views
from stages.postprocess import batched, nms
from stages.postprocess.quantised import codes_of
from stages.postprocess.registry import LAYOUTS
from stages.postprocess.stage import Postprocess

ROWS, CLASSES, SIDE = 6, 3, 32
SHAPES = {
    "ssd": [(60, 7)],
    "yolov5": [(60, 8)],
    "yolov5_raw": [(24, 4, 4), (24, 2, 2), (24, 1, 1)],
    "yolov6": [(60, 8)],
    "yolov8": [(7, 60)],
    "yolov8_rows": [(60, 7)],
    "yolov8_seg": [(11, 60), (4, 8, 8)],
    "yolov8_pose": [(13, 60)],
    "yolov8_obb": [(8, 60)],
    "yolox": [(21, 8)],
    "yolonas": [(60, 4), (60, 3)],
    "rtdetr": [(60, 7)],
    "nanodet": [(21, 3 + 16)],
    "picodet": [(16, 3), (16, 16), (4, 3), (4, 16), (1, 3), (1, 16)],
    "end2end": [(60, 6)],
    "classify": [(3,)],
}
CAMERAS = [
    CameraSpec("plain", "/clip", "m"),
    CameraSpec("alike", "/clip", "m"),
    CameraSpec("strict", "/clip", "m", confidence=0.8, iou=0.2, max_objects=2),
    CameraSpec("agnostic", "/clip", "m", class_agnostic=True, roi=(0.2, 0.1, 0.9, 1.0)),
    CameraSpec("chosen", "/clip", "m", classes=(0, 2)),
    CameraSpec("groups", "/clip", "m", nms_groups=((0, 2),), confidence=0.2),
]


def test_every_layout_is_here():
    assert set(SHAPES) == set(LAYOUTS)


def model_of(layout, dtype):
    scale = (None, 0)
    if dtype == "codes":  # enough of them for boxes and for scores
        dtype, scale = ("int8", (0.05, 0)) if layout == "yolov5_raw" else ("uint8", (1 / 8, 0))
    return model_spec(
        width=SIDE,
        height=SIDE,
        layout=layout,
        labels=tuple(f"c{i}" for i in range(CLASSES)),
        outputs=tuple(TensorSpec(f"out{i}", shape, dtype, *scale) for i, shape in enumerate(SHAPES[layout])),
        head=HeadOptions(strides=(8, 16, 32)) if layout in ("nanodet", "picodet") else HeadOptions(),
    )


def values_of(rng, layout, shape, kind):
    """Numbers (*shape) that make candidates, many or none."""
    raw = rng.uniform(0, 1, shape)
    if kind == "none":
        raw *= 0.1
    if layout == "end2end":
        raw[:, :2], raw[:, 2:4], raw[:, 5] = raw[:, :2] * 20, raw[:, 2:4] * 20 + 5, rng.integers(0, CLASSES, shape[0])
        return raw
    if layout == "yolov5_raw":
        return rng.normal(-4 if kind == "none" else 1, 2, shape)
    if layout in ("rtdetr", "nanodet", "picodet", "classify", "yolox") or len(shape) == 3:
        return raw
    boxes = raw[:4] if shape[1] == 60 and shape[0] < 60 else raw[:, :4]
    if layout != "yolonas" or shape[1] == 4:
        boxes *= SIDE
    scores = raw[4:7] if shape[0] < 60 else raw[:, 4:]
    if kind == "some":
        scores[rng.random(scores.shape) < 0.6] *= 0.1
    return raw


def write(ring, model, rng, kinds):
    views = output_views(model, ring.begin_write(0), ROWS, ROWS)
    for row, kind in enumerate(kinds):
        for tensor, view in zip(model.outputs, views, strict=True):
            if kind == "any bits":
                view[row] = np.frombuffer(rng.bytes(view[row].nbytes), view.dtype).reshape(view[row].shape)
            else:
                with np.errstate(invalid="ignore"):
                    view[row] = codes_of(tensor, values_of(rng, model.layout, tensor.shape, kind))
    return ring.end_write(0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "codes"])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=examples(7), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.lists(st.sampled_from(["none", "some", "many", "any bits"]), min_size=ROWS, max_size=ROWS),
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True),
    cameras=st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5]), min_size=ROWS, max_size=ROWS),
    sizes=st.lists(st.sampled_from([(64, 48), (64, 48), (31, 77)]), min_size=ROWS, max_size=ROWS),
    limits=st.sampled_from([(8000, 1 << 17, 64), (8000, 60, 64), (8000, 60, 0), (20, 1 << 17, 1)]),
)
def test_a_task_of_many_frames_is_as_many_tasks_of_one(layout, dtype, seed, kinds, rows, cameras, sizes, limits):
    model = model_of(layout, dtype)
    ring = HeapRing("outputs/m", 1, output_slot_bytes(model, ROWS))
    generation = write(ring, model, np.random.default_rng(seed), kinds)
    stage = Postprocess([model], CAMERAS, {"m": ring}, {"m": ROWS}, lambda: 0)
    stage.open()
    items = [PostItem(row, CAMERAS[cameras[row]].name, *sizes[row]) for row in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched, "TOGETHER", limits[0])
        patch.setattr(nms, "PAIRS", limits[1])
        patch.setattr(nms, "PAIRS_OF_A_BOX", limits[2])
        (together,) = stage.step(PostTask(1, "m", 0, generation, items))
    alone = [stage.step(PostTask(1, "m", 0, generation, [item]))[0] for item in items]
    assert together.objects == [objects for done in alone for objects in done.objects]
    assert together.failed == [failed for done in alone for failed in done.failed]
    assert len(together.objects) + len(together.failed) == len(items)
