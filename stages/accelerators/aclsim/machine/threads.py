"""Owns what the machine knows of the host's threads: their context, and whether they rest. Does not own the clock.

Whether a thread that is not in a call of the module could still make one soon is asked of the kernel: it rests when it
sleeps, and was not scheduled between two looks between which the interpreter's lock was free.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

SECOND_LOOK_S = 100e-6


class HostThread:
    """One thread of the process that called the module."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.context: Any = None
        self.device: Any = None
        self.waiter: Any = None  # what it waits for on the virtual clock
        self.polled: set[int] = set()  # what it asked for in vain since its last other call
        self.message = ""  # of its last failing call
        self.last_error = 0
        self.in_callback = False
        folder = f"/proc/self/task/{threading.get_native_id()}/"
        self._files = [_opened(folder + "stat"), _opened(folder + "schedstat")]
        self._slices = b""
        self._looked_s = 0.0
        self._asleep = False

    @property
    def ended(self) -> bool:
        """Whether the thread is over."""
        return self._state() == b""

    def rests(self) -> bool:
        """Whether it sleeps outside of the module. False at first: ask again after ``SECOND_LOOK_S``."""
        state = self._state()
        if state == b"":
            return True
        slices = self._read(1)
        if state != b"S":
            self._asleep, self._slices = False, b""
        elif slices != self._slices:
            self._asleep, self._slices, self._looked_s = False, slices, time.monotonic()
        elif time.monotonic() - self._looked_s >= SECOND_LOOK_S:
            self._asleep = True
        return self._asleep

    def close(self) -> None:
        """Close its files."""
        for file in self._files:
            if file >= 0:
                os.close(file)
        self._files = [-1, -1]

    def _state(self) -> bytes:
        """The kernel's letter, b"" when the thread is over."""
        stat = self._read(0)
        return stat[stat.rfind(b")") + 2 :][:1] if stat else b""

    def _read(self, which: int) -> bytes:
        if self._files[which] < 0:
            return b""
        try:
            return os.pread(self._files[which], 512, 0)
        except OSError:  # no such thread any more
            return b""


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class HostThreads:
    """All threads that called the module and live."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self.known: list[HostThread] = []

    def current(self) -> HostThread:
        """That of the calling thread."""
        thread: HostThread | None = getattr(self._mine, "thread", None)
        if thread is None:
            thread = HostThread()
            self._mine.thread = thread
            self.forget_ended()
            self.known.append(thread)
        return thread

    def forget_ended(self) -> None:
        """Drop threads that are over."""
        ended = [thread for thread in self.known if thread.ended]
        for thread in ended:
            self.known.remove(thread)
            thread.close()

    def others_rest(self, me: HostThread | None) -> bool:
        """Whether every other thread that has a context waits in the module or rests."""
        resting = True
        for thread in self.known:
            waiter = thread.waiter
            if thread is me or thread.context is None:
                continue
            if waiter is not None:
                resting = resting and not waiter.released
            elif not thread.rests():
                resting = False
        return resting

    def close(self) -> None:
        """Close all files."""
        for thread in self.known:
            thread.close()
        self.known.clear()
