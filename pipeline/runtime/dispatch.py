"""Owns every decision of a run: who works on what, what is freed, re-sent, dropped, told. Pure: messages and times in,
messages out; no socket, process or clock. ``engine`` (processes) and ``inprocess`` (one process) are its two shells.

What a frame passes through; it is held here until it has left, so that the death of any worker loses nothing::

    FrameReady ─► batcher ─ BatchReady ─► executor ─ RawOutput ─► PostTask ─► nms ─ PostDone ─► reorder ─► outbound
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from pipeline.plan import OUTBOUND_LIMIT, RunPlan
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.inflight import Batch, Frame, OutputHold, Task, WorkerLine
from pipeline.runtime.suspicion import given_up
from pipeline.runtime.timing import histograms
from stages.batch import Batcher
from stages.messages import (
    BatchItem,
    BatchReady,
    Begin,
    ExternalMessage,
    FrameDropped,
    FrameReady,
    InternalMessage,
    ItemFailed,
    LinkChanged,
    PostDone,
    PostItem,
    PostTask,
    RawOutput,
    SlotsFreed,
    Status,
    Stop,
    StreamEnded,
    StreamStarted,
)


class Dispatcher:
    """The state of a run and its transitions. ``outbox`` holds (worker, message) for the shell to send."""

    def __init__(self, plan: RunPlan, wall_ns: Callable[[], int]) -> None:
        models = {model.name: model for model in plan.models}
        trace = plan.publish is not None and plan.publish.trace
        self.latencies = histograms() if plan.observe else {}
        self.cameras = {
            spec.name: CameraLine(
                spec, models[spec.model], plan.frame_slots[spec.name], trace=trace, latencies=self.latencies
            )
            for spec in plan.cameras
        }
        self.workers: dict[str, WorkerLine] = {}
        self.outbox: deque[tuple[str, InternalMessage]] = deque()
        self.on_quarantine: Callable[[Frame, str], None] = lambda _frame, _stage: None
        self._wall_ns = wall_ns
        self._outbound: deque[tuple[CameraLine, ExternalMessage, bool]] = deque()
        self._batcher: Batcher[Frame] = Batcher()
        self._free_outputs = {name: list(range(count)) for name, count in plan.output_slots.items()}
        self._tasks: deque[Task] = deque()
        self._ids = 0
        self.gates_open = False
        self._models = deque(models)
        self._nms_workers = max(1, plan.nms_workers)
        for model, batch in plan.batch.items():
            self._batcher.add_model(model, batch.max_batch, int(batch.max_wait_ms * 1e6))
        for spec in plan.cameras:
            self._batcher.add_camera(spec.name, spec.model, live=spec.live, max_age_ns=spec.max_age_ms * 1_000_000)

    # --- workers ------------------------------------------------------------------------------------------------------

    @staticmethod
    def decode_worker(camera: str) -> str:
        """Name of the worker that decodes ``camera``."""
        return f"decode/{camera}"

    def begin(self, camera: str) -> Begin:
        """What a decode worker is told when it says Hello."""
        return self.cameras[camera].begin()

    def worker_ready(self, name: str, kind: str, capacity: int) -> None:
        """A worker can be given work."""
        self.workers[name] = WorkerLine(name, kind, capacity)
        if kind == "decode" and self.gates_open:
            self._grant(name)

    def open_gates(self) -> None:
        """Everything that had to be ready is: sources may deliver."""
        self.gates_open = True
        for worker in self.workers.values():
            if worker.kind == "decode":
                self._grant(worker.name)

    def _grant(self, worker: str) -> None:
        slots = self.cameras[worker.removeprefix("decode/")].grant_all()
        if slots:
            self.outbox.append((worker, SlotsFreed(slots)))

    def worker_lost(self, name: str, *, blame: bool) -> None:
        """A worker died: give what it held to others. ``blame``: it died of its work, not by a hand from outside."""
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        # What was not sent yet was meant for the dead one: its successor would be given the same slots twice.
        self.outbox = deque(item for item in self.outbox if item[0] != name)
        company = len(worker.frames)
        for batch in reversed(worker.batches.values()):
            self._free_outputs[batch.model].append(batch.hold.slot)
            kept = [frame for frame in batch.frames if not self._given_up(frame, company, blame, "executor")]
            self._batcher.put_back(kept)
        for task in reversed(worker.tasks.values()):
            rows = [row for row in task.rows if not self._given_up(row[1], company, blame, "nms")]
            task.hold.open_tasks -= 1
            parts = [[row] for row in rows] if any(frame.alone for _, frame in rows) else [rows] if rows else []
            task.hold.open_tasks += len(parts)
            self._tasks.extendleft(Task(self._next_id(), task.hold, part) for part in reversed(parts))
            self._free_output(task.hold)

    def _given_up(self, frame: Frame, company: int, blame: bool, stage: str) -> bool:
        if not given_up(frame, company, blame=blame):
            return False
        self.on_quarantine(frame, stage)
        self.cameras[frame.camera].drop(frame, "quarantined", f"it ended {frame.deaths} {stage} workers")
        return True

    # --- messages -----------------------------------------------------------------------------------------------------

    def receive(self, worker: str, message: InternalMessage) -> None:
        """Take one message of a worker's work. Results of work that was given to another meanwhile are ignored."""
        match message:
            case FrameReady():
                self._frame_ready(message)
            case RawOutput():
                self._raw_output(worker, message)
            case PostDone():
                self._post_done(worker, message)
            case FrameDropped():
                camera = self.cameras[message.camera]
                frame = camera.admit(message, 0)
                if frame is not None:
                    camera.drop(frame, message.cause, message.detail)
            case StreamStarted():
                self.cameras[message.camera].stream_started(message, self._wall_ns())
            case LinkChanged():
                self.cameras[message.camera].link_changed(message, self._wall_ns())
            case StreamEnded():
                self.cameras[message.camera].stream_ended(message, self._wall_ns())
            case _:
                pass

    def _frame_ready(self, message: FrameReady) -> None:
        camera = self.cameras[message.camera]
        frame = camera.admit(message, message.decoded_at_ns)
        if frame is None:
            return
        for old in self._batcher.put(frame):
            camera.drop(old, "superseded")

    def _raw_output(self, worker: str, message: RawOutput) -> None:
        line = self.workers.get(worker)
        batch = line.batches.pop(message.batch_id, None) if line else None
        if line is None or batch is None:
            return
        line.lonely = False
        batch.hold.generation = message.generation
        failed = {item.index: item for item in message.failed}
        again: list[Frame] = []
        rows: list[tuple[int, Frame]] = []
        for index, frame in enumerate(batch.frames):
            camera = self.cameras[frame.camera]
            if len(batch.frames) > 1 and index in failed and failed[index].cause == "infer_failed":
                # A run is refused as a whole: which frame is to blame shows when each is tried alone.
                frame.alone = True
                again.append(frame)
                continue
            camera.release_slot(frame)
            frame.raw = message
            if index in failed:
                camera.drop(frame, failed[index].cause, failed[index].detail)
            elif not frame.settled:
                rows.append((index, frame))
        self._batcher.put_back(frame for frame in again if not frame.settled)
        size = max(1, -(-len(rows) // self._nms_workers))
        for at in range(0, len(rows), size):
            batch.hold.open_tasks += 1
            self._tasks.append(Task(self._next_id(), batch.hold, rows[at : at + size]))
        self._free_output(batch.hold)

    def _post_done(self, worker: str, message: PostDone) -> None:
        line = self.workers.get(worker)
        task = line.tasks.pop(message.task_id, None) if line else None
        if line is None or task is None:
            return
        line.lonely = False
        frames = dict(task.rows)
        for objects in message.objects:
            frame = frames.pop(objects.index, None)
            if frame is not None and not frame.settled:
                frame.objects = objects
                frame.posted_at_ns = message.finished_at_ns
        unanswered = [ItemFailed(index, "post_failed", "no answer for this frame") for index in frames]
        told = {item.index: item for item in [*unanswered, *message.failed]}
        for index, frame in frames.items():
            self.cameras[frame.camera].drop(frame, told[index].cause, told[index].detail)
        task.hold.open_tasks -= 1
        self._free_output(task.hold)

    def _free_output(self, hold: OutputHold) -> None:
        if hold.open_tasks == 0:
            self._free_outputs[hold.model].append(hold.slot)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    # --- what follows from it -----------------------------------------------------------------------------------------

    def pump(self, now_ns: int) -> None:
        """Do everything that has become possible: free slots, start batches and tasks, let results leave."""
        time_ns = self._wall_ns()
        self._start_tasks(now_ns)
        if len(self._outbound) < OUTBOUND_LIMIT:
            self._start_batches(now_ns)
        for camera in self.cameras.values():
            if camera.order:
                camera.leave(self._outbound, now_ns, time_ns)
            if camera.freed:
                worker = self.decode_worker(camera.name)
                if worker in self.workers and self.gates_open:
                    self.outbox.append((worker, SlotsFreed(camera.freed)))
                    camera.freed = []

    def _start_tasks(self, now_ns: int) -> None:
        while self._tasks:
            worker = self._roomiest("nms")
            suspected = any(frame.alone for _, frame in self._tasks[0].rows)
            if worker is None or (suspected and not worker.idle):
                return
            task = self._tasks.popleft()
            worker.lonely = suspected
            task.given_ns = now_ns
            worker.tasks[task.task_id] = task
            items = [
                PostItem(index, frame.camera, frame.ready.width, frame.ready.height)
                for index, frame in task.rows
                if isinstance(frame.ready, FrameReady)
            ]
            message = PostTask(task.task_id, task.hold.model, task.hold.slot, task.hold.generation, items)
            self.outbox.append((worker.name, message))

    def _start_batches(self, now_ns: int) -> None:
        started = True
        while started:
            started = False
            for model in list(self._models):
                due = self._batcher.due_ns(model, more_can_come=self._more_can_come(model))
                if due is None or due > now_ns or not self._free_outputs[model]:
                    continue
                worker = self._roomiest("executor")
                if worker is None:
                    return
                if self._start_batch(model, worker, now_ns):
                    self._models.rotate(-1)
                    started = True
                    break

    def _start_batch(self, model: str, worker: WorkerLine, now_ns: int) -> bool:
        """Give a batch to the worker; False when it must wait, for its frame must have a worker to itself."""
        frames, too_old = self._batcher.take(model, now_ns)
        for frame in too_old:
            self.cameras[frame.camera].drop(frame, "too_old")
        if not frames:
            return True
        if frames[0].alone and not worker.idle:
            self._batcher.put_back(frames)
            return False
        worker.lonely = frames[0].alone
        hold = OutputHold(model, self._free_outputs[model].pop())
        batch = Batch(self._next_id(), model, frames, hold, now_ns)
        worker.batches[batch.batch_id] = batch
        items: list[BatchItem] = []
        for frame in frames:
            ready = frame.ready
            assert isinstance(ready, FrameReady)
            items.append(BatchItem(frame.camera, ready.slot, ready.generation))
        self.outbox.append((worker.name, BatchReady(batch.batch_id, model, hold.slot, items)))
        return True

    def _more_can_come(self, model: str) -> bool:
        return any(
            camera.end is None and (camera.spec.live or camera.free_slots > 0)
            for camera in self.cameras.values()
            if camera.spec.model == model
        )

    def _roomiest(self, kind: str) -> WorkerLine | None:
        lines = [worker for worker in self.workers.values() if worker.kind == kind and worker.room > 0]
        return max(lines, key=lambda worker: worker.room, default=None)

    def overdue(self, before_ns: int) -> list[str]:
        """Workers that hold work which was given to them before that moment."""
        return [
            worker.name
            for worker in self.workers.values()
            if any(batch.given_ns < before_ns for batch in worker.batches.values())
            or any(task.given_ns < before_ns for task in worker.tasks.values())
        ]

    def next_due_ns(self) -> int | None:
        """When ``pump`` should run next even if no message comes; None: only a message changes anything."""
        if self._roomiest("executor") is None or len(self._outbound) >= OUTBOUND_LIMIT:
            return None
        dues = [
            self._batcher.due_ns(model, more_can_come=self._more_can_come(model))
            for model in self._models
            if self._free_outputs[model]
        ]
        return min((due for due in dues if due), default=None)

    # --- outbound -----------------------------------------------------------------------------------------------------

    def peek_outbound(self) -> ExternalMessage | None:
        """The next message for the sinks, with its ledger as of now; it stays until ``delivered``."""
        if not self._outbound:
            return None
        camera, message, _ = self._outbound[0]
        if isinstance(message, Status) and message.state in {"ended", "failed"} and message.ledger is None:
            message = msgspec.structs.replace(message, ledger=camera.ledger.entry())
            self._outbound[0] = (camera, message, False)
        return message

    def delivered(self) -> None:
        """Every sink has taken the message that ``peek_outbound`` gave."""
        camera, message, is_frame = self._outbound.popleft()
        if is_frame:
            camera.ledger.published_one()
        elif isinstance(message, Status) and message.state in {"ended", "failed"}:
            camera.told_end = True

    # --- ends ---------------------------------------------------------------------------------------------------------

    def stop_sources(self) -> None:
        """Ask every source to end; what is under way is still finished."""
        self.gates_open = True
        for camera in self.cameras.values():
            worker = self.decode_worker(camera.name)
            if camera.end is None and worker in self.workers:
                self.outbox.append((worker, Stop()))
            elif camera.end is None:
                self.end_camera(camera.name, "stopped", "on request")

    def end_camera(self, name: str, cause: str, detail: str) -> None:
        """No more frames will come from this camera; those under way are still finished."""
        self.cameras[name].fail(cause, detail, self._wall_ns())

    def abandon(self, cause: str) -> None:
        """Give up every frame under way, counted under ``cause``, and end every camera that has not ended."""
        self._batcher.drain()
        self._tasks.clear()
        for worker in self.workers.values():
            worker.batches.clear()
            worker.tasks.clear()
        for camera in self.cameras.values():
            for item in camera.order:
                if isinstance(item, Frame):
                    camera.drop(item, cause)
            camera.fail(cause, "the run was given up", self._wall_ns())

    def discard_outbound(self, cause: str) -> int:
        """Give up the messages that no sink will take any more; their frames are counted under ``cause``."""
        count = len(self._outbound)
        for camera, _, is_frame in self._outbound:
            if is_frame:
                camera.ledger.dropped(cause)
        self._outbound.clear()
        return count

    @property
    def drained(self) -> bool:
        """Every camera has ended and has told so."""
        return all(camera.told_end for camera in self.cameras.values())

    @property
    def queues(self) -> dict[str, tuple[int, int]]:
        """Lengths and capacities of the queues, for the live view."""
        executors = [worker for worker in self.workers.values() if worker.kind == "executor"]
        nms = [worker for worker in self.workers.values() if worker.kind == "nms"]
        return {
            "batcher": (
                sum(self._batcher.waiting(model) for model in self._models),
                sum(camera.slots for camera in self.cameras.values()),
            ),
            "executors": (sum(len(w.batches) for w in executors), sum(w.capacity for w in executors)),
            "nms": (len(self._tasks) + sum(len(w.tasks) for w in nms), sum(w.capacity for w in nms)),
            "sinks": (len(self._outbound), OUTBOUND_LIMIT),
        }
