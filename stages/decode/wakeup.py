"""Owns waking one thread from others through a descriptor that it polls. Carries no message."""

from __future__ import annotations

import contextlib
import os
import threading


class WakeUp:
    """``fd`` is readable from ``set`` to ``clear``. ``set`` may be called by any thread, after ``close`` too."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # or a late ``set`` would write into whatever has got the number meanwhile

    def set(self) -> None:
        """Make ``fd`` readable."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """What comes after this makes it readable again."""
        with contextlib.suppress(BlockingIOError):
            if self.fd >= 0:
                os.eventfd_read(self.fd)

    def close(self) -> None:
        """Give the descriptor back; may be called twice."""
        with self._lock:
            descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            os.close(descriptor)
