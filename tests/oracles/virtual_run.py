"""A whole run around a real dispatcher in virtual time: cameras, executors with lanes, NMS, the engine's sleeps.

What a device does is told by tables, so every moment of a run is known exactly and nothing depends on this machine.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from made.specs import model_spec

from pipeline.plan import BatchPlan, DevicePlan, Limits, RunPlan
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.timing import work_ns
from stages.camera import CameraSpec
from stages.messages import (
    BatchReady,
    Detections,
    FrameReady,
    Objects,
    PostDone,
    PostTask,
    RawOutput,
    SlotsFreed,
    Status,
    StreamEnded,
    StreamStarted,
)
from stages.model import ModelSpec, TensorSpec

MS = 1_000_000
US = 1_000
WAKE_LATE_NS = 100 * US  # the engine wakes up so much later than it wanted


def model_named(name: str) -> ModelSpec:
    return model_spec(
        name=name, width=8, height=8, placement="stretch", pad_value=0, labels=("a", "b"),
        outputs=(TensorSpec("o", (4, 6), "float32"),), iou=0.5,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Camera:
    """``period_ns``: a frame so often, or for a recording (``live`` is False) so long after a slot became free."""

    name: str
    model: str
    live: bool
    period_ns: int
    first_ns: int
    frames: int
    slots: int = 8


@dataclass(slots=True)
class Run:
    """A batch: when it was given, uploaded, computed from and until."""

    executor: str
    model: str
    frames: int
    given_ns: int
    uploaded_ns: int
    started_ns: int
    executed_ns: int
    oldest_ns: int  # when the oldest of its frames came to the engine


@dataclass(slots=True)
class Machine:
    """An executor: its thread copies one batch after the other, its device computes one after the other."""

    lanes: int
    thread_free_ns: int = 0
    device_free_ns: int = 0
    incarnation: int = 0
    held: int = 0


@dataclass
class VirtualRun:
    """``service_ns(executor, model, frames)`` of the device; ``copy_ns`` a frame; ``hand_over_ns`` each message."""

    cameras: Sequence[Camera]
    service_ns: Callable[[str, str, int], int]
    executors: Mapping[str, int] = field(default_factory=lambda: {"executor/0": 2})  # lanes by name
    max_batch: int = 8
    max_wait_ns: int = 5 * MS
    copy_ns: int = 150 * US
    hand_over_ns: int = 150 * US
    nms_ns: int = 300 * US
    nms_workers: int = 1
    late_ns: int = 0  # frames of live cameras come late by up to so much, each by as much as chance will have it
    kills: Sequence[tuple[int, str]] = ()
    now_ns: int = 1
    runs: list[Run] = field(default_factory=list)
    latencies_ns: dict[tuple[str, int], int] = field(default_factory=dict)  # by camera and seq: from arrival
    works_ns: list[int] = field(default_factory=list)  # see ``timing.work_ns``, in the order of publication
    detections: dict[str, list[Detections]] = field(default_factory=dict)
    statuses: list[Status] = field(default_factory=list)

    def __post_init__(self) -> None:
        models = sorted({camera.model for camera in self.cameras})
        lanes = sum(self.executors.values())
        self.plan = RunPlan(
            cameras=tuple(CameraSpec(c.name, f"/{c.name}", c.model, live=c.live) for c in self.cameras),
            models=tuple(model_named(name) for name in models),
            devices=(DevicePlan("cpu", len(self.executors), 1, max(self.executors.values())),),
            batch={name: BatchPlan(self.max_batch, self.max_wait_ns / MS) for name in models},
            nms_workers=self.nms_workers,
            frame_slots={camera.name: camera.slots for camera in self.cameras},
            output_slots=dict.fromkeys(models, lanes + self.nms_workers + 1),
            publish=None,
            jsonl=(),
            limits=Limits(),
        )
        self.dispatcher = Dispatcher(self.plan, lambda: 0)
        self.machines = {name: Machine(lanes) for name, lanes in self.executors.items()}
        self._nms_free_ns = dict.fromkeys((f"nms/{index}" for index in range(self.nms_workers)), 0)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._wake_ns = 0
        self._lateness = random.Random(0)
        self._sent_ns: dict[str, int] = {}
        self._slots: dict[str, deque[int]] = {camera.name: deque() for camera in self.cameras}
        self._seq = dict.fromkeys(self._slots, 0)
        self._decoding = dict.fromkeys(self._slots, False)
        self._came_ns: dict[tuple[str, int], int] = {}
        self._in_slot: dict[tuple[str, int], int] = {}
        self._by_name = {camera.name: camera for camera in self.cameras}

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> VirtualRun:
        """Until every camera has ended and has told so."""
        for camera in self.cameras:
            self.dispatcher.worker_ready(f"decode/{camera.name}", "decode", camera.slots)
            self.dispatcher.receive(
                f"decode/{camera.name}", StreamStarted(camera.name, 0, 8, 8, 25.0, "h264", "file", None)
            )
            if camera.live:
                self._at(camera.first_ns, lambda camera=camera: self._tick(camera))  # type: ignore[misc]
        for name, lanes in self.executors.items():
            self.dispatcher.worker_ready(name, "executor", lanes)
        for name in self._nms_free_ns:
            self.dispatcher.worker_ready(name, "nms", 2)
        for at_ns, name in self.kills:
            self._at(at_ns, lambda name=name: self._kill(name))  # type: ignore[misc]
        self.dispatcher.open_gates()
        self._turn()
        for _ in range(1_000_000):
            if self.dispatcher.drained:
                return self
            assert self._events, "nothing will ever happen again"
            self.now_ns, _, event = heapq.heappop(self._events)
            event()
            self._turn()
        raise AssertionError("it does not end")

    def _at(self, at_ns: int, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(at_ns, self.now_ns), self._count, event))

    def _turn(self) -> None:
        dispatcher = self.dispatcher
        dispatcher.pump(self.now_ns)
        while dispatcher.outbox:
            worker, message = dispatcher.outbox.popleft()
            match message:
                case SlotsFreed():
                    self._at(self.now_ns + self.hand_over_ns, lambda w=worker, m=message: self._freed(w, m))  # type: ignore[misc]
                case BatchReady():
                    self._batch(worker, message)
                case PostTask():
                    self._post(worker, message)
        for live in (True, False):
            while (told := dispatcher.peek_outbound(live=live)) is not None:
                frame = dispatcher.outbound.line(live=live)[0].frame
                dispatcher.delivered(live=live)
                if frame is not None:
                    self.works_ns.append(work_ns(frame))
                if isinstance(told, Detections):
                    self.detections.setdefault(told.camera, []).append(told)
                    self.latencies_ns[told.camera, told.seq] = self.now_ns - self._came_ns[told.camera, told.seq]
                elif isinstance(told, Status):
                    self.statuses.append(told)
        due_ns = dispatcher.next_due_ns()
        if due_ns is not None:
            wake_ns = max(self.now_ns, due_ns) + WAKE_LATE_NS
            if not self._wake_ns or wake_ns < self._wake_ns or self._wake_ns <= self.now_ns:
                self._wake_ns = wake_ns
                self._at(wake_ns, lambda: None)

    # --- cameras ------------------------------------------------------------------------------------------------------

    def _tick(self, camera: Camera) -> None:
        """A live camera's frame; where no slot is free it is lost, and in no figure."""
        if self._seq[camera.name] >= camera.frames:
            return self._end(camera)
        sent_ns = self._sent_ns.get(camera.name, camera.first_ns)
        if self._slots[camera.name]:
            self._frame(camera, self.now_ns)
        sent_ns = self._sent_ns[camera.name] = sent_ns + camera.period_ns
        self._at(sent_ns + self._lateness.randrange(self.late_ns + 1), lambda: self._tick(camera))
        return None

    def _freed(self, worker: str, message: SlotsFreed) -> None:
        camera = self._by_name[worker.removeprefix("decode/")]
        self._slots[camera.name].extend(message.slots)
        self._decode(camera)

    def _decode(self, camera: Camera) -> None:
        if camera.live or self._decoding[camera.name] or not self._slots[camera.name]:
            return None
        if self._seq[camera.name] == camera.frames:
            self._decoding[camera.name] = True
            return self._end(camera)
        self._decoding[camera.name] = True

        def done() -> None:
            self._decoding[camera.name] = False
            self._frame(camera, self.now_ns)
            self._decode(camera)

        self._at(max(self.now_ns + camera.period_ns, camera.first_ns), done)
        return None

    def _frame(self, camera: Camera, arrived_ns: int) -> None:
        name, seq, slot = camera.name, self._seq[camera.name], self._slots[camera.name].popleft()
        self._seq[name] += 1
        self._came_ns[name, seq] = arrived_ns
        self._in_slot[name, slot] = seq
        ready = FrameReady(
            name, 0, seq, slot, 2, 8, 8, seq, seq, seq + 1, 0, False, arrived_ns, arrived_at_ns=arrived_ns
        )
        self.dispatcher.receive(f"decode/{name}", ready)

    def _end(self, camera: Camera) -> None:
        seq = self._seq[camera.name]
        self.dispatcher.receive(f"decode/{camera.name}", StreamEnded(camera.name, 0, "ended", "", seq, 0, 0, True))

    # --- executors and NMS --------------------------------------------------------------------------------------------

    def _batch(self, worker: str, batch: BatchReady) -> None:
        machine, frames = self.machines[worker], len(batch.items)
        machine.held += 1
        assert machine.held <= machine.lanes, "more batches than lanes"
        submitted_ns = max(self.now_ns + self.hand_over_ns, machine.thread_free_ns)
        uploaded_ns = machine.thread_free_ns = submitted_ns + self.copy_ns * frames
        started_ns = max(uploaded_ns, machine.device_free_ns)
        executed_ns = machine.device_free_ns = started_ns + self.service_ns(worker, batch.model, frames)
        oldest_ns = min(self._came_ns[item.camera, self._in_slot[item.camera, item.slot]] for item in batch.items)
        run = Run(worker, batch.model, frames, self.now_ns, uploaded_ns, started_ns, executed_ns, oldest_ns)
        incarnation = machine.incarnation
        raw = RawOutput(batch.batch_id, 2, [], submitted_ns, uploaded_ns, executed_ns, executed_ns)

        def done() -> None:
            if machine.incarnation == incarnation:
                machine.held -= 1
                self.runs.append(run)
                self.dispatcher.receive(worker, raw)

        self._at(executed_ns + self.hand_over_ns, done)

    def _kill(self, worker: str) -> None:
        machine = self.machines[worker]
        machine.incarnation += 1
        machine.held = 0
        machine.thread_free_ns = machine.device_free_ns = self.now_ns
        self.dispatcher.worker_lost(worker, blame=False)
        self._at(self.now_ns + 50 * MS, lambda: self.dispatcher.worker_ready(worker, "executor", machine.lanes))

    def _post(self, worker: str, task: PostTask) -> None:
        started_ns = max(self.now_ns + self.hand_over_ns, self._nms_free_ns[worker])
        ended_ns = self._nms_free_ns[worker] = started_ns + self.nms_ns * len(task.items)
        found = [Objects(item.index, b"", b"", b"", 0, 0) for item in task.items]
        done = PostDone(task.task_id, found, [], started_ns, ended_ns)
        self._at(ended_ns + self.hand_over_ns, lambda: self.dispatcher.receive(worker, done))

    # --- what came of it ----------------------------------------------------------------------------------------------

    def gaps_ns(self) -> Iterator[tuple[Run, int]]:
        """Each batch with the time for which its device stood still before it although a frame of it was there."""
        free_ns: dict[str, int] = {}
        for run in sorted(self.runs, key=lambda run: run.started_ns):
            since_ns = max(free_ns.get(run.executor, 0), run.oldest_ns)
            yield run, max(0, run.started_ns - since_ns)
            free_ns[run.executor] = run.executed_ns

    @property
    def occupancy(self) -> float:
        """Frames per batch."""
        return sum(run.frames for run in self.runs) / len(self.runs)

    def waits_ns(self) -> list[int]:
        """Of every published frame, ascending: from its arrival to its publication."""
        return sorted(self.latencies_ns.values())


def paced(count: int, fps: float, seconds: float, rng: random.Random, model: str = "m") -> list[Camera]:
    """Live cameras at random phases."""
    period_ns = int(1e9 / fps)
    return [
        Camera(f"c{i:02}", model, True, period_ns, 1 + rng.randrange(period_ns), int(seconds * fps))
        for i in range(count)
    ]
