"""Owns every decision of a run: who works on what, what is freed, re-sent, dropped, told. Pure: messages and times in,
messages out; no socket, process or clock. ``engine`` (processes) and ``inprocess`` (one process) are its two shells.

What a frame passes through; it is held here until it has left, so that the death of any worker loses nothing::

    FrameReady ─► batcher ─ BatchReady ─► executor ─ RawOutput ─► PostTask ─► nms ─ PostDone ─► reorder ─► outbound
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from pipeline.observe.latency import Histogram
from pipeline.plan import OUTBOUND_LIMIT, RunPlan
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.cameras import Cameras, decode_worker
from pipeline.runtime.deadline import WorkDeadline
from pipeline.runtime.inflight import Batch, Frame, OutputHold, Task, WorkerLine
from pipeline.runtime.outbound import Outbound
from pipeline.runtime.post_tasks import PostTasks
from pipeline.runtime.schedule import Schedule
from pipeline.runtime.suspicion import given_up
from stages.batch import Batcher
from stages.messages import (
    BatchItem,
    BatchReady,
    Begin,
    ExternalMessage,
    FrameDropped,
    FrameReady,
    InternalMessage,
    LinkChanged,
    PostDone,
    RawOutput,
    SlotsFreed,
    StreamEnded,
    StreamStarted,
)


class Dispatcher:
    """The state of a run and its transitions. ``outbox`` holds (worker, message) for the shell to send."""

    def __init__(self, plan: RunPlan, wall_ns: Callable[[], int]) -> None:
        self.workers: dict[str, WorkerLine] = {}
        self._of_kind: dict[str, dict[str, WorkerLine]] = {"decode": {}, "executor": {}, "nms": {}}
        self.outbox: deque[tuple[str, InternalMessage]] = deque()
        self.outbound = Outbound()
        self.on_quarantine: Callable[[Frame, str], None] = lambda _frame, _stage: None
        self.on_batch: Callable[[str, int, RawOutput], None] | None = None  # executor, frames, when it did what
        self._wall_ns = wall_ns
        self._batcher: Batcher[Frame] = Batcher()
        self._free_outputs = {name: list(range(count)) for name, count in plan.output_slots.items()}
        self._deadlines: defaultdict[str, WorkDeadline] = defaultdict(WorkDeadline)  # by worker
        self._ids = 0
        self.gates_open = False
        self._models = tuple(model.name for model in plan.models)
        for model, batch in plan.batch.items():
            self._batcher.add_model(model, batch.max_batch, int(batch.max_wait_ms * 1e6))
        self.changes = Cameras(plan, self._batcher, self.outbound, self.outbox, wall_ns)
        self.cameras = self.changes.lines
        self._tasks = PostTasks(
            self._of_kind["nms"],
            max(1, plan.nms_workers),
            self.cameras,
            self._free_outputs,
            self.outbox,
            self._next_id,
        )
        self.schedule = Schedule(
            self._models, self._batcher, self.changes, self._of_kind["executor"], self._free_outputs
        )

    @property
    def latencies(self) -> dict[str, Histogram]:
        """How long frames took, by stage; empty when nobody asks."""
        return self.changes.latencies

    # --- workers ------------------------------------------------------------------------------------------------------

    @staticmethod
    def decode_worker(camera: str) -> str:
        """Name of the worker that decodes ``camera``."""
        return decode_worker(camera)

    def begin(self, camera: str) -> Begin:
        """What a decode worker is told when it says Hello."""
        return self.cameras[camera].begin()

    def worker_ready(self, name: str, kind: str, capacity: int) -> None:
        """A worker can be given work."""
        line = self.workers[name] = WorkerLine(name, kind, capacity)
        self._of_kind.setdefault(kind, {})[name] = line
        if kind == "decode":
            self.changes.worker_ready(line)
            if self.gates_open:
                self._grant(name)

    def open_gates(self) -> None:
        """Everything that had to be ready is: sources may deliver."""
        self.gates_open = True
        for worker in self.workers.values():
            if worker.kind == "decode":
                self._grant(worker.name)

    def _grant(self, worker: str) -> None:
        camera = self.cameras.get(worker.removeprefix("decode/"))
        if camera is not None and (slots := camera.grant_all()):
            self.outbox.append((worker, SlotsFreed(slots)))

    def worker_lost(self, name: str, *, blame: bool, why: str = "") -> None:
        """A worker is gone: give what it held to others. ``blame``: it died of its work, not by a hand from outside.

        ``why`` it died, for people; empty for a decode worker that left as it was told to.
        """
        worker = self.workers.pop(name, None)
        if name.startswith("decode/"):
            self.changes.worker_lost(name, why)
        if worker is None:
            return
        del self._of_kind[worker.kind][name]
        # What was not sent yet was meant for the dead one: its successor would be given the same slots twice.
        kept = [item for item in self.outbox if item[0] != name]
        self.outbox.clear()
        self.outbox.extend(kept)
        if worker.kind == "executor":
            self.schedule.lost(name)
        company = len(worker.frames)
        for batch in reversed(worker.batches.values()):
            self._free_outputs[batch.model].append(batch.hold.slot)
            self._put_back(frame for frame in batch.frames if not self._given_up(frame, company, blame, "executor"))
        for task in reversed(worker.tasks.values()):
            rows = [row for row in task.rows if not self._given_up(row[1], company, blame, "nms")]
            self._tasks.again(task, rows)

    def _put_back(self, frames: Iterable[Frame]) -> None:
        """Frames that are to be tried again; those of a camera that leaves are not."""
        again: list[Frame] = []
        for frame in frames:
            camera = self.cameras[frame.camera]
            if camera.hold == "removed":
                camera.drop(frame, "removed")
            else:
                again.append(frame)
        self._batcher.put_back(again)

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
            case FrameReady() | FrameDropped() | StreamStarted() | LinkChanged() | StreamEnded():
                camera = self.cameras.get(message.camera)
                if camera is not None:  # else it was removed, and this is what its worker still had to say
                    self._of_source(camera, message)
            case RawOutput():
                self._raw_output(worker, message)
            case PostDone():
                self._post_done(worker, message)
            case _:
                pass

    def _of_source(
        self, camera: CameraLine, message: FrameReady | FrameDropped | StreamStarted | LinkChanged | StreamEnded
    ) -> None:
        match message:
            case FrameReady():
                since_ns = message.arrived_at_ns or message.decoded_at_ns
                frame = camera.admit(message, since_ns if camera.spec.live else message.decoded_at_ns)
                for old in self._batcher.put(frame) if frame is not None else ():
                    camera.drop(old, "superseded")
            case FrameDropped():
                frame = camera.admit(message, 0)
                if frame is not None:
                    camera.drop(frame, message.cause, message.detail)
            case StreamStarted():
                camera.stream_started(message, self._wall_ns())
            case LinkChanged():
                camera.link_changed(message, self._wall_ns())
            case StreamEnded():
                camera.stream_ended(message, self._wall_ns())

    def _raw_output(self, worker: str, message: RawOutput) -> None:
        line = self.workers.get(worker)
        batch = line.batches.pop(message.batch_id, None) if line else None
        if line is None or batch is None:
            return
        line.lonely = False
        if self.on_batch is not None:
            self.on_batch(worker, len(batch.frames), message)
        self._deadlines[worker].took(message.finished_at_ns - batch.given_ns)
        computed_ns = self.schedule.ended(worker, batch, message)
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
            frame.raw, frame.computed_ns = message, computed_ns
            if index in failed:
                camera.drop(frame, failed[index].cause, failed[index].detail)
            elif not frame.settled:
                rows.append((index, frame))
        self._put_back(frame for frame in again if not frame.settled)
        self._tasks.add(batch.hold, rows)

    def _post_done(self, worker: str, message: PostDone) -> None:
        line = self.workers.get(worker)
        task = line.tasks.pop(message.task_id, None) if line else None
        if line is None or task is None:
            return
        line.lonely = False
        self._deadlines[worker].took(message.finished_at_ns - task.given_ns)
        self._tasks.done(task, message)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    # --- what follows from it -----------------------------------------------------------------------------------------

    def pump(self, now_ns: int) -> None:
        """Do everything that has become possible."""
        self.start(now_ns)
        self.settle(now_ns)

    def start(self, now_ns: int) -> None:
        """Start the batches and tasks that can be started."""
        self._tasks.start(now_ns)
        self._start_batches(now_ns)

    def settle(self, now_ns: int) -> None:
        """Let results leave, give free slots back."""
        time_ns = self._wall_ns()
        self.outbound.now_ns, self.outbound.time_ns = now_ns, time_ns
        for camera in self.cameras.values():
            if not camera.changed:
                continue
            camera.leave(self.outbound.line(live=camera.spec.live), now_ns, time_ns)
            if camera.freed:
                worker = self.decode_worker(camera.name)
                if worker in self.workers and self.gates_open:
                    self.outbox.append((worker, SlotsFreed(camera.freed)))
                    camera.freed = []
            camera.changed = bool(camera.freed)  # they wait for a worker

    def _start_batches(self, now_ns: int) -> None:
        """Recordings wait while sinks are slow, live cameras never."""
        started = not self.outbound.full(live=True)
        while started:
            turns = self.schedule.startable(now_ns, live_only=self.outbound.full(live=False))
            started = any(self._start_batch(model, worker, now_ns) for model, worker in turns)

    def _start_batch(self, model: str, worker: WorkerLine, now_ns: int) -> bool:
        """Give a batch to the worker; False when it must wait, for its frame must have a worker to itself."""
        live_only = self.outbound.full(live=False)
        at_most = self.schedule.most(model, worker, live_only=live_only)
        frames, too_old = self._batcher.take(model, now_ns, live_only=live_only, at_most=at_most)
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
        self.schedule.started(worker.name, batch)
        items: list[BatchItem] = []
        for frame in frames:
            ready = frame.ready
            assert isinstance(ready, FrameReady)
            items.append(BatchItem(frame.camera, ready.slot, ready.generation))
        self.outbox.append((worker.name, BatchReady(batch.batch_id, model, hold.slot, items)))
        return True

    def overdue(self, now_ns: int, ceiling_ns: int, awake_since_ns: int = 0) -> list[str]:
        """Workers that hold work for longer than theirs takes; ``ceiling_ns`` at most.

        Time before ``awake_since_ns`` does not count: nobody had a turn then.
        """
        found: list[str] = []
        for worker in self.workers.values():
            held: list[Batch | Task] = [*worker.batches.values(), *worker.tasks.values()]
            if held:
                waited_ns = now_ns - max(min(work.given_ns for work in held), awake_since_ns)
                if waited_ns > self._deadlines[worker.name].limit_ns(ceiling_ns):
                    found.append(worker.name)
        return found

    def next_due_ns(self) -> int | None:
        """When ``pump`` should run next if no message comes, as of its last run; None: only after a message."""
        return None if self.outbound.full(live=True) else self.schedule.next_due_ns

    # --- outbound -----------------------------------------------------------------------------------------------------

    def peek_outbound(self, *, live: bool = False, untouched: bool = True) -> ExternalMessage | None:
        """The next message for the sinks, of live cameras or of recordings; see ``Outbound.peek``."""
        return self.outbound.peek(live=live, untouched=untouched)

    def delivered(self, *, live: bool = False) -> None:
        """Every sink has taken the message that ``peek_outbound`` gave."""
        self.outbound.delivered(live=live)

    @property
    def waits_for_sinks(self) -> bool:
        """So much waits for slow sinks that batches are held back."""
        return self.outbound.full(live=True) or self.outbound.full(live=False)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def stop_sources(self) -> None:
        """Ask every source to end; what is under way is still finished."""
        self.gates_open = True
        self.changes.stop()

    def end_camera(self, name: str, cause: str, detail: str) -> None:
        """No more frames will come from this camera; those under way are still finished."""
        self.changes.end(name, cause, detail)

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
        return self.outbound.discard(cause)

    @property
    def drained(self) -> bool:
        """Every camera has ended and has told so."""
        return self.changes.drained

    @property
    def queues(self) -> dict[str, tuple[int, int]]:
        """Lengths and capacities of the queues, for the live view."""
        executors, nms = self._of_kind["executor"].values(), self._of_kind["nms"].values()
        return {
            "batcher": (
                sum(self._batcher.waiting(model) for model in self._models),
                sum(camera.slots for camera in self.cameras.values()),
            ),
            "executors": (sum(len(w.batches) for w in executors), sum(w.capacity for w in executors)),
            "nms": (len(self._tasks) + sum(len(w.tasks) for w in nms), sum(w.capacity for w in nms)),
            "sinks": (len(self.outbound), OUTBOUND_LIMIT),
        }
