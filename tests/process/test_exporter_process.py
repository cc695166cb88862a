"""The page of figures of a real run: served while it runs, replaced when its process is killed, never in the way."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from made.ports import free_port

from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import DevicePlan, RunPlan
from pipeline.planning import make_plan
from stages.errors import UserError
from stages.sinks.collect import CollectSink

DEADLINE_S = 60


def plan_of(media_dir: Path, port: int) -> RunPlan:
    settings = ["publish=off", "camera.street.source.loop=true", "camera.street.source.pace=realtime"]
    plan = make_plan(resolve(replay_site([media_dir / "street.mp4"], overrides=settings)))
    canned = DevicePlan("canned:0", 1, 1, 2, {"service_ms": "1", "objects": "3"})
    return dataclasses.replace(plan, devices=(canned,), observe=f"127.0.0.1:{port}")


def get(port: int, path: str) -> str:
    """The page, once it is there."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError):
            assert time.monotonic() < deadline, "no answer"
            time.sleep(0.05)


def published(port: int) -> int:
    for line in get(port, "/metrics").splitlines():
        if line.startswith('campipe_frames_published_total{camera="street"}'):
            return int(float(line.rpartition(" ")[2]))
    return 0


def test_figures_are_served_and_a_killed_exporter_comes_back(media_dir: Path) -> None:
    port = free_port()
    snapshots: list[EngineSnapshot] = []
    engine = Engine(plan_of(media_dir, port), [CollectSink()], snapshots.append, 50)
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        deadline = time.monotonic() + DEADLINE_S
        while published(port) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert json.loads(get(port, "/healthz"))["cameras"] == {"street": "streaming"}
        (exporter,) = [worker for worker in snapshots[-1].workers if worker.kind == "observe"]
        os.kill(exporter.pid, signal.SIGKILL)
        before = snapshots[-1].cameras[0].published
        while published(port) <= before:  # of a new process, for the old one is dead
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (successor,) = [worker for worker in snapshots[-1].workers if worker.kind == "observe"]
        assert (successor.restarts, successor.pid != exporter.pid) == (1, True)
    finally:
        engine.request_stop("test")
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_taken_port_is_refused_before_anything_runs(media_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine = Engine(plan_of(media_dir, taken.getsockname()[1]), [CollectSink()])
        with pytest.raises(UserError, match=r"observe\.listen: 127\.0\.0\.1:\d+ can't be listened at"):
            engine.run()
