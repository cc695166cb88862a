"""Owns the verdict whether a camera sends more than is decoded, and what is left out to catch up. Pure; reads no clock.

What is not decoded in time waits where nobody sees it: in the kernel's and the camera's buffers, megabytes of video.
Its age would grow without any bound, for age is counted from when data was read. The sign of it is a reader that never
has to wait. Then nothing but keyframes is decoded, and few of those, until it waits again: so the newest is kept.
"""

from __future__ import annotations

from typing import Final

MS: Final = 1_000_000
WINDOW_NS: Final = 1_000 * MS
LEAST_WAITING: Final = 0.08  # of a window; below that, it decodes all the time
DRAINED_NS: Final = 2 * MS  # reading what is there already takes microseconds
KEYFRAME_NS: Final = 200 * MS  # at most one so often while catching up: of some codecs each picture is a keyframe


class Backlog:
    """Of one connection. Times are monotonic."""

    def __init__(self) -> None:
        self.catching_up = False
        self.skipped = 0  # packets of pictures that were not decoded
        self._window_ns = 0  # when it began; 0: not begun
        self._waited_ns = 0  # in this window
        self._drained = False
        self._keyframe_ns = 0

    def decodes(self, arrived_at_ns: int, waited_ns: int, *, keyframe: bool) -> bool:
        """Whether the packet that has just been read, after waiting for it so long, is to be decoded."""
        if self.catching_up:
            self._drained = self._drained or waited_ns >= DRAINED_NS
            if self._drained and keyframe:  # the first one that needs nothing that was left out
                self.catching_up = False
                self._window_ns = 0
        elif self._is_behind(arrived_at_ns, waited_ns):
            self.catching_up, self._drained = True, False
        if not self.catching_up:
            return True
        if keyframe and arrived_at_ns - self._keyframe_ns >= KEYFRAME_NS:
            self._keyframe_ns = arrived_at_ns
            return True
        self.skipped += 1
        return False

    def _is_behind(self, arrived_at_ns: int, waited_ns: int) -> bool:
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
