"""Owns trying a device as executors will use it: every lane filled at once. Keeps nothing open; judges no results."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from pipeline.observe.processes import footprint
from pipeline.plan import DevicePlan
from stages.accelerators.accelerator import Described, Device, LaneSet
from stages.accelerators.registry import open_device
from stages.errors import CampipeError, DeviceFailed, UserError
from stages.model import ModelSpec, output_slot_bytes, output_views

if TYPE_CHECKING:
    from pipeline.models.verify_device import Raw

LONGEST_S: Final = 60.0  # without the end of any run, before the device is taken for one that hangs
WHOLE_S: Final = 75.0  # for all runs, each of which may be slow
LOOK_S: Final = 0.001


class NoRoom(CampipeError):
    """The device has no room for its lanes: another run, perhaps of the same site, may have it."""


class Slow(CampipeError):
    """The device works, but so slowly that not all runs ended in the time for them."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a device and loading its models has shown."""

    took_s: float  # 0: it could not be opened beside the run of the same site
    facts: tuple[str, ...] = ()  # what the device tells of itself
    own_bytes: int = 0  # memory that it takes in its process, every lane in use
    raw: Mapping[str, Raw] = field(default_factory=dict)  # of a card, by model: what it gives for drawn pictures


class _Progress:
    """What all threads have done of ``wanted`` runs, until they meet at ``ready``."""

    def __init__(self, wanted: int, ready: threading.Barrier) -> None:
        self._wanted, self._ready = wanted, ready
        self._began_s = self._latest_s = time.monotonic()
        self._runs = 0
        self._lock = threading.Lock()

    def ended(self) -> None:
        """One more run."""
        with self._lock:
            self._runs += 1
            self._latest_s = time.monotonic()

    def wait(self, model: str) -> None:
        """A moment, for the run of this model. Raises when there is no time left, or another thread has failed."""
        now_s = time.monotonic()
        if self._ready.broken:
            raise threading.BrokenBarrierError
        if now_s - self._latest_s > LONGEST_S:
            raise DeviceFailed(f"model {model}: no end of a run of blank pictures for {LONGEST_S:g} s")
        if now_s - self._began_s > WHOLE_S:
            raise Slow(f"slow, {self._runs} of {self._wanted} runs of blank pictures in {WHOLE_S:g} s")
        time.sleep(LOOK_S)


def load_models(
    device: DevicePlan, models: Sequence[ModelSpec], batches: Mapping[str, int], *, runs: bool = False
) -> Opened:
    """Open the device, load the models and fill all lanes as executors would. Runs in a process of its own.

    ``runs``: a run of the same site may have what the device has no more of, see ``trial``.
    """
    before = footprint(os.getpid())
    own_bytes, took_s = 0, 0.0
    began_ns = time.monotonic_ns()
    opened = open_device(device.device, device.threads, device.options, device.executors, lanes=device.lanes)
    problems: list[str] = []
    facts: tuple[str, ...] = ()
    raw: dict[str, Raw] = {}
    try:
        opened.open()
        for model in models:
            try:
                opened.load(model, batches[model.name])
            except UserError as error:
                problems += error.problems
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        if not problems:
            if isinstance(opened, Described):
                facts = tuple(opened.facts())
            if before is not None:
                own_bytes = max(0, rehearse(opened, device, models, batches) - before.own_bytes)
            if device.device.startswith("ascend:"):
                try:
                    raw = _on_drawn_pictures(opened, models)
                except DeviceFailed as error:
                    if not runs:
                        raise
                    facts = (*facts, f"{device.device}: not held against ONNX files: {error}")
    except (NoRoom, Slow, DeviceFailed) as error:
        if isinstance(error, DeviceFailed) and not runs:
            raise
        # no offence at what the run of the same site has of it, nor at slowness
        facts = (*facts, f"{device.device}: not tried with all lanes, and its memory is not known: {error}")
    finally:
        opened.close()
    if problems:
        raise UserError.of(problems)
    return Opened(took_s, facts, own_bytes, raw)


def _on_drawn_pictures(device: Device, models: Sequence[ModelSpec]) -> dict[str, Raw]:
    from pipeline.models.verify_device import run_on  # not before: its memory is none of an executor's

    return {model.name: run_on(device, model) for model in models}


def rehearse(device: Device, plan: DevicePlan, models: Sequence[ModelSpec], batches: Mapping[str, int]) -> int:
    """Run full batches of blank pictures on every lane of every executor, all at once, and give this process's memory.

    In bytes, as ``own_bytes`` of ``footprint``. The outputs are not in it: in a run they are shared memory.
    Raises NoRoom when the lanes can't be had now, DeviceFailed when a run on them fails or none ends, Slow.
    """
    ready = threading.Barrier(plan.executors + 1)
    leave = threading.Event()
    failed: list[Exception] = []
    progress = _Progress(plan.executors * plan.lanes * len(models), ready)

    def run() -> None:
        try:
            try:
                lanes = device.lanes(plan.lanes)
            except DeviceFailed as error:
                raise NoRoom(str(error)) from error
            try:
                for model in models:
                    _fill(lanes, plan.lanes, model, batches[model.name], progress)
                ready.wait()  # for the slowest, which says itself when it gives up
                leave.wait()
            finally:
                lanes.close()
        except Exception as error:  # noqa: BLE001  told by whoever waits for this thread
            failed.append(error)
            ready.abort()

    threads = [threading.Thread(target=run) for _ in range(plan.executors)]
    for thread in threads:
        thread.start()
    held = None
    try:
        ready.wait()
        held = footprint(os.getpid())
    except threading.BrokenBarrierError:
        pass
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    if failed:
        first = next((each for each in failed if not isinstance(each, threading.BrokenBarrierError)), failed[0])
        why = str(first) or type(first).__name__
        raise first if isinstance(first, CampipeError) else DeviceFailed(f"device {plan.device}: {why}") from first
    return held.own_bytes if held is not None else 0


def _fill(lanes: LaneSet, count: int, model: ModelSpec, batch: int, progress: _Progress) -> None:
    """Run a full batch on each lane, and wait for all."""
    blank = np.full((model.height, model.width, 3), model.pad_value, np.uint8)
    size = output_slot_bytes(model, batch)
    memory = [mmap.mmap(-1, max(1, size)) for _ in range(count)]  # shared, as in a run
    for lane in range(count):
        lanes.submit(lane, model.name, [blank] * batch, output_views(model, memoryview(memory[lane]), batch, batch))
    left = count
    while left:
        for _, result in lanes.finished():
            if isinstance(result, Exception):
                raise result
            left -= 1
            progress.ended()
        if left:
            progress.wait(model.name)
