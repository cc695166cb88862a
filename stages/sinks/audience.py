"""Owns the count of who listens to a publishing socket. Does not own that socket.

Anybody may connect and send anything, so nothing that a peer does, and no failure of the count, may end or hold up the
publishing. What was found by experiment with libzmq 4.3.5 and is relied on:

- The I/O thread, which serves every subscriber, sends the monitor's events, *blocks while their queue is full, and
  holds meanwhile a lock that ending the monitor needs*: some thousand connections while nobody reads stop everything
  for good. The queue between two sockets of one process has no limit when its reader wants none (``RCVHWM`` 0), so it
  is never full; it is as long as what connects and leaves between two looks. An event without a reader blocks too, so
  the reader is there before the address is bound and until the monitor has ended.
- Each topic costs memory for each of its bytes (some 40 times), and whoever calls the socket works them in as long as
  more are there: 200,000 topics took 290 MB, and held up one call for 2.3 s. With a queue of one message for what
  comes in (``RCVHWM``) a call takes in a few and returns, so that a flood is seen here, and its connection ended.
- A peer of ZMTP 1 or 2 (libzmq before 4.0) has no metadata: asking its subscription for the connection fails with
  EINVAL. Such a subscriber gets every message and is not counted.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Final

import zmq

MONITOR: Final = "inproc://campipe-publish-events"
MOST_TOPICS: Final = 5_000  # of one connection: two for each of more cameras than a machine can have
QUIET_LOOKS: Final = 2
LOOK_MAX: Final = 10_000  # subscriptions, and as many events, that one look reads: a flood must not hold up the caller

_EVENT: Final = struct.Struct("=HI")  # number, value


class Audience:
    """Connections to an XPUB socket that have subscribed to something. Use from the socket's thread.

    A subscription names its connection by file descriptor, the socket's monitor tells which connections live. For any
    subscription read first, the event of its connection's beginning is in the monitor when that is read second, so no
    subscriber is overlooked. One that leaves within the same look in which another connection gets its descriptor is
    mistaken for that one: the count may be too high then, until that one leaves.

    A connection counts when QUIET_LOOKS have found no further subscriptions of it: they come one by one, and who waits
    for subscribers waits for all that they ask for.
    """

    def __init__(self) -> None:
        self._monitor: zmq.Socket[bytes] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._connected: set[int] = set()
        self._subscribed: set[int] = set()
        self._read: dict[int, int] = {}  # not counted yet: looks since a subscription of it was read
        self._prefixes: set[bytes] = set()  # subscribed to since they were last asked for
        self._on_connection: Callable[[int], None] | None = None
        self._topics: dict[int, int] = {}  # by connection
        self.on_flood: Callable[[int], None] = lambda _: None  # one with too many topics: it is to be ended

    def on_connection(self, act: Callable[[int], None]) -> None:
        """Call ``act`` with the descriptor of each connection: those there are now, and those that come."""
        self._on_connection = act
        for descriptor in self._connected:
            act(descriptor)

    def open(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> None:
        """Begin to count; before ``socket`` is bound."""
        self._connected.clear()
        self._subscribed.clear()
        self._read.clear()
        self._prefixes.clear()
        self._on_connection = None
        self._topics.clear()
        socket.rcvhwm = 1
        socket.setsockopt(zmq.XPUB_VERBOSER, 1)  # else only the first subscription to each topic is told, and its end
        monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._socket, self._monitor = socket, monitor  # from here on ``close`` releases them
        monitor.linger = 0
        monitor.rcvhwm = 0
        socket.monitor(MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        monitor.connect(MONITOR)

    def look(self) -> None:
        """Read what has changed. Never fails: where the socket itself is broken, sending tells."""
        if self._socket is None or self._monitor is None:
            return
        with contextlib.suppress(zmq.ZMQError):  # EAGAIN: that was all
            for _ in range(LOOK_MAX):
                self._note(self._socket.recv(zmq.DONTWAIT, copy=False))
        with contextlib.suppress(zmq.ZMQError):
            for _ in range(LOOK_MAX):
                self._follow(self._monitor.recv_multipart(zmq.DONTWAIT))
            return  # there are more: those of the subscriptions read may be among them
        for descriptor, looks in list(self._read.items()):
            if looks < QUIET_LOOKS:
                self._read[descriptor] = looks + 1
            else:
                self._subscribed.add(descriptor)
                del self._read[descriptor]

    @property
    def count(self) -> int:
        """As of the last ``look``."""
        return len(self._connected & self._subscribed)

    def new_prefixes(self) -> set[bytes]:
        """What peers have subscribed to since the last call; a flood is cut at ``LOOK_MAX``."""
        found, self._prefixes = self._prefixes, set()
        return found

    def close(self) -> None:
        """Stop counting; before ``socket`` is closed. May be called twice. Does not block: see above."""
        if self._socket is not None and self._monitor is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket = self._monitor = None

    def _note(self, message: zmq.Frame) -> None:
        """A message of a subscriber's: usually a subscription, but it may be anything."""
        subscription = message.bytes
        if subscription[:1] not in {b"\x00", b"\x01"}:
            return
        comes = subscription[:1] == b"\x01"
        if comes and len(self._prefixes) < LOOK_MAX:
            self._prefixes.add(subscription[1:])
        with contextlib.suppress(zmq.ZMQError):  # of a peer without metadata
            descriptor = int(message.get(zmq.SRCFD))
            if comes:
                self._read[descriptor] = 0
            self._topics[descriptor] = count = self._topics.get(descriptor, 0) + (1 if comes else -1)
            if comes and count == MOST_TOPICS + 1:
                self.on_flood(descriptor)

    def _follow(self, event: list[bytes]) -> None:
        if not event or len(event[0]) != _EVENT.size:
            return
        number, descriptor = _EVENT.unpack(event[0])
        self._subscribed.discard(descriptor)
        if self._read.get(descriptor):  # of the connection that is over; what this look has read may be of the new one
            del self._read[descriptor]
        if number == zmq.EVENT_DISCONNECTED:
            self._topics.pop(descriptor, None)
        if number == zmq.EVENT_ACCEPTED:
            self._connected.add(descriptor)
            if self._on_connection is not None:
                self._on_connection(descriptor)
        elif number == zmq.EVENT_DISCONNECTED:
            self._connected.discard(descriptor)
