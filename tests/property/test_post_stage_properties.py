"""Whatever bits a slot holds: a task gets its answer, and what is published is finite and inside the picture."""

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
from stages.model import TensorSpec, output_slot_bytes
from stages.postprocess.stage import Postprocess

SHAPES = {"ssd": (40, 7), "yolov5": (40, 8), "yolov8": (7, 40), "yolox": (42, 8), "end2end": (40, 6)}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", SHAPES)
@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["any bits", "plausible"]),
    placement=st.sampled_from(["stretch", "center", "top_left"]),
    width=st.integers(1, 5000),
    height=st.integers(1, 5000),
    roi=st.none() | st.tuples(*[st.floats(0, 0.5)] * 2, *[st.floats(0.5, 1)] * 2),
    agnostic=st.booleans(),
    max_objects=st.integers(1, 20),
)
def test_published_boxes_are_finite_and_inside_the_picture(
    layout, dtype, seed, kind, placement, width, height, roi, agnostic, max_objects
):
    model = model_spec(
        height=32, placement=placement, layout=layout, outputs=(TensorSpec("out", SHAPES[layout], dtype),)
    )
    rng = np.random.default_rng(seed)
    ring = HeapRing("outputs/m", 1, output_slot_bytes(model, 2))
    raw = rng.normal(0.5, 0.5, (2, *SHAPES[layout]))
    boxes = raw[:, :4] if layout == "yolov8" else raw[:, :, :4]
    boxes *= 2 if layout == "yolox" else 64
    plausible = raw.astype(dtype).tobytes()
    data = rng.bytes(len(plausible)) if kind == "any bits" else plausible
    ring.begin_write(0)[: len(data)] = data
    generation = ring.end_write(0)

    camera = CameraSpec("cam", "/clip", "m", roi=roi, confidence=0.1, class_agnostic=agnostic, max_objects=max_objects)
    stage = Postprocess([model], [camera], {"m": ring}, {"m": 2}, lambda: 0)
    stage.open()
    task = PostTask(1, "m", 0, generation, [PostItem(i, "cam", width, height) for i in range(2)])
    (done,) = stage.step(task)
    assert stage.step(task) == [done]

    assert sorted([o.index for o in done.objects] + [f.index for f in done.failed]) == [0, 1]
    assert {f.cause for f in done.failed} <= {"post_failed"}
    for found in done.objects:
        boxes = np.frombuffer(found.boxes, "<f4").reshape(-1, 4)
        scores = np.frombuffer(found.scores, "<f4")
        ids = np.frombuffer(found.class_ids, "<i4")
        assert len(boxes) == len(scores) == len(ids) <= max_objects
        assert np.isfinite(boxes).all()
        assert ((boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3])).all()
        assert ((boxes >= 0) & (boxes <= [width, height, width, height])).all()
        assert ((scores > np.float32(0.1)) & (scores <= 1)).all()
        assert (np.diff(scores) <= 0).all()
        assert ((ids >= 0) & (ids < 3)).all()
