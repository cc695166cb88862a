"""Owns the subscriber: the connection, reading of messages, what is missing. Does not own how anything is shown.

::

    from pipeline.client import Subscriber

    with Subscriber("tcp://127.0.0.1:5600", cameras=["gate-1"]) as subscriber:
        for message in subscriber.until_ended():
            print(message)

Imports nothing but zmq and msgspec besides the messages, so it can be used where no video is decoded.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, TypeAlias

import msgspec
import zmq

from pipeline.gaps import Gap, Positions
from stages.messages import SCHEMA, Detections, ExternalMessage, Heartbeat, Status
from stages.sinks.address import parse_address
from stages.sinks.encode import DETECTIONS_PREFIX, HEARTBEAT_TOPIC, STATUS_PREFIX, topic_of

Received: TypeAlias = Detections | Status | Heartbeat | Gap

ENDED: Final = frozenset({"ended", "failed"})
KNOWN_TYPES: Final = frozenset({"detections", "status", "heartbeat"})
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError, MemoryError)
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
HWM: Final = 1000  # as libzmq's own
RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1000
CONNECT_TIMEOUT_MS: Final = 5000
# The publisher sends to us, we send nothing: only TCP's keep-alive tells that it is gone without a word. ZeroMQ's own
# heartbeats would cut us off whenever we are slow.
KEEPALIVE: Final = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}


class _Head(msgspec.Struct):
    """As much of a message as every version of it has."""

    type: str
    v: int = SCHEMA


class Subscriber:
    """Receives what a running campipe publishes at ``address`` (tcp:// or ipc://).

    ``cameras``: only these, None for all. ``timeout_s``: iteration raises TimeoutError when there was nothing to give
    for so long, None waits for ever. ``statuses``, ``heartbeats``: whether these are given too. ``hwm``: messages that
    may wait here; more wait at the publisher. A subscriber of live cameras that is slow reads what is older by as many
    messages as wait: ten cameras of 10 fps fill 1000 in ten seconds. Less keeps it younger, more carries it over longer
    pauses of its own; of recordings nothing is lost either way. Connects in the background and again whenever the
    connection is lost, so it may be opened before the publisher is there.

    A ``Gap`` is given, before the message that shows it, for messages lost on the way (this subscriber was too slow or
    disconnected). Frames that campipe itself dropped are told by a ``Status`` with state ``gap`` instead. Joining a
    stream in its middle is no gap, nor is a publisher that was started anew.

    After a lost connection ZeroMQ subscribes anew only within a call, so do not leave long pauses between calls.
    Use an object from one thread only (``close`` included); threads that need the same stream each have a Subscriber.
    """

    def __init__(
        self,
        address: str,
        cameras: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        statuses: bool = True,
        heartbeats: bool = False,
        hwm: int = HWM,
    ) -> None:
        self._address = parse_address(address, bind=False)
        if isinstance(cameras, str):
            raise TypeError(f"cameras must be a list of names, such as [{cameras!r}], not a text")
        if cameras is not None and not cameras:
            raise ValueError("cameras is empty; give at least one name, or None for all")
        self.cameras = None if cameras is None else tuple(dict.fromkeys(cameras))
        self.timeout_s = timeout_s
        self._statuses = statuses
        self._heartbeats = heartbeats
        self._hwm = hwm
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._decoder: msgspec.msgpack.Decoder[ExternalMessage] = msgspec.msgpack.Decoder(
            Detections | Status | Heartbeat
        )
        self._head: msgspec.msgpack.Decoder[_Head] = msgspec.msgpack.Decoder(_Head)
        self._positions = Positions()
        self._waiting: deque[Received] = deque()
        self._states: dict[str, str] = {}
        self._last_told: dict[str, int] = {}  # time_ns of the last status of each camera
        self._quiet_since_beat: set[str] = set()  # told ended by the last heartbeat, and nothing came since
        self._heard_ns = 0
        self.heartbeat: Heartbeat | None = None
        self.counts: Counter[str] = Counter()

    @property
    def address(self) -> str:
        """Where the publisher is."""
        return self._address.text

    def open(self) -> Subscriber:
        """Start connecting; returns at once. Nothing published before that is received."""
        if self._socket is not None:
            return self
        self._context = zmq.Context()
        socket: zmq.Socket[bytes] = self._context.socket(zmq.SUB)
        try:
            socket.linger = 0
            socket.rcvhwm = self._hwm
            socket.sndhwm = 0  # of subscriptions: what is beyond it is lost in silence
            socket.maxmsgsize = MAX_MESSAGE_BYTES
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
            socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
            for option, value in KEEPALIVE.items():
                socket.setsockopt(option, value)
            if self._address.ipv6:
                socket.setsockopt(zmq.IPV6, 1)
            # Statuses and heartbeats are needed in any case: they tell what is a loss and what has ended.
            for prefix in (DETECTIONS_PREFIX, STATUS_PREFIX):
                for camera in ("",) if self.cameras is None else self.cameras:
                    socket.subscribe(prefix + camera)
            socket.subscribe(HEARTBEAT_TOPIC)
            socket.connect(self._address.text)
        except BaseException:
            socket.close(0)
            self._context.term()
            self._context = None
            raise
        self._socket = socket
        self._poller.register(socket, zmq.POLLIN)
        self._positions = Positions()
        self._waiting.clear()
        self._states.clear()
        self._last_told.clear()
        self._quiet_since_beat.clear()
        self.counts.clear()
        self.heartbeat = None
        self._heard_ns = time.monotonic_ns()
        return self

    def close(self) -> None:
        """Disconnect. Messages not yet received are gone. May be called twice."""
        if self._socket is not None and self._context is not None:
            self._poller.unregister(self._socket)
            self._socket.close(0)
            self._context.term()
            self._socket = self._context = None

    def __enter__(self) -> Subscriber:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        if self._socket is None:
            raise StopIteration
        message = self.receive(self.timeout_s)
        if message is None:
            raise self._timeout()
        return message

    def receive(self, timeout_s: float | None = None) -> Received | None:
        """The next message or gap; None when there is none for ``timeout_s`` (0: look once; None: wait for ever)."""
        deadline_ns = self._deadline_ns(timeout_s)
        while not self._waiting:
            parts = self._receive_parts(deadline_ns)
            if parts is None:
                return None
            self._take(parts)
        return self._waiting.popleft()

    def until_ended(self, cameras: Sequence[str] | None = None) -> Iterator[Received]:
        """Iterate until each of ``cameras`` has ended or failed; without names, this subscriber's, or all known ones.

        Which cameras there are is known from their messages and from heartbeats, which name all of them. That a camera
        had ended before this subscriber joined is known from the second heartbeat on. Raises TimeoutError as iteration.
        """
        named = self.cameras if cameras is None else tuple(cameras)
        deadline_ns = self._deadline_ns(self.timeout_s)
        while not self.all_ended(named):
            if not self._waiting:
                parts = self._receive_parts(deadline_ns)
                if parts is None:
                    raise self._timeout()
                self._take(parts)
            while self._waiting:
                yield self._waiting.popleft()
                deadline_ns = self._deadline_ns(self.timeout_s)

    def all_ended(self, cameras: Sequence[str] | None = None) -> bool:
        """Whether each of ``cameras`` (None: all known ones, at least one) has ended and its messages were given."""
        names = tuple(self._states) if cameras is None else cameras
        return bool(names) and not self._waiting and all(self._states.get(name) in ENDED for name in names)

    @property
    def quiet_s(self) -> float:
        """Seconds since anything at all came, heartbeats included; since ``open`` if nothing has."""
        return (time.monotonic_ns() - self._heard_ns) / 1e9

    @staticmethod
    def _deadline_ns(timeout_s: float | None) -> int | None:
        return None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)

    def _timeout(self) -> TimeoutError:
        return TimeoutError(f"nothing came from {self.address} for {self.timeout_s:g} s")

    def _receive_parts(self, deadline_ns: int | None) -> list[bytes] | None:
        if self._socket is None:
            raise RuntimeError("the Subscriber is not open; use it in a with statement, or call open()")
        while True:
            try:
                return self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                pass
            left_ms = None if deadline_ns is None else (deadline_ns - time.monotonic_ns()) / 1e6
            if left_ms is not None and left_ms <= 0:
                return None
            # Rounded up, else the last millisecond would be a busy loop.
            self._poller.poll(None if left_ms is None else int(left_ms) + 1)

    def _take(self, parts: list[bytes]) -> None:
        self.counts["received"] += 1
        self._heard_ns = time.monotonic_ns()
        message = self._decode(parts)
        if message is None:
            return
        if isinstance(message, Heartbeat):
            if self.heartbeat is not None and message.uptime_ns < self.heartbeat.uptime_ns:
                self.counts["restarts"] += 1
                self._positions.forget()
                self._states.clear()
                self._last_told.clear()
                self._quiet_since_beat.clear()
            self.heartbeat = message
            self._learn_states(message)
            if self._heartbeats:
                self._waiting.append(message)
            return
        if self.cameras is not None and message.camera not in self.cameras:
            return  # topics are prefixes: gate-1 also matches gate-10
        self._quiet_since_beat.discard(message.camera)
        if isinstance(message, Status):
            if not message.repeated:  # else it is told for others, or of a stream that is in its middle by now
                self._positions.announced(message)
            if message.state != "gap":
                if message.repeated and self._last_told.get(message.camera) == message.time_ns:
                    return
                self._last_told[message.camera] = message.time_ns
                self._states[message.camera] = message.state
            if self._statuses:
                self._waiting.append(message)
            return
        self._states[message.camera] = "streaming"
        placed = self._positions.place(message.camera, message.epoch, message.seq)
        if placed.duplicate:
            self.counts["duplicates"] += 1
            return
        self.counts["lost"] += sum(gap.to_seq - gap.from_seq + 1 for gap in placed.gaps)
        self._waiting.extend(placed.gaps)
        self._waiting.append(message)

    def _learn_states(self, beat: Heartbeat) -> None:
        """Learn which cameras there are, and which have ended if that was not told otherwise.

        A heartbeat overtakes messages that still wait in the publisher, so it is believed only when the one before said
        the same and nothing of the camera came in between.
        """
        for name, state in beat.cameras.items():
            if name in self._quiet_since_beat:
                self._states[name] = state
            else:
                self._states.setdefault(name, "known")
            if state in ENDED:
                self._quiet_since_beat.add(name)

    def _decode(self, parts: list[bytes]) -> ExternalMessage | None:
        """The message; None, and counted, when it is damaged or of a later version than this one knows."""
        if len(parts) < 2:
            self.counts["corrupt"] += 1
            return None
        try:
            message = self._decoder.decode(parts[1])
        except UNREADABLE:
            self.counts["unknown" if self._is_later(parts[1]) else "corrupt"] += 1
            return None
        if message.v > SCHEMA:
            self.counts["unknown"] += 1
            return None
        if topic_of(message) != parts[0]:
            self.counts["corrupt"] += 1
            return None
        return message

    def _is_later(self, body: bytes) -> bool:
        """Whether a message that can't be read is of a type or version that this one does not know."""
        try:
            head = self._head.decode(body)
        except UNREADABLE:
            return False
        return head.v > SCHEMA or head.type not in KNOWN_TYPES
