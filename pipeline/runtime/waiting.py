"""Owns what the engine's loop sleeps on: the workers' socket, their sentinels, the pipe that wakes it."""

from __future__ import annotations

import contextlib
import os
import select

import zmq

from pipeline.runtime.supervisor import Supervisor
from pipeline.runtime.worker_process import WorkerProcess

_READABLE = int(zmq.POLLIN)
_MS = 1_000_000
_MOST_DESCRIPTORS = 1024  # of select: FD_SETSIZE
_SOON_NS = 50 * _MS  # what is due sooner may be a batch, which must go out neither late nor early


class Waiting:
    """Waits for messages, deaths and ``wake``, whichever comes first."""

    def __init__(self) -> None:
        self._read, self._write = -1, -1
        self._small = -1  # a descriptor made before there were many: it stands for the epoll in select
        self._epoll: select.epoll | None = None
        self._polled = -1  # the supervisor's count of changes that the epoll stands for
        self._sentinels: dict[int, WorkerProcess] = {}

    def open(self) -> None:
        """Make the pipe."""
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._small = os.dup(self._read)

    def wake(self) -> None:
        """End the wait that goes on, or the next one; from a signal handler or another thread."""
        if self._write >= 0:
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(self._write, b"\0")

    def wait(self, socket: zmq.Socket[bytes] | None, supervisor: Supervisor, timeout_ns: int) -> list[WorkerProcess]:
        """Sleep at most so long; the workers that have died.

        An epoll sleeps for whole milliseconds, so a short sleep is left to select (which knows small descriptors only).

        The descriptor of a ZeroMQ socket tells that its state has changed, not that a message waits: what waits already
        must be asked of the socket itself before each sleep.
        """
        epoll = self._epoll
        if epoll is None or self._polled != supervisor.changes:
            epoll = self._watch(socket, supervisor)
        if socket is not None and int(socket.get(zmq.EVENTS)) & _READABLE:
            timeout_ns = 0
        if 0 < timeout_ns < _SOON_NS and self._small < _MOST_DESCRIPTORS:
            select.select((self._small,), (), (), timeout_ns / 1e9)
            timeout_ns = 0
        dead: list[WorkerProcess] = []
        for descriptor, _ in epoll.poll(timeout_ns / 1e9):
            if descriptor == self._read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read, 4096)
            elif descriptor in self._sentinels:
                dead.append(self._sentinels[descriptor])
        return dead

    def _watch(self, socket: zmq.Socket[bytes] | None, supervisor: Supervisor) -> select.epoll:
        """An epoll over everything that there is now: unlike a poll its price does not grow with the cameras."""
        if self._epoll is not None:
            self._epoll.close()
        self._polled = supervisor.changes
        self._sentinels = supervisor.sentinels
        epoll = self._epoll = select.epoll()
        os.dup2(epoll.fileno(), self._small, inheritable=False)
        for descriptor in (self._read, *self._sentinels):
            epoll.register(descriptor, select.EPOLLIN)
        if socket is not None:
            epoll.register(int(socket.get(zmq.FD)), select.EPOLLIN)
        return epoll

    def close(self) -> None:
        """Close the pipe; may be called twice."""
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        descriptors = self._read, self._write, self._small
        self._read = self._write = self._small = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
