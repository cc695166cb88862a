"""Owns the table of a running engine as lines that fit a terminal. Pure: does not own the terminal (``live``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from pipeline.observe.figures import (
    age,
    causes,
    count,
    duration,
    eta_s,
    plural,
    rate,
    share_done,
    size,
    states,
    total_dropped,
)
from pipeline.observe.logs import printable
from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot, WorkerSnapshot

WIDE: Final = 110  # columns from which on drops are named by cause and each recording has its bar
NARROW: Final = 72  # columns below which only the essential is left
BAR_CELLS: Final = 12
NAME_CELLS: Final = (8, 32)
MIN_CAMERA_ROWS: Final = 3
GAP: Final = "  "

COLOURS: Final = {
    "starting": "cyan",
    "streaming": "green",
    "ready": "green",
    "ended": "blue",
    "restarting": "yellow",
    "failed": "bold red",
    "gone": "dim",
}
TROUBLE: Final = {"failed": 0, "restarting": 1}

Cell = tuple[str, str]  # text and style
Column = tuple[str, bool, list[Cell]]  # heading, to the right, cells


def render(snapshot: EngineSnapshot, width: int, height: int) -> RenderableType:
    """At most ``height - 1`` lines of at most ``width`` cells; what does not fit is counted, never cut off unsaid."""
    room = max(4, height - 1)
    head = [_title(snapshot)]
    foot = [*_progress(snapshot, width), *_queues(snapshot), *_drops(snapshot, width), *_details(snapshot)]
    workers = _worker_lines(snapshot.workers)
    # What gives way first on a low terminal: workers one by one, then the lines below the table, then cameras.
    wanted = len(head) + 1 + len(snapshot.cameras) + len(foot)
    if wanted + len(workers) > room:
        workers = _kind_lines(snapshot.workers)
    least = len(head) + 1 + min(MIN_CAMERA_ROWS, len(snapshot.cameras))
    workers = workers[: max(0, room - least)]
    foot = foot[: max(0, room - least - len(workers))]
    table = _cameras(snapshot, width, room - len(head) - len(foot) - len(workers))
    lines = [*head, *table, *foot, *workers]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return Group(*lines)


def _title(snapshot: EngineSnapshot) -> Text:
    line = Text.assemble(("campipe", "bold"))
    line.append(f"{GAP}{duration(snapshot.uptime_s)}")
    line.append(f"{GAP}{rate(sum(c.fps_out for c in snapshot.cameras))} frames/s", "bold")
    if snapshot.stopping:
        line.append(f"{GAP}stopping: finishing what is in flight (stop again to leave at once)", "yellow")
    if snapshot.subscribers:
        line.append(f"{GAP}{plural(snapshot.subscribers, 'subscriber')}", "dim")
    if snapshot.lost_messages:
        line.append(f"{GAP}{plural(snapshot.lost_messages, 'message')} lost", "bold red")
    line.append(f"{GAP}shared memory {size(snapshot.shared_memory_bytes)}", "dim")
    return line


def _cameras(snapshot: EngineSnapshot, width: int, room: int) -> list[Text]:
    cameras = list(snapshot.cameras)
    shown, hidden = cameras, list[CameraSnapshot]()
    if len(cameras) > room - 1:
        order = sorted(range(len(cameras)), key=lambda i: (TROUBLE.get(cameras[i].state, 2), i))
        chosen = set(order[: max(1, room - 2)])
        shown = [camera for i, camera in enumerate(cameras) if i in chosen]
        hidden = [camera for i, camera in enumerate(cameras) if i not in chosen]
    lines = _grid(_camera_columns(shown, width), width)
    if hidden:
        lines.append(Text(f"… and {len(hidden)} more: {states(hidden)}", "dim"))
    return lines


def _camera_columns(cameras: Sequence[CameraSnapshot], width: int) -> list[Column]:
    def column(heading: str, values: list[str], style: str = "") -> Column:
        return heading, True, [(value, style) for value in values]

    columns: list[Column] = [
        ("camera", False, [(printable(c.name), "") for c in cameras]),
        ("state", False, [(c.state, COLOURS.get(c.state, "")) for c in cameras]),
    ]
    if width < NARROW:
        columns.append(column("fps", [rate(c.fps_out) for c in cameras]))
        columns.append(column("publ.", [count(c.published) for c in cameras]))
        columns.append(_dropped_total(cameras))
        return columns
    columns += [
        column("in/out fps", [f"{rate(c.fps_in)}/{rate(c.fps_out)}" for c in cameras]),
        column("age", [age(c.age_ms) for c in cameras]),
        column("decoded", [count(c.decoded) for c in cameras]),
        column("publ.", [count(c.published) for c in cameras]),
        column("held", [count(c.in_flight) for c in cameras]),
    ]
    wide = width >= WIDE
    if not wide:
        columns.append(_dropped_total(cameras))
    columns.append(column("obj", [count(c.objects) for c in cameras]))
    if any(share_done(c) is not None for c in cameras):
        columns.append(("done", False, [(_bar(c) if wide else _percent(c), "") for c in cameras]))
    if wide:
        columns.append(
            ("dropped", False, [(causes(c.dropped) or "-", "yellow" if c.dropped else "dim") for c in cameras])
        )
    return columns


def _dropped_total(cameras: Sequence[CameraSnapshot]) -> Column:
    return "dropped", True, [(count(n), "yellow" if n else "dim") for n in (sum(c.dropped.values()) for c in cameras)]


def _grid(columns: list[Column], width: int) -> list[Text]:
    """Aligned rows under a heading; when a row is too wide, the gaps give way first, then the first column."""
    widths = [max(cell_len(heading), *(cell_len(cell) for cell, _ in cells), 0) for heading, _, cells in columns]
    least, most = NAME_CELLS
    widths[0] = min(widths[0], most)
    gaps = len(widths) - 1
    gap = GAP if sum(widths) + gaps * len(GAP) <= width else " "
    widths[0] = min(widths[0], max(least, width - sum(widths[1:]) - gaps * len(gap)))
    rows = [[(heading, "bold") for heading, _, _ in columns]]
    rows += [list(row) for row in zip(*(cells for _, _, cells in columns), strict=True)]
    lines = []
    for row in rows:
        line = Text()
        for i, ((cell, style), (_, right, _), cells) in enumerate(zip(row, columns, widths, strict=True)):
            line.append(gap if i else "")
            line.append(_fit(cell, cells, right=right), style)
        lines.append(line)
    return lines


def _fit(text: str, cells: int, *, right: bool) -> str:
    length = cell_len(text)
    if length > cells:
        return set_cell_size(text, cells - 1) + "…"
    return " " * (cells - length) + text if right else text + " " * (cells - length)


def _percent(camera: CameraSnapshot) -> str:
    done = share_done(camera)
    return "" if done is None else f"{done:.0%}"


def bar(share: float, cells: int) -> str:
    """A bar of ``cells`` cells, in eighths of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(cells, "·")


def _bar(camera: CameraSnapshot) -> str:
    done = share_done(camera)
    if done is None:
        return ""
    left = eta_s(camera)
    return f"{bar(done, BAR_CELLS)} {done:4.0%} {duration(left) if left is not None else '-:--'}"


def _progress(snapshot: EngineSnapshot, width: int) -> list[Text]:
    """One bar over all recordings of known length; the ETA is that of the last to be ready."""
    finite = [c for c in snapshot.cameras if c.frames_expected]
    if not finite or all(share_done(c) is None for c in finite):
        return []
    expected = sum(c.frames_expected or 0 for c in finite)
    done = sum(
        c.frames_expected or 0 if share_done(c) is None else min(c.decoded, c.frames_expected or 0) for c in finite
    )
    lefts = [eta_s(c) for c in finite if share_done(c) is not None]
    known = [left for left in lefts if left is not None]
    eta = f"{duration(max(known))} left" if len(known) == len(lefts) else "-:-- left"
    figures = f" {done / expected:4.0%}  {count(done)} of {count(expected)} frames  {eta}"
    cells = max(BAR_CELLS, min(40, width - len(figures)))
    return [Text.assemble((bar(done / expected, cells), "green"), figures)]


def _queues(snapshot: EngineSnapshot) -> list[Text]:
    line = Text.assemble(("queues ", "dim"))
    for i, (name, (waiting, capacity)) in enumerate(snapshot.queues.items()):
        line.append(f"{' · ' if i else ''}{printable(name)} ")
        line.append(f"{waiting}/{capacity}", "yellow" if capacity and waiting >= capacity else "")
    return [line] if snapshot.queues else []


def _drops(snapshot: EngineSnapshot, width: int) -> list[Text]:
    dropped = total_dropped(snapshot)
    return [Text(f"dropped {causes(dropped)}", "yellow")] if dropped and width < WIDE else []


def _details(snapshot: EngineSnapshot) -> list[Text]:
    told = [c for c in snapshot.cameras if c.detail and c.state in TROUBLE]
    return [Text(f"{printable(c.name)}: {printable(c.detail)}", COLOURS[c.state]) for c in told[:3]]


def _worker_lines(workers: Sequence[WorkerSnapshot]) -> list[Text]:
    if not workers:
        return []
    columns: list[Column] = [
        ("worker", False, [(printable(w.name), "") for w in workers]),
        ("state", False, [(w.state, COLOURS.get(w.state, "")) for w in workers]),
        ("busy", True, [(f"{w.busy_share:.0%}", "bold" if w.kind == "executor" else "") for w in workers]),
        ("CPU", True, [(f"{w.cpu_s:.1f} s", "") for w in workers]),
        ("memory", True, [(size(w.private_bytes), "") for w in workers]),
        ("restarts", True, [(str(w.restarts), "yellow" if w.restarts else "dim") for w in workers]),
    ]
    return _grid(columns, 80)


def _kind_lines(workers: Sequence[WorkerSnapshot]) -> list[Text]:
    kinds: dict[str, list[WorkerSnapshot]] = defaultdict(list)
    for worker in workers:
        kinds[worker.kind].append(worker)
    lines = []
    for kind, group in kinds.items():
        line = Text(f"{kind} x{len(group)}" if len(group) > 1 else printable(group[0].name))
        line.append(f": busy {sum(w.busy_share for w in group) / len(group):.0%}")
        line.append(f" · CPU {sum(w.cpu_s for w in group):.1f} s · {size(sum(w.private_bytes for w in group))}")
        restarts = sum(w.restarts for w in group)
        if restarts:
            line.append(f" · {plural(restarts, 'restart')}", "yellow")
        lines.append(line)
    return lines
