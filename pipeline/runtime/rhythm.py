"""Owns when the next frame of one camera is expected, learnt from when its last ones came. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

REMEMBERED: Final = 8  # intervals
NEEDED: Final = 4
WAY_NS: Final = 300_000  # from the stamp of a frame until whoever asks has it
REGULAR_NS: Final = 4_000_000  # the middle half of them differs by no more than that, else nothing is expected


class Rhythm:
    """A frame comes so long after the one before. Single frames that were lost or late change nothing."""

    def __init__(self) -> None:
        self._intervals: deque[int] = deque(maxlen=REMEMBERED)
        self._last_ns = 0
        self._by_ns = 0  # mostly it has come by then; 0: nothing is known
        self._given_up_ns = 0  # and if it has not, it hardly comes after that

    def came(self, at_ns: int) -> None:
        """A frame came, stamped so."""
        if self._last_ns:
            self._intervals.append(at_ns - self._last_ns)
        self._last_ns = at_ns
        self._by_ns = self._given_up_ns = 0
        count = len(self._intervals)
        if count >= NEEDED:
            ordered = sorted(self._intervals)
            short_ns, long_ns = ordered[count // 4], ordered[-1 - count // 4]
            if long_ns - short_ns <= REGULAR_NS:
                self._by_ns = at_ns + long_ns + WAY_NS
                self._given_up_ns = self._by_ns + long_ns - short_ns

    def next_ns(self, now_ns: int) -> int | None:
        """By when the next frame should have come, always after ``now_ns``; None: nothing can be said of it."""
        if now_ns < self._by_ns:
            return self._by_ns
        return self._given_up_ns if now_ns < self._given_up_ns else None
