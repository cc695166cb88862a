"""Owns the knowledge of how far the messages of a socket have left it. Does not own the socket.

ZeroMQ tells neither which subscriber is full nor how much it still holds; it does tell when a message's memory is no
longer needed, which is when the last subscriber's connection has taken it. Asking for that costs about 70 µs more than
a plain send (a thread of pyzmq's is woken), so only some messages are marked, spread over all topics: every subscriber
has marked messages in its queue, whatever it subscribed to.
"""

from __future__ import annotations

import contextlib
from collections import deque

import zmq
from zmq.utils import garbage

MAX_EVERY = 64  # marks cost 70 µs, so about 1 µs per message
MARKS_PER_QUEUE = 16
STOP_WAIT_S = 0.5
GOLDEN_RATIO = 0.618034  # multiples of it, modulo 1, are spread evenly however many there are


class Marks:
    """Which of the marked messages are still held. Messages are numbered from 1 by the caller."""

    def __init__(self, hwm: int) -> None:
        self.every = max(1, min(MAX_EVERY, hwm // MARKS_PER_QUEUE))
        self._counts: dict[bytes, int] = {}  # by topic, modulo `every`
        self._topics = 0  # so far
        self._held: deque[tuple[int, zmq.MessageTracker]] = deque()
        self._newest = 0

    def due(self, topic: bytes) -> bool:
        """Whether the next message of ``topic`` is to be marked."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = int(self._topics * GOLDEN_RATIO * self.every) % self.every
            self._topics += 1
        return count == 0

    def sent(self, topic: bytes, index: int, tracker: zmq.MessageTracker | None) -> None:
        """Message ``index`` of ``topic`` was sent, marked if there is a ``tracker``."""
        self._counts[topic] = (self._counts[topic] + 1) % self.every
        if tracker is not None:
            self._held.append((index, tracker))
            self._newest = index

    def forget(self, topic: bytes) -> None:
        """No message of ``topic`` comes any more."""
        self._counts.pop(topic, None)

    def advance(self) -> bool:
        """Look again; whether any marked message has left since the last look."""
        held = deque((index, tracker) for index, tracker in self._held if not tracker.done)
        moved = len(held) < len(self._held)
        self._held = held
        return moved

    @property
    def oldest_held(self) -> int | None:
        """Number of the oldest marked message that some subscriber still has to take. Cheap, unlike ``advance``."""
        while self._held and self._held[0][1].done:
            self._held.popleft()
        return self._held[0][0] if self._held else None

    def close(self) -> None:
        """When the context has ended: end the thread that pyzmq started for the marks, unless others use it too.

        It would stay, with its sockets, until the process ends; who looks for leaks would find it.
        """
        with contextlib.suppress(zmq.NotDone):
            for _, tracker in self._held:  # that thread releases the last memory, just after the context's end
                tracker.wait(timeout=STOP_WAIT_S)
        self._held.clear()
        if garbage.gc.is_alive() and not garbage.gc.refs:
            garbage.gc.stop()

    def behind(self, index: int) -> int:
        """How many of ``index`` messages may still be held, at most."""
        oldest = self.oldest_held
        return min(index, index - (self._newest if oldest is None else oldest) + self.every)
