"""What people see while a run goes on: the table at all sizes, the log lines, and that neither can hurt the run."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from searching import examples

from pipeline.observe import figures, live
from pipeline.observe.live import LinesView, LiveTable, camera_line, is_terminal, make_view
from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot, WorkerSnapshot
from pipeline.observe.table import bar, render

ROOT = Path(__file__).resolve().parents[2]


def camera(name: str = "gate-1", **changes: Any) -> CameraSnapshot:
    fields: dict[str, Any] = {
        "name": name,
        "state": "streaming",
        "model": "coco-ssd",
        "fps_in": 212.4,
        "fps_out": 7.46,
        "age_ms": 85.0,
        "decoded": 480,
        "published": 470,
        "in_flight": 8,
        "dropped": {"too_old": 2},
        "frames_expected": 795,
        "objects": 3,
    }
    return CameraSnapshot(**(fields | changes))


def worker(name: str, kind: str, **changes: Any) -> WorkerSnapshot:
    fields: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "pid": 4711,
        "state": "ready",
        "busy_share": 0.87,
        "cpu_s": 33.4,
        "private_bytes": 38 << 20,
        "restarts": 0,
    }
    return WorkerSnapshot(**(fields | changes))


def snapshot(*cameras: CameraSnapshot, **changes: Any) -> EngineSnapshot:
    workers = (*(worker(f"decode/{c.name}", "decode") for c in cameras), worker("executor/cpu", "executor"))
    fields: dict[str, Any] = {"uptime_s": 61.2, "workers": workers, "queues": {"infer": (3, 16), "post": (8, 8)}}
    return EngineSnapshot(cameras=cameras, **(fields | changes))


def drawn(shown: EngineSnapshot, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None, legacy_windows=False)
    console.print(render(shown, width, height))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def test_the_table_at_80_columns() -> None:
    lines = drawn(snapshot(camera(), camera("yard", frames_expected=None, dropped={}, state="restarting")))
    assert [line.rstrip() for line in lines] == [
        "campipe  1:01  15 frames/s  shared memory 0 B",
        "camera  state       in/out fps    age  decoded  publ.  held  dropped  obj  done",
        "gate-1  streaming      212/7.5  85 ms      480    470     8        2    3  60%",
        "yard    restarting     212/7.5  85 ms      480    470     8        0    3",
        "████████████████████████▏···············  60%  480 of 795 frames  0:01 left",
        "queues infer 3/16 · post 8/8",
        "dropped too_old 2",
        "worker         state  busy     CPU  memory  restarts",
        "decode/gate-1  ready   87%  33.4 s  38 MiB         0",
        "decode/yard    ready   87%  33.4 s  38 MiB         0",
        "executor/cpu   ready   87%  33.4 s  38 MiB         0",
    ]


def test_a_wide_terminal_names_drops_by_cause_and_has_a_bar_per_recording() -> None:
    (line,) = [
        line
        for line in drawn(snapshot(camera(dropped={"too_old": 2, "sampling": 9})), 120)
        if line.startswith("gate-1")
    ]
    assert line.rstrip().endswith("███████▎····  60% 0:01  sampling 9, too_old 2")


def test_forty_cameras_too_many_are_counted_and_those_in_trouble_are_shown() -> None:
    cameras = [camera(f"c{i:02d}") for i in range(50)]
    cameras[48] = camera("c48", state="failed", detail="not_found: no such file")
    cameras[49] = camera("c49", state="restarting")
    lines = drawn(snapshot(*cameras))
    text = "\n".join(lines)
    assert len(lines) <= 23
    shown = sum(line.startswith("c") and line[1:3].isdigit() for line in lines) - 1  # less the detail's line
    assert f"… and {50 - shown} more: {50 - shown} streaming" in text
    assert "c48     " in text
    assert "c49     " in text
    assert "c48: not_found: no such file" in text
    assert "decode x50: busy 87%" in text


printable_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@settings(max_examples=examples(150))
@given(
    names=st.lists(printable_names, max_size=30),
    width=st.integers(20, 200),
    height=st.integers(2, 60),
    decoded=st.integers(0, 10**11),
    fps=st.floats(0, 1e6),
    expected=st.none() | st.integers(0, 10**11),
)
def test_the_table_fits_every_terminal_whatever_is_in_it(
    names: list[str], width: int, height: int, decoded: int, fps: float, expected: int | None
) -> None:
    cameras = [
        camera(name, decoded=decoded, fps_in=fps, frames_expected=expected, detail=name, state=state)
        for name, state in zip(names, ["streaming", "failed", "restarting"] * 10, strict=False)
    ]
    lines = drawn(snapshot(*cameras, lost_messages=3, stopping=True, subscribers=1), width, height)
    assert len(lines) <= max(4, height - 1)
    assert all(cell_len(line) <= width for line in lines)
    assert not any(ord(c) < 32 for line in lines for c in line)


def test_a_name_with_markup_and_escapes_is_shown_as_it_is() -> None:
    text = "\n".join(drawn(snapshot(camera("[red]x[/red]\x1b[2J\n"))))
    assert "[red]x[/red]\\x1b[2J\\n" in text


@pytest.mark.parametrize(
    ("share", "shown"), [(0, "····"), (0.5, "██··"), (1, "████"), (7, "████"), (-1, "····"), (0.03125, "▏···")]
)
def test_bar(share: float, shown: str) -> None:
    assert bar(share, 4) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.04, "0.0"), (7.46, "7.5"), (9.94, "9.9"), (9.96, "10"), (212.4, "212"), (1e6, "1000000")],
)
def test_rates(value: float, shown: str) -> None:
    assert figures.rate(value) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (99_999, "99999"), (100_000, "100k"), (999_999, "999k"), (4_550_000, "4.5M"), (2_000_000_000, "2.0G")],
)
def test_counts(number: int, shown: str) -> None:
    assert figures.count(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (3599.6, "1:00:00"), (11_100, "3:05:00"), (-1, "0:00")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert figures.duration(seconds) == shown


@pytest.mark.parametrize(
    ("ms", "shown"), [(0, "0 ms"), (999.4, "999 ms"), (999.6, "1.0 s"), (59_940, "59.9 s"), (60_000, "1:00")]
)
def test_ages(ms: float, shown: str) -> None:
    assert figures.age(ms) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (38 << 20, "38 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes(size: int, shown: str) -> None:
    assert figures.size(size) == shown


# --- log lines --------------------------------------------------------------------------------------------------------


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    caplog.set_level(logging.INFO)
    told: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(f"{getattr(record, 'camera', '-')}: {record.getMessage()}")

    keeper = Keeper()
    live.log.addHandler(keeper)
    yield told
    live.log.removeHandler(keeper)


def test_a_change_of_state_is_told_at_once_and_the_rest_every_five_seconds(lines: list[str]) -> None:
    clock = Hand()
    view = LinesView(5, clock)
    view.update(snapshot(camera(state="starting")))
    view.update(snapshot(camera()))
    assert lines[0] == "gate-1: starting"
    assert lines[1] == (
        "gate-1: streaming · 60% · 0:01 left · 212 fps in, 7.5 out, age 85 ms · "
        "480 decoded, 470 published, 8 in flight · dropped too_old 2"
    )
    clock.now_ns = 4_999_000_000
    view.update(snapshot(camera()))
    assert len(lines) == 2
    clock.now_ns = 5_000_000_000
    view.update(snapshot(camera(decoded=481)))
    assert len(lines) == 3
    clock.now_ns = 60_000_000_000  # after a pause: one round, not eleven
    view.update(snapshot(camera()))
    view.update(snapshot(camera()))
    assert len(lines) == 4
    view.update(snapshot(camera(state="ended", detail="the file stops after 48 of 100 frames")))
    assert lines[4] == (
        "gate-1: ended (the file stops after 48 of 100 frames) · "
        "480 decoded, 470 published, 8 in flight · dropped too_old 2"
    )


def test_a_camera_has_at_most_one_line_a_round(lines: list[str]) -> None:
    clock = Hand()
    view = LinesView(5, clock)
    view.update(snapshot(camera("a"), camera("b")))
    clock.now_ns = 6_000_000_000
    del lines[:]
    view.update(snapshot(camera("a"), camera("b", state="restarting")))
    assert [line.split(":")[0] for line in lines] == ["b", "a", "-"]
    assert lines[2].startswith("-: 2 cameras: 1 streaming, 1 restarting · 15 fps out · 960 decoded, 940 published")


def test_with_many_cameras_a_round_names_those_in_trouble(lines: list[str]) -> None:
    clock = Hand()
    view = LinesView(5, clock)
    cameras = [camera(f"c{i}", state="restarting" if i == 7 else "streaming") for i in range(40)]
    view.update(snapshot(*cameras))
    clock.now_ns = 6_000_000_000
    del lines[:]
    view.update(snapshot(*cameras, lost_messages=1))
    assert [line.split(":")[0] for line in lines] == ["c7", "-"]
    assert lines[1].endswith("dropped too_old 80 · 1 message lost")


# --- the terminal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "CI": "true"}, False),
        ({"TERM": "xterm", "CI": "1"}, False),
        ({"TERM": "xterm", "CI": "false"}, True),
    ],
)
def test_what_counts_as_a_terminal(environ: dict[str, str], expected: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert is_terminal(Terminal(), environ) is expected
    assert not is_terminal(io.StringIO(), environ)


def test_without_a_terminal_a_table_becomes_lines() -> None:
    assert isinstance(make_view("auto"), LinesView)
    assert isinstance(make_view("table"), LinesView)


def terminal(columns: int = 80, rows: int = 24) -> tuple[int, int]:
    """Both ends of a terminal: what a person sees, what a program writes to."""
    person, program = pty.openpty()
    ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return person, program


def read_all(person: int) -> str:
    os.set_blocking(person, False)
    parts = []
    try:
        while part := os.read(person, 65536):
            parts.append(part)
    except OSError:  # nothing more, or the other end is closed
        pass
    return b"".join(parts).decode()


@pytest.fixture
def pair() -> Iterator[tuple[int, io.TextIOWrapper]]:
    person, program = terminal()
    with os.fdopen(program, "w") as stream:
        yield person, stream
    os.close(person)


def table_on(stream: io.TextIOWrapper, clock: Hand) -> LiveTable:
    return LiveTable(Console(file=stream, force_terminal=True, highlight=False), clock)


def test_the_cursor_comes_back_after_an_exception(pair: tuple[int, io.TextIOWrapper]) -> None:
    person, stream = pair
    with contextlib.suppress(KeyboardInterrupt), table_on(stream, Hand()) as view:
        view.update(snapshot(camera()))
        raise KeyboardInterrupt
    text = read_all(person)
    assert "gate-1" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_table_is_rewritten_at_most_four_times_a_second(pair: tuple[int, io.TextIOWrapper]) -> None:
    person, stream = pair
    clock = Hand()
    with table_on(stream, clock) as view:
        for i in range(100):
            clock.now_ns = i * 10_000_000
            view.update(snapshot(camera(decoded=i)))
        text = read_all(person)
    assert text.count("campipe") == 4


def test_a_resized_terminal_is_cleared_and_drawn_anew(
    pair: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    person, stream = pair
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    clock = Hand()
    console = Console(file=stream, force_terminal=True, highlight=False)
    with LiveTable(console, clock) as view:
        view.update(snapshot(camera()))
        read_all(person)
        console.size = (50, 10)  # type: ignore[assignment]
        clock.now_ns = 10**9
        view.update(snapshot(camera()))
        text = read_all(person)
    assert "\x1b[2J" in text
    after = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text[text.index("\x1b[2J") :])
    assert max(map(len, after.splitlines())) <= 50


def test_a_terminal_that_takes_no_output_does_not_stop_the_run(pair: tuple[int, io.TextIOWrapper]) -> None:
    person, stream = pair
    clock = Hand()
    with table_on(stream, clock) as view:
        termios.tcflow(stream.fileno(), termios.TCOOFF)  # Ctrl-S
        for i in range(200):
            clock.now_ns = i * 10**9
            view.update(snapshot(camera()))
        termios.tcflow(stream.fileno(), termios.TCOON)
    assert read_all(person).count("campipe") <= 2


def test_a_display_that_fails_is_switched_off_and_told(
    pair: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    _person, stream = pair
    clock = Hand()

    def broken(*_: object) -> None:
        raise RuntimeError("odd terminal")

    monkeypatch.setattr(LiveTable, "_rewrite", broken)
    with table_on(stream, clock) as view:
        for i in range(3):
            clock.now_ns = i * 10**9
            view.update(snapshot(camera()))
    assert lines == ["-: the live table is off: RuntimeError: odd terminal"]


PROGRAM = """
import sys, logging
sys.path[:0] = {folders!r}
from pipeline.observe import logs
from pipeline.observe.live import make_view
from test_live_view import camera, snapshot
undo = logs.configure()
with make_view() as view:
    view.update(snapshot(camera()))
    logging.getLogger("pipeline").warning("a line above")
    if {leave}: sys.exit(3)
undo()
print("end")
"""


def test_the_pace_of_a_start_promises_nothing() -> None:
    assert "left" not in camera_line(camera(decoded=1, fps_in=0.4))
    assert "left" in camera_line(camera(decoded=10, fps_in=0.4))


@pytest.mark.parametrize("leave", [False, True])
def test_log_lines_scroll_above_the_table_and_the_terminal_is_left_as_it_was(leave: bool) -> None:
    person, program = terminal()
    environ = {k: v for k, v in os.environ.items() if k not in ("CI", "COLUMNS", "LINES")} | {
        "TERM": "xterm",
        "PYTHONPATH": str(ROOT),
    }
    code = PROGRAM.format(folders=[str(folder) for folder in Path(__file__).parents[:2]], leave=leave)
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=program, stdout=program, stderr=program, env=environ, timeout=60
    )
    os.close(program)
    text = read_all(person)
    os.close(person)
    assert done.returncode == (3 if leave else 0)
    assert "gate-1" in text
    assert re.search(r"WARNING a line above", text)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert leave or text.endswith("end\r\n")
