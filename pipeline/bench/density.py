"""Owns the measurement of density: how many paced streams are carried, how late their frames are. Prints nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.bench import parts, running
from pipeline.bench.ceiling import ceiling
from pipeline.bench.figures import Spread
from pipeline.bench.outcome import Outcome
from pipeline.bench.search import Search
from pipeline.bench.streams import Streams
from pipeline.bench.windows import Windows
from pipeline.bench.workload import Workload
from stages.accelerators.cores import usable_cores
from stages.camera import CameraSpec

TOLERANCE_FPS = 0.2
LOADS = (0.5, 0.8, 1.0)
FAULTY_LOAD = 0.8
GUESS_CAMERAS = 4  # from whose cost the first guess is made

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """So many streams were tried. ``worst``: the lowest rate of a stream, frames per second."""

    streams: int
    passed: bool
    worst: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Level:
    """The runs at one load."""

    share: float
    streams: int
    outcomes: tuple[Outcome, ...]

    def spread(self, figure: Callable[[Outcome], float]) -> Spread:
        """One figure over the runs."""
        return Spread.of(figure(each) for each in self.outcomes)

    @property
    def typical(self) -> Outcome:
        """The run whose 95th percentile is the median."""
        return sorted(self.outcomes, key=lambda each: each.age.p95)[(len(self.outcomes) - 1) // 2]

    @property
    def dropped(self) -> dict[str, int]:
        """By cause, all runs together."""
        causes = dict.fromkeys(cause for each in self.outcomes for cause in each.dropped)
        return {cause: sum(each.dropped.get(cause, 0) for each in self.outcomes) for cause in causes}


@dataclass(frozen=True, slots=True)
class Density:
    """``passed``: the most streams that kept their rate; ``failed``: the fewest that did not, None when none was tried.

    ``exact``: nothing between the two is untried. ``faulty``: as many streams as at ``FAULTY_LOAD``, with a dead and a
    flapping camera beside them; its figures are those of the healthy ones.
    """

    fps: float
    passed: int
    failed: int | None
    exact: bool
    trials: tuple[Trial, ...]
    levels: tuple[Level, ...]
    faulty: Level | None

    def level(self, share: float) -> Level | None:
        """The runs at this load."""
        return next((level for level in self.levels if level.share == share), None)


def keeps_rate(outcome: Outcome, cameras: Sequence[CameraSpec], fps: float) -> tuple[bool, float]:
    """Whether every camera kept ``fps``, and the lowest rate."""
    worst = min(outcome.rates.get(camera.name, 0.0) for camera in cameras)
    return worst >= fps - TOLERANCE_FPS, worst


class _Bench:
    def __init__(self, load: Workload, streams: Streams, address: str, windows: Windows) -> None:
        self._load = load
        self._streams = streams
        self._address = address
        self._windows = windows

    def once(self, count: int, others: Sequence[CameraSpec] = ()) -> tuple[Outcome, bool, float]:
        """One run with ``count`` streams, and ``others`` whose figures don't count."""
        cameras = self._streams.cameras(count)
        plan = running.plan_of(self._load, [*cameras, *others], self._address, trace=True)
        outcome = running.run(plan, self._windows, [camera.name for camera in cameras])
        return (outcome, *keeps_rate(outcome, cameras, self._streams.fps))

    def trial(self, count: int) -> Trial:
        """Whether so many pass. A failure is tried once more: another program's moment makes one, and no pass."""
        for _ in range(2):
            outcome, passed, worst = self.once(count)
            trial = Trial(count, passed, worst, outcome)
            if passed:
                break
        return trial

    def guess(self) -> int:
        """How many streams the CPU and the device could carry at best."""
        cameras = self._streams.recordings(GUESS_CAMERAS)
        plan = running.plan_of(self._load, cameras, self._address, trace=False)
        alone = [part for part in parts.measure(plan, 0.5) if part.rate > 0]
        bound = ceiling(alone, usable_cores())
        device = min((part.rate for part in alone if part.name == "device"), default=math.inf)
        return max(1, int(min(bound.of_cores, device) * 0.9 / self._streams.fps))


def density(
    load: Workload,
    streams: Streams,
    *,
    first: int | None,
    most: int,
    trials: int,
    runs: int,
    seconds: float,
    faults: bool,
    say: Say,
) -> Density:
    """Measure. Raises UserError or CampipeError."""
    with running.subscriber() as address:
        bench = _Bench(load, streams, address, Windows.of(seconds))
        search = Search(first if first is not None else bench.guess(), most, trials)
        tried: dict[int, Trial] = {}
        while (count := search.next()) is not None:
            tried[count] = trial = bench.trial(count)
            search.tell(count, passed=trial.passed)
            verdict = "passed" if trial.passed else "failed twice"
            say(f"{count} streams: {verdict}, slowest {trial.worst:.2f} frames/s, p95 {trial.outcome.age.p95:.0f} ms")
        levels: list[Level] = []
        for share in LOADS if search.passed else ():
            count = max(1, int(share * search.passed))
            # the trial that passed is a run at full load like any other
            known = [tried[count].outcome] if share == 1.0 and count in tried else []
            outcomes = [*known, *(bench.once(count)[0] for _ in range(runs - len(known)))]
            levels.append(Level(share, count, tuple(outcomes)))
            say(f"{count} streams, load {share:.0%}: p95 {levels[-1].spread(lambda each: each.age.p95).text(0)} ms")
        faulty = None
        if faults and search.passed:
            count = max(1, int(FAULTY_LOAD * search.passed))
            with streams.faulty() as others:
                faulty = Level(FAULTY_LOAD, count, tuple(bench.once(count, others)[0] for _ in range(runs)))
            say(f"{count} streams beside a dead and a flapping camera: p95 {_p95(faulty)} ms")
    return Density(
        streams.fps, search.passed, search.failed, search.exact, tuple(tried.values()), tuple(levels), faulty
    )


def _p95(level: Level) -> str:
    return level.spread(lambda each: each.age.p95).text(0)
