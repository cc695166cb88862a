"""Owns reading what processes have cost: CPU time, memory, threads, descriptors. Starts and ends none."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

_PROCESS_CPU_CLOCK = 2  # CPUCLOCK_SCHED of the kernel: all threads, those that have ended too


def cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process so far, exact to the nanosecond; None when it is gone."""
    try:
        return time.clock_gettime_ns((~pid << 3) | _PROCESS_CPU_CLOCK)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process holds. ``private_bytes``: memory that it alone has. ``own_bytes``: its part of what is no file.

    Pages that workers have in common with the process they were forked from are counted once in the sum of all
    ``own_bytes``. Shared rings are in neither.
    """

    private_bytes: int
    own_bytes: int
    threads: int
    descriptors: int


def footprint(pid: int) -> Footprint | None:
    """Of that process; None when it is gone, or the kernel does not tell."""
    told = _smaps(pid)
    if not told:
        return None
    private = told.get("Private_Clean", 0) + told.get("Private_Dirty", 0)
    try:
        threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    return Footprint(private, told.get("Pss_Anon", private), threads, descriptors)  # Pss_Anon: since Linux 5.9


def private_bytes(pid: int) -> int:
    """Memory that the process alone has, without what is shared; 0 when it is gone or the kernel does not tell."""
    told = _smaps(pid)
    return told.get("Private_Clean", 0) + told.get("Private_Dirty", 0)


def held_bytes(pid: int) -> int | None:
    """Its part of all memory that no file backs, shared rings included; None when it is gone or nobody tells.

    In the sum over processes each page counts once.
    """
    told = _smaps(pid)
    return told["Pss_Anon"] + told.get("Pss_Shmem", 0) if "Pss_Anon" in told else None  # since Linux 5.9


def children(pid: int) -> list[int]:
    """The processes that it has started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text(encoding="ascii").split())
    return found


def family(pid: int) -> list[int]:
    """The process, those that it has started, those that these have started, and so on, as far as they live."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def command(pid: int) -> str:
    """What it was started with; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _smaps(pid: int) -> dict[str, int]:
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open(encoding="ascii") as lines:
            found = [line.split() for line in lines]
    except OSError:
        return {}
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in found if len(words) == 3 and words[2] == "kB"}
