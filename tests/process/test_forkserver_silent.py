"""A forkserver that is stopped, a machine that gives no process, workers that are stopped when the engine is killed."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess, SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from leaks import family, left_after, living

from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import DevicePlan
from pipeline.planning import make_plan
from pipeline.report import RunReport
from pipeline.runtime.policy import RestartPolicy
from pipeline.runtime.supervisor import KILLED_WITHIN_NS, Supervisor
from pipeline.runtime.work import ExporterWork
from pipeline.runtime.worker_process import WorkerProcess
from stages.messages import Detections
from stages.sinks.collect import CollectSink

FRAMES = 100
PATIENCE_S = 60.0


class Run:
    """An engine in a thread, and what its workers are right now."""

    def __init__(self, media_dir: Path, *settings: str, copies: int = 2) -> None:
        site = replay_site([media_dir / "street.mp4"], copies=copies, overrides=["publish=off", *settings])
        device = DevicePlan("canned:0", 1, 1, 2, {"service_ms": "8", "objects": "3"})
        self.plan = dataclasses.replace(make_plan(resolve(site)), devices=(device,))
        self.sink = CollectSink()
        self.snapshots: list[EngineSnapshot] = []
        self.told_s: list[float] = []
        self.engine = Engine(self.plan, [self.sink], self._keep, 20)
        self.reports: list[RunReport] = []
        self.thread = threading.Thread(target=lambda: self.reports.append(self.engine.run()))

    def _keep(self, snapshot: EngineSnapshot) -> None:
        self.snapshots.append(snapshot)
        self.told_s.append(time.monotonic())

    @property
    def published(self) -> int:
        return sum(isinstance(message, Detections) for message in self.sink.messages)

    def workers(self, kind: str) -> list[psutil.Process]:
        found = self.snapshots[-1].workers if self.snapshots else ()
        return [psutil.Process(each.pid) for each in found if each.kind == kind and each.state == "ready" and each.pid]

    def wait(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert self.thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return value

    def end(self) -> RunReport:
        self.thread.join(90)
        assert not self.thread.is_alive(), "the run did not end"
        (report,) = self.reports
        assert report.exit_status == 0, report.problems
        assert all(camera.exact and camera.ledger.published == FRAMES for camera in report.cameras.values())
        return report


def test_a_stopped_forkserver_neither_stops_the_loop_nor_hides_a_death(media_dir: Path) -> None:
    run = Run(media_dir)
    run.thread.start()
    run.wait(lambda: run.published > 10)
    (nms,) = run.wait(lambda: run.workers("nms"))[:1]
    forkserver = psutil.Process(nms.ppid())
    assert forkserver.pid != os.getpid()
    forkserver.suspend()
    stopped_s = time.monotonic()
    nms.kill()
    run.wait(lambda: any(each.pid != nms.pid for each in run.workers("nms")))
    back_s = time.monotonic()
    told = [at_s for at_s in run.told_s if stopped_s < at_s < back_s]
    longest_s = max(b - a for a, b in zip([stopped_s, *told], [*told, back_s], strict=True))
    assert longest_s < max(1.0, 0.5 * (back_s - stopped_s)), "the loop stood still meanwhile"
    run.end()
    assert not living([forkserver])


def test_a_moment_without_memory_or_process_numbers_is_no_end_of_the_run(
    media_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(media_dir, copies=1)
    run.thread.start()
    run.wait(lambda: run.published > 10)
    fails = {SpawnProcess: [errno.EAGAIN, errno.ENOMEM], ForkServerProcess: [errno.EAGAIN]}

    for kind, numbers in fails.items():
        start = kind.start

        def refuse(process: Any, start: Any = start, numbers: Any = numbers) -> None:
            if numbers:
                number = numbers.pop()
                raise OSError(number, os.strerror(number))
            start(process)

        monkeypatch.setattr(kind, "start", refuse)
    for name in ("executor", "nms"):
        run.wait(lambda name=name: run.workers(name))[0].kill()  # type: ignore[misc]
    run.end()
    assert not any(fails.values())


PARENT = """
import sys
from pathlib import Path
from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.planning import make_plan
settings = ["publish=off", "camera.street.source.loop=true", "devices.device=canned:0", "limits.hang_ms=60000"]
site = replay_site([Path(sys.argv[1])], copies=2, overrides=settings)
tell = lambda s: print(*[w.pid for w in s.workers if w.state == "ready"], flush=True)
Engine(make_plan(resolve(site)), (), tell).run()
"""


@pytest.mark.parametrize("stopped", ["one worker of each kind", "everything"])
def test_stopped_workers_do_not_outlive_the_engine(stopped: str, media_dir: Path, run_folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(media_dir / "street.mp4")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    pids: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(pids) < 4 and time.monotonic() < deadline:
        pids = [int(pid) for pid in parent.stdout.readline().split() if pid.isdigit()]
    everything = family(parent.pid)
    for each in everything:
        if stopped == "everything" or each.pid in pids:
            each.suspend()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert not left_after(everything, within_s=15)
    assert not list(run_folder.iterdir())


def test_a_process_that_the_kernel_does_not_let_go_holds_up_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits for a device can't be killed; this one is not killed, which looks the same."""
    monkeypatch.setattr(Supervisor, "_signal", staticmethod(lambda *_: None))
    told: list[str] = []
    supervisor = Supervisor(
        "",
        "",
        "",
        hang_ns=10**10,
        start_ns=10**10,
        needed=lambda _: True,
        on_lost=lambda worker, why, blame: told.append(f"{why} {blame}"),
        on_given_up=lambda *_: None,
        on_gone=lambda *_: None,
        on_start=lambda *_: None,
        wake=lambda: None,
    )
    worker = WorkerProcess(
        "executor/x", "executor", ("executor/x/0",), ExporterWork("", 0), RestartPolicy(3, 10**12), True
    )
    with subprocess.Popen(["sleep", "1000"]) as stuck:
        worker.process, worker.state = SimpleNamespace(exitcode=None, close=lambda: None), "ready"  # type: ignore[assignment]
        worker.pid_descriptor = os.pidfd_open(stuck.pid)
        supervisor.workers[worker.name] = worker
        began_s = time.monotonic()
        supervisor.kill_for_hang(worker, 1)
        for now_ns in range(1, KILLED_WITHIN_NS, KILLED_WITHIN_NS // 50):
            assert supervisor.attend([], now_ns) == []
            assert supervisor.next_due_ns(now_ns) == now_ns
        assert supervisor.attend([], KILLED_WITHIN_NS + 2) == [worker]
        supervisor.buried(worker, KILLED_WITHIN_NS + 2)
        assert time.monotonic() - began_s < KILLED_WITHIN_NS / 1e9, "it was waited for"
        stuck.kill()
    assert told == ["executor/x was silent for too long and was killed True"]
    assert worker.state == "restarting"
    assert worker.pid_descriptor == -1
