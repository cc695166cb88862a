"""Owns the verdict whether a camera's clock runs at the pace of time. Pure; reads no clock.

Single steps of a clock that runs ten times too fast are all believable; what they add up to is not. Judged is the least
offset (arrival less the camera's time) of each window: delays of network and decoder make single offsets larger, bursts
bring them back, but the least of a window moves only as the two clocks drift apart. One such move may be a pause of the
camera's; those of several windows in a row in the same direction are its pace.
"""

from __future__ import annotations

from typing import Final

from stages.decode.clock import SECOND_NS

WINDOW_NS: Final = 10 * SECOND_NS
WRONG: Final = (
    0.05  # of a window: real clocks drift by 0.01 %, broken ones by 1 %, and those still say more than arrival
)
QUITE_WRONG: Final = 0.5
STRIKES: Final = 3  # a window that is quite wrong counts twice
AHEAD_NS: Final = 5 * SECOND_NS  # of all that came before: only a burst of old pictures at the start comes near it


class Pace:
    """Of one stream. ``believed``: its clock runs as time does, as far as is known; ``rate``: how fast otherwise."""

    def __init__(self) -> None:
        self.believed = True
        self.rate = 1.0
        self._began: tuple[int, int] | None = None  # arrival and camera's time of the window's first frame
        self._least_ns = 0  # offset in this window
        self._before_ns: int | None = None  # the same of the window before
        self._strikes = 0  # below 0: too fast
        self._right = 0  # windows in a row

    def look(self, arrived_at_ns: int, camera_ns: int) -> bool:
        """One more frame, in order; ``camera_ns`` without jumps. Whether the clock is believed now."""
        offset_ns = arrived_at_ns - camera_ns
        if self._began is None:
            self._began, self._least_ns = (arrived_at_ns, camera_ns), offset_ns
            return self.believed
        self._least_ns = min(self._least_ns, offset_ns)
        passed_ns = arrived_at_ns - self._began[0]
        reference_ns = self._began[0] - self._began[1] if self._before_ns is None else self._before_ns
        if self.believed and offset_ns < reference_ns - AHEAD_NS:
            self._doubt(arrived_at_ns, camera_ns)
        elif passed_ns >= WINDOW_NS:
            self._judge(passed_ns, arrived_at_ns, camera_ns)
            self._before_ns = self._least_ns
            self._began, self._least_ns = (arrived_at_ns, camera_ns), offset_ns
        return self.believed

    def _judge(self, passed_ns: int, arrived_at_ns: int, camera_ns: int) -> None:
        if self._before_ns is None:
            return
        moved = (self._least_ns - self._before_ns) / passed_ns
        if abs(moved) < WRONG:
            self._strikes = 0
            self._right += 1
            if self._right >= STRIKES:
                self.believed, self.rate = True, 1.0
            return
        self._right = 0
        weight = (2 if abs(moved) >= QUITE_WRONG else 1) * (1 if moved > 0 else -1)
        self._strikes = self._strikes + weight if self._strikes * weight > 0 else weight
        if self.believed and abs(self._strikes) >= STRIKES:
            self._doubt(arrived_at_ns, camera_ns)

    def _doubt(self, arrived_at_ns: int, camera_ns: int) -> None:
        assert self._began is not None
        self.believed = False
        self._right = self._strikes = 0
        self.rate = (camera_ns - self._began[1]) / max(arrived_at_ns - self._began[0], 1)
