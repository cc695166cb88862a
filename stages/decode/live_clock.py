"""Owns the clock of one live stream: continuous timestamps from those of a camera that may lie. Reads no clock itself.

A camera's timestamps are believed as long as they could be true: they say better than the arrival of packets how far
apart pictures were taken, and networks deliver in bursts. A clock that runs 1 % fast or slow is one that could be true.
What can't be true is judged by how much time has passed here meanwhile, step by step and over windows of 10 s:

1. The first frame of an epoch is at 0, whatever it says.
2. A step forward that is longer than the time that passed here, with some slack, is a jump of the camera's clock (it
   was set, it wrapped, its encoder was restarted): the frame comes the passed time after the one before, and what
   follows keeps its distances.
3. So is a step back that no reordering explains.
4. A frame that repeats a timestamp, or is a little behind, comes just after the one before it; but timestamps that
   have stood still for long say nothing any more.
5. Without a timestamp, the time that passed here is all there is.
6. A clock that runs too fast or too slow by more than 5 % for long (``pace``) is not believed: frames are as far apart
   as they came here, until it runs right again for half a minute.

And captured UTC: the camera's own, from RTCP sender reports, unless it is absurdly far from when the data came.
"""

from __future__ import annotations

from stages.decode.clock import SECOND_NS, Rational
from stages.decode.pace import Pace
from stages.messages import ClockSource

SLACK_NS = 2 * SECOND_NS  # how far behind its own clock data may come at once: a burst after a pause of the network
BACK_NS = SECOND_NS  # the deepest reordering
STILL_NS = SECOND_NS
LEAST_STEP_NS = 1_000
RTCP_LATE_NS = 10 * SECOND_NS  # data older than that when it comes: rather, the camera's clock is wrong
RTCP_EARLY_NS = SECOND_NS


class LiveClock:
    """Timestamps of one epoch. ``next_ns`` is called once per frame, in presentation order."""

    def __init__(self, time_base: Rational | None, nominal_ns: int) -> None:
        self._line = _Line(time_base, nominal_ns)
        self._pace = Pace()
        self._shift_ns = 0  # to the camera's line, after its clock was not believed for a while
        self._last_ns = -1
        self._last_arrived_ns = 0

    def camera_ns(self, pts: int | None) -> int | None:
        """A timestamp of the stream in nanoseconds of the camera's clock."""
        return self._line.camera_ns(pts)

    @property
    def believed(self) -> bool:
        """Whether the camera's clock runs as time does, as far as is known."""
        return self._pace.believed

    @property
    def remark(self) -> str:
        """For people: what is wrong with the camera's clock; empty if nothing is."""
        if self._pace.believed:
            return ""
        return (
            f"its timestamps run {self._pace.rate:.2g} times as fast as time, so that of arrival is taken; check the "
            "camera's firmware and frame rate"
        )

    def next_ns(self, pts: int | None, arrived_at_ns: int) -> int:
        """Nanoseconds since the first frame, more than of any frame before. ``arrived_at_ns``: monotonic."""
        line_ns = self._line.next_ns(pts, arrived_at_ns)
        passed_ns = max(arrived_at_ns - self._last_arrived_ns, LEAST_STEP_NS)
        before, believed = self._pace.believed, self._pace.look(arrived_at_ns, line_ns)
        if self._last_ns < 0:
            found_ns = line_ns
        elif believed and before:
            found_ns = line_ns + self._shift_ns
        else:
            found_ns = self._last_ns + passed_ns
            self._shift_ns = found_ns - line_ns
        self._last_ns, self._last_arrived_ns = found_ns, arrived_at_ns
        return found_ns


class _Line:
    """The camera's own time without its jumps: rules 1 to 5."""

    def __init__(self, time_base: Rational | None, nominal_ns: int) -> None:
        if time_base is not None and time_base.numerator > 0 and time_base.denominator > 0:
            self._tick_ns, self._per_tick = time_base.numerator * SECOND_NS, time_base.denominator
        else:
            self._tick_ns, self._per_tick = 0, 1  # timestamps without a unit say nothing
        self._slack_ns = SLACK_NS + 2 * nominal_ns
        self._origin_ns: int | None = None  # the camera's time of pts 0
        self._last_ns = -1
        self._last_arrived_ns = 0
        self._moved_ns = 0  # arrival of the last frame whose timestamp was a step forward

    def camera_ns(self, pts: int | None) -> int | None:
        """A timestamp of the stream in nanoseconds of the camera's clock."""
        return None if pts is None or not self._tick_ns else pts * self._tick_ns // self._per_tick

    def next_ns(self, pts: int | None, arrived_at_ns: int) -> int:
        """Nanoseconds since the first frame, more than of any frame before. ``arrived_at_ns``: monotonic."""
        camera_ns = self.camera_ns(pts)
        first = self._last_ns < 0
        passed_ns = 0 if first else max(arrived_at_ns - self._last_arrived_ns, 0)
        expected_ns = 0 if first else self._last_ns + max(passed_ns, LEAST_STEP_NS)
        if camera_ns is None:
            found_ns = expected_ns
        elif self._origin_ns is None:
            self._origin_ns = camera_ns - expected_ns
            found_ns = expected_ns
        else:
            found_ns = camera_ns - self._origin_ns
            step_ns = found_ns - self._last_ns
            still = step_ns <= 0 and arrived_at_ns - self._moved_ns > max(STILL_NS, self._slack_ns - SLACK_NS)
            if still or step_ns > passed_ns + self._slack_ns or step_ns < -BACK_NS:
                self._origin_ns = camera_ns - expected_ns
                found_ns = expected_ns
            elif step_ns <= 0:
                found_ns = self._last_ns + LEAST_STEP_NS
            if step_ns > 0 or step_ns < -BACK_NS:
                self._moved_ns = arrived_at_ns
        self._last_ns = found_ns
        self._last_arrived_ns = arrived_at_ns
        if first:
            self._moved_ns = arrived_at_ns
        return found_ns


def captured(rtcp_ns: int | None, arrived_ns: int) -> tuple[int, ClockSource]:
    """UTC at which a picture was taken, and what says so; both arguments are UTC."""
    if rtcp_ns is not None and -RTCP_LATE_NS <= rtcp_ns - arrived_ns <= RTCP_EARLY_NS:
        return rtcp_ns, "rtcp"
    return arrived_ns, "arrival"
