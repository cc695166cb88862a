"""Owns when a dead worker is started again. Pure: times in, decisions out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FIRST_DELAY_NS = 0  # most deaths are single: the frames that wait should not wait longer
STEP_DELAY_NS = 100_000_000
NOT_STARTED_DELAY_NS = 1_000_000_000  # a machine that gave no process will not give one in the next moment
LONGEST_DELAY_NS = 5_000_000_000


@dataclass(slots=True)
class RestartPolicy:
    """At most ``budget`` restarts within ``window_ns``; the delay doubles with each death in the window."""

    budget: int
    window_ns: int
    _deaths: deque[int] = field(default_factory=deque)

    def died(self, now_ns: int) -> int | None:
        """Note a death; the delay in ns after which to start again, or None when the budget is spent."""
        while self._deaths and now_ns - self._deaths[0] > self.window_ns:
            self._deaths.popleft()
        self._deaths.append(now_ns)
        count = len(self._deaths)
        if count > self.budget:
            return None
        if count == 1:
            return FIRST_DELAY_NS
        return min(LONGEST_DELAY_NS, STEP_DELAY_NS << (count - 2))

    def not_started(self, now_ns: int) -> int | None:
        """Note that no process could be had; as ``died``, but never at once."""
        delay_ns = self.died(now_ns)
        return None if delay_ns is None else max(delay_ns, NOT_STARTED_DELAY_NS)
