"""Owns the verdict whether a camera sends more than is decoded, and what is left out to catch up. Pure; reads no clock.

What is not decoded in time waits where nobody sees it: in the kernel's and the camera's buffers, megabytes of video.
Its age would grow without any bound. The sign of it is the stream's own clock (``lag``), which stays behind for long.
Then nothing but keyframes is decoded, and few of those, until the reader is where the camera is: so the newest is kept.
How long a read takes is no sign while the stream has a clock: a reader that is kept from the CPU seems to wait.

Reading without decoding shows the truth: it makes way while there is something to catch up with. If it makes none
although the clock says so, then it is the clock that runs wrong; after that was found twice in a row, it is not asked
again. Without a clock what is left is a reader that never waits.
"""

from __future__ import annotations

from typing import Final

from stages.decode.lag import LEAST_WAITING, MS, WINDOW_NS, Lag

LEAST_BOUND_NS: Final = 250 * MS  # networks and encoders are not regular
MOST_BOUND_NS: Final = 1_500 * MS
HOLD_NS: Final = 500 * MS  # behind for so long: a burst after a pause of the network is decoded in less
STRETCH_NS: Final = 60 * MS  # of reading
LEAST_PACE: Final = 1.2  # of the stream's clock while catching up: below, it is read only as fast as it is sent
FALSE_ALARMS: Final = 2
DRAINED_NS: Final = 2 * MS  # reading what is there already takes microseconds
KEYFRAME_NS: Final = 200 * MS  # at most one so often while catching up: of some codecs each picture is a keyframe


class Backlog:
    """Of one connection. Times are monotonic. ``max_age_ns``: half of it may a packet wait before it is read."""

    def __init__(self, max_age_ns: int = 1_000 * MS) -> None:
        self.catching_up = False
        self.skipped = 0  # packets of pictures that were not decoded
        self._bound_ns = min(max(max_age_ns // 2, LEAST_BOUND_NS), MOST_BOUND_NS)
        self._lag = Lag()
        self._trusts = True  # the stream's clock
        self._false_alarms = 0  # in a row
        self._over_ns: int | None = None  # since when it is behind
        self._from_ns = self._read_ns = 0  # timestamp at the begin of a stretch of catching up; read for so long in it
        self._window_ns = 0  # when it began; 0: not begun
        self._waited_ns = 0  # in this window
        self._drained = False
        self._keyframe_ns = 0  # when the last one was decoded while catching up
        self._decodes_keyframe = False

    @property
    def lag_ns(self) -> int:
        """How long the last packet had waited to be read, as far as the stream's clock shows it."""
        return self._lag.ns if self._trusts else 0

    def distrust(self) -> None:
        """The stream's clock is known to run wrong."""
        if self._trusts:
            self._trusts = False
            self._over_ns = None
            self._window_ns = 0

    def decodes(self, arrived_at_ns: int, waited_ns: int, stream_ns: int | None, *, keyframe: bool) -> bool:
        """Whether the packet that has just been read, after waiting for it so long, is to be decoded.

        ``stream_ns``: its timestamp by the camera's clock, if it has one.
        """
        if self._decodes_keyframe:
            self._keyframe_ns, self._decodes_keyframe = arrived_at_ns - waited_ns, False
        timed = self._trusts and stream_ns is not None
        if timed and stream_ns is not None:
            self._lag.measure(arrived_at_ns, waited_ns, stream_ns)
        by_clock = self._trusts and self._lag.known
        if self.catching_up:
            if by_clock:
                self._drained = self._drained or (timed and self._has_caught_up(waited_ns, stream_ns or 0))
            else:
                self._drained = self._drained or waited_ns >= DRAINED_NS
            if self._drained and keyframe:  # the first one that needs nothing that was left out
                self.catching_up = False
                self._window_ns, self._over_ns = 0, None
        elif self._lags(arrived_at_ns) if by_clock else self._never_waits(arrived_at_ns, waited_ns):
            self.catching_up, self._drained = True, False
            self._from_ns, self._read_ns = stream_ns or 0, 0
        if not self.catching_up:
            return True
        if keyframe and arrived_at_ns - self._keyframe_ns >= KEYFRAME_NS:
            self._decodes_keyframe = True
            return True
        self.skipped += 1
        return False

    def _lags(self, arrived_at_ns: int) -> bool:
        if self._lag.ns <= self._bound_ns:
            self._over_ns = None
            return False
        if self._over_ns is None:
            self._over_ns = arrived_at_ns
        return arrived_at_ns - self._over_ns >= HOLD_NS

    def _has_caught_up(self, waited_ns: int, stream_ns: int) -> bool:
        self._read_ns += waited_ns
        if self._read_ns < STRETCH_NS:
            return False
        caught_up = stream_ns - self._from_ns < LEAST_PACE * self._read_ns
        self._from_ns, self._read_ns = stream_ns, 0
        if caught_up:
            self._false_alarms = self._false_alarms + 1 if self._lag.ns > self._bound_ns // 2 else 0
            self._lag.settle()
            if self._false_alarms >= FALSE_ALARMS:
                self.distrust()
        return caught_up

    def _never_waits(self, arrived_at_ns: int, waited_ns: int) -> bool:
        if not self._window_ns:
            self._window_ns, self._waited_ns = arrived_at_ns, 0
            return False
        self._waited_ns += waited_ns
        length_ns = arrived_at_ns - self._window_ns
        if length_ns < WINDOW_NS:
            return False
        behind = self._waited_ns < LEAST_WAITING * length_ns
        self._window_ns, self._waited_ns = arrived_at_ns, 0
        return behind
