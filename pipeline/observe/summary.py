"""Owns the text that ends a run: what became of every frame, what was found, the cost. Pure; owns no figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from pipeline.observe.figures import causes, duration, plural, rate, top
from pipeline.observe.logs import printable, redact
from pipeline.report import CameraReport, RunReport
from stages.messages import LedgerEntry

NAME_CELLS: Final = 32
CLASSES: Final = 5

ENDINGS: Final[Mapping[str, str]] = {
    "": "still running",
    "ended": "played to its end",
    "truncated": "stops before the end that its index promises",
    "stopped": "stopped on request",
    "limit": "max_frames reached",
    "not_found": "not found",
    "not_video": "no video",
    "no_frames": "holds no frames",
    "unsupported": "can't be decoded here",
    "unreadable": "can't be read",
    "corrupt": "damaged",
    "worker_failed": "its decode process died too often",
}
ORDER: Final = ("decode", "executor", "nms", "engine")  # as a frame meets them
EXPECTED_ENDS: Final = ("ended", "stopped", "limit")


def ending(camera: CameraReport) -> str:
    """How a camera ended, in words: ``truncated: the file stops after 48 of 100 frames``."""
    words = ENDINGS.get(camera.cause, camera.cause)
    if camera.cause in EXPECTED_ENDS or not camera.cause:
        told = not camera.detail or camera.detail in words or camera.cause in ("ended", "limit")
        return words if told else f"{words} ({camera.detail})"
    return f"{camera.cause}: {camera.detail or words}"


def adds_up(ledger: LedgerEntry) -> bool:
    """Whether every decoded frame is accounted for, as far as these counts tell."""
    return ledger.decoded == ledger.published + sum(ledger.dropped.values()) + ledger.in_flight


def summary(report: RunReport, encoding: str | None = "utf-8") -> str:
    """Several lines of plain text, aligned; ``encoding`` decides whether the check mark is one."""
    right, wrong = marks(encoding)
    lines = [
        *ledger_table({name: (camera.ledger, camera.exact) for name, camera in report.cameras.items()}, right, wrong),
        *_cameras(report),
        *_costs(report),
        f"messages lost: {report.lost_messages or 'none'}",
    ]
    if report.stopped_by and not any(problem.startswith("stopped by ") for problem in report.problems):
        lines.append(f"stopped by {report.stopped_by}")
    lines += [f"problem: {printable(redact(problem))}" for problem in report.problems]
    return "\n".join(lines)


def marks(encoding: str | None) -> tuple[str, str]:
    """The signs for "adds up" and "does not", as far as ``encoding`` has them."""
    try:
        "✓✗".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "ok", "WRONG"
    return "✓", "✗ WRONG"


def ledger_table(
    ledgers: Mapping[str, tuple[LedgerEntry, bool]], right: str = "✓", wrong: str = "✗ WRONG"
) -> list[str]:
    """``decoded = published + dropped + in flight`` per camera, each with its verdict, and the total of several."""
    rows = [(_short(name), ledger, verdict) for name, (ledger, verdict) in ledgers.items()]
    if len(rows) > 1:
        rows.append(("all", _total([ledger for ledger, _ in ledgers.values()]), all(row[2] for row in rows)))
    table: list[tuple[str, ...]] = [("camera", "decoded", "= published", "+ dropped", "+ in flight", "")]
    for name, ledger, verdict in rows:
        mark = right if verdict and adds_up(ledger) else wrong
        dropped = sum(ledger.dropped.values())
        figures = (str(ledger.decoded), f"= {ledger.published}", f"+ {dropped}", f"+ {ledger.in_flight}")
        table.append((name, *figures, f"{mark}  {causes(ledger.dropped)}".rstrip()))
    return align(table, left=(0, 5))


def _total(ledgers: Sequence[LedgerEntry]) -> LedgerEntry:
    dropped: Counter[str] = Counter()
    for ledger in ledgers:
        dropped.update(ledger.dropped)
    return LedgerEntry(
        decoded=sum(ledger.decoded for ledger in ledgers),
        published=sum(ledger.published for ledger in ledgers),
        dropped=dict(dropped),
        in_flight=sum(ledger.in_flight for ledger in ledgers),
    )


def align(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Columns two spaces apart, to the right but for those in ``left``; signs stay at the left of their figures."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [_cell(cell, width, to_left=i in left) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cell(cell: str, width: int, *, to_left: bool) -> str:
    if to_left:
        return cell.ljust(width)
    if cell[:2] in ("= ", "+ "):
        return cell[:2] + cell[2:].rjust(width - 2)
    return cell.rjust(width)


def _short(name: str) -> str:
    shown = printable(name)
    return shown if len(shown) <= NAME_CELLS else shown[: NAME_CELLS - 1] + "…"


def _cameras(report: RunReport) -> list[str]:
    lines = []
    for name, camera in report.cameras.items():
        parts = [redact(ending(camera))]
        if camera.fps:
            parts.append(f"{rate(camera.fps)} fps")
        if camera.objects:
            of = camera.ledger.published
            frames = (
                plural(of, "frame")
                if of == camera.frames_with_objects
                else f"{camera.frames_with_objects} of {plural(of, 'frame')}"
            )
            parts.append(f"{plural(camera.objects, 'object')} in {frames}: {top(camera.classes, CLASSES)}")
        elif camera.ledger.published:
            parts.append("no objects")
        if camera.epochs > 1:
            parts.append(f"started {camera.epochs} times")
        if camera.decode_errors:
            parts.append(plural(camera.decode_errors, "decode error"))
        if camera.corrupt:
            parts.append(plural(camera.corrupt, "damaged frame"))
        if camera.skipped:
            parts.append(f"{plural(camera.skipped, 'picture')} left out undecoded")
        lines.append(f"{_short(name)}: {printable(' · '.join(parts))}")
    return lines


def _costs(report: RunReport) -> list[str]:
    frames = sum(camera.ledger.decoded for camera in report.cameras.values())
    published = sum(camera.ledger.published for camera in report.cameras.values())
    lines = []
    if frames and report.stages:
        order = sorted(report.stages, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
        costs = {name: report.stages[name].cpu_s * 1000 / frames for name in order}
        words = " + ".join(f"{printable(name)} {cost:.2f}" for name, cost in costs.items())
        lines.append(f"CPU per decoded frame, ms: {words} = {sum(costs.values()):.2f}")
    took = f"{report.wall_s:.1f} s" if report.wall_s < 60 else duration(report.wall_s)
    pace = f", {rate(published / report.wall_s)} frames/s" if report.wall_s > 0 else ""
    lines.append(f"{plural(published, 'frame')} published in {took}{pace}")
    return lines
