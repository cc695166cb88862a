"""The graph as text, as `campipe graph` prints it: a change of the architecture shows here first."""

from __future__ import annotations

from pipeline.graph import build
from pipeline.plan import BatchPlan, DevicePlan, JsonlPlan, Limits, PublishPlan, RunPlan
from stages.camera import CameraSpec
from stages.model import ModelSpec, TensorSpec

EXPECTED = """\
decode    2 x forkserver               source -> upright RGB/BGR -> letterbox into a frame slot
          - decode/gate
          - decode/yard
    |  FrameReady -> batcher
    |      bound: 10 frame slots in shared memory; if batcher dies: the run ends
batcher   in the engine                frames of all cameras -> batches by model, fair, pulled by free lanes
    |  BatchReady -> executor
    |      bound: 10 lanes; if executor dies: batch is put back, given to another
executor  2 x spawn                    batch -> raw outputs in an output slot; copies overlap compute
          - executor/cpu (4 executors of 2 lanes, 1 threads each)
          - executor/canned:0 (1 executors of 2 lanes, 1 threads each)
    |  RawOutput, PostTask -> nms
    |      bound: 12 output slots; if nms dies: task is given to another
    |  SlotsFreed -> decode
    |      bound: the same frame slots; if decode dies: another resumes at the next frame
nms       1 x forkserver               raw outputs -> candidates -> NMS -> boxes in source pixels
          - nms/0
    |  PostDone -> reorder
    |      bound: 2 tasks per worker; if reorder dies: the run ends
reorder   in the engine                results of each camera back in order; counts every frame in the ledger
    |  Detections, Status -> publish
    |      bound: 512 messages, then batches wait; if publish dies: the run ends
publish   in the engine                detections, status, heartbeat -> publish tcp://127.0.0.1:5600, jsonl out.jsonl"""


def make_plan(cameras: list[str]) -> RunPlan:
    model = ModelSpec(
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
    return RunPlan(
        cameras=tuple(CameraSpec(name, f"/{name}", "m") for name in cameras),
        models=(model,),
        devices=(DevicePlan("cpu", 4, 1, 2), DevicePlan("canned:0", 1, 1, 2)),
        batch={"m": BatchPlan(1, 5.0)},
        nms_workers=1,
        frame_slots=dict.fromkeys(cameras, 5),
        output_slots={"m": 12},
        publish=PublishPlan("tcp://127.0.0.1:5600"),
        jsonl=(JsonlPlan("out.jsonl"),),
        limits=Limits(),
    )


def test_the_whole_graph() -> None:
    assert build(make_plan(["gate", "yard"])).render() == EXPECTED


def test_many_cameras_fit_the_screen() -> None:
    text = str(build(make_plan([f"camera-{n}" for n in range(100)])))
    assert "100 x forkserver" in text
    assert "... and 92 more" in text
    assert len(text.splitlines()) < 40
