"""Owns killing and stopping workers of a run under live load, and what comes of it. Judges nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from faults.canary import CANARY, USER
from faults.live_run import LiveRun
from faults.servers.process import ServerProcess

CAMERAS = ("left", "right")
KINDS = ("decode", "executor", "nms", "observe")
HANG_MS = 3000
STEADY = 5  # frames of each camera before the next blow


@dataclass(frozen=True, slots=True)
class Blow:
    """One worker was hit; seconds until every camera gave pictures again and the worker was replaced."""

    kind: str
    signal: str
    back_s: float
    others_gap_s: float | None  # longest silence of a camera whose own worker was not hit; None: all were


@contextmanager
def live_site(folder: Path) -> Iterator[LiveRun]:
    """Two live cameras, one executor, two NMS workers, an exporter; restarts enough for anything."""
    paths = [f"{name}=160x120@10" for name in CAMERAS]
    with ServerProcess(*paths, "--scheme", "basic", "--user", USER, "--password", CANARY) as server:
        cameras = {
            name: {"source": {"url": f"rtsp://127.0.0.1:{server.port}/{name}", "user": USER, "password": CANARY}}
            for name in CAMERAS
        }
        limits = {"hang_ms": HANG_MS, "restarts": 1000, "quarantine": "quarantine"}
        with LiveRun(folder, cameras, limits=limits, nms={"workers": 2}) as run:
            run.wait_for_frames(CAMERAS, 0.0, 60, STEADY)
            yield run


def strike(run: LiveRun, kind: str, number: signal.Signals) -> Blow:
    """Hit the first worker of ``kind``; wait until it is replaced and all cameras are back."""
    run.wait_for_frames(CAMERAS, time.monotonic(), 60, STEADY)
    pid = run.wait(f"a worker of kind {kind}", lambda: run.workers(kind), 30)[0]
    worker = next(each for each in run.status()["workers"] if each["pid"] == pid)
    hit_s = time.monotonic()
    os.kill(pid, number)
    run.wait(f"{worker['name']} replaced", lambda: _replaced(run, worker["name"], pid), 60)
    run.wait_for_frames(CAMERAS, time.monotonic(), 60, 1)
    back_s = time.monotonic() - hit_s
    spared = [name for name in CAMERAS if kind in ("decode", "observe") and worker["name"] != f"decode/{name}"]
    gaps = [silence(run, name, hit_s) for name in spared]
    return Blow(kind, number.name, back_s, max(gaps) if gaps else None)


def _replaced(run: LiveRun, name: str, pid: int) -> bool:
    worker = next(each for each in run.status()["workers"] if each["name"] == name)
    return worker["pid"] not in (pid, 0) and worker["state"] == "ready"


def silence(run: LiveRun, camera: str, since_s: float) -> float:
    """The longest time between two frames since then."""
    times = [since_s, *(seen.at_s for seen in run.frames_of(camera, since_s)), time.monotonic()]
    return max(b - a for a, b in pairwise(times))


def kill_tree(run: LiveRun, number: signal.Signals) -> list[str]:
    """``number`` to the engine (SIGSTOP: to the whole tree, then SIGKILL to the engine); what is left after 3 s."""
    assert run.process is not None
    family = run.family()
    if number == signal.SIGSTOP:
        for each in family:
            each.suspend()
        time.sleep(0.3)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    if number == signal.SIGSTOP:
        for each in family:  # a stopped process can't see that its parent is gone; whoever stopped it lets it go on
            if each.is_running() and each.pid != run.process.pid:
                each.resume()
    return run.left_behind(3.0)
