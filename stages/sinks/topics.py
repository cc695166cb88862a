"""Owns the account of what each connection asks a publishing socket for, and its limits. Knows no sockets.

What connections ask for costs memory (libzmq: some 40 bytes for each byte of a topic, shared by those who ask for the
same; some 50 for each asking) and time: when one ends, a single call of libzmq's walks through the topics of all.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

UNKNOWN: Final = -1  # in place of a descriptor: those who do not tell theirs, together
MOST_CONNECTIONS: Final = 500
MOST_TOPICS: Final = 5_000  # of one connection: two for each of more cameras than a machine can have
MOST_TOPIC_BYTES: Final = 40 * MOST_TOPICS  # of one connection
MOST_UNREAD: Final = 4 * MOST_TOPICS  # messages of one connection while those of all come faster than they are read
ALL_TOPICS: Final = 200_000  # of all connections: twice for two connections
ALL_TOPIC_BYTES: Final = 3 * MOST_TOPIC_BYTES  # of all connections


class Topics:
    """Topics by connection, named by its descriptor. What is asked for twice counts once, as in libzmq."""

    def __init__(self) -> None:
        self._of: dict[int, set[bytes]] = {}
        self._bytes: dict[int, int] = {}  # of the topics of each
        self._askers: dict[bytes, int] = {}  # connections by topic
        self._number = 0  # of all connections
        self._all_bytes = 0  # of ``_askers``
        self._unread: dict[int, int] = {}  # messages since all had been read
        self._over: dict[int, str] = {}  # what is too much, by connection; nothing more of it is noted

    def __contains__(self, descriptor: int) -> bool:
        """Whether the connection has asked for something."""
        return descriptor in self._of

    def said(self, descriptor: int, message: bytes) -> None:
        """A message of a connection's: a subscription (1, topic), the end of one (0, topic) or anything else."""
        if descriptor in self._over and descriptor != UNKNOWN:
            return
        ends, topic = message[:1] == b"\x00", message[1:]
        if not (ends and descriptor == UNKNOWN):  # libzmq's own word for what connections that are over had asked for
            self._unread[descriptor] = unread = self._unread.get(descriptor, 0) + 1
            if unread > MOST_UNREAD:
                self._over[descriptor] = f"more than {MOST_UNREAD} messages at a time"
        if ends:
            if topic in self._of.get(descriptor, ()):
                self._of[descriptor].remove(topic)
                self._drop(descriptor, topic)
        elif message[:1] == b"\x01":
            self._add(descriptor, topic)

    def forget(self, descriptor: int) -> None:
        """The connection is over, or another one begins."""
        for topic in self._of.pop(descriptor, ()):
            self._drop(descriptor, topic)
        self._bytes.pop(descriptor, None)
        self._unread.pop(descriptor, None)
        self._over.pop(descriptor, None)

    def all_read(self) -> None:
        """All that connections have sent so far was told."""
        self._unread.clear()

    def excess(self, ended: Collection[int] = ()) -> dict[int, str]:
        """Connections that are to be ended, and what is too much. ``ended``: those that will be over soon.

        Where all together ask for too much, it is the one that asks for most.
        """
        found = {descriptor: why for descriptor, why in self._over.items() if descriptor not in ended}
        self._over.pop(UNKNOWN, None)  # told once: others may come
        if found or (self._number <= ALL_TOPICS and self._all_bytes <= ALL_TOPIC_BYTES):
            return found
        number = self._number - sum(len(self._of.get(descriptor, ())) for descriptor in ended)
        in_bytes = self._all_bytes - sum(self._bytes.get(descriptor, 0) for descriptor in ended)
        if number > ALL_TOPICS or in_bytes > ALL_TOPIC_BYTES:
            most = max((each for each in self._of if each not in ended), key=lambda each: self._bytes[each])
            found[most] = "more topics than can be had together with those of others"
        return found

    def _add(self, descriptor: int, topic: bytes) -> None:
        topics = self._of.setdefault(descriptor, set())
        if topic in topics:
            return
        topics.add(topic)
        self._number += 1
        self._bytes[descriptor] = in_bytes = self._bytes.get(descriptor, 0) + len(topic)
        self._askers[topic] = askers = self._askers.get(topic, 0) + 1
        if askers == 1:
            self._all_bytes += len(topic)
        if len(topics) > MOST_TOPICS or in_bytes > MOST_TOPIC_BYTES:
            self._over[descriptor] = f"more than {MOST_TOPICS} topics, or {MOST_TOPIC_BYTES // 1000} kB of them"

    def _drop(self, descriptor: int, topic: bytes) -> None:
        self._number -= 1
        self._bytes[descriptor] -= len(topic)
        self._askers[topic] -= 1
        if not self._askers[topic]:
            del self._askers[topic]
            self._all_bytes -= len(topic)
