"""Owns the protocol that every stage keeps. Does not own any stage, thread, process or socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

MonotonicClock = Callable[[], int]
"""Nanoseconds of CLOCK_MONOTONIC; passed in, so that tests decide what time it is."""


class Stage(Protocol[In_contra, Out_co]):
    """Messages in, messages out. The constructor stores; ``open`` acquires; ``close`` may be called twice."""

    def open(self) -> None:
        """Acquire what the stage needs. Raises UserError for what a user can mend, StageDead otherwise."""

    def step(self, message: In_contra) -> Sequence[Out_co]:
        """Take one message, give what it leads to. Raises StageDead when the worker is finished."""

    def flush(self) -> Sequence[Out_co]:
        """No more messages come: give what is still held."""

    def close(self) -> None:
        """Release everything; may be called twice, and after a failed ``open``."""
