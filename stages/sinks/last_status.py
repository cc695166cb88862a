"""Owns the last status of each camera, for subscribers that come later. Sends nothing itself.

A publisher can't give a message to one subscriber alone, so those who were there get it again: it is marked as
``repeated``, and many who come at once are served by one repetition.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stages.messages import Status
from stages.sinks.encode import STATUS_PREFIX, topic_of

NOT_A_STATE = "gap"  # tells of single frames, and says nothing to those who come later
EVERY_NS = 250_000_000  # between two repetitions: subscribers that come and go by the thousand cost no more than this
MOST_PREFIXES = 256  # of different subscriptions remembered; beyond, everything is repeated


class LastStatus:
    """Statuses by topic, and which of them somebody has just subscribed to."""

    def __init__(self) -> None:
        self._by_topic: dict[bytes, Status] = {}
        self._wanted: set[bytes] = set()  # prefixes
        self._next_ns = 0

    def note(self, status: Status) -> None:
        """Remember it as its camera's last one; forget a camera that was taken out of the run."""
        if status.state == NOT_A_STATE:
            return
        topic = topic_of(status)
        if status.cause == "removed":
            self._by_topic.pop(topic, None)
        else:
            self._by_topic[topic] = status

    def subscribed(self, prefixes: Iterable[bytes]) -> None:
        """Somebody has subscribed to these."""
        for prefix in prefixes:
            if prefix.startswith(STATUS_PREFIX.encode()) or STATUS_PREFIX.encode().startswith(prefix):
                self._wanted.add(prefix if len(self._wanted) < MOST_PREFIXES else b"")

    def due(self, now_ns: int) -> list[Status]:
        """What should be repeated now."""
        if not self._wanted or now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + EVERY_NS
        wanted, self._wanted = tuple(self._wanted), set()
        return [
            msgspec.structs.replace(status, repeated=True)
            for topic, status in self._by_topic.items()
            if topic.startswith(wanted)
        ]
