"""Owns the publishing socket: binding it, and what a full subscriber means. Does not own the messages.

Multipart ``[topic, msgpack map]`` on an XPUB socket. What was found by experiment with libzmq 4.3.5 and is relied on:

- With ``XPUB_NODROP`` a send fails with EAGAIN, and nobody gets the message, as soon as one subscriber of its topic is
  full. Without it the full subscriber misses the message silently, *and libzmq sets it aside until it has taken half of
  its queue: all that time sends succeed, with NODROP too, and it misses them all.* So the loss of one subscriber can't
  be counted from errors alone; ``Marks`` tell how long it lasts, and ``lost_messages`` counts every message published
  meanwhile: an upper bound.
- ZeroMQ's own heartbeats must stay off: a subscriber that is slow but alive stops reading, so it does not see the ping,
  and is cut off with all that was queued for it. TCP's keep-alive finds dead hosts while nothing is queued for them;
  the system's retransmission limit (about 15 minutes) finds the others, and where there are live cameras
  ``live_connection.GONE_AFTER_MS``: a subscriber that has taken nothing for so long is cut off, and joins again when it
  comes back to life. Until then each costs one queue of memory. (A local socket has no such limit.)
- A queue can't be made shorter later: libzmq's two ends of it tell each other what was taken only once for every half
  of its length, so the queue of a subscriber that takes everything may look full to a smaller ``SNDHWM``, for ever.
- Binding ``ipc://PATH`` deletes whatever file is at PATH, and takes a living publisher's address away in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import zmq

from stages.errors import StageDead
from stages.messages import Detections, ExternalMessage, Heartbeat, Status
from stages.sinks.address import parse_address
from stages.sinks.audience import Audience
from stages.sinks.binding import bind_socket, check_address, release_address
from stages.sinks.delivery import end_context
from stages.sinks.encode import Packer, topics_of
from stages.sinks.joining import Joining
from stages.sinks.last_status import LastStatus
from stages.sinks.live_connection import cut, keep_short
from stages.sinks.marks import Marks

LOG = logging.getLogger("campipe.publish")
_NOW = int(zmq.DONTWAIT)  # as plain numbers: arithmetic with enumerations costs as much as a message
_NOW_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)
NS_PER_MS = 1_000_000
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 10, zmq.TCP_KEEPALIVE_INTVL: 5, zmq.TCP_KEEPALIVE_CNT: 3}
LIVE_QUEUE = 256  # messages, and ...
LIVE_QUEUE_PER_CAMERA = 16  # ... at least so many for each live camera: half of it must hold any burst
MAX_INBOUND_BYTES = 160  # a topic has 75; a peer that sends more is no subscriber
CLOSE_LOOK_MS = 500  # at most, for taking in what is there of connections that are over


class PublishSink:
    """A sink that publishes to any number of subscribers.

    ``lossless`` (recorded input): a full subscriber holds up the run; only when it has taken nothing for ``stall_ms``
    the others go on without it. Otherwise, and for the cameras named in ``live``, nobody waits for anybody. Either way
    a subscriber that keeps up again gets everything again. Where both kinds are published, recordings wait until a
    subscriber that live messages were lost to has caught up: libzmq would lose theirs too. ``join_ms``: messages are
    taken only this long after ``open``, so that subscribers who waited for the address to appear (they try every
    100 ms) miss nothing; nor while what they ask for comes in (see ``Joining``). Use from one thread.

    What waits for a slow subscriber of live cameras is bounded by number, because libzmq can't take back what it holds:
    ``LIVE_QUEUE`` messages, or ``LIVE_QUEUE_PER_CAMERA`` for each live camera if that is more (never more than
    ``hwm``), and 16 KiB in the system; what comes while they are full is lost to that subscriber, and counted. So one
    that takes ``r`` messages a second reads what was published at most ``LIVE_QUEUE / r`` seconds ago, and as much
    earlier as its own buffers hold, which only itself can bound: ``RCVHWM`` messages (libzmq: 1000) and the system's
    receive buffer (``RCVBUF``). This holds where cameras are ``live`` from the start; ``live_may_come`` makes queues
    short also for those that join later.
    """

    def __init__(
        self,
        bind: str,
        *,
        clock_ns: Callable[[], int],
        lossless: bool,
        hwm: int = 10_000,
        trace: bool = False,
        join_ms: int = 300,
        stall_ms: int = 5000,
        live: Collection[str] = (),
        live_may_come: bool = False,
    ) -> None:
        self._bind = bind
        self._clock_ns = clock_ns
        self._lossless = lossless
        self._live = set(live)
        self._hwm = max(1, hwm)
        self._trace = trace
        self._join_ns = join_ms * NS_PER_MS
        self._stall_ns = stall_ms * NS_PER_MS
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._packer = Packer()
        if self._live or live_may_come or not lossless:
            self._hwm = min(self._hwm, max(LIVE_QUEUE, LIVE_QUEUE_PER_CAMERA * len(self._live)))
        self._connections_short = False
        self._told_excess = False
        self._marks = Marks(self._hwm)
        self._audience = Audience()
        self._last = LastStatus()
        self._held: tuple[ExternalMessage, bytes, bytes] | None = None  # refused before: encoded once only
        self._early_beat: Heartbeat | None = None
        self._joining: Joining | None = None  # None: over
        self._blocked_ns: int | None = None  # since when nobody has taken anything, while a message waits
        self._sent = 0
        self._lossy_until_left = 0  # a subscriber is set aside until this message has left; 0: none is
        self.lost_messages = 0
        self.address = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"publish {self.address or self._bind}"

    @property
    def subscribers(self) -> int:
        """Connections that have subscribed to something, as of the last ``service``."""
        return self._audience.count

    def check(self) -> None:
        """Raise what ``open`` would; Occupied when only another program is in the way. A port is held for a moment."""
        check_address(parse_address(self._bind, bind=True))

    def open(self) -> None:
        """Bind; raises UserError when the address can't be had. ``address`` then holds the real port."""
        if self._socket is not None:
            return
        address = parse_address(self._bind, bind=True)
        self._context = zmq.Context()
        socket: zmq.Socket[bytes] = self._context.socket(zmq.XPUB)
        try:
            socket.linger = 0  # until close() decides otherwise: no exit hangs on a subscriber
            socket.sndhwm = self._hwm
            socket.maxmsgsize = MAX_INBOUND_BYTES
            socket.setsockopt(zmq.XPUB_NODROP, 1)
            for option, value in KEEPALIVE.items():
                socket.setsockopt(option, value)
            self._audience.open(self._context, socket)
            self._audience.on_excess = self._ask_too_much
            self.address = bind_socket(socket, address)
        except BaseException:
            self._audience.close()
            socket.close(0)
            self._context.term()
            self._context = None
            raise
        self._socket = socket
        LOG.info("publishing at %s", self.address)
        self._marks = Marks(self._hwm)
        self._connections_short = False
        self._last = LastStatus()
        self._sent = self._lossy_until_left = self.lost_messages = 0
        self._held = self._early_beat = self._blocked_ns = None
        self._joining = Joining(self._clock_ns(), self._join_ns) if self._join_ns > 0 else None
        if self._live or not self._lossless:
            self._keep_connections_short()

    def take(self, message: ExternalMessage) -> bool:
        """Publish, or give False: too early (``join_ms``), or a subscriber is full and may hold up the run.

        Heartbeats are always taken: one that finds a full subscriber is left out, because the next one says the same
        and a queue of them would only cost that subscriber detections.
        """
        if self._joining is not None and self._still_joins(self._joining):
            if isinstance(message, Heartbeat):
                self._early_beat = message
                return True
            return False
        self._send_early_beat()
        if isinstance(message, Heartbeat):
            self._tell(message)
            return True
        taken = self._take_live(message) if message.camera in self._live else self._take_recorded(message)
        if taken and isinstance(message, Status):
            self._last.note(message)
        return taken

    def _take_live(self, message: Detections | Status) -> bool:
        topic, body = self._packer.packed(message, trace=self._trace)
        if not self._send(topic, body):
            self._send_lossy(topic, body)
        return True

    def _take_recorded(self, message: Detections | Status) -> bool:
        if self._held is None or self._held[0] is not message:
            self._held = (message, *self._packer.packed(message, trace=self._trace))
        _, topic, body = self._held
        waits = bool(self._live) and self._lossless and self._lossy_until_left > 0 and self._someone_is_set_aside()
        if waits and not self._may_lose():
            return False
        if not self._send(topic, body):
            if not self._may_lose():
                return False
            self._send_lossy(topic, body)
        self._held = self._blocked_ns = None
        return True

    def _tell(self, message: Heartbeat | Status) -> None:
        """Send what is for those who have time: where nobody is waited for, all but the full get it, else nobody."""
        topic, body = self._packer.packed(message)
        if not self._send(topic, body) and self._live:
            self._send_lossy(topic, body)

    def camera_added(self, name: str, *, live: bool) -> None:
        """A camera joins, or is of the other kind from now on."""
        (self._live.add if live else self._live.discard)(name)
        if live and self._socket is not None:
            self._keep_connections_short()

    def camera_removed(self, name: str) -> None:
        """No message of this camera comes any more."""
        self._live.discard(name)
        for topic in topics_of(name):
            self._marks.forget(topic)

    def service(self) -> None:
        """Count subscribers, and look whether full ones keep up again."""
        self._open_socket()
        if self._joining is None or not self._still_joins(self._joining):
            self._audience.look()
        self._marks.advance()
        now_ns = self._clock_ns()
        if self._joining is None:
            self._send_early_beat()
            self._last.subscribed(self._audience.new_prefixes())
            for status in self._last.due(now_ns):  # a full subscriber misses it: it has been there before
                self._tell(status)

    def close(self, deadline_ns: int) -> str:
        """Wait until every subscriber's connection has taken everything, but not beyond the deadline.

        "Taken" means handed to the operating system, which delivers it also after this process has ended.
        """
        if self._socket is None or self._context is None:
            return ""
        began_ns = self._clock_ns()
        behind = self._marks.behind(self._sent)
        self._audience.take_in_the_rest(min(deadline_ns, began_ns + CLOSE_LOOK_MS * NS_PER_MS), self._clock_ns)
        self._audience.close()
        socket, self._socket = self._socket, None
        behind = end_context(
            self._context,
            socket,
            self._marks,
            self._sent,
            began_ns=began_ns,
            deadline_ns=deadline_ns,
            behind=behind,
            clock_ns=self._clock_ns,
        )
        self._context = None
        self._marks.close()
        release_address(self.address)
        if behind == 0:
            return ""
        return (
            f"{self.name}: up to {behind} {'message' if behind == 1 else 'messages'} could not be delivered within "
            f"{max(0, (deadline_ns - began_ns) // NS_PER_MS)} ms, because a subscriber did not take them"
        )

    def _open_socket(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            raise StageDead(f"{self.name} is not open")
        return self._socket

    def _still_joins(self, joining: Joining) -> bool:
        """Look whether subscribers that have waited for the address have asked for everything."""
        news = self._audience.look()
        if not joining.goes_on(self._clock_ns(), news=news):
            self._joining = None
        return self._joining is not None

    def _send_early_beat(self) -> None:
        if self._early_beat is not None:
            beat, self._early_beat = self._early_beat, None
            self._tell(beat)

    def _keep_connections_short(self) -> None:
        if not self._connections_short:
            self._connections_short = True
            self._audience.on_connection(lambda descriptor: keep_short(descriptor, self.address))

    def _ask_too_much(self, descriptor: int, why: str) -> None:
        cut(descriptor, self.address)
        if not self._told_excess:
            self._told_excess = True
            LOG.warning(
                "%s: a subscriber is cut off: %s; let it subscribe to the prefix detections/ instead, or to fewer "
                "topics (others like it are cut off without a word)",
                self.name,
                why,
            )

    def _send(self, topic: bytes, body: bytes) -> bool:
        """Give to all, or to none (False) when one of them is full."""
        socket = self._open_socket()
        set_aside = self._lossy_until_left > 0 and self._someone_is_set_aside()
        tracker: zmq.MessageTracker | None = None
        try:
            if self._marks.due(topic):
                frame = zmq.Frame(body, track=True, copy=False, copy_threshold=0)
                socket.send(topic, _NOW_MORE)
                tracker = socket.send(frame, _NOW, copy=False, track=True)
            else:
                socket.send(topic, _NOW_MORE)
                socket.send(body, _NOW)
        except zmq.Again:
            socket.get(zmq.EVENTS)  # makes libzmq look at what subscribers have taken meanwhile; sends alone may not
            return False
        except zmq.ZMQError as error:
            raise StageDead(f"{self.name}: {error}") from error
        self._sent += 1
        self._marks.sent(topic, self._sent, tracker)
        self.lost_messages += set_aside
        return True

    def _send_lossy(self, topic: bytes, body: bytes) -> None:
        """Give to all but those that are full: libzmq sets them aside until they have taken half of their queue."""
        socket = self._open_socket()
        socket.setsockopt(zmq.XPUB_NODROP, 0)
        try:
            self._lossy_until_left = 0  # counted here, not in _send
            if self._send(topic, body):
                self.lost_messages += 1
        finally:
            socket.setsockopt(zmq.XPUB_NODROP, 1)
        # Some marks later than half of the queue, so that there is one among the messages that they still have to take,
        # but none of messages that they were not given.
        last_given = self._sent - 1
        self._lossy_until_left = max(1, min(last_given, last_given - self._hwm // 2 + 4 * self._marks.every))

    def _someone_is_set_aside(self) -> bool:
        oldest = self._marks.oldest_held
        if oldest is None or oldest > self._lossy_until_left:
            self._lossy_until_left = 0
            self._open_socket().get(zmq.EVENTS)  # else libzmq may learn only a millisecond later that it has room again
        return self._lossy_until_left > 0

    def _may_lose(self) -> bool:
        """Whether the message that can't be sent may be lost to those who are full."""
        if not self._lossless:
            return True
        now_ns = self._clock_ns()
        # A queue opens again only when half of it is taken, which a slow subscriber may need long for: it is stalled
        # when none of the messages in it moves, not when this one has to wait.
        if self._marks.advance() or self._blocked_ns is None:
            self._blocked_ns = now_ns
        return now_ns - self._blocked_ns >= self._stall_ns
