"""Owns the one door to inference devices. Does not own any device: see ``registry`` for those that exist.

One process opens one Device and loads each model into it once. Each executor is one thread with one LaneSet of its own:
lanes are independent sets of buffers, so that while lane 0 computes, lane 1 is filled. Streams and contexts belong to
the LaneSet and therefore to that thread.

Order of calls: ``open``, ``load`` for every model, then ``lanes`` in each executor's thread; every LaneSet is closed
before the device is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from stages.model import ModelSpec


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Monotonic nanoseconds at which the parts of a run were over."""

    uploaded_at_ns: int
    executed_at_ns: int
    finished_at_ns: int


class LaneSet(Protocol):
    """What one executor thread submits to. All calls come from the thread that called ``Device.lanes``."""

    @property
    def wake_fd(self) -> int | None:
        """A descriptor that becomes readable when a run may have ended; None: poll ``finished``."""

    def submit(self, lane: int, model: str, frames: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> None:
        """Start a run on a free lane: one that was never used, or whose last run ``finished`` has told.

        ``frames``: uint8 (height, width, 3) arrays in the model's size and channel order, at most the max_batch of the
        load; they are copied before this returns. ``outputs``: writable, contiguous (n, *shape) arrays, one per output
        of the model, n = len(frames); they are whole once ``finished`` has told so. Raises BadItem when the frames do
        not fit the model (the lane stays free), DeviceFailed when the device is gone, ValueError for a lane that is
        not free.
        """

    def finished(self) -> list[tuple[int, RunTimes | Exception]]:
        """Lanes whose run has ended since the last call, in the order of submission; never blocks.

        BadItem: the model refused these frames, the lane can be used again. DeviceFailed: the device is gone.
        """

    def close(self) -> None:
        """Wait for what runs, then release buffers, streams and context; may be called twice.

        Runs that wait for their turn are given up: their outputs stay as they are and ``finished`` never tells them.
        """


class Device(Protocol):
    """One inference device, opened once per process."""

    def open(self) -> None:
        """Initialise the vendor's runtime. Raises UserError for what the user can mend, DeviceFailed otherwise."""

    def load(self, model: ModelSpec, max_batch: int) -> None:
        """Load a model, once per process however often asked; check it against its description; warm it up.

        Raises UserError naming the model, what differs and the remedy.
        """

    def lanes(self, count: int) -> LaneSet:
        """A LaneSet of ``count`` lanes over all loaded models, for the calling thread."""

    def close(self) -> None:
        """Unload everything and finalise; may be called twice."""


@runtime_checkable
class Described(Protocol):
    """A device that has something to tell of itself."""

    def facts(self) -> list[str]:
        """Lines for people about the open device and its models; those about a part are indented."""
