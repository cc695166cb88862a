"""What ``bench scale`` says: lines through steps, tables of many cameras, what processes hold, the clip it makes."""

from __future__ import annotations

import argparse
import math
import mmap
import os
import subprocess
import time
from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.assets import street_clip
from pipeline.bench import tables, workload
from pipeline.bench.figures import Line
from pipeline.bench.outcome import Outcome, evaluate
from pipeline.bench.probe import Edge, Notes, Published, helpers
from pipeline.bench.scale import Held, Scale, Step, rings_of
from pipeline.bench.windows import SECOND_NS, Windows
from pipeline.commands.bench import picture_size, whole_numbers
from pipeline.observe.processes import Footprint, children, command, family, footprint
from pipeline.preflight.memory_forecast import MemoryForecast
from pipeline.transport.arena import SharedRing, ring_bytes

MIB = 2**20


def test_a_line_tells_how_far_its_points_are_from_it() -> None:
    assert Line.through([(1, 12), (8, 26), (64, 138)]) == Line(pytest.approx(10), pytest.approx(2), pytest.approx(0))
    bent = Line.through([(0, 0), (1, 2), (2, 0)])
    assert (bent.fixed, bent.slope, bent.deviation) == pytest.approx((2 / 3, 0, 2 / 3))
    assert math.isnan(Line.through([(1, 2), (2, 3)]).deviation)  # two points lie on a line, whatever they are
    assert all(math.isnan(n) for n in (Line.through([]).slope, Line.through([(1, 2)] * 3).slope))
    assert math.isnan(Line.through([(1, 2), (2, math.nan), (3, 4)]).slope)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(-1000, 1000)), min_size=2, max_size=8))
def test_no_other_line_is_nearer(points: list[tuple[float, float]]) -> None:
    found = Line.through(points)
    if math.isnan(found.slope):
        assert len({x for x, _ in points}) == 1
        return

    def miss(fixed: float, slope: float) -> float:
        return sum((y - fixed - slope * x) ** 2 for x, y in points)

    least = miss(found.fixed, found.slope)
    assert all(
        miss(found.fixed + a, found.slope + b) >= least - 1e-6 for a in (-1, 0, 1) for b in (-0.1, 0, 0.1) if a or b
    )


def outcome(cameras: int) -> Outcome:
    notes = Notes(first_ns=SECOND_NS)
    for camera in range(cameras):
        notes.published[f"camera-{camera}"] = [
            Published(SECOND_NS + tick * SECOND_NS // 2, 20_000_000, 0, None) for tick in range(16)
        ]
    spent = {"engine": (10 + cameras) * 4_000_000, "decode/a": cameras * 12_000_000}
    notes.edges = [Edge(2 * SECOND_NS, dict.fromkeys(spent, 0), {}), Edge(6 * SECOND_NS, spent, {"camera-0": {"x": 1}})]
    return evaluate(notes, Windows.of(4), max_batch=4, parallel=False)


def step(cameras: int) -> Step:
    held = {
        "engine": Held.of([Footprint(30 * MIB, 32 * MIB, 10, 50 + 6 * cameras)]),
        "decode": Held.of([Footprint(9 * MIB, 10 * MIB, 4, 18)] * cameras),
    }
    forecast = MemoryForecast({"engine": 32 * MIB, "decode": 8 * MIB * cameras}, 100 * MIB)
    return Step(cameras, 1 + cameras / 10, 2.0, outcome(cameras), held, 100 * MIB, 90 * MIB, forecast)


def test_the_tables_of_scale() -> None:
    text = tables.scale(Scale(2, {count: (step(count),) * 3 for count in (1, 4, 16)}))
    told, lines = (
        {
            row[0].strip(): [cell.strip() for cell in row[1:]]
            for row in (line[1:-1].split("|") for line in table.split("\n"))
        }
        for table in text.split("\n\n")
    )
    assert told["cameras of 2 frames/s"] == ["1", "4", "16"]
    assert told["start to first detection of all, s"] == ["1.1", "1.4", "2.6"]
    assert told["processes"] == ["2", "5", "17"]
    assert told["memory, % of the forecast"] == ["105.0", "112.5", "120.0"]
    assert told["shared, % of the forecast"] == ["100.0"] * 3
    assert told["shared memory, MiB"] == ["90.0"] * 3
    assert told["private MiB of a process, decode"] == ["9.0"] * 3
    assert told["private MiB of a process, nms"] == ["-"] * 3
    assert told["CPU ms/s per camera"] == ["14.00", "6.50", "4.62"]
    assert lines["CPU, ms/s"] == ["4.00", "10.0", "0.0"]  # per camera, fixed, and no point beside the line
    assert lines["start, ms"] == ["100.00", "1000.0", "0.0"]
    assert told["dropped, all runs"] == ["x 3"] * 3


def test_what_a_process_holds() -> None:
    before = footprint(os.getpid())
    assert before is not None
    # pages that are new for certain: what a test before this one has given back may be taken for a bytearray
    memory = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * len(memory))
    ring = SharedRing.create("frames/a", 2, MIB)
    try:
        after = footprint(os.getpid())
        assert after is not None
        assert len(memory) // 2 < after.own_bytes - before.own_bytes < 2 * len(memory)
        assert after.threads >= 1
        assert after.descriptors > before.descriptors
        assert (ring_bytes(2, MIB),) * 2 in rings_of(os.getpid())
    finally:
        ring.close()
        memory.close()
    assert (footprint(2**22 + 5), children(2**22 + 5), command(2**22 + 5)) == (None, [], "")
    assert "pytest" in command(os.getpid()) or "python" in command(os.getpid())
    with subprocess.Popen(["sh", "-c", "cat | cat"], stdin=subprocess.PIPE) as shell:
        try:
            while len(family(shell.pid)) < 3:
                time.sleep(0.01)
            assert shell.pid in children(os.getpid())
            assert set(family(shell.pid)) < set(family(os.getpid()))
        finally:
            shell.communicate()
    assert set(helpers(os.getpid())) <= {"forkserver", "tracker"}


def test_memory_that_is_shared_is_nobodys_own() -> None:
    piece = b"x" * MIB
    before = footprint(os.getpid())
    with mmap.mmap(-1, 32 * MIB) as shared:
        for _ in range(32):  # a piece at a time: 32 MiB of our own would come from wherever the allocator has room
            shared.write(piece)
        after = footprint(os.getpid())
    assert before is not None
    assert after is not None
    assert after.own_bytes - before.own_bytes < 16 * MIB


def test_a_second_stream_is_made_of_a_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "PICTURES", 12)
    with av.open(str(workload.shrink(street_clip(), (96, 72), 5, tmp_path))) as container:
        track = container.streams.video[0]
        assert (track.width, track.height, track.average_rate) == (96, 72, 5)
        frames = list(container.decode(track))
        assert len(frames) == 12
        assert frames[5].time == pytest.approx(1.0)
        assert track.codec_context.reorder_depth == 0


def test_options_of_scale() -> None:
    assert picture_size("640x360") == "640x360"
    assert picture_size("clip") == "clip"
    for wrong in ("640", "641x360", "640x", "x", "8x8", "0x0", "-2x4"):
        with pytest.raises(argparse.ArgumentTypeError, match="640x360"):
            picture_size(wrong)
    assert whole_numbers(1, 64)("1, 8,64") == "1,8,64"
    for wrong in ("", "0", "1,,2", "65", "a"):
        with pytest.raises(argparse.ArgumentTypeError):
            whole_numbers(1, 64)(wrong)
