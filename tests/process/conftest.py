"""The leak check around every test of this folder: descriptors, children, threads, shared memory, sockets' folders."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.runtime.supervisor import stop_forkserver

SETTLE_S = 5.0


def descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(("/proc/", "/dev/null", "anon_inode:[eventpoll]")) or "/pytest" in target:
            continue
        found[name] = target
    return found


def run_folders() -> set[str]:
    places = {os.environ.get("XDG_RUNTIME_DIR", "/tmp"), "/tmp", os.environ.get("TMPDIR", "/tmp")}
    return {str(path) for place in places if os.path.isdir(place) for path in Path(place).glob("campipe-*")}


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


def zombies() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE}


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Whatever a test started is gone when it is over."""
    stop_forkserver()
    before = (descriptors(), threading.enumerate(), children(), run_folders(), shared_memory())
    yield
    stop_forkserver()
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = {
            "descriptors": {n: t for n, t in descriptors().items() if before[0].get(n) != t},
            "threads": [t.name for t in threading.enumerate() if t not in before[1] and t.is_alive()],
            "children": children() - before[2],
            "zombies": zombies(),
            "folders": run_folders() - before[3],
            "shared memory": shared_memory() - before[4],
        }
        left = {what: found for what, found in left.items() if found}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        time.sleep(0.05)
