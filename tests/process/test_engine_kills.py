"""Real kills of real workers while a recording is replayed: nothing is lost, nothing is told twice, nothing is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from leaks import family, left_after, living

from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import DevicePlan, RunPlan
from pipeline.planning import make_plan
from pipeline.report import RunReport
from stages.messages import Detections
from stages.sinks.collect import CollectSink

FRAMES = 100


SLOW_DEVICE = {"service_ms": "8", "objects": "3"}  # takes its time without taking the CPU's


def make(media_dir: Path, copies: int = 2, *settings: str, real: bool = False) -> RunPlan:
    """Copies of the clip through the default model, or through a device that only takes its time."""
    site = replay_site([media_dir / "street.mp4"], copies=copies, overrides=["publish=off", *settings])
    plan = make_plan(resolve(site))
    if real:
        return plan
    return dataclasses.replace(plan, devices=(DevicePlan("canned:0", 2, 1, 2, SLOW_DEVICE),))


class Run:
    """An engine in a thread, and what its workers are right now."""

    def __init__(self, plan: RunPlan) -> None:
        self.sink = CollectSink()
        self.snapshot: EngineSnapshot | None = None
        self.engine = Engine(plan, [self.sink], self._keep, 20)
        self.report: RunReport | None = None
        self.thread = threading.Thread(target=self._run)

    def _keep(self, snapshot: EngineSnapshot) -> None:
        self.snapshot = snapshot

    def _run(self) -> None:
        self.report = self.engine.run()

    def published(self) -> int:
        return sum(isinstance(m, Detections) for m in self.sink.messages)

    def wait_for(self, frames: int) -> None:
        deadline = time.monotonic() + 60
        while self.published() < frames and self.thread.is_alive():
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.005)

    def pid(self, kind: str) -> int:
        """Of a worker that is ready, once there is one."""
        deadline = time.monotonic() + 60
        while self.thread.is_alive() and time.monotonic() < deadline:
            workers = self.snapshot.workers if self.snapshot else []
            for worker in workers:
                if worker.kind == kind and worker.state == "ready":
                    return worker.pid
            time.sleep(0.005)
        raise AssertionError(f"no {kind} worker is ready")

    def end(self) -> RunReport:
        self.thread.join(90)
        assert not self.thread.is_alive(), "the run did not end"
        assert self.report is not None
        return self.report


def assert_whole(run: Run, report: RunReport, restarts: int) -> None:
    by_camera: dict[str, list[int]] = {}
    for message in run.sink.messages:
        if isinstance(message, Detections):
            by_camera.setdefault(message.camera, []).append(message.seq)
    assert by_camera == {name: list(range(FRAMES)) for name in report.cameras}
    for camera in report.cameras.values():
        assert camera.exact
        assert (camera.ledger.decoded, camera.ledger.published, camera.ledger.in_flight) == (FRAMES, FRAMES, 0)
        assert camera.ledger.dropped == {}
        assert camera.cause == "ended"
    assert sum(stage.restarts for stage in report.stages.values()) >= restarts
    assert report.exit_status == 0, report.problems


def test_killing_a_worker_of_each_kind_loses_and_repeats_nothing(media_dir: Path) -> None:
    run = Run(make(media_dir, real=True))
    run.thread.start()
    for frames, kind in ((30, "decode"), (70, "executor"), (120, "nms")):
        run.wait_for(frames)
        os.kill(run.pid(kind), signal.SIGKILL)
    report = run.end()
    assert_whole(run, report, 3)
    assert {name for name, stage in report.stages.items() if stage.restarts} == {"decode", "executor", "nms"}


@pytest.mark.slow
def test_killing_workers_of_every_kind_again_and_again_loses_nothing(media_dir: Path) -> None:
    run = Run(make(media_dir, 3, "limits.restarts=50"))
    run.thread.start()
    kills = 0
    for frames, kind in zip(range(20, 290, 30), ["decode", "nms", "executor"] * 3, strict=True):
        run.wait_for(frames)
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.pid(kind), signal.SIGKILL)
            kills += 1
    assert kills >= 5
    assert_whole(run, run.end(), kills)


def test_killing_a_worker_while_it_starts_is_survived(media_dir: Path) -> None:
    run = Run(make(media_dir))
    run.thread.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        snapshot = run.snapshot
        starting = [w for w in snapshot.workers if w.pid and w.state == "starting"] if snapshot else []
        if starting:
            os.kill(starting[0].pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    assert_whole(run, run.end(), 1)


def test_a_stopped_worker_is_noticed_and_replaced(media_dir: Path) -> None:
    run = Run(make(media_dir, 2, "limits.hang_ms=3000"))
    run.thread.start()
    run.wait_for(20)
    os.kill(run.pid("nms"), signal.SIGSTOP)
    assert_whole(run, run.end(), 1)


def test_when_the_budget_of_restarts_is_spent_the_run_ends_and_says_why(media_dir: Path) -> None:
    run = Run(make(media_dir, 1, "limits.restarts=0"))
    run.thread.start()
    run.wait_for(10)
    os.kill(run.pid("nms"), signal.SIGKILL)
    report = run.end()
    assert report.exit_status == 1
    assert any("SIGKILL" in problem and "budget" in problem for problem in report.problems)
    (camera,) = report.cameras.values()
    assert camera.exact
    assert camera.state == "failed"
    assert camera.ledger.in_flight == 0


def test_one_camera_that_fails_leaves_the_others_alone(media_dir: Path) -> None:
    run = Run(make(media_dir, 2, "limits.restarts=0"))
    run.thread.start()
    run.wait_for(20)
    os.kill(run.pid("decode"), signal.SIGKILL)
    report = run.end()
    assert report.exit_status == 1
    states = sorted(camera.state for camera in report.cameras.values())
    assert states == ["ended", "failed"]
    assert all(camera.exact for camera in report.cameras.values())
    whole = next(camera for camera in report.cameras.values() if camera.state == "ended")
    assert whole.ledger.published == FRAMES


def test_a_stop_drains_what_is_under_way(media_dir: Path) -> None:
    run = Run(make(media_dir))
    run.thread.start()
    run.wait_for(20)
    run.engine.request_stop("test")
    report = run.end()
    assert report.stopped_by == "test"
    for name, camera in report.cameras.items():
        assert camera.exact
        assert camera.ledger.decoded == camera.ledger.published < FRAMES
        seqs = [m.seq for m in run.sink.messages if isinstance(m, Detections) and m.camera == name]
        assert seqs == list(range(camera.ledger.published))


def test_a_second_stop_ends_at_once_and_counts_what_was_under_way(media_dir: Path) -> None:
    run = Run(make(media_dir))
    run.thread.start()
    run.wait_for(20)
    run.engine.request_stop("one")
    run.engine.request_stop("two")
    before = time.monotonic()
    report = run.end()
    assert time.monotonic() - before < 20
    for camera in report.cameras.values():
        assert camera.exact
        assert camera.ledger.in_flight == 0


PARENT = """
import sys
from pathlib import Path
from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.planning import make_plan
site = replay_site([Path(sys.argv[1])], copies=2, overrides=["publish=off", "camera.street.source.loop=true"])
print("go", flush=True)
tell = lambda s: print(*[w.pid for w in s.workers if w.state == "ready"], flush=True)
Engine(make_plan(resolve(site)), (), tell).run()
"""


def test_when_the_engine_is_killed_every_process_is_gone_within_two_seconds(media_dir: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(media_dir / "street.mp4")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids: list[int] = []
    deadline = time.monotonic() + 60
    while len(pids) < 4 and time.monotonic() < deadline:
        pids = [int(pid) for pid in parent.stdout.readline().split() if pid.isdigit()]
    workers = family(parent.pid) | {psutil.Process(pid) for pid in pids}
    assert len(workers) >= 4
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert not left_after(workers, within_s=2)


def test_killing_the_forkserver_leaves_no_second_writer(media_dir: Path) -> None:
    """Its children live on when it dies, but look dead: they must be gone before others are given their slots."""
    run = Run(make(media_dir))
    run.thread.start()
    run.wait_for(20)
    first = psutil.Process(run.pid("decode"))
    forkserver = first.ppid()
    assert forkserver != os.getpid()
    os.kill(forkserver, signal.SIGKILL)
    assert_whole(run, run.end(), 1)
    assert not living([first])
