"""Owns the order in which the messages of several cameras are merged. Pure. Does not own what happens to them then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from stages.messages import Detections, Status

Item = TypeVar("Item")


class Merge(Generic[Item]):
    """Merges by (epoch, presentation time, order of ``cameras``); each camera's own order is kept.

    The result depends only on what each camera says, never on when: an item leaves when every camera that has not ended
    has a later one. So as much is held as the cameras are apart in the streams' own time; a camera that says nothing
    and does not end holds up all others. A camera has ended with its status ``ended`` or ``failed``.
    """

    def __init__(self, cameras: Sequence[str]) -> None:
        self._rank: dict[str, int] = {}
        self._queues: dict[str, deque[tuple[int, int, Item]]] = {}
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
            self._queues[camera].append((epoch, pts_ns, item))
            self.held += 1
        if isinstance(message, Status) and message.state in {"ended", "failed"}:
            self._open.discard(camera)

    def ready(self) -> Iterator[Item]:
        """Everything that no later message can come before."""
        while all(self._queues[camera] for camera in self._open):
            camera = self._first()
            if camera is None:
                return
            self.held -= 1
            yield self._queues[camera].popleft()[2]

    def rest(self) -> Iterator[Item]:
        """Everything, as if all cameras had ended."""
        self._open.clear()
        yield from self.ready()

    def _first(self) -> str | None:
        heads = [
            (queue[0][0], queue[0][1], self._rank[camera], camera) for camera, queue in self._queues.items() if queue
        ]
        return min(heads)[3] if heads else None

    def _add(self, camera: str) -> None:
        self._rank[camera] = len(self._rank)
        self._queues[camera] = deque()
        self._open.add(camera)
        self._newest[camera] = (0, -1)
