"""The figures of a moment, as the live view and the log lines show them."""

from __future__ import annotations

import msgspec

from pipeline.plan import BatchPlan, DevicePlan, Limits, RunPlan
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.gauge import Gauge
from stages.camera import CameraSpec
from stages.messages import FrameReady, StreamEnded, StreamStarted
from stages.model import ModelSpec, TensorSpec

MODEL = ModelSpec(
    name="m",
    path="/m.onnx",
    sha256="",
    width=8,
    height=8,
    channels="rgb",
    input_layout="nchw",
    input_dtype="float32",
    mean=(0, 0, 0),
    std=(1, 1, 1),
    pad_value=0,
    placement="stretch",
    layout="ssd",
    labels=("a",),
    outputs=(TensorSpec("o", (4, 5), "float32"),),
    fixed_batch=None,
    confidence=0.4,
    iou=0.5,
)


def test_a_camera_has_ended_when_its_last_frame_was_told_not_when_its_source_was_read() -> None:
    plan = RunPlan(
        cameras=(CameraSpec("a", "/a", "m"),),
        models=(MODEL,),
        devices=(DevicePlan("cpu", 1, 1, 2),),
        batch={"m": BatchPlan(1, 0.0)},
        nms_workers=1,
        frame_slots={"a": 3},
        output_slots={"m": 3},
        publish=None,
        jsonl=(),
        limits=Limits(),
    )
    dispatcher = Dispatcher(plan, lambda: 0)
    gauge = Gauge(0, 0)

    def state() -> str:
        return gauge.read(dispatcher, (), 1).cameras[0].state

    assert state() == "starting"
    dispatcher.receive("decode/a", StreamStarted("a", 0, 8, 8, 10.0, "h264", "file", 1))
    frame = FrameReady("a", 0, 0, 0, 2, 8, 8, 0, 0, 1, 0, False, 1)
    dispatcher.receive("decode/a", frame)
    dispatcher.receive("decode/a", StreamEnded("a", 0, "ended", "", 1, 0, 0, True))
    assert state() == "streaming"
    assert gauge.read(dispatcher, (), 1).cameras[0].in_flight == 1
    dispatcher.cameras["a"].drop(
        next(item for item in dispatcher.cameras["a"].order if hasattr(item, "ready")), "stale"
    )
    dispatcher.pump(2)
    while (message := dispatcher.peek_outbound()) is not None:
        assert msgspec.to_builtins(message)
        dispatcher.delivered()
    assert state() == "ended"
