"""Owns the order in which the messages of several cameras are merged. Pure. Does not own what happens to them then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from stages.messages import Detections, Status

Item = TypeVar("Item")


class Queue(Protocol[Item]):
    """First in, first out, of (epoch, presentation time in ns, item)."""

    def __len__(self) -> int: ...

    def append(self, entry: tuple[int, int, Item], /) -> None:
        """Add at the end."""

    def popleft(self) -> tuple[int, int, Item]:
        """Remove from the beginning."""


class Merge(Generic[Item]):
    """Merges by (epoch, presentation time, order of ``cameras``); each camera's own order is kept.

    The result depends only on what each camera says, never on when: an item leaves when every camera that has not ended
    has a later one. So as much is held as the cameras are apart in the streams' own time; a camera that says nothing
    and does not end holds up all others. A camera has ended with its status ``ended`` or ``failed``.

    ``queue`` makes what holds the items of one camera, but for the first; in memory when nothing is named.
    """

    def __init__(self, cameras: Sequence[str], queue: Callable[[], Queue[Item]] = deque) -> None:
        self._new_queue = queue
        self._rank: dict[str, int] = {}
        self._first: dict[str, tuple[int, int, Item]] = {}  # of the cameras that have any
        self._queues: dict[str, Queue[Item]] = {}  # what comes after the first
        self._open: set[str] = set()
        self._newest: dict[str, tuple[int, int]] = {}
        self.held = 0
        for camera in cameras:
            self._add(camera)

    def put(self, message: Detections | Status, item: Item | None) -> None:
        """Take the ``item`` that stands for ``message``; None: the message only tells how far its camera is."""
        camera = message.camera
        if camera not in self._rank:
            self._add(camera)  # unknown before: its place is after those named, from now on
        epoch, pts_ns = self._newest[camera]
        if isinstance(message, Detections):
            epoch, pts_ns = message.epoch, message.pts_ns
        elif message.epoch != epoch:
            epoch, pts_ns = message.epoch, -1  # a new epoch is told before its first frame
        self._newest[camera] = epoch, pts_ns
        if item is not None:
            self.held += 1
            if camera in self._first:
                self._queues[camera].append((epoch, pts_ns, item))
            else:
                self._first[camera] = epoch, pts_ns, item
        if isinstance(message, Status) and message.state in {"ended", "failed"}:
            self._open.discard(camera)

    def ready(self) -> Iterator[Item]:
        """Everything that no later message can come before. May be left early: the rest comes from the next call."""
        while self._first and self._open <= self._first.keys():
            camera = min(self._first, key=lambda camera: (*self._first[camera][:2], self._rank[camera]))
            _, _, item = self._first.pop(camera)
            self.held -= 1
            queue = self._queues[camera]
            if len(queue):
                self._first[camera] = queue.popleft()
            yield item

    def rest(self) -> Iterator[Item]:
        """Everything, as if all cameras had ended."""
        self._open.clear()
        yield from self.ready()

    def _add(self, camera: str) -> None:
        self._rank[camera] = len(self._rank)
        self._queues[camera] = self._new_queue()
        self._open.add(camera)
        self._newest[camera] = (0, -1)
