"""Owns the thread that runs one LaneSet's work in order, and the descriptor that tells of it. Knows no device.

It stands for a device's compute stream: what is put runs one after the other, so the executor's thread can fill the
next lane meanwhile. Work is a function that gives its RunTimes; the exception it raises is told in their place.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from stages.accelerators.accelerator import RunTimes

Work = Callable[[], RunTimes]


class ComputeStream:
    """Runs work in the order of ``put``. ``put``, ``finished`` and ``close`` belong to one thread."""

    def __init__(self, name: str, lanes: int) -> None:
        self.stopping = threading.Event()  # for work that sleeps: wait on this
        self._busy = [False] * lanes
        self._waiting: SimpleQueue[tuple[int, Work] | None] = SimpleQueue()
        self._ended: deque[tuple[int, RunTimes | Exception]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._wake_fd: int | None = None

    def open(self) -> None:
        """Start the thread."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread.start()

    @property
    def wake_fd(self) -> int | None:
        """Readable when something has ended since the last ``finished``."""
        return self._wake_fd

    def check_free(self, lane: int) -> None:
        """Raise ValueError unless work can be put on this lane."""
        if self._wake_fd is None or not 0 <= lane < len(self._busy) or self._busy[lane]:
            raise ValueError(f"lane {lane} of {len(self._busy)} is not free")

    def put(self, lane: int, work: Work) -> None:
        """Run ``work`` when everything put before has ended."""
        self._busy[lane] = True
        self._waiting.put((lane, work))

    def put_ended(self, lane: int, times: RunTimes) -> None:
        """Tell of work that took no time. Only for a stream that is given nothing by ``put``: order."""
        self._busy[lane] = True
        self._tell(lane, times)

    def finished(self) -> list[tuple[int, RunTimes | Exception]]:
        """What has ended since the last call, in order; never blocks."""
        if self._wake_fd is None:
            return []
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)  # before the look: what ends after it makes the descriptor readable again
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
            self._busy[ended[-1][0]] = False
        return ended

    def close(self) -> None:
        """Give up what waits, wait for what runs, end the thread; may be called twice."""
        if self._wake_fd is None:
            return
        self.stopping.set()
        self._waiting.put(None)
        self._thread.join()
        os.close(self._wake_fd)
        self._wake_fd = None
        self._ended.clear()

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            if self.stopping.is_set():
                continue
            lane, work = entry
            try:
                self._tell(lane, work())
            except Exception as error:  # noqa: BLE001  it is handed on: the executor decides what dies of it
                self._tell(lane, error)
            del entry, work  # they hold views of shared memory: not until the next run

    def _tell(self, lane: int, result: RunTimes | Exception) -> None:
        self._ended.append((lane, result))
        assert self._wake_fd is not None  # close joins this thread before it takes the descriptor away
        os.eventfd_write(self._wake_fd, 1)
