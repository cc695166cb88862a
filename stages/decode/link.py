"""Owns when a live source is connected, given up, and tried again. Pure: events and times in, states and times out.

::

    connecting ─► streaming ─► stalled ─► reconnecting ─► connecting …
         └──────────►──────────────────────┘   └─► failed (only where `attempts` says so)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from stages.camera import LinkSpec
from stages.messages import LinkState

MS: Final = 1_000_000
STEADY_NS: Final = 10_000 * MS  # a stream that lasted so long was no flicker: the next wait starts small again
GUARDED_FIRST_MS: Final = 2_000
GUARDED_LONGEST_MS: Final = 30_000
GUARDED: Final = frozenset({"unauthorised", "forbidden"})  # cameras lock users who try too often
LEAST_WAIT_MS: Final = 10
KEYFRAMES_STALL_MS: Final = 30_000  # cameras send a keyframe each 1 to 10 s


@dataclass(frozen=True, slots=True)
class Overdue:
    """A deadline that has passed: what did not come, and for how long."""

    what: Literal["open", "data", "picture"]
    waited_ns: int


class Link:
    """The state of one camera's connection.

    ``draw`` gives a number from 0 to 1 (uniform): waits are spread over the upper half of what they are, so that
    cameras that were lost together don't come back together.
    """

    def __init__(self, spec: LinkSpec, draw: Callable[[], float], *, due_ns: int, keyframes: bool = False) -> None:
        self._spec = spec
        self._draw = draw
        self.state: LinkState = "connecting"
        self.attempt = 0  # tries since the last picture, the present one included
        self.due_ns: int | None = due_ns  # when to connect; None: connected, being connected, or over
        self.keyframes = keyframes
        self._doublings = {False: 0, True: 0}  # of guarded causes apart: an outage before is no reason to wait for long
        self._connecting_ns = 0
        self._opened_ns: int | None = None
        self._streaming_ns: int | None = None

    def connect(self, now_ns: int) -> None:
        """A try begins."""
        self.state = "connecting"
        self.attempt += 1
        self.due_ns = None
        self._connecting_ns = now_ns
        self._opened_ns = self._streaming_ns = None

    @property
    def is_open(self) -> bool:
        """Whether ``opened`` was told of this try."""
        return self._opened_ns is not None

    def opened(self, now_ns: int) -> None:
        """The source is open; no picture yet."""
        self._opened_ns = now_ns

    def picture(self, now_ns: int) -> bool:
        """A whole picture came; whether that made it streaming."""
        if self._streaming_ns is not None:
            return False
        self.state = "streaming"
        self.attempt = 0
        self._streaming_ns = now_ns
        return True

    def _deadlines(self, data_ns: int, picture_ns: int) -> list[tuple[int, int, Literal["open", "data", "picture"]]]:
        """(when, since when, what) for everything that is waited for."""
        spec = self._spec
        if self._opened_ns is None:
            since_ns = self._connecting_ns
            return [(since_ns + spec.open_timeout_ms * MS, since_ns, "open")]
        stall_ms = max(spec.stall_ms, KEYFRAMES_STALL_MS) if self.keyframes else spec.stall_ms
        data_ns, picture_ns = max(data_ns, self._opened_ns), max(picture_ns, self._opened_ns)
        return [
            (data_ns + spec.read_timeout_ms * MS, data_ns, "data"),
            (picture_ns + stall_ms * MS, picture_ns, "picture"),
        ]

    def next_ns(self, data_ns: int, picture_ns: int) -> int:
        """When ``overdue`` should be asked, or a try be made, at the latest. Arguments: the last of each, or 0."""
        if self.due_ns is not None:
            return self.due_ns
        return min(at for at, _, _ in self._deadlines(data_ns, picture_ns))

    def overdue(self, now_ns: int, data_ns: int, picture_ns: int) -> Overdue | None:
        """What should have come by now. Arguments: times of the last data and the last whole picture, or 0."""
        if self.due_ns is not None:
            return None
        for at_ns, since_ns, what in self._deadlines(data_ns, picture_ns):
            if now_ns >= at_ns:
                return Overdue(what, now_ns - since_ns)
        return None

    def stalled(self) -> None:
        """Connected, but of no use: it is being torn down."""
        self.state = "stalled"

    def lost(self, now_ns: int, cause: str) -> int | None:
        """The connection, or the try, is over: milliseconds until the next one; None when there is none."""
        spec = self._spec
        if spec.attempts is not None and self.attempt >= spec.attempts:
            self.state = "failed"
            self.due_ns = None
            return None
        if self._streaming_ns is not None and now_ns - self._streaming_ns >= STEADY_NS:
            self._doublings = {False: 0, True: 0}
        guarded = cause in GUARDED
        first_ms, longest_ms = spec.retry_first_ms, spec.retry_longest_ms
        if guarded:
            first_ms, longest_ms = max(first_ms, GUARDED_FIRST_MS), max(longest_ms, GUARDED_LONGEST_MS)
        most_ms = first_ms
        for _ in range(self._doublings[guarded]):
            if most_ms >= longest_ms:
                break
            most_ms *= 2
        self._doublings[guarded] += 1
        most_ms = min(most_ms, longest_ms)
        wait_ms = max(LEAST_WAIT_MS, round(most_ms * (0.5 + 0.5 * min(max(self._draw(), 0.0), 1.0))))
        self.state = "reconnecting"
        self.due_ns = now_ns + wait_ms * MS
        return wait_ms
