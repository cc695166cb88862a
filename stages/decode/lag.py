"""Owns how far behind its stream a reader is: the stream's own clock against this machine's. Pure; reads no clock.

Data that waits in the kernel's or the camera's buffers has no time of arrival that anybody could ask for. But the
camera's clock goes on in it: the packet that came with the least delay so far shows how the two clocks go together, and
how much later than that another one is read is what it has waited. The two drift apart, so a little is forgiven all
the time to who waits for packets now and then; a reader that only seems to wait, because it is kept from the CPU, and
is too slow by less than that, is not found.
"""

from __future__ import annotations

from typing import Final

MS: Final = 1_000_000
BACK_NS: Final = 1_000 * MS  # the deepest reordering; what is further back is a clock that was set
SLACK_NS: Final = 2_000 * MS  # so much more than could have been sent meanwhile is a clock that was set, too
DRIFT: Final = 0.0105  # two clocks may drift apart by so much; no lag is made of it
WINDOW_NS: Final = 1_000 * MS
LEAST_WAITING: Final = 0.01  # of a window; who reads what is there already waits less, and only drift of waiters counts


class Lag:
    """Of one connection. Times are monotonic, ``stream_ns`` is a packet's timestamp by the camera's clock."""

    def __init__(self) -> None:
        self.ns = 0
        self._best_ns: int | None = None  # least arrival less timestamp
        self._arrived_ns = self._stream_ns = 0  # of the last packet
        self._window_ns = self._waited_ns = 0  # when the present window began, and what was waited in it
        self._allowance_ns = 0  # drift that may still be taken for it

    @property
    def known(self) -> bool:
        """Whether any packet had a timestamp."""
        return self._best_ns is not None

    def measure(self, arrived_at_ns: int, waited_ns: int, stream_ns: int) -> int:
        """How much later than it could have been a packet was read for which the reader waited so long."""
        offset_ns = arrived_at_ns - stream_ns
        if self._best_ns is None:
            self._best_ns, self._window_ns = offset_ns, arrived_at_ns
        else:
            passed_ns, step_ns = arrived_at_ns - self._arrived_ns, stream_ns - self._stream_ns
            if step_ns < -BACK_NS or step_ns > passed_ns + self.ns + SLACK_NS:
                self._best_ns += passed_ns - step_ns  # what has waited before still has
            self._drift(arrived_at_ns, waited_ns)
            taken_ns = min(self._allowance_ns, max(offset_ns - self._best_ns, 0))
            self._allowance_ns -= taken_ns
            self._best_ns = min(self._best_ns + taken_ns, offset_ns)
        self._arrived_ns, self._stream_ns = arrived_at_ns, stream_ns
        self.ns = offset_ns - self._best_ns
        return self.ns

    def _drift(self, arrived_at_ns: int, waited_ns: int) -> None:
        self._waited_ns += waited_ns
        length_ns = arrived_at_ns - self._window_ns
        if length_ns >= WINDOW_NS:
            waits = self._waited_ns >= LEAST_WAITING * length_ns
            self._allowance_ns = int(DRIFT * min(length_ns, 10 * WINDOW_NS)) if waits else 0
            self._window_ns, self._waited_ns = arrived_at_ns, 0

    def settle(self) -> None:
        """The last packet is known not to have waited."""
        self._best_ns = self._arrived_ns - self._stream_ns
        self.ns = 0
