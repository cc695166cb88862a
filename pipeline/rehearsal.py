"""Owns trying a device as executors will use it: every lane filled at once. Keeps nothing open; judges no results."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from pipeline.observe.processes import footprint
from stages.accelerators.accelerator import Device, LaneSet
from stages.errors import CampipeError, DeviceFailed
from stages.model import ModelSpec, output_slot_bytes, output_views

if TYPE_CHECKING:
    from pipeline.plan import DevicePlan

LONGEST_S: Final = 60.0
LOOK_S: Final = 0.001


class NoRoom(CampipeError):
    """The device has no room for its lanes: another run, perhaps of the same site, may have it."""


def rehearse(device: Device, plan: DevicePlan, models: Sequence[ModelSpec], batches: Mapping[str, int]) -> int:
    """Run full batches of blank pictures on every lane of every executor, all at once, and give this process's memory.

    In bytes, as ``own_bytes`` of ``footprint``. The outputs are not in it: in a run they are shared memory.
    Raises NoRoom when the lanes can't be had now, DeviceFailed when a run on them fails.
    """
    ready = threading.Barrier(plan.executors + 1)
    leave = threading.Event()
    failed: list[Exception] = []

    def run() -> None:
        try:
            try:
                lanes = device.lanes(plan.lanes)
            except DeviceFailed as error:
                raise NoRoom(str(error)) from error
            try:
                for model in models:
                    _fill(lanes, plan.lanes, model, batches[model.name])
                ready.wait(LONGEST_S)
                leave.wait(LONGEST_S)
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
        ready.wait(LONGEST_S)
        held = footprint(os.getpid())
    except threading.BrokenBarrierError:
        pass
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    if failed:
        first = next((each for each in failed if not isinstance(each, threading.BrokenBarrierError)), failed[0])
        raise first if isinstance(first, CampipeError) else DeviceFailed(f"device {plan.device}: {first}") from first
    return held.own_bytes if held is not None else 0


def _fill(lanes: LaneSet, count: int, model: ModelSpec, batch: int) -> None:
    """Run a full batch on each lane, and wait for all."""
    blank = np.full((model.height, model.width, 3), model.pad_value, np.uint8)
    size = output_slot_bytes(model, batch)
    memory = [mmap.mmap(-1, max(1, size)) for _ in range(count)]  # shared, as in a run
    for lane in range(count):
        lanes.submit(lane, model.name, [blank] * batch, output_views(model, memoryview(memory[lane]), batch, batch))
    left = count
    until_s = time.monotonic() + LONGEST_S
    while left:
        for _, result in lanes.finished():
            if isinstance(result, Exception):
                raise result
            left -= 1
        if time.monotonic() > until_s:
            raise DeviceFailed(f"model {model.name}: no end of a run of blank pictures for {LONGEST_S:g} s")
        time.sleep(LOOK_S)
