"""Throughput on virtual time: the device's ceiling with overlap, the sum of its parts without; copies under runs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from ascend.driving import Bench, bench, open_sim, run_batches, tiny_spec

SERVICE_MS = {1: 5.2, 4: 12.8, 8: 23.5}
COPY_MS = 3.0
TIMES = {"service_ms": ",".join(f"{batch}={ms}" for batch, ms in SERVICE_MS.items()), "copy_ms": f"{COPY_MS}"}
WARM, STEADY = 12, 60


def batch_ms(folder: Path, batch: int, lanes: int, **options: str) -> tuple[float, Bench]:
    """Virtual milliseconds per batch in steady state with one executor."""
    spec = tiny_spec(folder)
    with bench() as made:
        device = open_sim({**TIMES, "trace": str(folder / "trace.json"), **options}, lanes=lanes)
        device.load(spec, 8)
        seat = device.lanes(lanes)
        made.machine.trace.clear()
        told_ns: list[int] = []
        clock = made.machine.clock
        run_batches(seat, spec, WARM + STEADY, batch, lanes, on_told=lambda: told_ns.append(clock.now_ns()))
        seat.close()
        device.close()
        assert not made.violations
        return (told_ns[-1] - told_ns[WARM - 1]) / STEADY / 1e6, made


@pytest.mark.parametrize("variant", ["A", "B"])
@pytest.mark.parametrize(("batch", "lanes"), [(1, 3), (4, 2), (8, 2), (8, 3)])
def test_with_overlap_the_device_is_the_limit(tmp_path: Path, variant: str, batch: int, lanes: int) -> None:
    found_ms, _ = batch_ms(tmp_path, batch, lanes, variant=variant)
    assert found_ms == pytest.approx(SERVICE_MS[batch], rel=0.01)


@pytest.mark.parametrize("variant", ["A", "B"])
@pytest.mark.parametrize("batch", SERVICE_MS)
def test_without_overlap_copies_and_run_add_up(tmp_path: Path, variant: str, batch: int) -> None:
    found_ms, _ = batch_ms(tmp_path, batch, 3, variant=variant, overlap="off")
    assert found_ms == pytest.approx(SERVICE_MS[batch] + 2 * COPY_MS, rel=0.01)


def test_two_sets_are_a_ring_of_two(tmp_path: Path) -> None:
    """Batch 1 is shorter than half a round of upload, run and download: two sets of buffers limit it, three do not."""
    found_ms, _ = batch_ms(tmp_path, 1, 2)
    assert found_ms == pytest.approx((SERVICE_MS[1] + 2 * COPY_MS) / 2, rel=0.02)


@pytest.mark.parametrize("variant", ["A", "B"])
def test_both_copies_lie_under_a_run(tmp_path: Path, variant: str) -> None:
    _, made = batch_ms(tmp_path, 8, 3, variant=variant)
    by_kind: dict[str, dict[int, Any]] = {"upload": {}, "execute": {}, "download": {}}
    for interval in made.machine.trace.intervals():
        by_kind[interval.kind][interval.batch] = interval
    runs = by_kind["execute"]
    inner = sorted(runs)[3:-3]
    assert len(inner) > STEADY // 2
    for one, following in itertools.pairwise(inner):
        gap_ms = (runs[following].start_ns - runs[one].end_ns) / 1e6
        assert 0 <= gap_ms < 0.01 * SERVICE_MS[8], f"the device idles {gap_ms} ms between runs {one} and {following}"
    starts = [(run.start_ns, run.end_ns) for run in runs.values()]
    for batch in inner:
        for kind in ("upload", "download"):
            copy = by_kind[kind][batch]
            covered = sum(max(0, min(copy.end_ns, end) - max(copy.start_ns, start)) for start, end in starts)
            assert covered > 0.95 * (copy.end_ns - copy.start_ns), f"{kind} {batch} does not lie under runs"


def test_the_trace_can_be_looked_at(tmp_path: Path) -> None:
    _, made = batch_ms(tmp_path, 4, 2)
    events = made.machine.trace.chrome()["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["cat"] for event in slices} == {"upload", "execute", "download"}
    assert len({event["tid"] for event in slices}) == 3  # a track per stream
    assert all(event["name"].split()[-1].isdecimal() for event in slices)  # with the number of the batch


def test_equal_submissions_take_equal_times(tmp_path: Path) -> None:
    assert batch_ms(tmp_path, 4, 2)[0] == batch_ms(tmp_path, 4, 2)[0]
