"""Owns a descriptor that becomes readable at a time. Knows no device.

A timer of the kernel's (timerfd): a thread that slept instead would take the interpreter's lock each time it wakes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TIMER = ctypes.c_long * 4  # interval seconds, nanoseconds; value seconds, nanoseconds
_libc = ctypes.CDLL(None, use_errno=True)


class WakeTimer:
    """One timer. All calls come from one thread."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self._armed = False

    def open(self) -> None:
        """Make the descriptor; it is not readable before ``arm``."""
        fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self.fd = fd

    def arm(self, delay_ns: int) -> None:
        """Let the descriptor become readable in so many nanoseconds, at once for 0 or less; the last call counts."""
        seconds, nanoseconds = divmod(max(1, delay_ns), 1_000_000_000)
        if _libc.timerfd_settime(self.fd, 0, _TIMER(0, 0, seconds, nanoseconds), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        self._armed = True

    def clear(self) -> None:
        """Let the descriptor be not readable until the next ``arm`` fires; one that has not fired yet still does."""
        if self._armed and self.fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(self.fd, 8)
                self._armed = False

    def close(self) -> None:
        """Give the descriptor back; may be called twice."""
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)
        self._armed = False
