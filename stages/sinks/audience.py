"""Owns the count of who listens to a publishing socket. Does not own that socket.

Anybody may connect and send anything, so nothing that a peer does, and no failure of the count, may end or hold up the
publishing. What was found by experiment with libzmq 4.3.5 and is relied on:

- The I/O thread, which serves every subscriber, sends the monitor's events, *blocks while their queue is full, and
  holds meanwhile a lock that ending the monitor needs*: some thousand connections while nobody reads stop everything
  for good. The queue between two sockets of one process has no limit when its reader wants none (``RCVHWM`` 0), so it
  is never full; it is as long as what connects and leaves between two looks. An event without a reader blocks too, so
  the reader is there before the address is bound and until the monitor has ended.
- Each byte of a topic costs some 40 bytes, and whoever calls the socket works topics in as long as more are there;
  when a connection ends, one call walks through the topics of all. 200,000 topics took 290 MB, and held up one call for
  2.3 s. With a queue of one message for what comes in (``RCVHWM``) a call takes in a few and returns, so that a flood
  is seen here. EAGAIN does not mean then that this was all: the I/O thread brings the next one within some 30 µs, so a
  look waits for it, and 3000 topics are taken in within 0.7 s. (A queue of 8: 0.2 s, but floods cost more.)
- A connection that is over while some of what it has sent is not taken in yet ends only when that is read. Until then
  it holds what is queued for it, and the end of the context waits for it.
- ``XPUB_VERBOSER`` also tells of the end of subscriptions that there never were.
- A peer of ZMTP 1 or 2 (libzmq before 4.0) has no metadata: asking its subscription for the connection fails with
  EINVAL. Such a subscriber gets every message and is not counted; where such ask for too much, every connection is
  ended that nothing is known of.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from typing import Final

import zmq

from stages.sinks.topics import MOST_CONNECTIONS, UNKNOWN, Topics

MONITOR: Final = "inproc://campipe-publish-events"
RCVHWM: Final = 1
QUIET_LOOKS: Final = 2
CLOSE_QUIET_LOOKS: Final = 10  # libzmq's thread may have to wait for a core before it brings what comes next
CLOSE_PAUSE_S: Final = 0.004
LOOK_NS: Final = 5_000_000  # that a look waits for more at most
FLOOD_NS: Final = 30_000_000  # that it reads at most: what libzmq has taken in is known, and ended, only when read
MORE_MS: Final = 1  # after a subscription: within it the next one comes, if there is one
EVENTS_EACH: Final = 64  # subscriptions, until events are read again
EVENTS_MAX: Final = 10_000  # events read at a time
PREFIXES_MAX: Final = 10_000  # remembered until they are asked for

_EVENT: Final = struct.Struct("=HI")  # number, value


class Audience:
    """Connections to an XPUB socket that have subscribed to something. Use from the socket's thread.

    A subscription names its connection by file descriptor, the socket's monitor tells which connections live. For any
    subscription read first, the event of its connection's beginning is in the monitor when that is read second, so no
    subscriber is overlooked. Of one that leaves while another connection gets its descriptor, the last EVENTS_EACH
    subscriptions may be mistaken for that one's: the count may be too high then, until that one leaves.

    A connection counts when QUIET_LOOKS have found no further subscriptions of it: they come one by one, and who waits
    for subscribers waits for all that they ask for.
    """

    def __init__(self) -> None:
        self._monitor: zmq.Socket[bytes] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._connected: dict[int, None] = {}  # the oldest first
        self._subscribed: set[int] = set()
        self._read: dict[int, int] = {}  # not counted yet: looks since a subscription of it was read
        self._prefixes: set[bytes] = set()  # subscribed to since they were last asked for
        self._on_connection: Callable[[int], None] | None = None
        self._topics = Topics()
        self._fresh: list[tuple[int, bytes]] = []  # connection, message: read since events were
        self._ended: set[int] = set()  # told to end, and not over yet
        self.on_excess: Callable[[int, str], None] = lambda *_: None  # a connection that is to be ended, and of what

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
        self._topics = Topics()
        self._fresh.clear()
        self._ended.clear()
        socket.rcvhwm = RCVHWM
        socket.setsockopt(zmq.XPUB_VERBOSER, 1)  # else only the first subscription to each topic is told, and its end
        monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._socket, self._monitor = socket, monitor  # from here on ``close`` releases them
        monitor.linger = 0
        monitor.rcvhwm = 0
        socket.monitor(MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        monitor.connect(MONITOR)

    def look(self) -> bool:
        """Read what has changed; whether anything has. Never fails: where the socket itself is broken, sending tells.

        Takes a few microseconds when nothing has come, else some milliseconds; in a flood ``FLOOD_NS`` and what one
        call of libzmq takes.
        """
        if self._socket is None or self._monitor is None:
            return False
        began_ns = time.monotonic_ns()
        news, all_events = self._read_events(self._monitor)
        more = True
        while more and time.monotonic_ns() < began_ns + FLOOD_NS:
            more = self._read_subscriptions(self._socket, began_ns + LOOK_NS, wait=news)
            news = news or bool(self._fresh)
            came, all_events = self._read_events(self._monitor)
            news = news or came
            self._end_excess()
        if not more:
            self._topics.all_read()
        if all_events:  # else those of the subscriptions read may be among the rest
            self._age()
        return news

    def take_in_the_rest(self, until_ns: int, clock_ns: Callable[[], int]) -> None:
        """End the connections that end only when what they had sent is read; the context's end would wait for them."""
        quiet_looks = 0
        while (quiet_looks < CLOSE_QUIET_LOOKS or self._ended) and clock_ns() < until_ns:
            quiet_looks = 0 if self.look() else quiet_looks + 1
            if quiet_looks:
                time.sleep(CLOSE_PAUSE_S)

    @property
    def count(self) -> int:
        """As of the last ``look``."""
        return len(self._connected.keys() & self._subscribed)

    def new_prefixes(self) -> set[bytes]:
        """What peers have subscribed to since the last call; a flood is cut at ``PREFIXES_MAX``."""
        found, self._prefixes = self._prefixes, set()
        return found

    def close(self) -> None:
        """Stop counting; before ``socket`` is closed. May be called twice. Does not block: see above."""
        if self._socket is not None and self._monitor is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket = self._monitor = None

    def _read_subscriptions(self, socket: zmq.Socket[bytes], until_ns: int, *, wait: bool) -> bool:
        """Read some; whether there may be more. ``wait`` for the first one as for those that follow it."""
        for _ in range(EVENTS_EACH):
            try:
                message = socket.recv(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                if not wait or time.monotonic_ns() >= until_ns or not socket.poll(MORE_MS):
                    return False
                continue
            except zmq.ZMQError:
                return False
            wait = True
            self._note(message)
        return True

    def _note(self, message: zmq.Frame) -> None:
        """A message of a subscriber's: usually a subscription, but it may be anything."""
        said = message.bytes
        if said[:1] == b"\x01" and len(self._prefixes) < PREFIXES_MAX:
            self._prefixes.add(said[1:])
        try:
            descriptor = int(message.get(zmq.SRCFD))
        except zmq.ZMQError:  # of a peer without metadata, or of a connection that is over
            descriptor = UNKNOWN
        self._fresh.append((descriptor, said))

    def _read_events(self, monitor: zmq.Socket[bytes]) -> tuple[bool, bool]:
        """Take in the events that have come, then the fresh subscriptions; whether there were events, and all are read.

        A subscription is never taken in before the beginning of its connection: that would undo it.
        """
        came, all_read = False, False
        try:
            for _ in range(EVENTS_MAX):
                self._follow(monitor.recv_multipart(zmq.DONTWAIT))
                came = True
        except zmq.ZMQError:  # EAGAIN
            all_read = True
        for descriptor, said in self._fresh:
            if descriptor in self._connected or descriptor == UNKNOWN:
                self._topics.said(descriptor, said)
            if said[:1] == b"\x01" and descriptor != UNKNOWN:
                self._read[descriptor] = 0
        self._fresh.clear()
        return came, all_read

    def _follow(self, event: list[bytes]) -> None:
        if not event or len(event[0]) != _EVENT.size:
            return
        number, descriptor = _EVENT.unpack(event[0])
        self._subscribed.discard(descriptor)
        self._read.pop(descriptor, None)
        self._topics.forget(descriptor)
        self._ended.discard(descriptor)
        self._connected.pop(descriptor, None)
        if number == zmq.EVENT_ACCEPTED:
            self._connected[descriptor] = None
            if self._on_connection is not None:
                self._on_connection(descriptor)
            if len(self._connected) - len(self._ended) > MOST_CONNECTIONS:
                self._end(self._least_missed(), f"more than {MOST_CONNECTIONS} connections")

    def _least_missed(self) -> int:
        """The oldest connection that has subscribed to nothing, or the newest one."""
        there = [descriptor for descriptor in self._connected if descriptor not in self._ended]
        return next((idle for idle in there[:-1] if idle not in self._topics), there[-1])

    def _end_excess(self) -> None:
        """End connections that ask for too much. When all events are known: none is ended for what another one did."""
        for descriptor, why in self._topics.excess(self._ended).items():
            if descriptor != UNKNOWN:
                self._end(descriptor, why)
                continue
            for other in self._connected:
                if other not in self._topics:
                    self._end(other, why)

    def _end(self, descriptor: int, why: str) -> None:
        if descriptor in self._connected and descriptor not in self._ended:
            self._ended.add(descriptor)
            self.on_excess(descriptor, why)

    def _age(self) -> None:
        for descriptor, looks in list(self._read.items()):
            if looks < QUIET_LOOKS:
                self._read[descriptor] = looks + 1
            else:
                self._subscribed.add(descriptor)
                del self._read[descriptor]
