"""Owns what a worker tells of its own cost: CPU, busy time, memory. Decides nothing."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.transport.channel import WorkerChannel
from stages.messages import WorkerStats

STATS_EVERY_NS = 1_000_000_000
MEMORY_EVERY_NS = 5_000_000_000  # at first, then more and more rarely: reading smaps_rollup walks all pages
MEMORY_AT_LEAST_EVERY_NS = 30_000_000_000


class Meter:
    """Counts what this worker does and tells it once a second."""

    def __init__(self, channel: WorkerChannel, *, process_wide: bool = True) -> None:
        self.busy_ns = 0
        self.items = 0
        self._channel = channel
        self._process_wide = process_wide
        self._next_ns = 0
        self._next_memory_ns = 0
        self._memory_every_ns = MEMORY_EVERY_NS
        self._memory = (0, 0)

    @property
    def due_ns(self) -> int:
        """When the next report is due."""
        return self._next_ns

    def due_ms(self, now_ns: int) -> int:
        """Milliseconds until the next report."""
        return max(0, (self._next_ns - now_ns) // 1_000_000 + 1)

    def report(self, now_ns: int, *, last: bool = False) -> None:
        """Send the counters if it is time."""
        if now_ns < self._next_ns and not last:
            return
        self._next_ns = now_ns + STATS_EVERY_NS
        if self._process_wide and (last or now_ns >= self._next_memory_ns):
            self._next_memory_ns = now_ns + self._memory_every_ns
            self._memory_every_ns = min(2 * self._memory_every_ns, MEMORY_AT_LEAST_EVERY_NS)
            self._memory = memory_bytes()
        cpu_ns = time.process_time_ns() if self._process_wide else 0
        self._channel.send(WorkerStats(cpu_ns, self.busy_ns, self.items, *self._memory))


def memory_bytes() -> tuple[int, int]:
    """Resident and private bytes of this process, (0, 0) where the kernel does not tell."""
    rss = private = 0
    try:
        with Path("/proc/self/smaps_rollup").open(encoding="ascii") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key == "Rss":
                    rss = int(value.split()[0]) * 1024
                elif key in {"Private_Clean", "Private_Dirty"}:
                    private += int(value.split()[0]) * 1024
    except (OSError, ValueError):
        return 0, 0
    return rss, private
