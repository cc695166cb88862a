"""The leak check around every test of this folder: descriptors, children, threads, shared memory, sockets' folders."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.runtime.starting import stop_forkserver

SETTLE_S = 5.0


def descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(("/proc/", "/dev/null", "anon_inode:[eventpoll]")) or "/pytest" in target:
            continue
        found[entry.name] = target
    return found


@pytest.fixture(autouse=True)
def run_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runs of this test put their sockets: a place of its own, so that only its leaks are seen."""
    folder = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def shared_memory() -> set[str]:
    """Named segments as we might make them; semaphores of other programs on this machine come and go."""
    return {path.name for path in Path("/dev/shm").glob("*") if path.name.startswith(("psm_", "campipe"))}


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE}


def zombies() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE}


@pytest.fixture(autouse=True)
def no_leaks(run_folder: Path) -> Iterator[None]:
    """Whatever a test started is gone when it is over."""
    stop_forkserver()
    before = (descriptors(), threading.enumerate(), children(), shared_memory())
    yield
    stop_forkserver()
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = {
            "descriptors": {n: t for n, t in descriptors().items() if before[0].get(n) != t},
            "threads": [t.name for t in threading.enumerate() if t not in before[1] and t.is_alive()],
            "children": children() - before[2],
            "zombies": zombies(),
            "folders": [path.name for path in run_folder.iterdir()],
            "shared memory": shared_memory() - before[3],
        }
        left = {what: found for what, found in left.items() if found}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        time.sleep(0.05)
