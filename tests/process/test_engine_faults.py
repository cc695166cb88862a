"""Faults around a run that are no plain kill: hung restarts, signals to the whole group, sinks that break or lose."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from leaks import family, living

from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.inprocess import InProcessEngine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.planning import make_plan
from pipeline.sinks import build
from stages.errors import StageDead
from stages.messages import Detections, ExternalMessage
from stages.sinks.collect import CollectSink

ROOT = Path(__file__).resolve().parents[2]
CANNED = ["devices.device=canned:0", "devices.options={service_ms: 8, objects: 3}", "publish=off"]


def plan_of(media_dir: Path, *settings: str, copies: int = 1) -> Any:
    site = replay_site([media_dir / "street.mp4"], copies=copies, overrides=[*CANNED, *settings])
    return make_plan(resolve(site))


class Breaking:
    """A sink that takes so many messages and then is broken for good."""

    name = "a disk that is full"

    def __init__(self, takes: int) -> None:
        self.left = takes

    def open(self) -> None: ...

    def take(self, message: ExternalMessage) -> bool:
        if isinstance(message, Detections):
            if self.left == 0:
                raise StageDead("no space left")
            self.left -= 1
        return True

    def service(self) -> None: ...

    def close(self, deadline_ns: int) -> str:
        return ""


@pytest.mark.parametrize("lag_s", [0, 0.03])  # a machine that is busy: results wait for their turn when the sink breaks
@pytest.mark.parametrize("engine", [Engine, InProcessEngine])
def test_what_no_sink_took_is_not_published(engine: Any, lag_s: float, media_dir: Path) -> None:
    report = engine(plan_of(media_dir, "batch.max_batch=1"), [Breaking(12)], lambda _: time.sleep(lag_s), 1).run()
    (camera,) = report.cameras.values()
    assert camera.ledger.published == 12
    assert camera.exact
    assert camera.ledger.in_flight == 0
    assert report.exit_status == 1
    assert any("a disk that is full: no space left" in problem for problem in report.problems)


def test_one_sink_that_breaks_leaves_the_other_alone(media_dir: Path) -> None:
    whole = CollectSink()
    report = Engine(plan_of(media_dir), [Breaking(12), whole]).run()
    assert [m.seq for m in whole.messages if isinstance(m, Detections)] == list(range(100))
    assert report.exit_status == 1
    assert any("no space left" in problem for problem in report.problems)


def test_losses_of_a_stalled_subscriber_are_in_the_report(media_dir: Path, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/p"
    settings = [f"publish.bind={address}", "publish.hwm=20", "publish.stall_ms=200", "publish.linger_ms=100"]
    settings += ["devices.device=canned:0", "devices.options={service_ms: 2, objects: 100}"]  # some 10 kB a message
    settings += ["camera.street.source.loop=true", "camera.street.source.max_frames=400"]
    site = replay_site([media_dir / "street.mp4"], publish=address, overrides=settings)
    plan = make_plan(resolve(site))
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.rcvhwm = 5
        socket.connect(address)
        socket.subscribe(b"detections/")
        report = Engine(plan, build(plan)).run()
        seen = 0
        while socket.poll(200):
            socket.recv_multipart()
            seen += 1
    (camera,) = report.cameras.values()
    assert camera.ledger.published == 400
    lost = 400 - seen
    assert lost > 0, "the subscriber was meant to be too slow"
    assert report.lost_messages > 0
    assert report.to_json()["lost_messages"] == report.lost_messages


def test_a_worker_that_hangs_in_its_restart_is_replaced(media_dir: Path) -> None:
    plan = plan_of(media_dir, "limits.start_ms=60000")  # a busy machine takes its time
    sink = CollectSink()
    seen: list[EngineSnapshot] = []
    engine = Engine(plan, [sink], seen.append, 10)
    reports: list[Any] = []
    thread = threading.Thread(target=lambda: reports.append(engine.run()))
    thread.start()
    stopped: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    killed = False
    while thread.is_alive() and time.monotonic() < deadline and not stopped:
        workers = [w for w in seen[-1].workers if w.kind == "nms"] if seen else []
        if workers and workers[0].state == "ready" and len(sink.messages) > 20 and not killed:
            os.kill(workers[0].pid, signal.SIGKILL)
            killed = True
        elif killed and workers and workers[0].state == "starting" and workers[0].pid:
            stopped.append(psutil.Process(workers[0].pid))
            stopped[0].suspend()
            engine._supervisor._start_ns = 3 * 10**9  # nor is this one waited for as long
        time.sleep(0.001)
    thread.join(60)
    assert not thread.is_alive()
    assert reports[0].exit_status == 0, reports[0].problems
    assert [m.seq for m in sink.messages if isinstance(m, Detections)] == list(range(100))
    if stopped:  # the restart was caught before it was ready
        assert reports[0].stages["nms"].restarts >= 2
        assert not living(stopped)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains(signal_number: int, media_dir: Path, tmp_path: Path) -> None:
    """What systemd does by default, and Ctrl-C: workers and forkserver get it too, and must not mind."""
    report = tmp_path / "r.json"
    command = [
        *(sys.executable, "-P", "-m", "pipeline", "replay", str(media_dir / "street.mp4"), "--report", str(report)),
        *("--device", "canned:0", "--set", "devices.options={service_ms: 10, objects: 3}"),
        *("--set", "camera.street.source.loop=true", "--every", "0.1"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert run.stderr is not None
    for line in run.stderr:
        if re.search(r"street: streaming .* [1-9]\d* published", line):
            break
    assert len(family(run.pid)) >= 4
    os.killpg(run.pid, signal_number)
    _, errors = run.communicate(timeout=60)
    told = json.loads(report.read_text())
    assert told["exit_status"] == 0, errors
    assert sum(stage["restarts"] for stage in told["stages"].values()) == 0, errors
    (camera,) = told["cameras"].values()
    assert camera["exact"]
    assert camera["ledger"]["decoded"] == camera["ledger"]["published"]
    assert "Traceback" not in errors


def test_killed_workers_change_no_object(media_dir: Path) -> None:
    """Not the number of frames alone: what is in them too, against a run that nobody disturbed."""
    quiet, disturbed = CollectSink(), CollectSink()
    Engine(plan_of(media_dir, copies=2), [quiet]).run()
    seen: list[EngineSnapshot] = []
    engine = Engine(plan_of(media_dir, copies=2), [disturbed], seen.append, 10)
    thread = threading.Thread(target=engine.run)
    thread.start()
    for kind in ("executor", "nms", "decode"):
        deadline = time.monotonic() + 60
        while thread.is_alive() and time.monotonic() < deadline:
            ready = [w.pid for w in seen[-1].workers if w.kind == kind and w.state == "ready"] if seen else []
            if ready and len(disturbed.messages) > 20:
                os.kill(ready[0], signal.SIGKILL)
                break
            time.sleep(0.002)
    thread.join(60)
    assert not thread.is_alive()

    def found(sink: CollectSink) -> dict[tuple[str, int], object]:
        return {(m.camera, m.seq): m.objects for m in sink.messages if isinstance(m, Detections)}

    assert found(disturbed) == found(quiet)
    assert len(found(quiet)) == 200
