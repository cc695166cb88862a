"""Owns the count of who listens to a publishing socket. Does not own that socket."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

MONITOR = "inproc://campipe-publish-events"


class Audience:
    """Connections to an XPUB socket that have subscribed to something. Use from the socket's thread.

    A subscription names its connection by file descriptor, the socket's monitor tells which connections live. For any
    subscription read first, the events that came before it are in the monitor when that is read second; so a descriptor
    that was used again is never mistaken for the connection that had it before.
    """

    def __init__(self) -> None:
        self._monitor: zmq.Socket[bytes] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._connected: set[int] = set()
        self._subscribed: set[int] = set()

    def open(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> None:
        """Begin to count; before ``socket`` is bound."""
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # else only the first subscription to each topic is told
        socket.monitor(MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.connect(MONITOR)
        self._socket = socket
        self._connected.clear()
        self._subscribed.clear()

    def look(self) -> None:
        """Read what has changed. Raises ZMQError when the socket is broken."""
        if self._socket is None or self._monitor is None:
            return
        subscribed: set[int] = set()
        try:
            while True:
                event = self._socket.recv(zmq.DONTWAIT, copy=False)
                if event.bytes[:1] == b"\x01":
                    subscribed.add(int(event.get(zmq.SRCFD)))
        except zmq.Again:
            pass
        while self._monitor.poll(0):
            change = recv_monitor_message(self._monitor)
            descriptor = int(change["value"])
            self._subscribed.discard(descriptor)
            if change["event"] == zmq.EVENT_ACCEPTED:
                self._connected.add(descriptor)
            else:
                self._connected.discard(descriptor)
        self._subscribed |= subscribed

    @property
    def count(self) -> int:
        """As of the last ``look``."""
        return len(self._connected & self._subscribed)

    def close(self) -> None:
        """Stop counting; before ``socket`` is closed. May be called twice."""
        if self._socket is not None and self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket = self._monitor = None
