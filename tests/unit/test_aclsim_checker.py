"""The sanitizer beyond the pages of misuse: what must not be told, what is told once, what is remembered."""

from __future__ import annotations

import gc
import queue
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.aclsim_rig import D2H, H2D, Rig, good, write_om

from stages.accelerators.aclsim import CheckOptions, SimOptions, Simulation, check, simulate
from stages.accelerators.aclsim import violations as v
from stages.accelerators.aclsim.checker.sites import held_locks


@pytest.fixture
def sim():
    with simulate(SimOptions(compute="canned", service={1: 1.0})) as simulation:
        good(simulation.acl.init())
        yield simulation


@pytest.fixture
def acl(sim: Simulation) -> Any:
    good(sim.acl.rt.set_device(0))
    return sim.acl


def quiet(sim: Simulation) -> None:
    told = [violation for violation in sim.checker.violations if not violation.warning]
    assert not told, sim.checker.report()


def test_a_violation_tells_both_sites_and_a_remedy(acl: Any) -> None:
    memory = good(acl.rt.malloc(64, 0))
    good(acl.rt.free(memory))
    with pytest.raises(v.DoubleFree) as caught:
        acl.rt.free(memory)
    violation = caught.value
    here = Path(__file__).name
    assert violation.call == "rt.free"
    assert violation.where.rpartition(":")[0].endswith(here)
    assert int(violation.where.rpartition(":")[2]) == int(violation.other_where.rpartition(":")[2]) + 2
    assert violation.remedy
    assert "DoubleFree: rt.free" in str(violation)


def test_hidden_files_are_not_the_users(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text("def free(acl, address):\n    return acl.rt.free(address)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import door  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    with simulate(SimOptions(hidden=("door.py",), lenient=True)) as sim:
        good(sim.acl.init())
        good(sim.acl.rt.set_device(0))
        door.free(sim.acl, 0xD0000000000040)
        told = next(each for each in sim.checker.violations if isinstance(each, v.NotABaseAddress))
        assert Path(__file__).name in told.where


def test_a_waiting_thread_hands_over_to_another(sim: Simulation, tmp_path: Path) -> None:
    """One thread waits for the event, another reads and fills the buffers: a queue between them is order enough."""
    acl = sim.acl
    rig = Rig(acl, write_om(tmp_path))
    slot, events = rig.slot(), rig.events()
    view = acl.util.ptr_to_numpy(slot.pinned_in, (192,), 11)
    submitted: queue.SimpleQueue = queue.SimpleQueue()
    over: queue.SimpleQueue = queue.SimpleQueue()

    def wait() -> None:
        good(acl.rt.set_context(rig.context))
        while submitted.get():
            good(acl.rt.synchronize_event(events["out"]))
            over.put(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    for turn in range(20):
        view[:] = turn
        rig.submit(slot, events)
        submitted.put(True)
        over.get()
        acl.util.ptr_to_bytes(slot.pinned_out, 80)
    submitted.put(False)
    waiter.join()
    rig.close(events)
    good(acl.finalize())
    quiet(sim)


@pytest.mark.parametrize(
    "lock", [threading.Lock(), threading.RLock(), threading.Condition()], ids=["lock", "rlock", "condition"]
)
def test_threads_that_hold_one_lock_may_share_a_stream(sim: Simulation, acl: Any, lock: Any) -> None:
    stream, context = good(acl.rt.create_stream()), good(acl.rt.get_context())
    memory = good(acl.rt.malloc(64, 0))
    both = threading.Barrier(2)

    def work() -> None:
        good(acl.rt.set_context(context))
        for _ in range(5):
            both.wait(10)
            with lock:
                good(acl.rt.memset_async(memory, 64, 0, 64, stream))
                good(acl.rt.memset_async(memory, 64, 1, 64, stream))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    quiet(sim)


def test_locks_are_found() -> None:
    mine, free = threading.Lock(), threading.Lock()
    with mine:
        held = held_locks(sys._getframe())
    assert id(mine) in held
    assert id(free) not in held


def test_a_stream_may_be_handed_on_when_its_work_is_over(sim: Simulation, acl: Any) -> None:
    stream, context = good(acl.rt.create_stream()), good(acl.rt.get_context())
    memory = good(acl.rt.malloc(64, 0))
    good(acl.rt.memset_async(memory, 64, 0, 64, stream))  # a warm-up in the main thread
    good(acl.rt.synchronize_stream(stream))

    def work() -> None:
        good(acl.rt.set_context(context))
        good(acl.rt.memset_async(memory, 64, 0, 64, stream))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    good(acl.rt.memset_async(memory, 64, 0, 64, stream))  # the thread has ended
    quiet(sim)


def test_a_view_of_a_living_array_is_no_temporary(sim: Simulation, acl: Any) -> None:
    memory, frames = good(acl.rt.malloc(64, 0)), np.zeros((4, 64), np.uint8)
    good(acl.rt.memcpy(memory, 64, acl.util.numpy_to_ptr(frames[2]), 64, H2D))
    good(acl.rt.memcpy(memory, 64, frames.ctypes.data, 64, H2D))
    quiet(sim)
    address = acl.util.numpy_to_ptr(frames[1])
    del frames
    gc.collect()
    with pytest.raises(v.HostBufferGone):
        acl.rt.memcpy(memory, 64, address, 64, H2D)


def test_refused_work_leaves_nothing_pending(tmp_path: Path) -> None:
    faults = (
        "fail the 1st memcpy_async with 207005",
        "fail the 1st execute_async with 207005",
        "fail the 1st record_event with 207005",
    )
    with simulate(SimOptions(compute="canned", faults=faults)) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path))
        slot, events = rig.slot(), rig.events()
        size = slot.fed[0][1]
        assert acl.rt.memcpy_async(slot.fed[0][0], size, slot.pinned_in, size, H2D, rig.streams[0]) == 207005
        assert acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]) == 207005
        assert acl.rt.record_event(events["in"], rig.streams[2]) == 207005
        for stream in rig.streams:
            good(acl.rt.destroy_stream(stream))
        rig.streams.clear()
        rig.close(events)
        good(acl.finalize())
        kinds = {type(each) for each in sim.checker.violations}
        assert kinds == {v.ErrorReturned}
        assert len(sim.checker.violations) == 3


def test_nothing_is_pending_on_a_lost_device(tmp_path: Path) -> None:
    with simulate(
        SimOptions(compute="canned", service={1: 1.0}, faults=("fail the 1st execute_async with 507018",))
    ) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path))
        slot, events = rig.slot(), rig.events()
        rig.submit(slot, events)
        assert acl.rt.synchronize_stream(rig.streams[1]) == 507018
        for address, _ in slot.fed + slot.made:
            good(acl.rt.free(address))
        good(acl.mdl.destroy_dataset(slot.inputs))
        good(acl.mdl.unload(rig.model))
        good(acl.rt.reset_device(0))
        assert {type(each) for each in sim.checker.violations} == {v.ErrorReturned}


def test_a_release_that_was_refused_is_no_leak(tmp_path: Path) -> None:
    with simulate(SimOptions(faults=("fail the 1st free with 507899",))) as sim:
        acl = sim.acl
        good(acl.init())
        good(acl.rt.set_device(0))
        assert acl.rt.free(good(acl.rt.malloc(64, 0))) == 507899
        good(acl.rt.reset_device(0))
        good(acl.finalize())
        assert {type(each) for each in sim.checker.violations} == {v.ErrorReturned}


def test_force_drops_what_is_pending(sim: Simulation, acl: Any) -> None:
    stream, memory = good(acl.rt.create_stream()), good(acl.rt.malloc(64, 0))
    good(acl.rt.memset_async(memory, 64, 0, 64, stream))
    good(acl.rt.destroy_stream_force(stream))
    good(acl.rt.free(memory))
    good(acl.rt.create_stream())
    good(acl.rt.malloc(64, 0))
    good(acl.rt.reset_device_force(0))
    good(acl.finalize())
    quiet(sim)


def test_sync_events_may_be_used_round_after_round(sim: Simulation, acl: Any) -> None:
    up, compute = good(acl.rt.create_stream()), good(acl.rt.create_stream())
    event, done = good(acl.rt.create_event_with_flag(1)), good(acl.rt.create_event_ex_with_flag(1))
    memory = good(acl.rt.malloc(64, 0))
    for _ in range(3):
        good(acl.rt.memset_async(memory, 64, 0, 64, up))
        good(acl.rt.record_event(event, up))
        good(acl.rt.stream_wait_event(compute, event))
        good(acl.rt.reset_event(event, compute))
        good(acl.rt.memset_async(memory, 64, 1, 64, compute))
        good(acl.rt.record_event(done, compute))
        good(acl.rt.synchronize_event(done))
    quiet(sim)


def test_a_record_may_not_overtake_its_reset(sim: Simulation, acl: Any) -> None:
    up, compute = good(acl.rt.create_stream()), good(acl.rt.create_stream())
    event = good(acl.rt.create_event_with_flag(1))
    good(acl.rt.record_event(event, up))
    good(acl.rt.stream_wait_event(compute, event))
    good(acl.rt.reset_event(event, compute))
    with pytest.raises(v.EventReused, match="reset"):
        acl.rt.record_event(event, up)


def test_two_waiting_streams_and_a_reset(sim: Simulation, acl: Any) -> None:
    streams = [good(acl.rt.create_stream()) for _ in range(3)]
    event = good(acl.rt.create_event_with_flag(1))
    good(acl.rt.record_event(event, streams[0]))
    good(acl.rt.stream_wait_event(streams[1], event))
    good(acl.rt.stream_wait_event(streams[2], event))
    with pytest.raises(v.EventReused, match="another stream"):
        acl.rt.reset_event(event, streams[1])


def test_pieces_of_a_pool(sim: Simulation, acl: Any) -> None:
    pool = good(acl.rt.malloc(4096, 0))
    sim.checker.piece(pool, 100)
    sim.checker.piece(pool + 192, 100)
    quiet(sim)
    with pytest.raises(v.Misaligned):
        sim.checker.piece(pool + 1000, 100)
    with pytest.raises(v.OutOfBounds, match="overlaps"):
        sim.checker.piece(pool + 256, 100)
    with pytest.raises(v.OutOfBounds):
        sim.checker.piece(pool + 4032, 100)


def test_a_thousand_handles_of_one_line_are_a_leak(sim: Simulation, acl: Any) -> None:
    for _ in range(1500):
        acl.mdl.create_dataset()
    leaks = [each for each in sim.checker.violations if isinstance(each, v.Leak)]
    assert len(leaks) == 1
    assert "1000" in leaks[0].message


def test_lenient_goes_on_with_real_codes(tmp_path: Path) -> None:
    with simulate(SimOptions(lenient=True)) as sim:
        acl = sim.acl
        good(acl.init())
        assert acl.init() == 100002
        assert acl.rt.malloc(1, 0) == (0, 107002)
        good(acl.rt.set_device(0))
        assert acl.rt.synchronize_stream(77) == 107017
        with pytest.raises(TypeError):
            acl.rt.malloc(None, 0)
        with pytest.raises(AttributeError):
            _ = acl.GDDR_MEM
        kinds = {type(each) for each in sim.checker.violations}
        assert kinds >= {v.RepeatedInit, v.NoContext, v.WrongHandle, v.WrongArguments, v.UnknownName, v.ErrorReturned}


def test_raise_on_error() -> None:
    with simulate() as sim:
        checked = check(sim.module, CheckOptions(raise_on_error=True))
        good(checked.acl.init())
        with pytest.raises(v.ErrorReturned, match="107001"):
            checked.acl.rt.set_device(9)


def test_the_report_counts_and_keeps_to_its_limit() -> None:
    with simulate() as sim:
        checked = check(sim.module, CheckOptions(most=10))
        good(checked.acl.init())
        for _ in range(25):
            checked.acl.rt.set_device(9)
        assert len(checked.violations) == 10
        report = checked.report()
        assert "15 more were not kept" in report
        assert "(10 times)" in report
        assert "107001" in report


def test_hasattr_is_no_violation(sim: Simulation) -> None:
    with simulate(SimOptions(missing=("rt.create_event_ex_with_flag",))) as old:
        assert not hasattr(old.acl.rt, "create_event_ex_with_flag")
        assert not hasattr(old.acl, "__file__")
        assert not hasattr(old.acl.mdl, "execute_v2")
        assert not old.checker.violations


def test_shadows_do_not_pile_up(sim: Simulation, tmp_path: Path) -> None:
    acl = sim.acl
    rig = Rig(acl, write_om(tmp_path))
    slot, events = rig.slot(), rig.events()

    def turns(count: int) -> None:
        for _ in range(count):
            rig.submit(slot, events)
            good(acl.rt.synchronize_event(events["out"]))
            address = good(acl.rt.malloc(640, 0))
            good(acl.rt.memset_async(address, 640, 0, 640, rig.streams[0]))
            stream = good(acl.rt.create_stream())
            good(acl.rt.synchronize_stream(rig.streams[0]))
            good(acl.rt.destroy_stream(stream))
            good(acl.rt.free(address))

    sim.machine.trace.clear()
    turns(300)
    sim.machine.trace.clear()
    gc.collect()
    before = len(gc.get_objects())
    turns(300)
    sim.machine.trace.clear()
    gc.collect()
    assert len(gc.get_objects()) - before < 1000
    state = sim.checker._state
    assert all(len(block.ranges) < 10 and not block.snapshots for block in state.blocks.values())
    rig.close(events)
    quiet(sim)


def test_a_read_of_what_a_queued_copy_reads_is_no_race(sim: Simulation, acl: Any) -> None:
    one, two = good(acl.rt.create_stream()), good(acl.rt.create_stream())
    memory, pinned = good(acl.rt.malloc(64, 0)), good(acl.rt.malloc_host(64))
    other = good(acl.rt.malloc_host(64))
    good(acl.rt.memset(memory, 64, 1, 64))
    good(acl.rt.memcpy_async(pinned, 64, memory, 64, D2H, one))
    good(acl.rt.memcpy_async(other, 64, memory, 64, D2H, two))
    for stream in (one, two):
        good(acl.rt.synchronize_stream(stream))
    good(acl.rt.memcpy_async(memory, 64, pinned, 64, H2D, one))
    assert acl.util.ptr_to_bytes(pinned, 64) == b"\1" * 64
    good(acl.rt.synchronize_stream(one))
    quiet(sim)
