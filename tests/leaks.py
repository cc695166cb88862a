"""Owns what "still there" means for tests: which processes live, and what a test has left behind. Starts nothing.

``tests/conftest.py`` makes ``run_folder`` and ``no_leaks`` known to all folders; those that start processes use
``no_leaks`` for every test of theirs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.runtime.starting import stop_forkserver

SETTLE_S = 15.0  # long: what leaves on a busy machine is no leak
MARK = "CAMPIPE_TEST_RUN"  # in the environment of whatever a test starts: found even if its parent died


# --- processes --------------------------------------------------------------------------------------------------------


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those of them that still run; to be asked of processes looked up while they did.

    A zombie does not run: it is a row in a table until its parent reads it, for an orphan process 1 of the machine or
    of the container, which may take its time. Nor does a process that was given the number of one that is gone.
    """
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                found.append(process)
    return found


def left_after(processes: Collection[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that still run after so long; empty as soon as none does."""
    deadline = time.monotonic() + within_s
    while (left := living(processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def family(pid: int) -> set[psutil.Process]:
    """The living descendants of a process; none if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(living(psutil.Process(pid).children(recursive=True)))
    return set()


def unread(pid: int) -> set[psutil.Process]:
    """Its children that have ended and that it has not waited for."""
    found = set()
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.add(child)
    return found


def started_under(mark: str) -> set[psutil.Process]:
    """The living processes of this machine with this ``MARK`` in their environment, whoever their parent is by now."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):  # another user's, or gone
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(psutil.Process(int(folder.name)))
    return set(living(found))


# --- everything else --------------------------------------------------------------------------------------------------


def descriptors() -> dict[str, str]:
    """Number and target of each of this process, but for those that libraries open once and keep."""
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


def shared_memory() -> set[str]:
    """Named segments as we might make them; semaphores of other programs on this machine come and go."""
    return {path.name for path in Path("/dev/shm").glob("*") if path.name.startswith(("psm_", "campipe"))}


@pytest.fixture
def run_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runs of this test put their sockets: a place of its own, so that only its leaks are seen."""
    folder = Path(tempfile.mkdtemp(prefix="ct-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv(MARK, str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def no_leaks(run_folder: Path) -> Iterator[None]:
    """Whatever a test started is gone when it is over: descriptors, threads, processes, shared memory, sockets."""
    stop_forkserver()
    descriptors_before = descriptors()
    threads_before = threading.enumerate()
    family_before = family(os.getpid())
    memory_before = shared_memory()
    yield
    stop_forkserver()
    deadline = time.monotonic() + SETTLE_S
    while True:
        left: dict[str, Collection[object]] = {
            "descriptors": {n: t for n, t in descriptors().items() if descriptors_before.get(n) != t},
            "threads": [t.name for t in threading.enumerate() if t not in threads_before and t.is_alive()],
            "processes": [_told(p) for p in (family(os.getpid()) - family_before) | started_under(str(run_folder))],
            "zombies": [p.pid for p in unread(os.getpid())],
            "folders": [path.name for path in run_folder.iterdir()],
            "shared memory": shared_memory() - memory_before,
        }
        left = {what: found for what, found in left.items() if found}
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {left}")
        time.sleep(0.05)


def _told(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    return str(process.pid)
