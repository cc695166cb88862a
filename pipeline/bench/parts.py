"""Owns measuring the parts of a plan alone: decode, device, post-processing. The same stages, in as many processes.

Nothing of the engine runs: each process (see ``together``) feeds its stage by itself, as fast as it goes. What they
give is the ceiling that a whole run is held against.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from pipeline.bench.ceiling import Part
from pipeline.bench.together import READY_S, Body, play, together
from pipeline.plan import DevicePlan, RunPlan
from pipeline.transport.arena import SharedRing
from stages.errors import CampipeError
from stages.model import output_slot_bytes

PRELOAD: Final = ["pipeline.bench.parts", "stages.decode.stage", "stages.postprocess.stage", "cv2", "av"]


def measure(plan: RunPlan, seconds: float) -> list[Part]:
    """Each kind of part in turn."""
    devices = [(device_alone, (plan, device)) for device in plan.devices]
    posts = [(post_alone, (plan,)) for _ in range(plan.nms_workers)]
    decoders = [(decode_alone, (plan, index)) for index in range(len(plan.cameras))]
    return [
        together("decode", decoders, seconds, PRELOAD),
        together("device", devices, seconds, PRELOAD),
        together("post", posts, seconds, PRELOAD),
    ]


# --- decode -----------------------------------------------------------------------------------------------------------


def decode_alone(there: Connection, plan: RunPlan, index: int) -> None:
    """One camera's recording into its slots, which are free again at once."""

    def prepare() -> tuple[Body, Callable[[], None]]:
        import dataclasses

        from stages.decode.stage import Decode
        from stages.messages import FrameReady

        camera = dataclasses.replace(plan.cameras[index], pace="fast", live=False)
        model = next(each for each in plan.models if each.name == camera.model)
        slots = plan.frame_slots[camera.name]
        ring = SharedRing.create(camera.name, slots, model.frame_bytes)
        stage = Decode(camera, model, ring, time.monotonic_ns)
        stage.open()
        stage.grant(range(slots))

        def body(end: Callable[[], int]) -> int:
            frames = 0
            while time.monotonic_ns() < end() and not stage.done:
                for message in stage.step():
                    if isinstance(message, FrameReady):
                        frames += 1
                        stage.grant([message.slot])
            return frames

        def close() -> None:
            stage.close()
            ring.close()

        return body, close

    play(there, prepare)


# --- device -----------------------------------------------------------------------------------------------------------


class _Fed:
    """A device with rings that hold real pictures, in this process."""

    def __init__(self, plan: RunPlan, device: DevicePlan) -> None:
        from stages.accelerators.registry import open_device

        self.plan = plan
        self.spec = device
        self.model = plan.models[0]
        self.batch = plan.batch[self.model.name].max_batch
        self.camera = next(camera for camera in plan.cameras if not camera.network)
        self.under_way = device.lanes * self.batch
        self.frames = SharedRing.create("frames", self.under_way * device.executors, self.model.frame_bytes)
        slots = plan.output_slots[self.model.name]
        size = output_slot_bytes(self.model, self.batch)
        self.outputs = SharedRing.create("outputs", max(slots, device.lanes * device.executors), size)
        self.device = open_device(device.device, device.threads, device.options, executors=device.executors)
        self.size = (0, 0)  # of the recording's pictures
        self.generations = self._fill()

    def _fill(self) -> list[int]:
        import dataclasses

        from stages.decode.stage import Decode
        from stages.messages import FrameReady

        camera = dataclasses.replace(self.camera, pace="fast", live=False, loop=True)
        stage = Decode(camera, self.model, self.frames, time.monotonic_ns)
        generations = [0] * self.frames.slots
        stage.open()
        stage.grant(range(self.frames.slots))
        while stage.wait_ns() is not None and not stage.done:
            for message in stage.step():
                if isinstance(message, FrameReady):
                    generations[message.slot] = message.generation
                    self.size = (message.width, message.height)
        stage.close()
        return generations

    def open(self) -> None:
        """Open the device and load the model."""
        self.device.open()
        self.device.load(self.model, self.batch)

    def executor(self) -> Any:
        """One more executor; to be opened in its own thread."""
        from stages.infer import Executor

        rings: dict[str, Any] = {self.camera.name: self.frames}
        return Executor(
            self.device,
            {self.model.name: self.model},
            rings,
            {self.model.name: self.outputs},
            {self.model.name: self.batch},
            self.spec.lanes,
            time.monotonic_ns,
        )

    def batch_ready(self, number: int, output_slot: int, first_frame: int) -> Any:
        """A full batch."""
        from stages.messages import BatchItem, BatchReady

        items = [
            BatchItem(self.camera.name, slot, self.generations[slot])
            for slot in range(first_frame, first_frame + self.batch)
        ]
        return BatchReady(number, self.model.name, output_slot, items)

    def close(self) -> None:
        """Release the device; the rings stay."""
        self.device.close()


def device_alone(there: Connection, plan: RunPlan, device: DevicePlan) -> None:
    """Full batches, a new one as soon as a lane is free."""

    def prepare() -> tuple[Body, Callable[[], None]]:
        fed = _Fed(plan, device)
        fed.open()
        counts = [0] * device.executors
        go = threading.Event()
        ends: list[int] = []
        failed: list[Exception] = []

        def run(index: int, opened: threading.Barrier) -> None:
            executor = fed.executor()
            try:
                executor.open()
                share = fed.outputs.slots // device.executors
                for slot in range(index * share, (index + 1) * share):  # the first run allocates, the first of a slot
                    _one_batch(executor, fed, index, slot)
                opened.wait(READY_S)
                go.wait()
                counts[index] = _saturate(executor, fed, index, ends[0]) if ends else 0
            except Exception as error:  # noqa: BLE001  told by whoever waits for this thread
                failed.append(error)
                opened.abort()
            finally:
                executor.close()

        opened = threading.Barrier(device.executors + 1)
        threads = [threading.Thread(target=run, args=(index, opened)) for index in range(device.executors)]
        for thread in threads:
            thread.start()
        try:
            opened.wait(READY_S)
        except threading.BrokenBarrierError:
            raise failed[0] if failed else CampipeError("device alone: not ready in time") from None

        def body(end: Callable[[], int]) -> int:
            ends.append(end())
            go.set()
            for thread in threads:
                thread.join()
            if failed:
                raise failed[0]
            return sum(counts)

        def close() -> None:
            go.set()
            for thread in threads:
                thread.join()
            fed.close()

        return body, close

    play(there, prepare)


def _one_batch(executor: Any, fed: _Fed, index: int, slot: int) -> Any:
    """Run a batch of executor ``index``'s frames into an output slot and give its RawOutput."""
    told = executor.submit(fed.batch_ready(0, slot, index * fed.under_way))
    told += executor.flush(time.monotonic_ns() + int(READY_S * 1e9))
    if not told or told[0].failed:
        raise CampipeError(f"device alone: {told[0].failed[0].detail if told else 'no answer'}")
    return told[0]


def _saturate(executor: Any, fed: _Fed, index: int, end_ns: int) -> int:
    """Frames of the batches that were begun until ``end_ns``; the last ones are waited for, and count."""
    lanes = fed.spec.lanes
    share = fed.outputs.slots // fed.spec.executors
    poll = select.poll()
    if executor.wake_fd is not None:
        poll.register(executor.wake_fd, select.POLLIN)
    frames, number = 0, 0
    while (now_ns := time.monotonic_ns()) < end_ns:
        for raw in executor.finished():
            frames += fed.batch - len(raw.failed)
        while executor.free_lanes:
            slot = index * share + number % share
            executor.submit(fed.batch_ready(number, slot, index * fed.under_way + number % lanes * fed.batch))
            number += 1
        left_ms = min(100, (end_ns - now_ns) // 1_000_000 + 1)
        poll.poll(left_ms if executor.wake_fd is not None else min(left_ms, 1))
    for raw in executor.flush(time.monotonic_ns() + int(READY_S * 1e9)):
        frames += fed.batch - len(raw.failed)
    return frames


# --- post-processing --------------------------------------------------------------------------------------------------


def post_alone(there: Connection, plan: RunPlan) -> None:
    """Tasks of real raw outputs, as large as the engine gives them, from all output slots in turn."""

    def prepare() -> tuple[Body, Callable[[], None]]:
        from stages.messages import PostItem, PostTask
        from stages.postprocess.stage import Postprocess

        fed = _Fed(plan, plan.devices[0])
        fed.open()
        executor = fed.executor()
        executor.open()
        slots = plan.output_slots[fed.model.name]
        generations = [_one_batch(executor, fed, 0, slot).generation for slot in range(slots)]
        executor.close()
        fed.close()
        names = {fed.model.name: fed.batch}
        stage = Postprocess(plan.models, plan.cameras, {fed.model.name: fed.outputs}, names, time.monotonic_ns)
        stage.open()
        size = -(-fed.batch // plan.nms_workers)

        def body(end: Callable[[], int]) -> int:
            frames = number = 0
            while time.monotonic_ns() < end():
                slot = number % slots
                items = [PostItem(row, fed.camera.name, *fed.size) for row in range(size)]
                for done in stage.step(PostTask(number, fed.model.name, slot, generations[slot], items)):
                    frames += len(done.objects)
                    if done.failed:
                        raise CampipeError(f"post alone: {done.failed[0].detail}")
                number += 1
            return frames

        return body, stage.close

    play(there, prepare)
