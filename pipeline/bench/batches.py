"""Owns what the batches of a run say of its device: how full, how busy, what ran beside what. Pure.

Times are monotonic nanoseconds. A run computes from the end of its upload, or from the end of the run before it on the
same device where that is later, until it was executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One batch on its way through a device."""

    executor: str
    frames: int
    submitted_ns: int
    uploaded_ns: int
    executed_ns: int
    finished_ns: int


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``start_ns`` to ``end_ns``."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """What a device did when: ``upload`` and ``download`` are copies, ``execute`` its compute."""

    upload: tuple[Interval, ...]
    execute: tuple[Interval, ...]
    download: tuple[Interval, ...]


def lanes(runs: Iterable[BatchRun]) -> Lanes:
    """Of runs on one device that computes one batch at a time."""
    ordered = sorted(runs, key=lambda run: run.executed_ns)
    computed: list[Interval] = []
    free_ns = 0
    for run in ordered:
        start_ns = min(max(run.uploaded_ns, free_ns), run.executed_ns)
        computed.append(Interval(start_ns, run.executed_ns))
        free_ns = run.executed_ns
    return Lanes(
        upload=tuple(Interval(run.submitted_ns, run.uploaded_ns) for run in ordered),
        execute=tuple(computed),
        download=tuple(Interval(run.executed_ns, run.finished_ns) for run in ordered),
    )


def covered_ns(intervals: Sequence[Interval], start_ns: int, end_ns: int) -> int:
    """Nanoseconds of ``[start_ns, end_ns)`` that at least one of the intervals covers."""
    covered, reached = 0, start_ns
    for interval in sorted(intervals, key=lambda each: each.start_ns):
        begin, end = max(interval.start_ns, reached), min(interval.end_ns, end_ns)
        if end > begin:
            covered += end - begin
            reached = end
    return covered


def idle_share(runs: Sequence[BatchRun], start_ns: int, end_ns: int, *, parallel: bool) -> float:
    """Part of the time, 0 to 1, in which the device computed nothing.

    ``parallel``: its executors compute beside one another (a CPU's), and the mean over them is given; otherwise they
    take turns. 1 for a device that ran nothing.
    """
    if end_ns <= start_ns or not runs:
        return 1.0
    groups: dict[str, list[BatchRun]] = {}
    for run in runs:
        groups.setdefault(run.executor if parallel else "", []).append(run)
    busy = [covered_ns(lanes(group).execute, start_ns, end_ns) for group in groups.values()]
    return 1.0 - sum(busy) / len(busy) / (end_ns - start_ns)


def hidden_share(runs: Sequence[BatchRun], among: Sequence[BatchRun] | None = None) -> float:
    """Part of all copying, 0 to 1, during which some batch computed; 1 where nothing was copied.

    ``among``: all that the device ran, where ``runs`` are those of a window: the copies at its edges lie under the
    compute of batches outside.
    """
    copied, told = lanes(runs), lanes(runs if among is None else among)
    copies = [each for each in (*copied.upload, *copied.download) if each.end_ns > each.start_ns]
    total = sum(each.end_ns - each.start_ns for each in copies)
    if not total:
        return 1.0
    # both lists go up with time: those that may overlap a copy are found without looking at all of them
    hidden, first = 0, 0
    for copy in sorted(copies, key=lambda each: each.start_ns):
        while first < len(told.execute) and told.execute[first].end_ns <= copy.start_ns:
            first += 1
        at = first
        while at < len(told.execute) and told.execute[at].start_ns < copy.end_ns:
            hidden += min(told.execute[at].end_ns, copy.end_ns) - max(told.execute[at].start_ns, copy.start_ns)
            at += 1
    return hidden / total


def finished_between(runs: Iterable[BatchRun], start_ns: int, end_ns: int) -> list[BatchRun]:
    """Those that ended in ``[start_ns, end_ns)``."""
    return [run for run in runs if start_ns <= run.finished_ns < end_ns]


def occupancy(runs: Sequence[BatchRun], max_batch: int) -> float:
    """Frames per place in a batch, 0 to 1; 0 of no batch."""
    return sum(run.frames for run in runs) / (len(runs) * max_batch) if runs else 0.0


def full_share(runs: Sequence[BatchRun], max_batch: int) -> float:
    """Part of the batches that were full, 0 to 1; 0 of no batch."""
    return sum(run.frames >= max_batch for run in runs) / len(runs) if runs else 0.0
