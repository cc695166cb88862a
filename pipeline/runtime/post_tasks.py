"""Owns which frames an NMS worker gets together, and what becomes of its answers. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.inflight import Frame, OutputHold, Task, WorkerLine
from pipeline.runtime.schedule import roomiest
from stages.messages import FrameReady, InternalMessage, ItemFailed, PostDone, PostItem, PostTask


class PostTasks:
    """Tasks that wait for an NMS worker. ``workers`` are those that live; ``parallel``: how many there should be.

    An output slot goes back to ``free_outputs`` of its model when no task needs it any more.
    """

    def __init__(  # noqa: PLR0917  made in one place, from the dispatcher's own state
        self,
        workers: Mapping[str, WorkerLine],
        parallel: int,
        cameras: Mapping[str, CameraLine],
        free_outputs: Mapping[str, list[int]],
        outbox: deque[tuple[str, InternalMessage]],
        next_id: Callable[[], int],
    ) -> None:
        self._workers = workers
        self._parallel = parallel
        self._cameras = cameras
        self._free_outputs = free_outputs
        self._outbox = outbox
        self._next_id = next_id
        self._waiting: deque[Task] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, hold: OutputHold, rows: list[tuple[int, Frame]]) -> None:
        """Frames whose raw outputs lie in these rows of a slot: as many tasks as there are workers."""
        size = max(1, -(-len(rows) // self._parallel))
        for at in range(0, len(rows), size):
            hold.open_tasks += 1
            self._waiting.append(Task(self._next_id(), hold, rows[at : at + size]))
        self._free_output(hold)

    def again(self, task: Task, rows: list[tuple[int, Frame]]) -> None:
        """Its worker died, and these rows are to be tried again, before all others; suspects each alone."""
        parts = [[row] for row in rows] if any(frame.alone for _, frame in rows) else [rows] if rows else []
        task.hold.open_tasks += len(parts) - 1
        self._waiting.extendleft(Task(self._next_id(), task.hold, part) for part in reversed(parts))
        self._free_output(task.hold)

    def start(self, now_ns: int) -> None:
        """Give tasks to workers that have room."""
        while self._waiting:
            worker = roomiest(self._workers.values())
            task = self._waiting[0]
            self._expire(task, now_ns)
            if not task.rows:
                self._waiting.popleft()
                self._end(task)
                continue
            suspected = any(frame.alone for _, frame in task.rows)
            if worker is None or (suspected and not worker.idle):
                return
            self._waiting.popleft()
            worker.lonely = suspected
            task.given_ns = now_ns
            worker.tasks[task.task_id] = task
            items = [
                PostItem(index, frame.camera, frame.ready.width, frame.ready.height, frame.ready.settings)
                for index, frame in task.rows
                if isinstance(frame.ready, FrameReady)
            ]
            message = PostTask(task.task_id, task.hold.model, task.hold.slot, task.hold.generation, items)
            self._outbox.append((worker.name, message))

    def _expire(self, task: Task, now_ns: int) -> None:
        """Drop the frames of live cameras that have become too old on their way through the device."""
        late = [row for row in task.rows if self._cameras[row[1].camera].too_old(row[1].arrived_ns, now_ns)]
        for _, frame in late:
            self._cameras[frame.camera].drop(frame, "too_old")
        if late:
            task.rows = [row for row in task.rows if not row[1].settled]

    def done(self, task: Task, message: PostDone) -> None:
        """Settle the frames of a task."""
        frames = dict(task.rows)
        nms_ns = (message.finished_at_ns - message.started_at_ns) // len(frames)
        for objects in message.objects:
            frame = frames.pop(objects.index, None)
            if frame is not None and not frame.settled:
                frame.nms_ns = nms_ns
                self._cameras[frame.camera].found(frame, objects, message.finished_at_ns)
        unanswered = [ItemFailed(index, "post_failed", "no answer for this frame") for index in frames]
        told = {item.index: item for item in [*unanswered, *message.failed]}
        for index, frame in frames.items():
            self._cameras[frame.camera].drop(frame, told[index].cause, told[index].detail)
        self._end(task)

    def _end(self, task: Task) -> None:
        task.hold.open_tasks -= 1
        self._free_output(task.hold)

    def _free_output(self, hold: OutputHold) -> None:
        if hold.open_tasks == 0:
            self._free_outputs[hold.model].append(hold.slot)

    def clear(self) -> None:
        """Give up every task."""
        self._waiting.clear()
