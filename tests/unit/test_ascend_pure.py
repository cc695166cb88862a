"""The parts of the Ascend backend that ask no device: visibility, layout of memory, leaks, options, the timer."""

from __future__ import annotations

import itertools
import select
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.accelerators.ascend.layout import Piece, lay_out, padded
from stages.accelerators.ascend.options import AscendOptions, ascend_options
from stages.accelerators.ascend.visible import CONTAINER, RUNTIME, visible_devices
from stages.accelerators.ascend.wake import WakeTimer
from stages.accelerators.ascend.watch import LEAST_BYTES, MemoryWatch, slope
from stages.errors import UserError


@pytest.mark.parametrize(
    ("text", "ids", "noted"),
    [
        (None, None, False),
        ("0", (0,), False),
        ("2,3,7", (2, 3, 7), False),
        ("", (), False),
        ("3,2", (3,), True),
        ("1,1", (1,), True),
        ("1, 2", (1,), True),
        ("0,x,2", (0,), True),
        ("0-3", (), True),
        ("-1", (), True),
        ("\u0661", (), True),
        ("0," + "9" * 5000, (0,), True),
    ],
)
def test_the_runtimes_variable_is_read_as_the_runtime_reads_it(
    text: str | None, ids: tuple[int, ...] | None, noted: bool
) -> None:
    visible = visible_devices({} if text is None else {RUNTIME: text})
    assert visible.ids == ids
    assert bool(visible.notes) is noted
    assert all(len(note) < 400 for note in visible.notes)


def test_devices_are_renumbered_and_what_is_beyond_is_refused() -> None:
    visible = visible_devices({RUNTIME: "2,5"})
    assert visible.where(1) == f"device 5 of this machine or container ({RUNTIME})"
    visible.check("ascend:1", 1)
    with pytest.raises(UserError, match=r"leaves 2 visible.*use ascend:1 or less"):
        visible.check("ascend:2", 2)
    with pytest.raises(UserError, match="leaves no device visible"):
        visible_devices({RUNTIME: ""}).check("ascend:0", 0)


def test_the_containers_variable_selects_nothing_and_says_so() -> None:
    visible = visible_devices({CONTAINER: "1"})
    assert visible.ids is None
    (note,) = visible.notes
    assert "selects nothing in this process" in note
    assert RUNTIME in note


@given(
    chunks=st.integers(1, 4),
    picture=st.integers(1, 5000),
    shape=st.sampled_from([0, 8, 128]),
    outputs=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
)
def test_pieces_of_a_block_do_not_touch_and_start_where_copies_may(
    chunks: int, picture: int, shape: int, outputs: list[int]
) -> None:
    layout = lay_out(chunks, picture, shape, outputs)
    device = [p for c in layout.chunks for p in (c.picture, *([c.shape] if c.shape else []), *c.outputs)]
    assert (layout.chunks[0].shape is None) == (shape == 0)
    assert [p.size_bytes for p in layout.chunks[0].outputs] == outputs
    blocks: list[tuple[list[Piece], int]] = [
        (device, layout.device_bytes),
        (list(layout.pictures), layout.pictures_bytes),
        ([p for pieces in layout.results for p in pieces], layout.results_bytes),
    ]
    for pieces, size in blocks:
        end = 0
        for piece in sorted(pieces, key=lambda p: p.offset):
            assert piece.offset % 64 == 0
            assert piece.offset >= end
            end = piece.offset + -(-piece.size_bytes // 32) * 32 + 32  # the runtime's rule for pieces of a pool
        assert end <= size


@given(st.integers(1, 1 << 40))
def test_a_piece_takes_its_length_and_32_bytes_and_ends_on_a_line(size: int) -> None:
    assert padded(size) % 64 == 0
    assert size + 32 <= padded(size) < size + 32 + 32 + 64


def fed(free: list[int], every: int = 10) -> list[tuple[int, Any]]:
    watch = MemoryWatch(every)
    samples = iter(free)
    batches = (batch for batch in range(1, every * len(free) + 1) if watch.batch())
    return [(batch, leak) for batch in batches if (leak := watch.add(next(samples))) is not None]


def test_memory_that_falls_steadily_is_a_leak_with_its_slope() -> None:
    told = fed([(20 << 30) - sample * (8 << 20) for sample in range(30)])
    assert told
    batch, leak = told[0]
    assert batch <= 150
    assert leak.lost_bytes >= LEAST_BYTES
    assert leak.bytes_per_batch == pytest.approx((8 << 20) / 10)


def test_a_leak_is_told_again_only_after_twice_as_much_is_lost() -> None:
    told = [leak.lost_bytes for _, leak in fed([(20 << 30) - sample * (8 << 20) for sample in range(200)])]
    assert 3 <= len(told) <= 5
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(told))


@pytest.mark.parametrize(
    "free",
    [
        pytest.param([20 << 30] * 200, id="flat"),
        pytest.param([20 << 30] + [10 << 30] * 200, id="what the runtime allocates first"),
        pytest.param([20 << 30] * 100 + [10 << 30] * 100, id="another process began"),
        pytest.param([(20 << 30) - (i % 7) * (1 << 20) for i in range(200)], id="to and fro"),
        pytest.param([(20 << 30) - i * 1000 for i in range(200)], id="too little to tell"),
        pytest.param([(10 << 30) + i * (8 << 20) for i in range(200)], id="rising"),
    ],
)
def test_what_is_no_leak_is_not_told(free: list[int]) -> None:
    assert fed(free) == []


def test_no_sample_is_due_when_it_is_switched_off() -> None:
    watch = MemoryWatch(0)
    assert not any(watch.batch() for _ in range(100))


@given(st.integers(-(1 << 30), 1 << 30), st.integers(-1000, 1000), st.integers(2, 30))
def test_the_slope_of_a_line_is_its_slope(start: int, rise: int, count: int) -> None:
    assert slope([(x, start + rise * x) for x in range(count)]) == pytest.approx(rise, abs=1e-5)


def test_options_are_read() -> None:
    read = ascend_options(
        "ascend-sim:0",
        {
            "variant": "a",
            "buffers": "3",
            "overlap": "false",
            "service_ms": "1=5.2, 4=12.8,8:23.5",
            "faults": "hang the 3rd execute_async; ; out of memory at malloc 5",
            "memory_mb": "100",
            "clock": "virtual",
            "check": "off",
        },
        simulated=True,
    )
    assert read == AscendOptions(
        variant="A",
        buffers=3,
        overlap=False,
        service_ms=((1, 5.2), (4, 12.8), (8, 23.5)),
        faults=("hang the 3rd execute_async", "out of memory at malloc 5"),
        memory_mb=100,
        clock="virtual",
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"varaint": "A"}, "did you mean variant?"),
        ({"variant": "C"}, "give A or B"),
        ({"buffers": "0"}, "from 1 to 8"),
        ({"buffers": "2.5"}, "from 1 to 8"),
        ({"overlap": "maybe"}, "give on or off"),
        ({"service_ms": "4=1,2=3"}, "ascending pairs"),
        ({"service_ms": "1=-1"}, "ascending pairs"),
        ({"pcie_gb_s": "nan"}, "give a number"),
        ({"pcie_gb_s": "0"}, "give a number"),
        ({"clock": "fast"}, "give real or virtual"),
    ],
)
def test_wrong_options_are_refused_with_their_remedy(options: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match="device ascend-sim:0") as caught:
        ascend_options("ascend-sim:0", options, simulated=True)
    assert says in str(caught.value)


def test_what_only_a_simulator_has_is_refused_for_a_card() -> None:
    with pytest.raises(UserError, match="faults is for the simulator"):
        ascend_options("ascend:0", {"faults": "hang the 3rd execute_async"}, simulated=False)


def test_the_timer_wakes_after_its_time_and_can_be_cleared() -> None:
    timer = WakeTimer()
    timer.open()
    try:
        poll = select.poll()
        assert timer.fd is not None
        poll.register(timer.fd, select.POLLIN)
        assert not poll.poll(0)
        started = time.monotonic()
        timer.arm(20_000_000)
        assert poll.poll(30_000)
        assert time.monotonic() - started >= 0.02
        timer.clear()
        assert not poll.poll(0)
        timer.arm(-5)
        assert poll.poll(30_000)
        timer.arm(60_000_000_000)
        assert not poll.poll(0), "the last call counts"
        timer.clear()
    finally:
        timer.close()
        timer.close()
