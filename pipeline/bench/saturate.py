"""Owns the measurement at saturation: recordings without pacing, held against the parts alone. Prints nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.bench import parts, running
from pipeline.bench.ceiling import Ceiling, Part, ceiling
from pipeline.bench.figures import Spread, spreads
from pipeline.bench.outcome import Outcome
from pipeline.bench.windows import Windows
from pipeline.bench.workload import Workload, recordings
from stages.accelerators.cores import usable_cores

PARTS_SHARE = 0.5  # of the time that a whole run is measured: each part alone

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SaturationRun:
    """The parts alone, and then the whole, one right after the other."""

    parts: tuple[Part, ...]
    ceiling: Ceiling
    outcome: Outcome

    @property
    def of_parts(self) -> float:
        """Share of the slowest part's rate that was reached."""
        return self.outcome.rate / self.ceiling.of_parts

    @property
    def of_nearest(self) -> float:
        """Share of the lower ceiling that was reached."""
        return self.outcome.rate / self.ceiling.nearest

    @property
    def of_cpu(self) -> float:
        """Share of the CPU time that its parts take alone: others' work changes it little."""
        spent_ms = sum(self.outcome.cpu_ms.values())
        return sum(part.cpu_ms for part in self.parts) / spent_ms if spent_ms else math.nan


@dataclass(frozen=True, slots=True)
class Saturation:
    """All runs."""

    cameras: int
    max_batch: int
    runs: tuple[SaturationRun, ...]

    def spread(self, figure: Callable[[SaturationRun], float]) -> Spread:
        """One figure over the runs."""
        return Spread.of(figure(run) for run in self.runs)

    def cpu_ms(self) -> dict[str, Spread]:
        """CPU per frame by kind of worker."""
        return spreads([run.outcome.cpu_ms for run in self.runs])

    @property
    def typical(self) -> SaturationRun:
        """The run whose rate is the median."""
        return sorted(self.runs, key=lambda run: run.outcome.rate)[(len(self.runs) - 1) // 2]


def saturate(load: Workload, cameras: int, *, runs: int, seconds: float, say: Say) -> Saturation:
    """Measure. Raises UserError or CampipeError."""
    windows = Windows.of(seconds)
    found: list[SaturationRun] = []
    max_batch = 0
    with running.subscriber() as address:
        plan = running.plan_of(load, recordings(load, cameras, paced=False), address, trace=False)
        (batch,) = plan.batch.values()
        max_batch = batch.max_batch
        for number in range(1, runs + 1):
            alone = parts.measure(plan, max(0.3, seconds * PARTS_SHARE))
            bound = ceiling(alone, usable_cores())
            outcome = running.run(plan, windows)
            found.append(SaturationRun(tuple(alone), bound, outcome))
            told = ", ".join(f"{part.name} {part.rate:.0f}" for part in alone)
            say(f"run {number} of {runs}: alone {told}; together {outcome.rate:.1f} frames/s")
    return Saturation(cameras, max_batch, tuple(found))
