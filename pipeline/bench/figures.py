"""Owns the arithmetic of measured values: percentiles, medians of runs, rates of streams. Pure."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure of several runs."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """NaN where there is no value."""
        known = sorted(value for value in values if not math.isnan(value))
        if not known:
            return cls(math.nan, math.nan, math.nan)
        return cls(statistics.median(known), known[0], known[-1])

    def text(self, digits: int = 1, factor: float = 1.0) -> str:
        """``57.7 (50.9 .. 61.8)``; a dash for what is not known."""
        if math.isnan(self.median):
            return "-"
        median, least, most = (f"{value * factor:.{digits}f}" for value in (self.median, self.least, self.most))
        return median if least == most else f"{median} ({least} .. {most})"


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line, ``fixed`` at 0. ``deviation``: the largest distance of a point, as part of the largest value."""

    fixed: float
    slope: float
    deviation: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """By least squares. Fewer than three points lie on a line anyway: NaN for what they do not tell."""
        count = len(points)
        if count < 2 or any(math.isnan(y) for _, y in points):
            return cls(math.nan, math.nan, math.nan)
        middle_x, middle_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
        wide = sum((x - middle_x) ** 2 for x, _ in points)
        if not wide:
            return cls(math.nan, math.nan, math.nan)
        slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / wide
        fixed = middle_y - slope * middle_x
        largest = max(abs(y) for _, y in points)
        farthest = max(abs(y - fixed - slope * x) for x, y in points)
        return cls(fixed, slope, farthest / largest if largest and count > 2 else math.nan)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of durations, in milliseconds; NaN of none."""

    p50: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """By ``percentile``."""
        ordered = sorted(values)
        return cls(*(percentile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least value that ``share`` (0 to 1) of the values do not exceed (nearest rank); NaN of none.

    A value that was measured, never one between two: a tail is not made shorter than it was.
    """
    if not ordered:
        return math.nan
    # 0.95 * 20 is 19.000000000000004 in binary: a rank is not moved by that
    rank = math.ceil(round(share * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


def spreads(runs: Sequence[dict[str, float]]) -> dict[str, Spread]:
    """Each named figure over the runs, in the order of first appearance; absent ones count as not known."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: Spread.of(run.get(name, math.nan) for run in runs) for name in names}


def crossings(times: Sequence[float], at: float) -> float:
    """How many of ascending ``times`` have passed at ``at``, with fractions between two of them.

    A frame is not counted at once but over the time since the one before it, so that a rate is not off by a whole
    frame, whatever the window. Before the first and after the last nothing passes: a stream that stops is slow.
    """
    before = bisect_right(times, at)
    if before == 0 or before == len(times):
        return float(before)
    return before + (at - times[before - 1]) / (times[before] - times[before - 1])


def rate(times: Sequence[float], start: float, end: float) -> float:
    """Events per unit of time between ``start`` and ``end``."""
    return (crossings(times, end) - crossings(times, start)) / (end - start) if end > start else 0.0


def paced_rate(times: Sequence[float], start: float, end: float) -> float:
    """Events per unit of time of a paced stream between ``start`` and ``end``, from ascending times.

    The slope of the straight line through its events (least squares), which the delay of single frames moves little:
    over four seconds 30 ms at one end are no 0.2 frames per second. A stream that stopped has no events that would bend
    the line, so the slope never counts for more than one event beyond those that came.
    """
    kept = times[bisect_left(times, start) : bisect_left(times, end)]
    count = len(kept)
    if end <= start or count == 0:
        return 0.0
    most = (count + 1) / (end - start)
    if count < 3 or kept[-1] == kept[0]:
        return min(count / (end - start), most)
    middle_time, middle_index = sum(each - start for each in kept) / count + start, (count - 1) / 2
    together = sum((each - middle_time) * (index - middle_index) for index, each in enumerate(kept))
    return min(together / sum((each - middle_time) ** 2 for each in kept), most)
