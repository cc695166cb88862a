"""Owns what the engine's loop sleeps on: the workers' socket, their sentinels, the pipe that wakes it."""

from __future__ import annotations

import contextlib
import os

import zmq

from pipeline.runtime.supervisor import Supervisor
from pipeline.runtime.worker_process import WorkerProcess


class Waiting:
    """Waits for messages, deaths and ``wake``, whichever comes first."""

    def __init__(self) -> None:
        self._read, self._write = -1, -1
        self._poller = zmq.Poller()
        self._polled = -1  # the supervisor's count of changes that the poller stands for
        self._sentinels: dict[int, WorkerProcess] = {}

    def open(self) -> None:
        """Make the pipe."""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the wait that goes on, or the next one; from a signal handler or another thread."""
        if self._write >= 0:
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(self._write, b"\0")

    def wait(self, socket: zmq.Socket[bytes] | None, supervisor: Supervisor, timeout_ms: int) -> list[WorkerProcess]:
        """Sleep at most so long; the workers that have died."""
        if self._polled != supervisor.changes:
            self._polled = supervisor.changes
            self._sentinels = supervisor.sentinels
            self._poller = zmq.Poller()
            for readable in (socket, self._read, *self._sentinels):
                self._poller.register(readable, zmq.POLLIN)
        ready = [readable for readable, _ in self._poller.poll(timeout_ms)]
        if self._read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)
        return [self._sentinels[fd] for fd in ready if isinstance(fd, int) and fd in self._sentinels]

    def close(self) -> None:
        """Close the pipe; may be called twice."""
        read, write, self._read, self._write = self._read, self._write, -1, -1
        for descriptor in (read, write):
            if descriptor >= 0:
                os.close(descriptor)
