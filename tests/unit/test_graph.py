"""The graph as text, as `campipe graph` prints it: a change of the architecture shows here first."""

from __future__ import annotations

from typing import Any

import pytest
from made.plans import run_plan

from pipeline.cli import main
from pipeline.graph import build
from pipeline.plan import DevicePlan, JsonlPlan, PublishPlan, RunPlan

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


def make_plan(cameras: list[str], **changes: Any) -> RunPlan:
    fields: dict[str, Any] = {
        "devices": (DevicePlan("cpu", 4, 1, 2), DevicePlan("canned:0", 1, 1, 2)),
        "output_slots": {"m": 12},
        "publish": PublishPlan("tcp://127.0.0.1:5600"),
        "jsonl": (JsonlPlan("out.jsonl"),),
    }
    return run_plan(*cameras, slots=5, **fields | changes)


def test_the_whole_graph() -> None:
    assert build(make_plan(["gate", "yard"])).render() == EXPECTED


def test_many_cameras_fit_the_screen() -> None:
    text = str(build(make_plan([f"camera-{n}" for n in range(100)])))
    assert "100 x forkserver" in text
    assert "... and 92 more" in text
    assert len(text.splitlines()) < 40


def test_what_watches_and_what_changes_a_run_are_nodes_too() -> None:
    text = build(make_plan(["gate"], observe="127.0.0.1:9100"), "`campipe ctl`").render()
    assert "observe   1 x forkserver               figures -> http://127.0.0.1:9100/metrics" in text
    assert "    |  Figures -> observe" in text
    assert "control   in the engine                cameras added, removed, paused, resumed: `campipe ctl`" in text
    assert "    |  cameras to start and to stop -> decode" in text


@pytest.mark.parametrize(
    ("says", "shown"),
    [
        ("", "`campipe ctl`, and their files as they change"),
        ("control: {watch: false}\n", "resumed: `campipe ctl`\n"),
        ("control: {socket: /run/x}\n", "`campipe ctl --socket /run/x`, and"),
        ("control: off\n", None),
    ],
)
def test_campipe_graph_shows_control_and_observe(
    says: str, shown: str | None, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        f"{says}observe: {{listen: '127.0.0.1:9100'}}\ncameras: [{{name: a, source: 'asset:street.mp4'}}]\n"
    )
    assert main(["graph", str(site)]) == 0
    text = capsys.readouterr().out
    assert "\nobserve   1 x forkserver" in text
    assert "\ncontrol   " in text if shown else "control" not in text
    assert shown is None or shown in text
