"""One run from the command line, with an engine that does as it is told: signals, report, view, exit status."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made.plans import run_plan

from pipeline import engine
from pipeline.commands import drive
from pipeline.commands.gate import SubscriberGate
from pipeline.commands.options import Parser, add_engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import RunPlan
from pipeline.report import CameraReport, RunReport
from pipeline.signals import STOP_SIGNALS
from stages.camera import CameraSpec
from stages.errors import CampipeError, DeviceFailed, UserError
from stages.messages import Heartbeat, LedgerEntry, Status

PLAN = run_plan(
    CameraSpec("gate-1", "rtsp://10.0.0.1/1", "m", user="admin", password="geheim7"), models=(), devices=(), batch={}
)


def result(state: str = "ended", **changes: Any) -> RunReport:
    ledger = LedgerEntry(decoded=3, published=3, dropped={}, in_flight=0)
    camera = CameraReport(ledger, True, "m", state, state, "", 1, 4, 4, 0, 0, 0, 0, {}, 0, 0, 1.0)
    return RunReport(
        **({"cameras": {"gate-1": camera}, "stages": {}, "wall_s": 1, "start_s": 1, "shared_memory_bytes": 0} | changes)
    )


class FakeEngine:
    """Runs ``act``."""

    act: Callable[[FakeEngine], RunReport] = staticmethod(lambda _engine: result())  # type: ignore[assignment]

    def __init__(
        self,
        plan: RunPlan,
        sinks: Sequence[Any] = (),
        on_snapshot: Callable[[EngineSnapshot], None] | None = None,
        desk: object = None,
    ) -> None:
        self.plan, self.sinks, self.on_snapshot = plan, sinks, on_snapshot
        self.stops: list[str] = []

    def request_stop(self, reason: str) -> None:
        self.stops.append(reason)

    def run(self) -> RunReport:
        return type(self).act(self)


@pytest.fixture
def acting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[FakeEngine], RunReport]], None]:
    """Puts an engine that does ``act`` in the place of the real ones."""
    sinks = types.ModuleType("pipeline.sinks")
    sinks.build = lambda _plan, **_: ["a sink"]  # type: ignore[attr-defined]
    in_process = types.ModuleType("pipeline.inprocess")

    class InProcess(FakeEngine):
        def run(self) -> RunReport:
            return result(stopped_by="in process")

    in_process.InProcessEngine = InProcess  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pipeline.sinks", sinks)
    monkeypatch.setitem(sys.modules, "pipeline.inprocess", in_process)
    monkeypatch.setattr(engine, "Engine", FakeEngine)

    def put(act: Callable[[FakeEngine], RunReport]) -> None:
        monkeypatch.setattr(FakeEngine, "act", staticmethod(act))

    put(lambda _engine: result())
    return put


Acting = Callable[[Callable[[FakeEngine], RunReport]], None]


def arguments(*given: str) -> argparse.Namespace:
    parser = Parser(prog="campipe run")
    add_engine(parser)
    return parser.parse_args(given)


def test_the_summary_goes_to_stdout_and_the_report_to_its_file(
    acting: Acting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    assert drive.run_to_end(arguments("--report", str(path)), lambda: PLAN) == 0
    assert "gate-1: played to its end" in capsys.readouterr().out
    assert json.loads(path.read_text())["cameras"]["gate-1"]["ledger"]["published"] == 3


def stopped(cause: str = "stopped", decoded: int = 3, dropped: int = 0) -> RunReport:
    report = result("ended", stopped_by="SIGTERM")
    camera = report.cameras["gate-1"]
    camera.cause = cause
    causes = {"stopped": dropped} if dropped else {}
    camera.ledger = LedgerEntry(decoded=decoded, published=decoded - dropped, dropped=causes, in_flight=0)
    return report


LOOP = dataclasses.replace(PLAN, cameras=(dataclasses.replace(PLAN.cameras[0], loop=True),))


@pytest.mark.parametrize(
    ("report", "plan", "whole", "problem"),
    [
        (stopped(), PLAN, False, None),
        (stopped(), PLAN, True, "stopped by SIGTERM: not the whole recording was played"),
        (stopped("ended"), PLAN, True, None),
        (stopped("limit"), PLAN, True, None),
        (stopped(), LOOP, True, None),
        (stopped(dropped=1), PLAN, False, "stopped by SIGTERM: 1 decoded frame was dropped"),
        (stopped(dropped=2), LOOP, True, "stopped by SIGTERM: 2 decoded frames were dropped"),
        (stopped(decoded=0), PLAN, False, "stopped by SIGTERM: before a single frame was decoded"),
        (result(), PLAN, True, None),
    ],
)
def test_a_run_that_was_stopped_half_way_counts_as_done(
    report: RunReport, plan: RunPlan, whole: bool, problem: str | None
) -> None:
    report.problems = []
    drive.judge_stop(report, plan, whole=whole)
    assert report.problems == ([problem] if problem else [])
    assert report.exit_status == (1 if problem else 0)


def test_a_failed_run_has_exit_1_and_a_report(acting: Acting, tmp_path: Path) -> None:
    acting(lambda _engine: result("failed", problems=["nms/0 died"]))
    path = tmp_path / "r.json"
    assert drive.run_to_end(arguments("--report", str(path)), lambda: PLAN) == 1
    assert json.loads(path.read_text())["problems"] == ["nms/0 died"]


@pytest.mark.parametrize(
    ("error", "status", "problems"),
    [
        (UserError("port 5600 is in use", "model m differs"), 2, ["port 5600 is in use", "model m differs"]),
        (DeviceFailed("cpu is gone"), 1, ["DeviceFailed: cpu is gone"]),
        (KeyError("rtsp://u:geheim7@h"), 1, ["KeyError: 'rtsp://***@h'"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
    ],
)
def test_what_goes_wrong_replaces_an_old_report(
    acting: Acting, tmp_path: Path, error: BaseException, status: int, problems: list[str]
) -> None:
    def act(_engine: FakeEngine) -> RunReport:
        raise error

    acting(act)
    path = tmp_path / "r.json"
    path.write_text('{"exit_status": 0}')
    with pytest.raises(type(error)):
        drive.run_to_end(arguments("--report", str(path)), lambda: PLAN)
    written = json.loads(path.read_text())
    assert (written["exit_status"], written["problems"]) == (status, problems)
    assert written.keys() == result().to_json().keys()


def test_a_configuration_that_is_refused_is_in_the_report_too(acting: Acting, tmp_path: Path) -> None:
    def make() -> RunPlan:
        raise UserError("site.yaml:3: nonsense")

    path = tmp_path / "r.json"
    with pytest.raises(UserError):
        drive.run_to_end(arguments("--report", str(path)), make)
    assert json.loads(path.read_text())["exit_status"] == 2


def test_a_report_that_can_not_be_written_is_refused_before_the_run(acting: Acting, tmp_path: Path) -> None:
    def make() -> RunPlan:
        raise AssertionError("too late")

    with pytest.raises(UserError, match="there is no folder"):
        drive.run_to_end(arguments("--report", str(tmp_path / "none" / "r.json")), make)


def test_a_disk_that_is_full_at_the_end_is_a_failure_and_the_summary_is_shown(
    acting: Acting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CampipeError, match=r"the run is over, but its report could not be written: .*No space left"):
        drive.run_to_end(arguments("--report", str(tmp_path / "r.json")), lambda: PLAN)
    assert "gate-1: played to its end" in capsys.readouterr().out


def test_in_process_uses_the_other_engine(acting: Acting, capsys: pytest.CaptureFixture[str]) -> None:
    drive.run_to_end(arguments("--in-process"), lambda: PLAN)
    assert "stopped by in process" in capsys.readouterr().out


def test_the_run_has_the_sinks_of_its_plan(acting: Acting) -> None:
    seen: list[Any] = []

    def act(running: FakeEngine) -> RunReport:
        seen.extend(running.sinks)
        return result()

    acting(act)
    drive.run_engine(PLAN, view="none")
    assert seen == ["a sink"]


class Publisher:
    subscribers = 0


def test_messages_wait_until_every_subscriber_is_there_and_no_longer() -> None:
    publisher = Publisher()
    gate = SubscriberGate([publisher], 2)  # type: ignore[list-item]
    status = Status(camera="a", epoch=0, state="started", cause="", detail="", time_ns=0)
    beat = Heartbeat(time_ns=0, uptime_ns=0, cameras={}, lost_messages=0)
    assert not gate.take(status)
    assert gate.take(beat)
    publisher.subscribers = 1
    gate.service()
    assert not gate.take(status)
    publisher.subscribers = 2
    gate.service()
    assert gate.take(status)
    publisher.subscribers = 0
    assert gate.take(status)


def test_a_stop_ends_the_wait_for_subscribers(acting: Acting) -> None:
    opened: list[bool] = []

    def act(running: FakeEngine) -> RunReport:
        gate, *rest = running.sinks
        assert rest == ["a sink"]
        assert running.on_snapshot is not None
        for stopping in (False, True):
            running.on_snapshot(EngineSnapshot(1.0, (), (), stopping=stopping))
            opened.append(gate.is_open)
        return result()

    acting(act)
    drive.run_engine(PLAN, view="none", wait_subscribers=1)
    assert opened == [False, True]


def test_signals_are_asked_for_once_each_and_put_back(acting: Acting) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    stops: list[str] = []

    def act(running: FakeEngine) -> RunReport:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        stops.extend(running.stops)
        return result()

    acting(act)
    drive.run_engine(PLAN, view="none")
    assert stops == ["SIGINT", "SIGTERM"]
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_signals_are_put_back_after_a_failure(acting: Acting) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]

    def act(_engine: FakeEngine) -> RunReport:
        raise ZeroDivisionError

    acting(act)
    with pytest.raises(ZeroDivisionError):
        drive.run_engine(PLAN, view="none")
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_second_signal_while_the_report_is_written_does_not_lose_it(
    acting: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    shown: list[RunReport] = []

    def show(report: RunReport) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        shown.append(report)

    acting(lambda _engine: result())
    monkeypatch.setattr(drive, "show", show)
    drive.run_to_end(arguments(), lambda: PLAN)
    assert len(shown) == 1
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


DEAF = """
import os, time
from pipeline.signals import stop_on_signals

class Deaf:
    def request_stop(self, reason):
        os.write(1, reason.encode())

with stop_on_signals(Deaf()):
    os.write(1, b"!")
    while True:
        time.sleep(9)
"""


def test_a_third_signal_ends_a_run_that_does_not_answer() -> None:
    reader, writer = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", DEAF],
        os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)],
    )
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as told:
        assert told.read(1) == b"!"
        for number, answer in ((signal.SIGTERM, b"SIGTERM"), (signal.SIGINT, b"SIGINT"), (signal.SIGTERM, b"")):
            os.kill(pid, number)
            assert told.read(7) == answer
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_the_password_of_a_camera_is_in_no_log_line(acting: Acting, capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    def act(_engine: FakeEngine) -> RunReport:
        logging.getLogger("campipe.engine").warning("sent geheim7 to the camera")
        return result()

    acting(act)
    drive.run_to_end(arguments(), lambda: PLAN)
    assert "sent *** to the camera" in capsys.readouterr().err


def test_snapshots_become_log_lines_without_a_terminal(acting: Acting, capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.observe.snapshot import CameraSnapshot

    def act(running: FakeEngine) -> RunReport:
        assert running.on_snapshot is not None
        camera = CameraSnapshot("gate-1", "streaming", "m", 1, 1, 1, 1, 1, 0, {}, 3, 0)
        running.on_snapshot(EngineSnapshot(1.0, (camera,), ()))
        return result()

    acting(act)
    drive.run_to_end(arguments("--log-format", "json"), lambda: PLAN)
    fields = json.loads(capsys.readouterr().err.splitlines()[0])
    assert fields["camera"] == "gate-1"
    assert fields["data"]["frames_expected"] == 3
