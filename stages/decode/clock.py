"""Owns the clock of one stream: from a container's timestamps to nanoseconds that only go up. Reads no clock itself.

Containers lie: raw streams have no timestamps, AVI gives those of decoding to pictures in another order, 33-bit clocks
of MPEG-TS wrap, joined files jump. The rules, in order, all of them deterministic:

1. The first frame of an epoch is at 0.
2. Of a frame's ``pts`` and ``dts`` the one that went back less often so far is believed (pts when equal), as FFmpeg's
   ``best_effort_timestamp`` does: it puts B-frames in AVI right.
3. Without either, or when the time doesn't go up by a believable step, a frame comes one nominal duration after the one
   before it.
4. A step that isn't believable (forward by more than ``max_gap_ns``, back by more than any reordering explains) moves
   the origin: the frames after it keep their distances from one another.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

SECOND_NS = 1_000_000_000
DEFAULT_NOMINAL_NS = SECOND_NS // 25  # what FFmpeg assumes of a stream that says nothing
MIN_NOMINAL_NS = SECOND_NS // 1000
MAX_NOMINAL_NS = 3600 * SECOND_NS
REORDER_FRAMES = 16  # the deepest reordering that H.264 and HEVC allow
REORDER_NS = SECOND_NS


class Rational(Protocol):
    """What PyAV calls a time base or a rate: ``Fraction`` up to version 18, a type of its own after that."""

    @property
    def numerator(self) -> int:
        """Above the line."""

    @property
    def denominator(self) -> int:
        """Below the line; 0 in an unset rate of some versions."""


class StreamClock:
    """Timestamps of one epoch. ``next_ns`` is called once per frame, in presentation order."""

    def __init__(self, time_base: Rational | None, nominal_ns: int, max_gap_ns: int) -> None:
        if time_base is not None and time_base.numerator > 0 and time_base.denominator > 0:
            self._tick_ns, self._per_tick = time_base.numerator * SECOND_NS, time_base.denominator
        else:
            self._tick_ns, self._per_tick = 0, 1  # timestamps without a unit say nothing
        self._nominal_ns = nominal_ns
        self._max_gap_ns = max(max_gap_ns, 10 * nominal_ns)
        self._max_back_ns = max(REORDER_NS, REORDER_FRAMES * nominal_ns)
        self._origin_ns: int | None = None  # the container's time of pts 0
        self._last_ns = -1
        self._last_pts: int | None = None
        self._last_dts: int | None = None
        self._faulty_pts = 0
        self._faulty_dts = 0

    def next_ns(self, pts: int | None, dts: int | None = None) -> int:
        """Nanoseconds since the first frame, more than of any frame before."""
        believed = self._believed(pts, dts) if self._tick_ns else None
        container_ns = None if believed is None else believed * self._tick_ns // self._per_tick
        first = self._last_ns < 0
        expected_ns = 0 if first else self._last_ns + self._nominal_ns
        if container_ns is None:
            found_ns = expected_ns
        elif first or self._origin_ns is None:
            self._origin_ns = container_ns - expected_ns
            found_ns = expected_ns
        else:
            found_ns = container_ns - self._origin_ns
            step_ns = found_ns - self._last_ns
            if step_ns > self._max_gap_ns or step_ns < -self._max_back_ns:
                self._origin_ns = container_ns - expected_ns
            if step_ns > self._max_gap_ns or step_ns <= 0:
                found_ns = expected_ns
        self._last_ns = found_ns
        return found_ns

    def _believed(self, pts: int | None, dts: int | None) -> int | None:
        """FFmpeg's guess_correct_pts (libavcodec/decode.c): the kind of timestamp with fewer steps back."""
        if dts is not None:
            self._faulty_dts += self._last_dts is not None and dts <= self._last_dts
            self._last_dts = dts
        elif pts is not None:
            self._last_dts = pts
        if pts is not None:
            self._faulty_pts += self._last_pts is not None and pts <= self._last_pts
            self._last_pts = pts
        elif dts is not None:
            self._last_pts = dts
        if pts is not None and (dts is None or self._faulty_pts <= self._faulty_dts):
            return pts
        return dts


def nominal_ns(rate: Rational | None) -> int:
    """Nanoseconds from frame to frame at ``rate`` (frames per second); 40 ms when the rate is unset or absurd."""
    if rate is None or rate.numerator <= 0 or rate.denominator <= 0:
        return DEFAULT_NOMINAL_NS
    found = SECOND_NS * rate.denominator // rate.numerator
    return found if MIN_NOMINAL_NS <= found <= MAX_NOMINAL_NS else DEFAULT_NOMINAL_NS


def told_fps(average: Rational | None, nominal: int) -> float:
    """Frames per second to tell people: the average, unless empty AVI chunks made it more than the nominal rate."""
    most = round(SECOND_NS / nominal, 6)  # a nanosecond more or less is no other rate
    if not average or average.numerator <= 0 or average.denominator <= 0:
        return most
    return min(average.numerator / average.denominator, most)


def utc_ns(text: str | None) -> int | None:
    """Nanoseconds since 1970 of an ISO 8601 time such as a ``creation_time`` tag (UTC when it names no zone), or None.

    Times before 1971 are what devices without a set clock write (0 in 1904 or 1970): they count as unknown.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    if delta.days < 365:
        return None
    return (delta.days * 86_400 + delta.seconds) * SECOND_NS + delta.microseconds * 1000
