"""Owns driving an ``ascend-sim`` device in tests, with a hand on its simulation. Does not own what must come out."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ascend.tiny_models import write_tiny_onnx
from made.specs import model_spec
from numpy.typing import NDArray

from stages.accelerators import aclsim
from stages.accelerators.accelerator import LaneSet, RunTimes
from stages.accelerators.aclsim import SimOptions, Simulation
from stages.accelerators.ascend.device import AscendDevice
from stages.accelerators.ascend.options import ascend_options
from stages.model import ModelSpec, OmSpec, TensorSpec

DEADLINE_S = 60.0


def tiny_spec(folder: Path, om: OmSpec | None = None) -> ModelSpec:
    """A model of 8 x 8 pixels and one output of 4 rows of 7, as SSD's; its ONNX file is written."""
    path = folder / "tiny-detector.onnx"
    if not path.is_file():
        write_tiny_onnx(path, columns=28, rows=4)
    return model_spec(
        name="tiny",
        path=str(path),
        width=8,
        height=8,
        placement="stretch",
        labels=("person", "car", "bus"),
        outputs=(TensorSpec("rows", (4, 7), "float32"),),
        om=om,
    )


@dataclass
class Bench:
    """What was opened: the simulations behind the devices, in the order in which they were made."""

    simulations: list[Simulation] = field(default_factory=list)
    acl_of: Callable[[Any], Any] = lambda acl: acl

    def simulate(self, options: SimOptions | None = None, *more: Any) -> Simulation:
        simulation = _simulate(options, *more)
        simulation.acl = self.acl_of(simulation.acl)
        self.simulations.append(simulation)
        return simulation

    @property
    def machine(self) -> Any:
        return self.simulations[-1].machine

    @property
    def violations(self) -> list[Any]:
        checkers = [simulation.checker for simulation in self.simulations if simulation.checker]
        return [violation for checker in checkers for violation in checker.violations]

    def left(self) -> list[str]:
        """What lives on the machines, and pinned memory; nothing after a clean end."""
        found = []
        for simulation in self.simulations:
            machine = simulation.machine
            found += [f"{type(thing).__name__} {handle:#x}" for handle, thing in machine.objects.items()]
            found += [f"model {number}" for number in machine.models]
            found += [f"{block.kind} {block.size} bytes" for block in machine.book.blocks()]
        return found


_simulate = aclsim.simulate


@contextmanager
def bench(acl_of: Callable[[Any], Any] | None = None) -> Iterator[Bench]:
    """Devices opened inside use simulations that the Bench knows."""
    made = Bench() if acl_of is None else Bench(acl_of=acl_of)
    with mock.patch.object(aclsim, "simulate", made.simulate):
        yield made


def open_sim(options: dict[str, str], *, executors: int = 1, lanes: int = 2, index: int = 0) -> AscendDevice:
    """A device that is open; canned compute on the virtual clock unless told otherwise."""
    chosen = {"compute": "canned", "clock": "virtual", **options}
    read = ascend_options("ascend-sim:0", chosen, simulated=True)
    device = AscendDevice(f"ascend-sim:{index}", read, executors, lanes, time.monotonic_ns)
    device.open()
    return device


def frames_of(count: int, seed: int = 0) -> list[NDArray[np.uint8]]:
    """Pictures of the tiny model."""
    return list(np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), np.uint8))


def room(spec: ModelSpec, rows: int) -> list[NDArray[Any]]:
    """Where outputs go."""
    return [np.full((rows, *t.shape), np.nan, t.dtype) for t in spec.outputs]


Outcome = RunTimes | Exception


def run_batches(
    lanes: LaneSet,
    spec: ModelSpec,
    count: int,
    batch: int,
    lane_count: int,
    seed: int = 0,
    on_told: Callable[[], object] = lambda: None,
    asleep: bool = False,
) -> list[tuple[list[NDArray[Any]], Outcome]]:
    """Keep all lanes busy until ``count`` batches have ended; their outputs and what was told of each, in order.

    ``asleep``: wait for the descriptor as an executor does; else ask again and again, so that virtual time passes.
    """
    poll = select.poll()
    if lanes.wake_fd is not None:
        poll.register(lanes.wake_fd, select.POLLIN)
    free = list(range(lane_count))
    told: list[tuple[list[NDArray[Any]], Outcome]] = []
    running: dict[int, list[NDArray[Any]]] = {}
    frames = frames_of(batch, seed)
    submitted = 0
    deadline = time.monotonic() + DEADLINE_S
    while len(told) < count:
        while free and submitted < count:
            lane = free.pop()
            running[lane] = room(spec, batch)
            lanes.submit(lane, spec.name, frames, running[lane])
            submitted += 1
        for lane, outcome in lanes.finished():
            told.append((running.pop(lane), outcome))
            on_told()
            free.append(lane)
        if asleep and not free:
            poll.poll(100)
        assert time.monotonic() < deadline, f"{len(told)} of {count} batches ended"
    return told


def in_threads(works: Sequence[Callable[[], Any]]) -> list[BaseException]:
    """Run each in a thread of its own, as executors do; what they raised."""
    raised: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "an executor does not end"
    return raised
