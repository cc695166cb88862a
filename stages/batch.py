"""Owns which waiting frames form the next batch, across cameras. Pure: no clock, thread or queue of its own.

Rules, per model:

- A batch holds at most ``max_batch`` frames. It goes out when it is full, when its oldest frame has waited
  ``max_wait_ns``, or at once when no camera can add to it (the caller knows: all have ended or have no free slot).
- Fair: one frame per camera and round, cameras in rotation, so that a camera gets more than its share only if others
  have nothing waiting. Within a camera the order of arrival is kept.
- A live camera keeps only its newest waiting frame (the others are *superseded*), and a frame older than its
  ``max_age_ns`` is not run at all (*too old*). A recording loses nothing.
- A frame that was in a batch that killed its worker is *alone*: it forms a batch of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the batcher looks at in a frame."""

    @property
    def camera(self) -> str:
        """Name of its camera."""

    @property
    def arrived_ns(self) -> int:
        """Monotonic time from which its age counts: it was handed in, or its data had come."""

    @property
    def alone(self) -> bool:
        """It must not share a batch."""


F = TypeVar("F", bound=Waiting)


@dataclass(slots=True)
class _Line(Generic[F]):
    model: str
    live: bool
    max_age_ns: int
    frames: deque[F] = field(default_factory=deque)


@dataclass(slots=True)
class _Pool(Generic[F]):
    max_batch: int
    max_wait_ns: int
    rotation: deque[str] = field(default_factory=deque)
    waiting: int = 0
    live: int = 0  # of those that wait, frames of live cameras

    def count(self, line: _Line[F], change: int) -> None:
        """So many frames more wait in this line."""
        self.waiting += change
        if line.live:
            self.live += change


class Batcher(Generic[F]):
    """Waiting frames of all cameras, by model."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool[F]] = {}
        self._lines: dict[str, _Line[F]] = {}

    def add_model(self, model: str, max_batch: int, max_wait_ns: int) -> None:
        """Declare a model before its cameras."""
        self._pools[model] = _Pool(max_batch, max_wait_ns)

    def add_camera(self, camera: str, model: str, *, live: bool, max_age_ns: int) -> None:
        """Declare a camera before its first frame."""
        self._lines[camera] = _Line(model, live, max_age_ns)
        self._pools[model].rotation.append(camera)

    def change_camera(self, camera: str, *, live: bool, max_age_ns: int) -> None:
        """Other rules for this camera from now on; its waiting frames stay."""
        line = self._lines[camera]
        pool, waiting = self._pools[line.model], len(line.frames)
        pool.count(line, -waiting)
        line.live, line.max_age_ns = live, max_age_ns
        pool.count(line, waiting)

    def withdraw(self, camera: str) -> list[F]:
        """Take out the waiting frames of a camera, which the caller accounts for; the camera stays declared."""
        line = self._lines[camera]
        frames = list(line.frames)
        line.frames.clear()
        self._pools[line.model].count(line, -len(frames))
        return frames

    def remove_camera(self, camera: str) -> list[F]:
        """Forget a camera; gives its waiting frames, which the caller accounts for."""
        line = self._lines.pop(camera)
        pool = self._pools[line.model]
        pool.rotation.remove(camera)
        pool.count(line, -len(line.frames))
        return list(line.frames)

    def put(self, frame: F) -> list[F]:
        """Add the newest frame of its camera; gives the frames that it supersedes (live cameras only)."""
        line = self._lines[frame.camera]
        pool = self._pools[line.model]
        superseded: list[F] = []
        if line.live:
            superseded = [old for old in line.frames if not old.alone]
            line.frames = deque(old for old in line.frames if old.alone)
        line.frames.append(frame)
        pool.count(line, 1 - len(superseded))
        return superseded

    def put_back(self, frames: Iterable[F]) -> None:
        """Return frames of a batch that was lost, in their order, before everything that waits."""
        for frame in reversed(list(frames)):
            line = self._lines[frame.camera]
            line.frames.appendleft(frame)
            self._pools[line.model].count(line, 1)

    def waiting(self, model: str, *, live_only: bool = False) -> int:
        """How many frames wait for this model."""
        pool = self._pools[model]
        return pool.live if live_only else pool.waiting

    def holds(self, camera: str) -> bool:
        """Whether a frame of this camera waits."""
        return bool(self._lines[camera].frames)

    def drain(self) -> list[F]:
        """Give up everything that waits; the caller accounts for it."""
        frames = [frame for line in self._lines.values() for frame in line.frames]
        for line in self._lines.values():
            line.frames.clear()
        for pool in self._pools.values():
            pool.waiting = pool.live = 0
        return frames

    def due_ns(self, model: str, *, more_can_come: bool, live_only: bool = False) -> int | None:
        """The moment from which a batch of this model should go out: 0 for at once, None when nothing waits.

        ``live_only``: frames of recordings have to wait (for slow sinks), as if there were none.
        """
        pool = self._pools[model]
        waiting = self.waiting(model, live_only=live_only)
        if waiting == 0:
            return None
        if waiting >= pool.max_batch or not more_can_come:
            return 0
        oldest_ns: int | None = None
        for camera in pool.rotation:
            line = self._lines[camera]
            if not line.frames or (live_only and not line.live):
                continue
            head = line.frames[0]
            if head.alone:
                return 0
            if oldest_ns is None or head.arrived_ns < oldest_ns:
                oldest_ns = head.arrived_ns
        return None if oldest_ns is None else oldest_ns + pool.max_wait_ns

    def max_batch(self, model: str) -> int:
        """The most frames of a batch."""
        return self._pools[model].max_batch

    def max_age_ns(self, model: str) -> int | None:
        """The least age that a live camera of this model allows; None when it has none."""
        lines = [self._lines[camera] for camera in self._pools[model].rotation]
        return min((line.max_age_ns for line in lines if line.live), default=None)

    def take(
        self, model: str, now_ns: int, *, live_only: bool = False, at_most: int | None = None
    ) -> tuple[list[F], list[F]]:
        """The next batch, and the frames found too old on the way. The batch may be empty when all were too old."""
        pool = self._pools[model]
        most = pool.max_batch if at_most is None else min(at_most, pool.max_batch)
        batch: list[F] = []
        too_old: list[F] = []
        idle_cameras = 0
        while len(batch) < most and idle_cameras < len(pool.rotation):
            line = self._lines[pool.rotation[0]]
            frame = self._next(line, now_ns, too_old) if line.live or not live_only else None
            if frame is None:
                idle_cameras += 1
            elif frame.alone and batch:
                break  # it keeps its place at the head of the rotation for the next batch
            else:
                line.frames.popleft()
                pool.count(line, -1)
                batch.append(frame)
                idle_cameras = 0
            pool.rotation.rotate(-1)
            if frame is not None and frame.alone:
                break
        pool.waiting -= len(too_old)
        pool.live -= len(too_old)
        return batch, too_old

    @staticmethod
    def _next(line: _Line[F], now_ns: int, too_old: list[F]) -> F | None:
        while line.frames:
            frame = line.frames[0]
            if line.live and now_ns - frame.arrived_ns > line.max_age_ns:
                too_old.append(line.frames.popleft())
                continue
            return frame
        return None
