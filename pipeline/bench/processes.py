"""Owns reading what another process has cost: CPU time and private memory. Starts and ends none."""

from __future__ import annotations

import time
from pathlib import Path

_PROCESS_CPU_CLOCK = 2  # CPUCLOCK_SCHED of the kernel: all threads, those that have ended too


def cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process so far, exact to the nanosecond; None when it is gone."""
    try:
        return time.clock_gettime_ns((~pid << 3) | _PROCESS_CPU_CLOCK)
    except OSError:
        return None


def private_bytes(pid: int) -> int:
    """Memory that the process alone has, without what is shared; 0 when it is gone or the kernel does not tell."""
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open(encoding="ascii") as lines:
            found = [line.split() for line in lines]
    except OSError:
        return 0
    return sum(int(words[1]) * 1024 for words in found if words[0] in {"Private_Clean:", "Private_Dirty:"})
