"""Owns the executor: batches in, raw outputs out, lanes in flight, order kept. Does not own the device or its process.

A frame that can't be used fails alone: an empty picture takes its place in the run and zeros its row in the outputs, so
that row i always belongs to item i. A run that the model refuses fails all its frames. A device that fails ends the
executor: StageDead.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.accelerator import Device, LaneSet, RunTimes
from stages.errors import BadItem, StageDead
from stages.frames import SlotRing
from stages.messages import BatchItem, BatchReady, ItemFailed, RawOutput
from stages.model import ModelSpec, output_views
from stages.stage import MonotonicClock

POLL_MS = 1  # how often flush looks when the device has no descriptor to wait on
DETAIL_CHARS = 300


@dataclass(slots=True)
class _Running:
    """A batch on its way through the device."""

    batch: BatchReady
    outputs: list[NDArray[Any]]
    failed: dict[int, ItemFailed]
    submitted_at_ns: int


class Executor:
    """One thread's share of a device. All calls come from the thread that called ``open``.

    ``frames`` are the cameras' rings by camera, ``outputs`` the models' rings by model; each output slot is laid out by
    ``stages.model.output_views`` for ``max_batch[model]`` frames. The device is open and has loaded the models.
    """

    def __init__(  # noqa: PLR0917  wired in one place, where names and order stand together
        self,
        device: Device,
        models: Mapping[str, ModelSpec],
        frames: Mapping[str, SlotRing],
        outputs: Mapping[str, SlotRing],
        max_batch: Mapping[str, int],
        lanes: int,
        clock_ns: MonotonicClock,
    ) -> None:
        self._device = device
        self._models = dict(models)
        self._frames = dict(frames)
        self._outputs = dict(outputs)
        self._max_batch = dict(max_batch)
        self._lane_count = lanes
        self._clock_ns = clock_ns
        self._lanes: LaneSet | None = None
        self._free: list[int] = []
        self._running: dict[int, _Running] = {}  # by lane
        self._blank: dict[str, NDArray[np.uint8]] = {}
        self._dead: StageDead | None = None

    def open(self) -> None:
        """Get the lanes from the device, for this thread. Raises DeviceFailed when it can't give them."""
        self._lanes = self._device.lanes(self._lane_count)
        self._free = list(reversed(range(self._lane_count)))
        self._blank = {n: np.zeros((m.height, m.width, 3), np.uint8) for n, m in self._models.items()}

    @property
    def free_lanes(self) -> int:
        """How many batches can be submitted now."""
        return len(self._free)

    @property
    def wake_fd(self) -> int | None:
        """A descriptor that becomes readable when ``finished`` may have something; None: call it now and then."""
        return self._lanes.wake_fd if self._lanes else None

    def add_frames(self, camera: str, ring: SlotRing) -> None:
        """Take batches with frames of this camera from now on; takes the place of its former ring."""
        self._frames[camera] = ring

    def remove_frames(self, camera: str) -> None:
        """Forget a camera's ring, if it is known: its frames fail as stale from now on."""
        self._frames.pop(camera, None)

    def submit(self, batch: BatchReady) -> list[RawOutput]:
        """Start the batch on a free lane; its frames have been copied when this returns.

        Gives the batch's RawOutput at once when no frame of it can be run, nothing otherwise: it comes from
        ``finished``. Raises StageDead when the device failed, and for a batch that must never be sent: without a free
        lane, of an unknown model, empty or too large.
        """
        submitted_at_ns = self._clock_ns()
        lanes, model = self._check(batch)
        ring = self._outputs[model.name]
        view = ring.begin_write(batch.output_slot)
        outputs = output_views(model, view, self._max_batch[model.name], len(batch.items))
        running = _Running(batch, outputs, {}, submitted_at_ns)
        frames = [self._frame(index, item, model, running.failed) for index, item in enumerate(batch.items)]
        if len(running.failed) == len(frames):
            return [self._ended(running, self._now())]
        lane = self._free[-1]
        try:
            lanes.submit(lane, model.name, frames, outputs)
        except BadItem as error:
            self._fail_all(running, error)
            return [self._ended(running, self._now())]
        except StageDead:
            raise
        except Exception as error:
            raise StageDead(f"batch {batch.batch_id} of model {model.name}: {error}") from error
        self._free.pop()
        self._running[lane] = running
        self._check_again(batch.items, running.failed)
        return []

    def finished(self) -> list[RawOutput]:
        """Raw outputs of the batches that have ended since the last call, in the order of submission; never blocks.

        Raises StageDead when the device failed; what ended before that is given first, the error by the next call.
        """
        if self._dead is not None:
            raise self._dead
        ended: list[RawOutput] = []
        for lane, result in self._lanes.finished() if self._lanes else ():
            running = self._running.pop(lane)
            self._free.append(lane)
            if isinstance(result, BadItem):
                self._fail_all(running, result)
                ended.append(self._ended(running, self._now()))
            elif isinstance(result, RunTimes):
                ended.append(self._ended(running, result))
            else:
                self._dead = _dead_of(result, running.batch)
                break
        if self._dead is not None and not ended:
            raise self._dead
        return ended

    def flush(self, deadline_ns: int) -> list[RawOutput]:
        """Wait until every batch has ended, at most until ``deadline_ns`` of the clock; raises as ``finished`` does."""
        ended = self.finished()
        while self._running and self._dead is None and (left_ns := deadline_ns - self._clock_ns()) > 0:
            self._wait(left_ns)
            ended += self.finished()
        return ended

    def close(self) -> None:
        """Wait for what runs and release the lanes; batches that have not ended are never told. May be called twice."""
        lanes, self._lanes = self._lanes, None
        self._free = []
        if lanes is not None:
            lanes.close()
        self._running.clear()
        self._blank.clear()

    def _check(self, batch: BatchReady) -> tuple[LaneSet, ModelSpec]:
        if self._dead is not None:
            raise self._dead
        model = self._models.get(batch.model)
        if self._lanes is None or not self._free:
            raise StageDead(f"batch {batch.batch_id} was sent, but no lane is free")
        if model is None or model.name not in self._outputs:
            raise StageDead(f"batch {batch.batch_id} is for model {batch.model}, which this executor does not have")
        if not 1 <= len(batch.items) <= self._max_batch[model.name]:
            raise StageDead(
                f"batch {batch.batch_id} has {len(batch.items)} frames, not 1 to {self._max_batch[model.name]}"
            )
        return self._lanes, model

    def _frame(self, index: int, item: BatchItem, model: ModelSpec, failed: dict[int, ItemFailed]) -> NDArray[np.uint8]:
        """The frame's pixels in their slot; an empty picture, and an entry in ``failed``, when they can't be used."""
        ring = self._frames.get(item.camera)
        try:
            if ring is None:
                raise BadItem("stale", f"camera {item.camera} has no frames here any more")
            if ring.slot_bytes < model.frame_bytes:
                raise BadItem(
                    "bad_frame",
                    f"a slot of {ring.name} has {ring.slot_bytes} bytes, model {model.name} takes frames of "
                    f"{model.frame_bytes}",
                )
            pixels = np.frombuffer(ring.read(item.slot, item.generation), np.uint8, model.frame_bytes)
        except BadItem as error:
            failed[index] = ItemFailed(index, error.cause, error.detail)
            return self._blank[model.name]
        return pixels.reshape(model.height, model.width, 3)

    def _check_again(self, items: list[BatchItem], failed: dict[int, ItemFailed]) -> None:
        """A slot that was rewritten while it was copied gave a mixture of two pictures."""
        for index, item in enumerate(items):
            if index in failed:
                continue
            try:
                self._frames[item.camera].check(item.slot, item.generation)
            except BadItem as error:
                failed[index] = ItemFailed(index, error.cause, error.detail)

    def _fail_all(self, running: _Running, error: BadItem) -> None:
        detail = (error.detail or error.cause)[:DETAIL_CHARS]
        for index in range(len(running.batch.items)):
            running.failed.setdefault(index, ItemFailed(index, "infer_failed", detail))

    def _ended(self, running: _Running, times: RunTimes) -> RawOutput:
        for index in running.failed:
            for output in running.outputs:
                output[index] = 0
        batch = running.batch
        return RawOutput(
            batch.batch_id,
            self._outputs[batch.model].end_write(batch.output_slot),
            [running.failed[index] for index in sorted(running.failed)],
            running.submitted_at_ns,
            times.uploaded_at_ns,
            times.executed_at_ns,
            times.finished_at_ns,
        )

    def _now(self) -> RunTimes:
        now_ns = self._clock_ns()
        return RunTimes(now_ns, now_ns, now_ns)

    def _wait(self, left_ns: int) -> None:
        descriptor = self.wake_fd
        if descriptor is None:
            time.sleep(min(POLL_MS, left_ns / 1e6) / 1e3)
            return
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(max(1, min(left_ns // 1_000_000, 1000)))


def _dead_of(error: Exception, batch: BatchReady) -> StageDead:
    if isinstance(error, StageDead):
        return error
    dead = StageDead(f"batch {batch.batch_id} of model {batch.model}: {type(error).__name__}: {error}")
    dead.__cause__ = error
    return dead
