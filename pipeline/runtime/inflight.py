"""Owns the records of what is under way: frames, batches, tasks, workers. Plain data; ``dispatch`` moves it."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.messages import FrameDropped, FrameReady, Objects, RawOutput, Status


@dataclass(slots=True)
class Frame:
    """One frame from its admission until it leaves the reorder line. ``cause`` is set when it was dropped."""

    ready: FrameReady | FrameDropped
    arrived_ns: int
    cause: str | None = None
    detail: str = ""
    objects: Objects | None = None
    alone: bool = False
    deaths: int = 0  # workers that died, for whatever reason, while they held it
    kills: int = 0  # workers that died of it while it was the only suspect
    holds_slot: bool = False
    raw: RawOutput | None = None
    posted_at_ns: int = 0
    computed_ns: int = 0  # the time of its batch on the device
    nms_ns: int = 0  # its part of the task that made its objects

    @property
    def camera(self) -> str:
        """Name of its camera."""
        return self.ready.camera

    @property
    def settings(self) -> int | None:
        """Number of the camera's settings that it was made with; None when it has no pixels."""
        return self.ready.settings if isinstance(self.ready, FrameReady) else None

    @property
    def settled(self) -> bool:
        """Dropped, or its objects are known."""
        return self.cause is not None or self.objects is not None


@dataclass(slots=True)
class Notice:
    """A status that must leave between the frames around it."""

    status: Status
    settled: bool = True


@dataclass(slots=True)
class OutputHold:
    """An output slot in use; free again when ``open_tasks`` is 0."""

    model: str
    slot: int
    generation: int = 0
    open_tasks: int = 0


@dataclass(slots=True)
class Batch:
    """Frames given to an executor together."""

    batch_id: int
    model: str
    frames: list[Frame]
    hold: OutputHold
    given_ns: int


@dataclass(slots=True)
class Task:
    """Rows of an output slot given to an NMS worker together."""

    task_id: int
    hold: OutputHold
    rows: list[tuple[int, Frame]]
    given_ns: int = 0


@dataclass(slots=True)
class WorkerLine:
    """A worker as the dispatcher sees it: how much it may hold, and what it holds."""

    name: str
    kind: str  # decode | executor | nms
    capacity: int
    batches: dict[int, Batch] = field(default_factory=dict)
    tasks: dict[int, Task] = field(default_factory=dict)
    lonely: bool = False  # it holds a frame that is suspected of ending workers

    @property
    def frames(self) -> list[Frame]:
        """Every frame that it holds."""
        held = [frame for batch in self.batches.values() for frame in batch.frames]
        return held + [frame for task in self.tasks.values() for _, frame in task.rows]

    @property
    def idle(self) -> bool:
        """It holds nothing."""
        return not self.batches and not self.tasks

    @property
    def room(self) -> int:
        """Pieces of work that it can still be given; none beside a frame that must be alone."""
        if self.lonely:
            return 0
        return self.capacity - len(self.batches) - len(self.tasks)
