"""Owns the options of a simulation. Does not own their meaning: see the module that each sentence names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from stages.errors import UserError

MIB = 1 << 20

# (inputs, batch of the run) -> outputs, all (batch, ...) arrays; in place of a model
Compute = Callable[[Sequence[NDArray[Any]], int], Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class SimOptions:
    """How the simulated machine behaves.

    ``service``: batch size -> milliseconds of device time; a batch takes the time of the smallest size that holds it.
    None: the OM's own ``service_ms``, else 0 on the virtual clock and as long as it takes on the real one. ``copy_ms``:
    a fixed time per copy instead of ``pcie_gb_s`` (1e9 bytes per second). ``launch_us``: time of the host per
    submission. ``compute``: ``canned`` answers without running the model, a callable answers instead of it.
    ``faults``: scripts, see ``machine.faults``. ``keep_after_exit``: what a simulation has not released stays allocated
    on the device for the next ones, until ``reset_device_force`` (real devices release it); ``state_path``: a file that
    keeps it across processes, and what happened ``once``. ``leak_bytes_per_run``: lost on the device by every run.
    ``lenient``: violations are collected, the closest real code is returned. ``check``: the sanitizer is around the
    machine. ``missing``: names that this version of CANN does not have, as ``rt.create_event_ex_with_flag``.
    ``poison``: device memory and destinations of pending copies hold NaN; None: on the virtual clock.
    ``trace_intervals``: how many the trace keeps. ``move_bytes``: copies move no more than so many, from the start;
    None: all, but 4096 with canned compute on the real clock, so that a device takes no CPU time from a bench.
    ``hidden``: see ``CheckOptions``.
    """

    devices: int = 1
    soc: str = "Ascend310P3"
    memory_bytes: int = 21_527 * MIB
    allocator: Literal["pages", "buddy"] = "pages"
    clock: Literal["virtual", "real"] = "virtual"
    service: Mapping[int, float] | None = None
    pcie_gb_s: float = 12.0
    copy_ms: float | None = None
    launch_us: float = 5.0
    compute: Literal["onnx", "canned"] | Compute = "onnx"
    faults: tuple[str, ...] = ()
    keep_after_exit: bool = False
    state_path: str = ""
    leak_bytes_per_run: int = 0
    lenient: bool = False
    check: bool = True
    missing: tuple[str, ...] = ()
    poison: bool | None = None
    trace_intervals: int = 20_000
    move_bytes: int | None = None
    hidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        if not 1 <= self.devices <= 64:
            problems.append(f"simulator: devices is {self.devices}; give 1 to 64")
        if self.memory_bytes < 4 * MIB:
            problems.append(f"simulator: memory_bytes is {self.memory_bytes}; give 4 MiB or more")
        if not 0 < self.pcie_gb_s < math.inf:
            problems.append(f"simulator: pcie_gb_s is {self.pcie_gb_s}; give more than 0")
        service = self.service or {}
        if not all(0 <= time < math.inf for time in (self.launch_us, self.copy_ms or 0, *service.values())):
            problems.append(
                "simulator: a time is negative or no number; give launch_us, copy_ms and service of 0 or more"
            )
        if any(batch < 1 for batch in service):
            problems.append(f"simulator: service has the batches {sorted(service)}; give 1 or more")
        if self.clock not in ("virtual", "real") or self.allocator not in ("pages", "buddy"):
            problems.append("simulator: clock is virtual or real, allocator is pages or buddy; correct them")
        if not callable(self.compute) and self.compute not in ("onnx", "canned"):
            problems.append(f"simulator: compute is {self.compute!r}; give onnx or canned")
        if problems:
            raise UserError.of(problems)

    @property
    def most_moved_bytes(self) -> int:
        """Of one copy."""
        if self.move_bytes is not None:
            return self.move_bytes
        return 4096 if self.clock == "real" and self.compute == "canned" else 1 << 62

    @property
    def poisons(self) -> bool:
        """Whether memory is poisoned."""
        return self.clock == "virtual" if self.poison is None else self.poison


@dataclass(frozen=True)
class CheckOptions:
    """How strict the sanitizer is.

    ``raise_``: False only collects. ``raise_on_error``: a code other than 0 is raised as well. ``most``: violations
    kept; further ones are counted. ``hidden``: ends of file names that are not the user's code: the call site is the
    first frame outside of them. ``compare_bytes``: sources of pending copies up to this size are compared with a
    snapshot. ``refusals_are_leaks``: what a failing release left alive counts as alive at ``finalize``.
    """

    raise_: bool = True
    raise_on_error: bool = False
    most: int = 1000
    hidden: tuple[str, ...] = ()
    compare_bytes: int = 64 * MIB
    refusals_are_leaks: bool = False
