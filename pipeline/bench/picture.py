"""Owns the pictures of results, as SVG written by hand: latency against load, one second of a device. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from pipeline.bench.batches import BatchRun, Interval, lanes
from pipeline.bench.outcome import Outcome, clipped
from pipeline.bench.windows import SECOND_NS

WIDTH, LEFT, RIGHT = 900, 90, 30
LANE_HEIGHT, LANE_GAP = 22, 8
COLOURS = {"upload": "#4c78a8", "execute": "#54a24b", "download": "#e45756"}
LINES = {"p50": "#54a24b", "p95": "#f58518", "p99": "#e45756", "longest": "#b279a2"}
PLOT_HEIGHT = 260
TICKS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)

Elements = list[str]


def document(parts: Sequence[tuple[int, Elements]], title: str) -> str:
    """One picture of parts below each other, each with its height."""
    body: Elements = []
    top = 40
    for height, elements in parts:
        body.append(f'<g transform="translate(0 {top})">' + "".join(elements) + "</g>")
        top += height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{top}" fill="white"/>{text(LEFT, 22, title, size=15)}{"".join(body)}</svg>\n'
    )


def text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = "#333") -> str:
    """Words at a place."""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(words)}</text>"


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#ddd") -> str:
    """A thin line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def timeline(runs: Iterable[BatchRun], length_ns: int = SECOND_NS) -> tuple[int, Elements]:
    """When a device copied and computed, a lane each; times of ``runs`` count from the picture's left edge."""
    told = lanes(runs)
    room = WIDTH - LEFT - RIGHT
    drawn: Elements = [text(LEFT, 14, "one second of the device")]
    top = 24
    for name, intervals in (("upload", told.upload), ("execute", told.execute), ("download", told.download)):
        drawn.append(text(LEFT - 8, top + LANE_HEIGHT - 7, name, anchor="end"))
        drawn.append(f'<rect x="{LEFT}" y="{top}" width="{room}" height="{LANE_HEIGHT}" fill="#f4f4f4"/>')
        drawn += [_bar(part, length_ns, room, top, COLOURS[name]) for part in _clip(intervals, length_ns)]
        top += LANE_HEIGHT + LANE_GAP
    for tenth in range(11):
        x = LEFT + room * tenth / 10
        drawn.append(line(x, top - LANE_GAP, x, top, "#999"))
        drawn.append(text(x, top + 14, f"{length_ns * tenth / 10 / 1e6:.0f} ms", anchor="middle", size=10))
    return top + 30, drawn


def _clip(intervals: Iterable[Interval], length_ns: int) -> list[Interval]:
    return [part for each in intervals if (part := clipped(each, length_ns)) is not None]


def _bar(part: Interval, length_ns: int, room: int, top: int, colour: str) -> str:
    x = LEFT + room * part.start_ns / length_ns
    width = max(0.3, room * (part.end_ns - part.start_ns) / length_ns - 0.4)  # so that neighbours are told apart
    return f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{LANE_HEIGHT}" fill="{colour}"/>'


def latency(points: Sequence[tuple[int, Outcome]], interval_ms: float) -> tuple[int, Elements]:
    """Age at publication against the number of streams, with a logarithmic scale; a line at three frame intervals."""
    values = {
        name: [(streams, figure) for streams, outcome in points if (figure := _figure(outcome, name)) > 0]
        for name in LINES
    }
    known = [value for each in values.values() for _, value in each if not math.isnan(value)]
    if not known:
        return 0, []
    low, high = _decade(min(known), down=True), _decade(max(*known, 3 * interval_ms), down=False)
    most = max(streams for streams, _ in points)
    room = WIDTH - LEFT - RIGHT

    def x_of(streams: float) -> float:
        return LEFT + room * streams / most

    def y_of(value: float) -> float:
        return 24 + PLOT_HEIGHT * (1 - math.log(value / low) / math.log(high / low))

    drawn: Elements = [text(LEFT, 14, "stamp to published, ms, against the number of streams")]
    for tick in TICKS_MS:
        if low <= tick <= high:
            drawn += [
                line(LEFT, y_of(tick), WIDTH - RIGHT, y_of(tick)),
                text(LEFT - 8, y_of(tick) + 4, f"{tick}", anchor="end"),
            ]
    for streams in sorted({streams for streams, _ in points}):
        drawn.append(text(x_of(streams), 24 + PLOT_HEIGHT + 16, str(streams), anchor="middle", size=10))
    drawn.append(line(LEFT, y_of(3 * interval_ms), WIDTH - RIGHT, y_of(3 * interval_ms), "#999"))
    drawn.append(text(LEFT + 4, y_of(3 * interval_ms) - 4, "three frame intervals", size=10, colour="#777"))
    for number, (name, each) in enumerate(values.items()):
        ordered = sorted(each)
        path = " ".join(f"{x_of(streams):.1f},{y_of(value):.1f}" for streams, value in ordered)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{LINES[name]}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x_of(s):.1f}" cy="{y_of(v):.1f}" r="3" fill="{LINES[name]}"/>' for s, v in ordered]
        drawn.append(text(WIDTH - RIGHT - 240 + 62 * number, 14, name, colour=LINES[name]))
    return PLOT_HEIGHT + 60, drawn


def _figure(outcome: Outcome, name: str) -> float:
    age = outcome.age
    return {"p50": age.p50, "p95": age.p95, "p99": age.p99, "longest": age.most}[name]


def _decade(value: float, *, down: bool) -> float:
    """The next of 1, 2, 5, 10 … beyond ``value``."""
    if down:
        return max((tick for tick in TICKS_MS if tick <= value), default=value / 2)
    return min((tick for tick in TICKS_MS if tick > value), default=value * 2)
