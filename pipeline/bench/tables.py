"""Owns how results look as text. Pure: measures and prints nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from pipeline.bench.density import FAULTY_LOAD, TOLERANCE_FPS, Density, Level
from pipeline.bench.figures import Percentiles, Spread, spreads
from pipeline.bench.outcome import KINDS, STAGES, Outcome
from pipeline.bench.saturate import Saturation
from pipeline.bench.scale import Scale, Step
from pipeline.observe.figures import plural

Row = Sequence[str]

ADDED_P50_MS: Final = 5.0
ADDED_P99_MS: Final = 15.0
AGE_P95_INTERVALS: Final = 3  # between frames
ADDED: Final = (
    "Added latency, of each frame: from its stamp to its publication, without the time from its arrival to its picture "
    "(decode), without the time for which the device computed its batch (from the end of its upload, or of the batch "
    "before it where that is later), and without its equal part of the NMS task that it was in. So the wait for a "
    "batch, for a device at work, for the other frames of a task, all copies and messages are in it."
)


def grid(head: Row, rows: Sequence[Row]) -> str:
    """A table in Markdown, columns aligned, so that it can be read as it is and pasted."""
    every = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(head))]

    def line(row: Row) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"

    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([line(every[0]), rule, *(line(row) for row in every[1:])])


def saturation(found: Saturation) -> str:
    """Rates, ceilings, cost."""
    first = found.runs[0]

    def of(figure: Callable[[Outcome], float], digits: int, factor: float = 1.0) -> str:
        return found.spread(lambda run: figure(run.outcome)).text(digits, factor)

    rows = [("campipe, frames/s", of(lambda each: each.rate, 1))]
    for index, part in enumerate(first.parts):
        rate = found.spread(lambda run, index=index: run.parts[index].rate)  # type: ignore[misc]
        cpu = found.spread(lambda run, index=index: run.parts[index].cpu_ms)  # type: ignore[misc]
        rows.append((f"{part.name} alone, frames/s", f"{rate.text(1)}; CPU {cpu.text(2)} ms a frame"))
    rows += [
        (
            f"share of the slowest part ({first.ceiling.slowest}), %",
            found.spread(lambda run: run.of_parts).text(1, 100),
        ),
        ("ceiling of the cores, frames/s", found.spread(lambda run: run.ceiling.of_cores).text(1)),
        ("share of the nearer ceiling, %", found.spread(lambda run: run.of_nearest).text(1, 100)),
        ("CPU that the parts take alone, % of campipe's", found.spread(lambda run: run.of_cpu).text(1, 100)),
        ("device idle, %", of(lambda each: each.idle, 1, 100)),
        ("copies under compute, %", of(lambda each: each.hidden, 1, 100)),
        (f"places filled in batches of {found.max_batch}, %", of(lambda each: each.occupancy, 1, 100)),
        ("full batches, %", of(lambda each: each.full, 1, 100)),
        ("cores busy with campipe", of(lambda each: each.cores, 2)),
    ]
    rows += [(f"CPU ms a frame, {kind}", each.text(3)) for kind, each in found.cpu_ms().items()]
    rows.append(("CPU ms a frame, all but decode", of(lambda each: each.beyond_decode_ms, 3)))
    rows += [(f"private MiB, {kind}", each.text(0)) for kind, each in _memory(found.typical.outcome).items()]
    rows.append(("objects a frame", of(lambda each: each.objects, 1)))
    return grid((f"{plural(found.cameras, 'camera')}, {plural(len(found.runs), 'run')}", "median (range)"), rows)


def _memory(outcome: Outcome) -> dict[str, Spread]:
    return spreads([outcome.private_mib])


def density(found: Density) -> str:
    """The search, the loads, the faults."""
    return "\n\n".join(part for part in (_search(found), _loads(found), _split(found), _faults(found)) if part)


def _search(found: Density) -> str:
    rows = [
        (
            str(trial.streams),
            "pass" if trial.passed else "fail",
            f"{trial.worst:.2f}",
            f"{trial.outcome.age.p95:.0f}",
            _causes(trial.outcome.dropped),
        )
        for trial in sorted(found.trials, key=lambda trial: trial.streams)
    ]
    failed = f"{found.failed} do not" if found.failed is not None else "more were not tried"
    gap = "" if found.exact else " (numbers between were not tried)"
    head = (
        f"{found.passed} streams of {found.fps:g} frames/s keep their rate within {TOLERANCE_FPS} frames/s, "
        f"{failed}{gap}."
    )
    return head + "\n\n" + grid(("streams", "", "slowest stream, frames/s", "p95, ms", "dropped"), rows)


def _levels(found: Density) -> list[Level]:
    return list(found.levels)


def _loads(found: Density) -> str:
    levels = _levels(found)
    if not levels:
        return ""

    def row(name: str, figure: Callable[[Outcome], float], digits: int, factor: float = 1.0) -> Row:
        return (name, *(level.spread(figure).text(digits, factor) for level in levels))

    rows: list[Row] = [
        row("stamp to published, p50, ms", lambda each: each.age.p50, 1),
        row("p95, ms", lambda each: each.age.p95, 1),
        row("p99, ms", lambda each: each.age.p99, 1),
        row("longest, ms", lambda each: each.age.most, 1),
        row("slowest stream, frames/s", lambda each: min(each.rates.values()), 2),
        row("fastest stream, frames/s", lambda each: max(each.rates.values()), 2),
        row("places filled in batches, %", lambda each: each.occupancy, 1, 100),
        row("full batches, %", lambda each: each.full, 1, 100),
        row("device idle, %", lambda each: each.idle, 1, 100),
        row("cores busy with campipe", lambda each: each.cores, 2),
        *(row(f"CPU ms a frame, {kind}", lambda each, kind=kind: each.cpu_ms[kind], 3) for kind in KINDS),  # type: ignore[misc]
        *(row(f"private MiB, {kind}", lambda each, kind=kind: each.private_mib[kind], 0) for kind in KINDS),  # type: ignore[misc]
        ("dropped, all runs", *(_causes(level.dropped) for level in levels)),
    ]
    return grid(("load", *(f"{level.share:.0%}: {level.streams} streams" for level in levels)), rows)


def _split(found: Density) -> str:
    """Where the time of a frame goes: p50 / p95 / p99, medians of the runs."""
    levels = _levels(found)
    if not levels:
        return ""

    def cell(level: Level, stage: str) -> str:
        told = [each.stages[stage] for each in level.outcomes if stage in each.stages]
        figures: list[Callable[[Percentiles], float]] = [lambda p: p.p50, lambda p: p.p95, lambda p: p.p99]
        return " / ".join(f"{Spread.of(figure(each) for each in told).median:.1f}" for figure in figures)

    def added(level: Level) -> str:
        figures: list[Callable[[Percentiles], float]] = [lambda p: p.p50, lambda p: p.p95, lambda p: p.p99]
        return " / ".join(level.spread(lambda each, of=of: of(each.added)).text(1) for of in figures)  # type: ignore[misc]

    rows = [(stage, *(cell(level, stage) for level in levels)) for stage in STAGES]
    rows.append(("added latency", *(added(level) for level in levels)))
    head = ("ms in each stage, p50 / p95 / p99", *(f"{level.share:.0%}" for level in levels))
    return grid(head, rows) + "\n\n" + ADDED + _targets(found)


def _targets(found: Density) -> str:
    """What is to be reached at which load, and whether it is."""
    aims: list[tuple[float, str, Callable[[Outcome], float], float]] = [
        (0.5, "added latency p50", lambda each: each.added.p50, ADDED_P50_MS),
        (0.5, "added latency p99", lambda each: each.added.p99, ADDED_P99_MS),
        (1.0, "stamp to published p95", lambda each: each.age.p95, AGE_P95_INTERVALS * 1000 / found.fps),
    ]
    told = []
    for share, name, figure, most in aims:
        if (level := found.level(share)) is not None:
            reached = level.spread(figure).median
            verdict = "met" if reached <= most else "missed"
            told.append(f"{name} at {share:.0%} at most {most:g} ms: {reached:.1f}, {verdict}")
    return " Targets: " + "; ".join(told) + "." if told else ""


def _faults(found: Density) -> str:
    whole, faulty = found.level(FAULTY_LOAD), found.faulty
    if whole is None or faulty is None:
        return ""

    def row(name: str, figure: Callable[[Outcome], float], digits: int) -> Row:
        return (name, whole.spread(figure).text(digits), faulty.spread(figure).text(digits))

    rows = [
        row("p50, ms", lambda each: each.age.p50, 1),
        row("p95, ms", lambda each: each.age.p95, 1),
        row("p99, ms", lambda each: each.age.p99, 1),
        row("slowest stream, frames/s", lambda each: min(each.rates.values()), 2),
        ("dropped, all runs", _causes(whole.dropped), _causes(faulty.dropped)),
    ]
    return grid((plural(faulty.streams, "healthy stream"), "alone", "beside a dead and a flapping camera"), rows)


def _causes(dropped: dict[str, int]) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in dropped.items()) or "none"


def scale(found: Scale) -> str:
    """The steps, what each kind of process holds, and how straight the lines are."""
    steps = list(found.steps)

    def row(name: str, figure: Callable[[Step], float], digits: int, factor: float = 1.0) -> Row:
        return (name, *(found.spread(count, figure).text(digits, factor) for count in steps))

    mib = 1 / 2**20
    rows: list[Row] = [
        row("start to first detection of all, s", lambda each: each.start_s, 1),
        row("CPU until then, s", lambda each: each.start_cpu_s, 2),
        row("frames/s", lambda each: each.outcome.rate, 1),
        row("cores busy with campipe", lambda each: each.outcome.cores, 3),
        row("CPU ms/s per camera", lambda each: each.outcome.cores * 1000 / each.cameras, 2),
        row("stamp to published, p95, ms", lambda each: each.outcome.age.p95, 0),
        row("processes", lambda each: each.total.processes, 0),
        row("threads", lambda each: each.total.threads, 0),
        row("descriptors", lambda each: each.total.descriptors, 0),
        row("memory of processes, MiB", lambda each: each.total.own_bytes, 0, mib),
        row("forecast by check, MiB", lambda each: each.forecast.own_bytes, 0, mib),
        row("memory, % of the forecast", lambda each: each.of_memory, 1, 100),
        row("shared memory, MiB", lambda each: each.touched_bytes, 1, mib),
        row("shared, % of the forecast", lambda each: each.of_shared, 1, 100),
        *(
            row(f"private MiB of a process, {kind}", lambda each, kind=kind: _private(each, kind), 1, mib)  # type: ignore[misc]
            for kind in KINDS
        ),
        ("dropped, all runs", *(_causes(_dropped(found.steps[count])) for count in steps)),
    ]
    head = f"cameras of {found.fps:g} frames/s"
    return (
        grid((head, *map(str, steps)), rows)
        + "\n\n"
        + grid(("", "per camera", "fixed", "farthest from a line, %"), _lines(found))
    )


def _lines(found: Scale) -> list[Row]:
    mib = 1 / 2**20
    figures: list[tuple[str, Callable[[Step], float]]] = [
        ("CPU, ms/s", lambda each: each.outcome.cores * 1000),
        ("CPU of the start, ms", lambda each: each.start_cpu_s * 1000),
        ("start, ms", lambda each: each.start_s * 1000),
        ("processes", lambda each: each.total.processes),
        ("threads", lambda each: each.total.threads),
        ("descriptors", lambda each: each.total.descriptors),
        ("memory of processes, MiB", lambda each: each.total.own_bytes * mib),
        ("shared memory, MiB", lambda each: each.touched_bytes * mib),
    ]
    lines = [(name, found.line(figure)) for name, figure in figures]
    return [
        (
            name,
            *(
                "-" if math.isnan(n) else f"{n:.{digits}f}"
                for n, digits in ((line.slope, 2), (line.fixed, 1), (line.deviation * 100, 1))
            ),
        )
        for name, line in lines
    ]


def _private(step: Step, kind: str) -> float:
    held = step.held.get(kind)
    return held.private_bytes / held.processes if held is not None else math.nan


def _dropped(runs: Sequence[Step]) -> dict[str, int]:
    causes = dict.fromkeys(cause for each in runs for cause in each.outcome.dropped)
    return {cause: sum(each.outcome.dropped.get(cause, 0) for each in runs) for cause in causes}
