"""Memory of simulated devices: what it takes, where it lies, what it holds before anything is written."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.aclsim_rig import D2H, good

from stages.accelerators.aclsim import SimOptions, simulate
from stages.accelerators.aclsim.machine.allocators import (
    SMALL_PAGE,
    BuddyAllocator,
    PageAllocator,
    page_bytes,
    rounded_bytes,
)
from stages.accelerators.aclsim.machine.kept import forget_kept
from stages.accelerators.aclsim.machine.memory import DEVICE_BASE, AddressBook, Block, PinnedBlock, poison

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "policy", "pages"),
    [
        (1, 0, 4096),
        (4096 - 32, 0, 4096),
        (4096, 0, 8192),
        (MIB - 32, 0, MIB),
        (MIB, 0, MIB + 4096),
        (MIB + 1, 0, 2 * MIB),
        (640 * 640 * 3 * 4, 0, 6 * MIB),
        (1, 1, 2 * MIB),
        (4 * MIB, 2, 4 * MIB + 4096),
        (4 * MIB, 77, 6 * MIB),
    ],
)
def test_pages(size: int, policy: int, pages: int) -> None:
    assert page_bytes(size, policy) == pages


@given(st.lists(st.one_of(st.integers(1, 300_000), st.integers(0, 30).map(lambda n: -n)), max_size=60))
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("kind", [PageAllocator, BuddyAllocator])
def test_blocks_never_overlap_and_all_comes_back(kind: type, steps: list[int]) -> None:
    total = 3 * MIB + 12 * SMALL_PAGE
    allocator = kind(DEVICE_BASE, total, 1 << 40)
    held: list[tuple[int, int, int]] = []
    for step in steps:
        if step > 0:
            got = allocator.take(step, 0)
            if got is None:
                wanted = page_bytes(step, 0) if kind is PageAllocator else rounded_bytes(step)
                assert allocator.free_bytes < wanted or kind is BuddyAllocator
                continue
            assert got[0] % 64 == 0
            assert got[1] >= rounded_bytes(step)
            assert all(got[0] + got[1] <= a or a + t <= got[0] for a, t, _ in held)
            held.append((*got, step))
        elif held:
            address, takes, _ = held.pop(-step % len(held))
            allocator.give(address, takes)
        assert allocator.used == sum(t for _, t, _ in held)
        assert allocator.free_bytes == allocator.total - allocator.used
    for address, takes, _ in held:
        allocator.give(address, takes)
    assert allocator.used == 0
    if kind is BuddyAllocator:  # every block has merged again: the largest power of two can be had
        assert allocator.largest_free_bytes == 2 * MIB


def test_buddies_fragment() -> None:
    allocator = BuddyAllocator(0, 8 * SMALL_PAGE, 1 << 40)
    blocks = [allocator.take(1000, 0) for _ in range(8)]
    for block in blocks[::2]:
        assert block is not None
        allocator.give(*block)
    assert allocator.free_bytes == 4 * SMALL_PAGE
    assert allocator.take(2 * SMALL_PAGE - 100, 0) is None


def test_poison_is_nan_in_every_float_type() -> None:
    for size in (8, 15, 64):
        view = np.zeros(size, np.uint8)
        poison(view)
        for dtype in ("float16", "float32", "float64"):
            width = np.dtype(dtype).itemsize
            assert np.isnan(view[: size // width * width].view(dtype)).all()
        assert (view != 0).all()


def test_large_blocks_take_room_when_they_are_touched() -> None:
    book = AddressBook()
    block = Block(DEVICE_BASE, 20_000 * MIB, "malloc", device=0, takes=0, poisoned=True)
    book.add(block)
    view = book.view(DEVICE_BASE + 10_000 * MIB, 1000)
    assert view is not None
    assert np.isnan(view.view(np.float32)).all()
    view[:] = 1
    again = book.view(DEVICE_BASE + 10_000 * MIB - 8, 1016)
    assert again is not None
    assert (again[8:1008] == 1).all()
    assert np.isnan(again[1008:].view(np.float32)).all()


def test_a_range_is_found_in_its_block_only() -> None:
    book = AddressBook()
    first = Block(DEVICE_BASE + 4096, 100, "malloc", device=0, takes=0, poisoned=False)
    second = Block(DEVICE_BASE + 8192, 100, "malloc", device=0, takes=0, poisoned=False)
    pinned = PinnedBlock(100, poisoned=True)
    for block in (second, first, pinned):
        book.add(block)
    assert book.of(DEVICE_BASE + 4096 + 99) is first
    assert book.of(DEVICE_BASE + 4096 + 99, 2) is None
    assert book.of(DEVICE_BASE + 4095) is None
    assert book.of(pinned.address + 4, 90) is pinned
    book.remove(first)
    assert book.of(DEVICE_BASE + 4096) is None
    assert book.view(DEVICE_BASE + 4096, 4) is None
    assert book.of(DEVICE_BASE + 8192) is second


def test_a_view_of_freed_pinned_memory_reads_poison() -> None:
    with simulate() as sim:
        acl = sim.acl
        good(acl.init())
        good(acl.rt.set_device(0))
        address = good(acl.rt.malloc_host(64))
        view = acl.util.ptr_to_numpy(address, (16,), 11)
        view[:] = 1
        good(acl.rt.free_host(address))
        assert np.isnan(view).all()


def test_a_device_address_can_not_be_read_by_the_cpu() -> None:
    code = f"import ctypes; ctypes.string_at({DEVICE_BASE + 4096:#x}, 1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    assert done.returncode < 0


def test_memory_runs_out() -> None:
    with simulate(SimOptions(memory_bytes=8 * MIB, check=False)) as sim:
        acl = sim.acl
        good(acl.init())
        good(acl.rt.set_device(0))
        assert acl.rt.get_mem_info(0) == (8 * MIB, 8 * MIB, 0)
        blocks = [good(acl.rt.malloc(2 * MIB - 32, 0)) for _ in range(4)]
        assert acl.rt.get_mem_info(0) == (0, 8 * MIB, 0)
        assert acl.rt.malloc(1, 0) == (0, 207001)
        good(acl.rt.free(blocks[1]))
        good(acl.rt.malloc(1, 0))
        assert acl.rt.malloc(0, 0) == (0, 100000)
        assert acl.rt.free(0) == 100000


def test_what_is_not_released_stays_when_that_is_asked_for() -> None:
    forget_kept()
    options = SimOptions(memory_bytes=8 * MIB, keep_after_exit=True, check=False)
    try:
        for left in (8, 6):
            with simulate(options) as sim:
                good(sim.acl.rt.set_device(0))
                assert sim.acl.rt.get_mem_info(0)[0] == left * MIB
                good(sim.acl.rt.malloc(2 * MIB - 32, 0))
        with simulate(options) as sim:
            good(sim.acl.rt.reset_device_force(0))
            good(sim.acl.rt.set_device(0))
            assert sim.acl.rt.get_mem_info(0)[0] == 8 * MIB
    finally:
        forget_kept()


def test_a_killed_process_leaves_its_memory_in_the_state_file(tmp_path) -> None:
    state = tmp_path / "state.json"
    code = (
        "import os\n"
        "from stages.accelerators.aclsim import SimOptions, simulate\n"
        f"sim = simulate(SimOptions(memory_bytes=8 << 20, keep_after_exit=True, state_path={str(state)!r}))\n"
        "sim.acl.init(); sim.acl.rt.set_device(0); sim.acl.rt.malloc((2 << 20) - 32, 0)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60)
    with simulate(SimOptions(memory_bytes=8 * MIB, keep_after_exit=True, state_path=str(state), check=False)) as sim:
        good(sim.acl.rt.set_device(0))
        assert sim.acl.rt.get_mem_info(0)[0] == 6 * MIB


def test_runs_can_leak(tmp_path) -> None:
    from oracles.aclsim_rig import Rig, write_om

    with simulate(SimOptions(compute="canned", leak_bytes_per_run=1000)) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path))
        slot = rig.slot()
        before = acl.rt.get_mem_info(0)[0]
        for _ in range(3):
            good(acl.mdl.execute(rig.model, slot.inputs, slot.outputs))
        assert before - acl.rt.get_mem_info(0)[0] == 3000
        rig.close()


def test_a_download_holds_poison_until_it_is_waited_for() -> None:
    with simulate() as sim:
        acl = sim.acl
        good(acl.init())
        good(acl.rt.set_device(0))
        stream = good(acl.rt.create_stream())
        memory, pinned = good(acl.rt.malloc(64, 0)), good(acl.rt.malloc_host(64))
        view = acl.util.ptr_to_numpy(pinned, (16,), 11)
        view[:] = 5
        good(acl.rt.memset(memory, 64, 0, 64))
        good(acl.rt.memcpy_async(pinned, 64, memory, 64, D2H, stream))
        assert np.isnan(view).all()
        good(acl.rt.synchronize_stream(stream))
        assert (view == 0).all()
