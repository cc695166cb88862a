"""Owns ``--wait-subscribers``: keeps messages back until so many subscribers are there. Does not own the socket."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from stages.messages import ExternalMessage, Heartbeat
from stages.sinks.sink import Sink

log = logging.getLogger(__name__)


class SubscriberGate:
    """A sink that comes before the others and takes nothing until it is open, which holds up a lossless run.

    It stays open once it was: a subscriber who leaves must not stop a run that has begun.
    """

    def __init__(self, sinks: Sequence[Sink], wanted: int) -> None:
        self._sinks = sinks
        self._wanted = wanted
        self._told = -1
        self.is_open = False

    @property
    def name(self) -> str:
        """For people."""
        return f"wait for {self._wanted} subscribers"

    def open(self) -> None:
        """Nothing to acquire."""

    def take(self, message: ExternalMessage) -> bool:
        """Whether the message may go on to the other sinks."""
        if isinstance(message, Heartbeat):
            return True
        self._look()
        return self.is_open

    def service(self) -> None:
        """Look again."""
        self._look()

    def let_through(self) -> None:
        """Wait no longer: the run is being stopped."""
        self.is_open = True

    def _look(self) -> None:
        if self.is_open:
            return
        there = sum(int(getattr(sink, "subscribers", 0)) for sink in self._sinks)
        self.is_open = there >= self._wanted
        if there != self._told:
            self._told = there
            rest = "; go" if self.is_open else ""
            log.info("waiting for subscribers: %d of %d are there%s", there, self._wanted, rest)

    def close(self, deadline_ns: int) -> str:
        """Nothing is held."""
        return ""
