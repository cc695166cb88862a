"""What a camera's backlog leaves out undecoded: in no ledger, but told by every figure of the run."""

from __future__ import annotations

import dataclasses

import msgspec
from made.plans import run_plan

from pipeline.observe.health import judge
from pipeline.observe.metrics import SnapshotCollector
from pipeline.observe.summary import summary
from pipeline.reporting import make_report
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.gauge import LATELY_NS, Gauge
from pipeline.runtime.link_log import LinkLog
from stages.camera import CameraSpec
from stages.messages import FrameDropped, LinkChanged, StreamEnded, StreamStarted

SPEC = CameraSpec("gate", "rtsp://cam/x", "m", live=True, network=True)
PLAN = run_plan(SPEC)


def dropped(seq: int, skipped: int, epoch: int = 0) -> FrameDropped:
    return FrameDropped("gate", epoch, seq, seq + 1, 0, "too_old", "", skipped)


def test_pictures_that_are_left_out_unseen_are_seen_in_every_figure() -> None:
    dispatcher = Dispatcher(PLAN, lambda: 0)
    gauge = Gauge(0, 0)
    dispatcher.receive("decode/gate", StreamStarted("gate", 0, 8, 8, 25.0, "h264", "arrival", None))
    dispatcher.receive("decode/gate", dropped(0, 0))
    before = gauge.read(dispatcher, (), 1)
    assert (before.cameras[0].skipped, before.cameras[0].skips) == (0, False)
    assert judge(before, 0.1).colour == "green"

    dispatcher.receive("decode/gate", dropped(1, 37))
    snapshot = gauge.read(dispatcher, (), 2)
    (found,) = judge(snapshot, 0.1).findings
    assert (found.colour, found.subject) == ("yellow", "gate")
    assert found.sentence.startswith("sends more than is decoded")
    assert "(37 pictures so far)" in found.sentence
    families = {f.name: f for f in SnapshotCollector(lambda: (snapshot, 0.0, judge(snapshot, 0.0))).collect()}
    (sample,) = families["campipe_packets_skipped"].samples
    assert (sample.name, sample.labels, sample.value) == ("campipe_packets_skipped_total", {"camera": "gate"}, 37)

    later = gauge.read(dispatcher, (), 2 + LATELY_NS)
    assert (later.cameras[0].skipped, later.cameras[0].skips) == (37, False)
    assert not [f for f in judge(later, 0.1).findings if "more than is decoded" in f.sentence]  # it mends itself

    dispatcher.receive("decode/gate", StreamEnded("gate", 0, "stopped", "", 2, 0, 0, True, 40))
    report = make_report(
        dispatcher, (), engine_cpu_s=0, wall_s=1, start_s=0, shared_memory_bytes=0, stopped_by="", lost_messages=0,
        problems=[],
    )  # fmt: skip
    assert report.cameras["gate"].ledger.decoded == 2  # they were never decoded
    assert report.to_json()["cameras"]["gate"]["skipped"] == 40
    assert "40 pictures left out undecoded" in summary(report)


def test_a_camera_whose_clock_runs_wrong_is_in_the_log_once_and_in_its_status(caplog) -> None:
    odd = LinkChanged("gate", 0, "streaming", "first", "its timestamps run 10 times as fast as time")
    log = LinkLog()
    for message in (msgspec.structs.replace(odd, detail=""), odd, odd, msgspec.structs.replace(odd, detail=""), odd):
        log.note(message)
    assert [record.getMessage() for record in caplog.records] == [f"camera gate: {odd.detail}"]
    log.keep([])
    log.note(odd)
    assert len(caplog.records) == 2

    dispatcher = Dispatcher(PLAN, lambda: 0)
    dispatcher.receive("decode/gate", odd)
    assert Gauge(0, 0).read(dispatcher, (), 1).cameras[0].detail == odd.detail


def test_the_count_goes_on_over_new_workers_and_a_camera_that_comes_again() -> None:
    line = CameraLine(SPEC, PLAN.models[0], 3, trace=False)
    assert line.begin().skipped == 0
    line.stream_started(StreamStarted("gate", 0, 8, 8, 25.0, "h264", "arrival", None), 0)
    line.admit(dropped(0, 5), 0)
    assert line.begin().skipped == 5
    line.stream_ended(StreamEnded("gate", 0, "disconnected", "", 1, 0, 0, False, 9), 0)
    assert line.begin().skipped == 9
    line.fail("worker_failed", "", 0)
    assert line.skipped == 9
    again = CameraLine(dataclasses.replace(SPEC), PLAN.models[0], 3, trace=False)
    again.go_on_from(line)
    assert again.begin().skipped == 9
