"""Owns the protocol of sinks. Does not own any sink, nor what is done when one is slow (the engine decides)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from stages.errors import UserError
from stages.messages import ExternalMessage


class Occupied(UserError):
    """Nothing but another program is in the way, which may well be this very site, running."""


class Sink(Protocol):
    """Takes messages to the outside, one at a time, from one thread."""

    @property
    def name(self) -> str:
        """For people: ``publish tcp://127.0.0.1:5600``, ``jsonl out.jsonl``."""

    def open(self) -> None:
        """Acquire; raises UserError naming what is in the way (a port in use, a folder not writable)."""

    def take(self, message: ExternalMessage) -> bool:
        """Take the message and give True; give False, having taken nothing, when it can't be taken without blocking.

        Raises OSError-free StageDead when the sink is broken for good (disk full).
        """

    def service(self) -> None:
        """Called at least every 100 ms: housekeeping that must not wait for a message."""

    def close(self, deadline_ns: int) -> str:
        """Deliver what is held until ``deadline_ns`` (monotonic), release; empty, or one sentence on what was lost."""


@runtime_checkable
class Checkable(Protocol):
    """A sink that can tell beforehand what ``open`` would refuse."""

    @property
    def name(self) -> str:
        """For people."""

    def check(self) -> None:
        """Raise the UserError that ``open`` would, as far as it can be known without creating or changing anything.

        Raises Occupied when nothing but another program is in the way.
        """


@runtime_checkable
class CameraAware(Protocol):
    """A sink that treats live cameras and recordings differently, or keeps something for each camera."""

    def camera_added(self, name: str, *, live: bool) -> None:
        """A camera joins, or is of the other kind from now on. Raises UserError when nothing can be taken of it."""

    def camera_removed(self, name: str) -> None:
        """No message of this camera comes any more, unless it is added again. Raises StageDead as ``take`` does."""


@runtime_checkable
class Retrying(Protocol):
    """A sink that goes on without writing while it can't, and tries again by itself."""

    @property
    def trouble(self) -> str:
        """Why nothing is written just now; empty when all is well."""

    @property
    def missed(self) -> int:
        """Messages that could not be written, in all troubles since ``open``; never falls."""
