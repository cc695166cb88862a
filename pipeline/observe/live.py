"""Owns what people see while a run goes on: a table on a terminal, log lines elsewhere. Does not own any figure in it.

Everything here runs in the engine's own thread, when the engine calls ``update``; nothing starts a thread, nothing
waits for a terminal that takes no output, and nothing that goes wrong with the display reaches the engine.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, TextIO

from pipeline.observe.figures import age, causes, duration, eta_s, plural, rate, share_done, states, total_dropped
from pipeline.observe.logs import takes_output
from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot
from stages.stage import MonotonicClock

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

ViewKind = Literal["auto", "table", "lines", "none"]

REFRESH_NS: Final = 250_000_000  # at most 4 a second: more can't be read, and each costs the engine milliseconds
LINES_FOR_ALL: Final = 16  # with more cameras, a round of lines names only those in trouble, and the total
SHOW_CURSOR: Final = b"\x1b[?25h"
CALM: Final = ("streaming", "ended")

log = logging.getLogger(__name__)


class View(Protocol):
    """Shows snapshots; a context manager, so that a terminal is left as it was found."""

    def __enter__(self) -> Self:
        """Take the terminal."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it back."""

    def update(self, snapshot: EngineSnapshot) -> None:
        """Show it, or leave it out when the last one is too fresh. Never raises, never blocks for long."""


class NoView:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, snapshot: EngineSnapshot) -> None:
        """Nothing."""


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a table that rewrites itself makes sense on ``stream``."""
    if environ.get("TERM", "") in ("", "dumb", "unknown") or environ.get("CI", "").lower() not in ("", "0", "false"):
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def make_view(kind: ViewKind = "auto", every_s: float = 5.0) -> View:
    """The view that ``kind`` asks for; ``auto``: a table if stdout is a terminal, else lines each ``every_s``."""
    if kind == "auto":
        kind = "table" if is_terminal(sys.stdout, os.environ) else "lines"
    elif kind == "table" and not sys.stdout.isatty():
        log.warning("stdout is not a terminal: log lines instead of a table")
        kind = "lines"
    if kind == "table":
        return LiveTable()
    return LinesView(every_s) if kind == "lines" else NoView()


class LinesView:
    """Log lines: at once when a camera changes its state, and a round over all of them each ``every_s``."""

    def __init__(self, every_s: float = 5.0, clock: MonotonicClock = time.monotonic_ns) -> None:
        self._every_ns = round(every_s * 1e9)
        self._clock = clock
        self._next_ns: int | None = None
        self._states: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, snapshot: EngineSnapshot) -> None:
        """Log what is new, and the round when it is due; a camera that has just had a line is left out of the round."""
        now_ns = self._clock()
        told = set()
        for camera in snapshot.cameras:
            if self._states.get(camera.name) != camera.state:
                self._states[camera.name] = camera.state
                told.add(camera.name)
                _log_camera(camera)
        if len(self._states) > len(snapshot.cameras):
            present = {camera.name for camera in snapshot.cameras}
            self._states = {name: state for name, state in self._states.items() if name in present}
        if self._next_ns is None:
            self._next_ns = now_ns + self._every_ns
        elif now_ns >= self._next_ns:
            # From now, not from when it was due: after a pause there is one round, not one for each that was missed.
            self._next_ns = now_ns + self._every_ns
            self._round(snapshot, told)

    def _round(self, snapshot: EngineSnapshot, told: set[str]) -> None:
        few = len(snapshot.cameras) <= LINES_FOR_ALL
        for camera in snapshot.cameras:
            if camera.name not in told and camera.state != "ended" and (few or camera.state not in CALM):
                _log_camera(camera)
        if len(snapshot.cameras) > 1:
            log.info("%s", total_line(snapshot), extra={"data": _total_data(snapshot)})


def _log_camera(camera: CameraSnapshot) -> None:
    level = logging.WARNING if camera.state in ("failed", "restarting") else logging.INFO
    data = {
        "state": camera.state,
        "fps_in": round(camera.fps_in, 2),
        "fps_out": round(camera.fps_out, 2),
        "age_ms": round(camera.age_ms, 1),
        "decoded": camera.decoded,
        "published": camera.published,
        "in_flight": camera.in_flight,
        "dropped": camera.dropped,
        "frames_expected": camera.frames_expected,
        "objects": camera.objects,
    }
    log.log(level, "%s", camera_line(camera), extra={"camera": camera.name, "data": data})


def camera_line(camera: CameraSnapshot) -> str:
    """One camera in words, without its name."""
    parts = [camera.state]
    if camera.detail:
        parts[0] += f" ({camera.detail})"
    if camera.state == "starting":
        return parts[0]
    done = share_done(camera)
    if done is not None:
        parts.append(f"{done:.0%}")
        left = eta_s(camera)
        if left is not None:
            parts.append(f"{duration(left)} left")
    if camera.state not in ("ended", "failed"):
        parts.append(f"{rate(camera.fps_in)} fps in, {rate(camera.fps_out)} out, age {age(camera.age_ms)}")
    parts.append(f"{camera.decoded} decoded, {camera.published} published, {camera.in_flight} in flight")
    if camera.dropped:
        parts.append(f"dropped {causes(camera.dropped)}")
    return " · ".join(parts)


def total_line(snapshot: EngineSnapshot) -> str:
    """All cameras in one line."""
    cameras = snapshot.cameras
    parts = [
        f"{plural(len(cameras), 'camera')}: {states(cameras)}",
        f"{rate(sum(c.fps_out for c in cameras))} fps out",
        f"{sum(c.decoded for c in cameras)} decoded, {sum(c.published for c in cameras)} published",
    ]
    dropped = total_dropped(snapshot)
    if dropped:
        parts.append(f"dropped {causes(dropped)}")
    if snapshot.lost_messages:
        parts.append(f"{plural(snapshot.lost_messages, 'message')} lost")
    return " · ".join(parts)


def _total_data(snapshot: EngineSnapshot) -> dict[str, object]:
    return {
        "uptime_s": round(snapshot.uptime_s, 1),
        "queues": {name: list(load) for name, load in snapshot.queues.items()},
        "workers": {
            w.name: {"busy_share": round(w.busy_share, 3), "cpu_s": round(w.cpu_s, 2), "restarts": w.restarts}
            for w in snapshot.workers
        },
        "subscribers": snapshot.subscribers,
        "lost_messages": snapshot.lost_messages,
    }


class LiveTable:
    """A table at the bottom of the terminal that is rewritten in place; log lines scroll by above it."""

    def __init__(self, console: Console | None = None, clock: MonotonicClock = time.monotonic_ns) -> None:
        self._console = console
        self._clock = clock
        self._live: Live | None = None
        self._shown_ns: int | None = None
        self._size: tuple[int, int] = (0, 0)
        self._broken = False

    def __enter__(self) -> Self:
        from rich.console import Console

        if self._console is None:
            self._console = Console(highlight=False)
        atexit.register(self._show_cursor)
        self._start(self._console)
        return self

    def _start(self, console: Console) -> None:
        from rich.live import Live

        # stderr joins the table only when it is the same terminal; log lines that go to a file stay there.
        live = Live(console=console, auto_refresh=False, transient=True, redirect_stderr=sys.stderr.isatty())
        live.start()
        self._live, self._size = live, (console.width, console.height)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                live.stop()
        except OSError:  # the terminal is gone
            return
        finally:
            atexit.unregister(self._show_cursor)

    def update(self, snapshot: EngineSnapshot) -> None:
        """Rewrite the table, unless the last one is younger than ``REFRESH_NS`` or the terminal takes nothing."""
        now_ns = self._clock()
        fresh = self._shown_ns is not None and now_ns - self._shown_ns < REFRESH_NS
        if self._live is None or self._broken or self._console is None or fresh or not takes_output(self._console.file):
            return
        self._shown_ns = now_ns
        try:
            self._rewrite(self._console, snapshot)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a display is no reason to end the run
            self._broken = True
            log.warning("the live table is off: %s: %s", type(error).__name__, error)

    def _rewrite(self, console: Console, snapshot: EngineSnapshot) -> None:
        from pipeline.observe.table import render

        size = (console.width, console.height)
        if size != self._size and self._live is not None:
            # How the terminal has folded the old table is its secret: start anew on a clear screen.
            self._live.stop()
            console.clear()
            self._start(console)
        if self._live is not None:
            self._live.update(render(snapshot, *size), refresh=True)

    def _show_cursor(self) -> None:
        """For an interpreter that exits from inside the run."""
        try:
            if self._console is not None:
                os.write(self._console.file.fileno(), SHOW_CURSOR)
        except (OSError, ValueError):
            return
