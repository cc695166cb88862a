"""Owns the measurement of cost against the number of cameras: from one to many that send little. Prints nothing.

Each step runs in a Python of its own, as ``campipe run`` does, so that its memory and its start are a run's.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from pipeline.bench import running
from pipeline.bench.figures import Line, Spread
from pipeline.bench.outcome import Outcome
from pipeline.bench.streams import Streams
from pipeline.bench.windows import Windows
from pipeline.bench.workload import Workload
from pipeline.observe.processes import Footprint
from pipeline.plan import RunPlan
from pipeline.preflight.memory_forecast import MemoryForecast, forecast
from stages.camera import CameraSpec
from stages.errors import CampipeError, UserError

STEPS: Final = (1, 8, 16, 32, 64)
START_S: Final = 120.0  # for the first detection of all cameras, and the end of the run
LEAVE_S: Final = 15.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes of one kind hold together; see ``Footprint``."""

    processes: int
    private_bytes: int
    own_bytes: int
    threads: int
    descriptors: int

    @classmethod
    def of(cls, each: Sequence[Footprint]) -> Held:
        """The sum."""
        return cls(
            len(each),
            sum(one.private_bytes for one in each),
            sum(one.own_bytes for one in each),
            sum(one.threads for one in each),
            sum(one.descriptors for one in each),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One run with so many cameras.

    ``start_s``: from the start of its Python to the first detection of the last camera; ``start_cpu_s``: the CPU time
    that all its processes took until then. ``held``: by kind of process. ``rings_bytes``: shared memory of its rings,
    of which ``touched_bytes`` are really there.
    """

    cameras: int
    start_s: float
    start_cpu_s: float
    outcome: Outcome
    held: dict[str, Held]
    rings_bytes: int
    touched_bytes: int
    forecast: MemoryForecast

    @property
    def total(self) -> Held:
        """All processes together."""
        every = list(self.held.values())
        return Held(*(sum(getattr(each, name) for each in every) for name in Held.__slots__))

    @property
    def of_memory(self) -> float:
        """Memory of the processes, as part of what was forecast."""
        return self.total.own_bytes / self.forecast.own_bytes

    @property
    def of_shared(self) -> float:
        """Shared memory, as part of what was forecast."""
        return self.rings_bytes / self.forecast.shared_bytes


@dataclass(frozen=True, slots=True)
class Scale:
    """By number of cameras, ascending, its runs."""

    fps: float
    steps: dict[int, tuple[Step, ...]]

    def spread(self, cameras: int, figure: Callable[[Step], float]) -> Spread:
        """One figure over the runs of a step."""
        return Spread.of(figure(each) for each in self.steps[cameras])

    def line(self, figure: Callable[[Step], float]) -> Line:
        """The straight line through the medians of all steps."""
        return Line.through([(cameras, self.spread(cameras, figure).median) for cameras in self.steps])


def scale(load: Workload, streams: Streams, counts: Sequence[int], *, runs: int, seconds: float, say: Say) -> Scale:
    """Measure. Raises UserError or CampipeError."""
    windows = Windows.of(seconds)
    found: dict[int, list[Step]] = {count: [] for count in sorted(set(counts))}
    with running.subscriber() as address:
        expect = _as_check(running.plan_of(load, streams.cameras(1), address, trace=False))
        for _ in range(runs):
            for count, steps in found.items():
                cameras = streams.cameras(count)
                expected = expect(running.plan_of(load, cameras, address, trace=False))
                steps.append(step := _in_own_python(load, cameras, address, windows, expected))
                say(
                    f"{count} cameras: all detected within {step.start_s:.1f} s, {step.outcome.cores:.2f} cores, "
                    f"{step.total.own_bytes / 2**20:.0f} MiB ({step.of_memory:.0%} of the forecast)"
                )
    return Scale(streams.fps, {count: tuple(steps) for count, steps in found.items()})


def _as_check(plan: RunPlan) -> Callable[[RunPlan], MemoryForecast]:
    """What ``campipe check`` says of a plan, whose cameras all send what the only camera of this one does."""
    from pipeline.preflight.trial import try_all

    (camera,) = plan.cameras
    sources, devices, problems = try_all(plan)
    if problems:
        raise UserError.of(problems)
    taken = {name: found.own_bytes for name, found in devices.items()}
    return lambda other: forecast(other, {each.name: sources[camera.name] for each in other.cameras}, taken)


def _in_own_python(
    load: Workload, cameras: Sequence[CameraSpec], address: str, windows: Windows, expected: MemoryForecast
) -> Step:
    from pipeline.runtime.starting import starting_processes

    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    began_ns = time.monotonic_ns()
    process = context.Process(target=_play, args=(there, load, list(cameras), address, windows, began_ns, expected))
    with starting_processes():
        process.start()
    there.close()
    try:
        if not here.poll(START_S + 2 * windows.total_ns / 1e9):
            raise CampipeError(f"{len(cameras)} cameras: no end of the run within {START_S:g} s")
        answer = here.recv()
    except EOFError:
        raise CampipeError(f"{len(cameras)} cameras: the process of the run ended") from None
    finally:
        here.close()
        process.join(LEAVE_S)
        process.kill()  # its workers go with it
        process.join()
        process.close()
    if isinstance(answer, Exception):
        raise answer
    step: Step = answer
    return step


def _play(  # noqa: PLR0917  called in one place
    there: Connection,
    load: Workload,
    cameras: list[CameraSpec],
    address: str,
    windows: Windows,
    began_ns: int,
    expected: MemoryForecast,
) -> None:
    """In the process: plan, run, tell."""
    from pipeline.observe import logs
    from pipeline.runtime.parent_death import signal_at_parents_death

    signal_at_parents_death(signal.SIGTERM)
    vars(resource_tracker._resource_tracker).update(_fd=None, _pid=None)  # a run has one of its own
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    logs.configure("text", "error")
    answer: object
    try:
        answer = _step(load, cameras, address, windows, began_ns, expected)
    except (UserError, CampipeError) as error:
        answer = error
    except Exception as error:  # noqa: BLE001  whatever it is, the asker must hear of it
        answer = CampipeError(f"{type(error).__name__}: {error}")
    there.send(answer)
    there.close()


def _step(  # noqa: PLR0917  as _play
    load: Workload, cameras: list[CameraSpec], address: str, windows: Windows, began_ns: int, expected: MemoryForecast
) -> Step:
    plan = running.plan_of(load, cameras, address, trace=False)
    names = [camera.name for camera in cameras]
    rings: list[tuple[int, int]] = []
    notes = running.observe(plan, windows, names, lambda: rings.extend(rings_of(os.getpid())))
    kinds: dict[str, list[Footprint]] = {}
    for worker, each in notes.footprints.items():
        kinds.setdefault(worker.partition("/")[0], []).append(each)
    return Step(
        cameras=len(cameras),
        start_s=(notes.first_ns - began_ns) / 1e9,
        start_cpu_s=notes.start_cpu_ns / 1e9,
        outcome=running.outcome(plan, notes, windows),
        held={kind: Held.of(each) for kind, each in kinds.items()},
        rings_bytes=sum(size for size, _ in rings),
        touched_bytes=sum(touched for _, touched in rings),
        forecast=expected,
    )


def rings_of(pid: int) -> list[tuple[int, int]]:
    """Of each anonymous file that the process holds: its size, and the bytes of it that are in memory."""
    found: dict[int, tuple[int, int]] = {}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(descriptor.readlink()).startswith("/memfd:campipe-"):
                told = descriptor.stat()
                found[told.st_ino] = (told.st_size, told.st_blocks * 512)
        except OSError:
            continue  # closed meanwhile
    return list(found.values())
