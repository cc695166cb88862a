"""The figures of a moment, as the live view and the log lines show them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from made.plans import run_plan

from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.gauge import SILENT_NS, Gauge
from stages.camera import CameraSpec
from stages.messages import FrameDropped, FrameReady, LinkChanged, StreamEnded, StreamStarted


def test_a_camera_whose_frames_are_all_dropped_is_overdue_from_the_first_of_them_on() -> None:
    dispatcher = Dispatcher(run_plan(CameraSpec("a", "/a", "m", live=True, network=True)), lambda: 0)
    gauge = Gauge(0, 0)

    def told(now_s: float) -> tuple[float | None, float]:
        camera = gauge.read(dispatcher, (), int(now_s * 1e9)).cameras[0]
        return camera.since_published_s, camera.overdue_s

    assert told(0) == (0, 0)
    dispatcher.receive("decode/a", StreamStarted("a", 0, 8, 8, 10.0, "h264", "arrival", None))
    assert told(1) == (1, 0)
    for seq in range(5):
        dispatcher.receive("decode/a", FrameDropped("a", 0, seq, seq + 1, 0, "no_slot", ""))
        since_s, overdue_s = told(2 + seq)
        assert (since_s, overdue_s) == (2 + seq, seq)
    dispatcher.receive("decode/a", LinkChanged("a", 0, "stalled", "no_picture", ""))
    assert told(7) == (7, 0)  # that is told by its state
    dispatcher.receive("decode/a", LinkChanged("a", 0, "streaming", "first", ""))
    assert told(8) == (8, 0)
    dispatcher.cameras["a"].ledger.published_one()
    dispatcher.cameras["a"].ledger.in_flight += 1
    assert told(9) == (0, 0)
    dispatcher.cameras["a"].hold = "paused"
    assert told(10) == (None, 0)


@pytest.mark.parametrize(
    ("sampling", "explained_s"),
    [({}, 0.3), ({"sample_fps": 0.02}, 150), ({"sample_every": 100}, 30), ({"keyframes": True}, 60)],
)
def test_a_camera_that_gives_no_frame_is_overdue_when_neither_sampling_nor_keyframes_explain_it(
    sampling: dict[str, Any], explained_s: float
) -> None:
    dispatcher = Dispatcher(run_plan(CameraSpec("a", "/a", "m", live=True, network=True, **sampling)), lambda: 0)
    gauge = Gauge(0, 0)
    dispatcher.receive("decode/a", StreamStarted("a", 0, 8, 8, 10.0, "h264", "arrival", None))
    at_s = (0, SILENT_NS / 1e9 + explained_s - 1, SILENT_NS / 1e9 + explained_s + 7)
    overdue = [gauge.read(dispatcher, (), int(now_s * 1e9)).cameras[0].overdue_s for now_s in at_s]
    assert overdue == [0, 0, pytest.approx(7)]


def test_a_camera_has_ended_when_its_last_frame_was_told_not_when_its_source_was_read() -> None:
    plan = run_plan(CameraSpec("a", "/a", "m"))
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
