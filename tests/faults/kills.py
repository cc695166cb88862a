"""Owns killing and stopping workers of a run under live load, and what comes of it. Judges nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from faults.canary import CANARY, USER
from faults.live_run import LiveRun
from faults.servers.process import ServerProcess

CAMERAS = ("left", "right")
KINDS = ("decode", "executor", "nms", "observe", "forkserver")
HANG_MS = 3000
LEFT_S = 10.0  # they have a second; a busy machine takes longer
STEADY = 5  # frames of each camera before the next blow


@dataclass(frozen=True, slots=True)
class Blow:
    """One worker was hit; seconds until it was replaced, and until every camera gave pictures after that."""

    kind: str
    signal: str
    replaced_s: float
    pictures_s: float
    others_gap_s: float | None  # longest silence of a camera that had no part in it; None: all had

    def __str__(self) -> str:
        gap = "" if self.others_gap_s is None else f", other cameras' longest silence {self.others_gap_s:.2f} s"
        return f"{self.signal} {self.kind:9} replaced {self.replaced_s:5.2f} s, pictures {self.pictures_s:5.2f} s{gap}"


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


@contextmanager
def tree_camera() -> Iterator[str]:
    """The URL of a camera for ``small_tree``."""
    with ServerProcess("gate=160x120@10", "--scheme", "basic", "--user", USER, "--password", CANARY) as server:
        yield f"rtsp://127.0.0.1:{server.port}/gate"


@contextmanager
def small_tree(folder: Path, url: str) -> Iterator[LiveRun]:
    """One camera and one worker of each kind, with a picture on its way."""
    cameras = {"gate": {"source": {"url": url, "user": USER, "password": CANARY}}}
    with LiveRun(folder, cameras, nms={"workers": 1}) as run:
        run.wait_for_frames(["gate"], 0.0, 60)
        yield run


def strike(run: LiveRun, kinds: Sequence[str], number: signal.Signals) -> list[Blow]:
    """Hit one worker of each of ``kinds`` at once; wait until they are replaced and all cameras are back.

    A forkserver that is stopped is missed only when it is needed: then an NMS worker is killed too.
    """
    run.wait_for_frames(CAMERAS, time.monotonic(), 60, STEADY)
    run.wait("all workers are ready", lambda: ready(run.status()["workers"]), 60)
    workers = run.status()["workers"]
    server = {
        "kind": "forkserver",
        "name": "forkserver",
        "pid": psutil.Process(workers_of(workers, "decode")[0]).ppid(),
    }
    hit = [next(each for each in [*workers, server] if each["kind"] == kind) for kind in kinds]
    hit_s = time.monotonic()
    for each in hit:
        os.kill(each["pid"], number)
    if kinds == ["forkserver"] and number == signal.SIGSTOP:
        os.kill(workers_of(workers, "nms")[-1], signal.SIGKILL)
    back_s = []
    for each in hit:
        old = {each["pid"]} if each is not server else {*workers_of(workers, "decode"), *workers_of(workers, "nms")}
        run.wait(f"{each['name']} replaced", lambda each=each, old=old: _replaced(run, each["name"], old), 60)  # type: ignore[misc]
        back_s.append(time.monotonic() - hit_s)
    replaced_s = time.monotonic()
    run.wait_for_frames(CAMERAS, replaced_s, 60, 1)
    own = {each["name"] for each in hit}
    spared = [name for name in CAMERAS if {*kinds} <= {"decode", "observe"} and f"decode/{name}" not in own]
    gaps = [silence(run, name, hit_s) for name in spared]
    frames_s = max(run.frames_of(name, replaced_s)[0].at_s for name in CAMERAS) - hit_s
    return [
        Blow(kind, number.name, seconds, frames_s, max(gaps) if gaps else None)
        for kind, seconds in zip(kinds, back_s, strict=True)
    ]


def workers_of(workers: list[dict[str, Any]], kind: str) -> list[int]:
    """Their pids."""
    return [each["pid"] for each in workers if each["kind"] == kind]


def ready(workers: list[dict[str, Any]]) -> bool:
    """Whether all of them are."""
    return all(each["state"] == "ready" for each in workers)


def _replaced(run: LiveRun, name: str, old: set[int]) -> bool:
    """With a forkserver go its children; ``old`` are their pids then."""
    workers = run.status()["workers"]
    concerned = [each for each in workers if each["name"] == name] or workers
    return ready(concerned) and not old & {each["pid"] for each in concerned}


def silence(run: LiveRun, camera: str, since_s: float) -> float:
    """The longest time between two frames since then."""
    times = [since_s, *(seen.at_s for seen in run.frames_of(camera, since_s)), time.monotonic()]
    return max(b - a for a, b in pairwise(times))


WAYS = ("the engine alone", "every process", "every process stopped, then the engine killed")


def kill_tree(run: LiveRun, way: str) -> list[str]:
    """End a run without a word, in one of WAYS; what is left a while after.

    When every process is killed at once, nobody is left to remove the run's folder: the next run does.
    """
    assert run.process is not None
    family = run.family()
    if way == WAYS[1]:
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):  # it saw that the engine is gone, and left
                each.kill()
        run.process.wait()
        return run.left_behind(LEFT_S, folders=False)
    if way == WAYS[2]:
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()
        time.sleep(0.3)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    return run.left_behind(LEFT_S)
