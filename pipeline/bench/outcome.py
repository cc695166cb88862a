"""Owns the figures of one run, from the notes of its probe. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.bench import batches
from pipeline.bench.batches import BatchRun, Interval
from pipeline.bench.figures import Percentiles, paced_rate, rate
from pipeline.bench.probe import Notes, Published
from pipeline.bench.windows import SECOND_NS, Windows

KINDS = ("decode", "executor", "nms", "engine")
STAGES = ("arrive", "decode", "queue", "upload", "execute", "download", "post", "reorder", "publish")
MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rates in frames per second, times in milliseconds, shares from 0 to 1."""

    rate: float  # of all cameras together
    rates: dict[str, float]  # by camera
    window_rates: tuple[float, ...]  # of all cameras, window by window
    cpu_ms: dict[str, float]  # per published frame, by kind of worker
    cores: float  # that campipe kept busy on average
    idle: float  # of the device
    hidden: float  # of the copies: while some batch computed
    batches: int
    occupancy: float
    full: float
    age: Percentiles  # from a frame's stamp to its publication; NaN for recordings without pace
    added: Percentiles  # of the same, what is left without decoding, the batch on the device, the frame's part of NMS
    stages: dict[str, Percentiles]  # of the same, split
    dropped: dict[str, int]  # by cause, all cameras
    objects: float  # per frame
    private_mib: dict[str, float]  # by kind, all its processes
    timeline: tuple[BatchRun, ...] = field(default=())  # of one second, times since its begin

    @property
    def beyond_decode_ms(self) -> float:
        """CPU per frame of everything but decode processes."""
        return sum(ms for kind, ms in self.cpu_ms.items() if kind != "decode")


def evaluate(
    notes: Notes, windows: Windows, *, max_batch: int, parallel: bool, cameras: Iterable[str] | None = None
) -> Outcome:
    """``parallel``: see ``batches.idle_share``. ``cameras``: whose rates and ages count; None: all that published."""
    first, last = notes.edges
    start_ns, end_ns = first.at_ns, last.at_ns
    counted = list(notes.published) if cameras is None else list(cameras)
    times = {name: [each.at_ns for each in notes.published.get(name, ())] for name in counted}
    everything = sorted(time_ns for each in times.values() for time_ns in each)
    kept = [each for name in counted for each in notes.published.get(name, ()) if start_ns <= each.at_ns < end_ns]
    frames = sum(start_ns <= each.at_ns < end_ns for line in notes.published.values() for each in line)
    runs = batches.finished_between(notes.batches, start_ns, end_ns)
    edges = [notes.first_ns + edge for edge in windows.edges_ns()]
    spent_ns = _spent_ns(first.cpu_ns, last.cpu_ns)
    return Outcome(
        rate=rate(everything, start_ns, end_ns) * SECOND_NS,
        rates={name: paced_rate(each, start_ns, end_ns) * SECOND_NS for name, each in times.items()},
        window_rates=tuple(rate(everything, *window) * SECOND_NS for window in itertools.pairwise(edges)),
        cpu_ms={kind: spent / MS / max(frames, 1) for kind, spent in spent_ns.items()},
        cores=sum(spent_ns.values()) / (end_ns - start_ns),
        idle=batches.idle_share(notes.batches, start_ns, end_ns, parallel=parallel),
        hidden=batches.hidden_share(runs, notes.batches),
        batches=len(runs),
        occupancy=batches.occupancy(runs, max_batch),
        full=batches.full_share(runs, max_batch),
        age=Percentiles.of([each.age_ns / MS for each in kept if each.age_ns]),
        added=Percentiles.of([(each.age_ns - each.work_ns) / MS for each in kept if each.age_ns and each.work_ns]),
        stages=_stages(kept),
        dropped=_dropped(first.dropped, last.dropped, counted),
        objects=notes.objects / max(notes.frames, 1),
        private_mib=_by_kind({name: size / 2**20 for name, size in notes.private_bytes.items()}),
        timeline=timeline(notes.batches, (start_ns + end_ns) // 2),
    )


def _stages(told: Iterable[Published]) -> dict[str, Percentiles]:
    """``arrive``: from a camera's stamp until its data was here; ``publish``: from in order to taken by the socket."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for each in told:
        if each.trace is None or not each.arrived_ago_ns:
            continue
        for stage in STAGES[1:-1]:
            found[stage].append(getattr(each.trace, f"{stage}_ms"))
        found["arrive"].append((each.age_ns - each.arrived_ago_ns) / MS)
        found["publish"].append(max(0.0, each.arrived_ago_ns / MS - each.trace.total_ms))
    return {stage: Percentiles.of(values) for stage, values in found.items() if values}


def _kind(worker: str) -> str:
    return worker.partition("/")[0]


def _by_kind(values: dict[str, float]) -> dict[str, float]:
    found = dict.fromkeys(KINDS, 0.0)
    for name, value in values.items():
        found[_kind(name)] = found.get(_kind(name), 0.0) + value
    return found


def _spent_ns(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    return _by_kind({name: float(spent - before.get(name, 0)) for name, spent in after.items() if name in before})


def _dropped(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], cameras: Iterable[str]
) -> dict[str, int]:
    found: Counter[str] = Counter()
    for camera in cameras:
        found.update(after.get(camera, {}))
        found.subtract(before.get(camera, {}))
    return {cause: count for cause, count in found.most_common() if count > 0}


def timeline(runs: Iterable[BatchRun], start_ns: int, length_ns: int = SECOND_NS) -> tuple[BatchRun, ...]:
    """The runs that were under way in that second, times since its begin."""
    end_ns = start_ns + length_ns
    return tuple(
        BatchRun(
            run.executor,
            run.frames,
            run.submitted_ns - start_ns,
            run.uploaded_ns - start_ns,
            run.executed_ns - start_ns,
            run.finished_ns - start_ns,
        )
        for run in runs
        if run.submitted_ns < end_ns and run.finished_ns > start_ns
    )


def clipped(interval: Interval, length_ns: int) -> Interval | None:
    """The part within ``[0, length_ns)``."""
    start, end = max(interval.start_ns, 0), min(interval.end_ns, length_ns)
    return Interval(start, end) if end > start else None
