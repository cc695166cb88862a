"""Owns how the memory of a process that connects for months is given back. Owns no memory.

Each connection has a thread, and glibc gives threads heaps of their own, up to eight for each core, that keep what was
freed in them: a process whose camera was lost 500 times held three times what it needs.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any, Final

_M_ARENA_MAX: Final = -8  # malloc.h
_EVERY_NS: Final = 1_000_000_000


class Heap:
    """The C library's heap of this process. With another C library than glibc it does nothing but collect garbage."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(None)
        self._tidied_ns = 0
        self._due = False

    def keep_in_one(self) -> None:
        """One heap for all threads; to be called before there is a second one."""
        if hasattr(self._library, "mallopt"):
            self._library.mallopt(_M_ARENA_MAX, 1)

    def connection_ended(self) -> None:
        """There is something to give back."""
        self._due = True

    def tidy(self, now_ns: int) -> None:
        """Give back what connections left, once a second at most."""
        if not self._due or now_ns - self._tidied_ns < _EVERY_NS:
            return
        self._due, self._tidied_ns = False, now_ns
        gc.collect()
        if hasattr(self._library, "malloc_trim"):
            self._library.malloc_trim(0)
