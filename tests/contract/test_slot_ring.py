"""One contract for both rings: shared memory and plain memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.transport.arena import PAGE_BYTES, SharedRing, ring_bytes
from stages.errors import StaleSlot, UserError
from stages.frames import HeapRing, SlotRing


@pytest.fixture(params=[SharedRing.create, HeapRing], ids=["shared", "heap"])
def make(request: pytest.FixtureRequest) -> Callable[[str, int, int], SlotRing]:
    maker: Callable[[str, int, int], SlotRing] = request.param
    return maker


def test_what_is_written_is_read(make: Callable[[str, int, int], SlotRing]) -> None:
    ring = make("t", 3, 1000)
    try:
        generations = []
        for slot in range(3):
            ring.begin_write(slot)[:] = bytes([slot + 1]) * 1000
            generations.append(ring.end_write(slot))
        for slot in range(3):
            assert bytes(ring.read(slot, generations[slot])) == bytes([slot + 1]) * 1000
            assert generations[slot] % 2 == 0
            assert len(ring.read(slot, generations[slot])) == 1000
    finally:
        ring.close()
        ring.close()


def test_a_rewritten_slot_is_stale_and_so_is_one_being_written(make: Callable[[str, int, int], SlotRing]) -> None:
    ring = make("t", 1, 10)
    ring.begin_write(0)
    first = ring.end_write(0)
    ring.check(0, first)
    ring.begin_write(0)
    with pytest.raises(StaleSlot, match="slot 0"):
        ring.read(0, first)
    second = ring.end_write(0)
    assert second > first
    with pytest.raises(StaleSlot):
        ring.check(0, first)
    ring.check(0, second)
    ring.close()


def test_a_writer_that_died_in_mid_write_leaves_a_slot_that_can_be_written_again(
    make: Callable[[str, int, int], SlotRing],
) -> None:
    ring = make("t", 1, 10)
    ring.begin_write(0)
    ring.begin_write(0)[:1] = b"x"
    generation = ring.end_write(0)
    assert generation % 2 == 0
    assert bytes(ring.read(0, generation)[:1]) == b"x"
    ring.close()


def test_readers_cannot_write(make: Callable[[str, int, int], SlotRing]) -> None:
    ring = make("t", 1, 16)
    ring.begin_write(0)
    generation = ring.end_write(0)
    array = np.frombuffer(ring.read(0, generation), np.uint8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    del array
    ring.close()


def test_slots_start_at_pages() -> None:
    ring = SharedRing.create("t", 3, 5000)
    starts = [np.frombuffer(ring.begin_write(slot), np.uint8).ctypes.data for slot in range(3)]
    assert all(start % PAGE_BYTES == 0 for start in starts)
    assert ring_bytes(3, 5000) == PAGE_BYTES + 3 * 2 * PAGE_BYTES
    ring.close()


def test_closing_leaves_no_descriptor_even_while_a_view_lives() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    ring = SharedRing.create("t", 2, 100)
    view = ring.begin_write(0)
    ring.close()
    assert (
        len(list(Path("/proc/self/fd").iterdir())) <= before + 1
    )  # the mapping may keep its own duplicate until the view goes
    del view


def test_a_slot_that_does_not_exist_is_refused() -> None:
    ring = SharedRing.create("t", 2, 100)
    with pytest.raises(StaleSlot, match="has no slot 2"):
        ring.begin_write(2)
    ring.close()


def test_too_little_memory_is_said_at_the_start() -> None:
    with pytest.raises(UserError, match=r"can't reserve .* MiB of shared memory"):
        SharedRing.create("t", 1000, 2**50)


def _child(ring: SharedRing, generation: int) -> None:
    seen = bytes(ring.read(0, generation))
    ring.begin_write(1)[:] = seen[::-1]
    ring.end_write(1)
    ring.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_process_sees_and_changes_the_same_memory(method: str) -> None:
    ring = SharedRing.create("t", 2, 4)
    ring.begin_write(0)[:] = b"abcd"
    generation = ring.end_write(0)
    process = multiprocessing.get_context(method).Process(target=_child, args=(ring, generation))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert bytes(ring.read(1, 2)) == b"dcba"
    ring.close()
