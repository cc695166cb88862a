"""When queued work starts and ends, against a naive calculation; and when virtual and real time pass."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.aclsim_rig import D2H, H2D, SERVICE, Rig, good, write_om

from stages.accelerators.aclsim import SimOptions, Simulation, simulate
from stages.accelerators.aclsim.machine.timeline import NEVER, RECORD, WAIT, WORK, Engine, Event, Stream, Task, Timeline

STREAMS, EVENTS, ENGINES = 3, 2, 2
steps = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, STREAMS - 1), st.integers(0, ENGINES - 1), st.integers(1, 50)),
        st.tuples(st.just("record"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.just(0), st.integers(0, 30)),
    ),
    max_size=40,
)


def played(history: list[tuple]) -> list[Task]:
    timeline = Timeline(lambda task: None, lambda task: None)
    streams = [Stream(n) for n in range(STREAMS)]
    events = [Event() for _ in range(EVENTS)]
    engines = [Engine(str(n)) for n in range(ENGINES)]
    now_ns, tasks = 0, []
    for kind, stream, which, time_ns in history:
        if kind == "pass":
            now_ns += time_ns
            while timeline.next_ns <= now_ns:
                timeline.step()
            continue
        if kind == "work":
            task = Task(WORK, engines[which], time_ns)
        else:
            task = Task(RECORD if kind == "record" else WAIT)
            task.event = events[which]
        timeline.submit(streams[stream], task, now_ns)
        tasks.append(task)
    while timeline.next_ns < NEVER:
        timeline.step()
    return tasks


@given(steps)
@settings(max_examples=150, deadline=None)
def test_order_and_engines(history: list[tuple]) -> None:
    tasks = played(history)
    latest: dict[int, Task] = {}
    by_stream: dict[int, int] = {}
    for task in tasks:
        ready_ns = max(task.submitted_ns, by_stream.get(task.stream.handle, 0))
        if task.kind == WAIT and (cause := latest.get(id(task.event))):
            assert task.cause is cause
            ready_ns = max(ready_ns, cause.end_ns)
        if task.kind == WORK:
            assert task.start_ns >= ready_ns
            assert task.end_ns == task.start_ns + (task.duration_ns or 0)
        else:
            assert task.end_ns == ready_ns
        if task.kind == RECORD:
            latest[id(task.event)] = task
        by_stream[task.stream.handle] = task.end_ns
    for engine in {id(t.engine): t.engine for t in tasks if t.engine}.values():
        on_it = sorted((t for t in tasks if t.engine is engine), key=lambda t: t.start_ns)
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(on_it))


def runs(sim: Simulation, kind: str, device: int = 0) -> list:
    return [i for i in sim.machine.trace.intervals() if i.kind == kind and i.device == device]


def steady_ms(sim: Simulation, device: int = 0) -> float:
    """Milliseconds per run, without the quarters at the start and the end."""
    ends = [i.end_ns for i in runs(sim, "execute", device)]
    middle = ends[len(ends) // 4 : -(len(ends) // 4)]
    return (middle[-1] - middle[0]) / 1e6 / (len(middle) - 1)


def feed(acl, path: str, device: int, gear: int, batches: int, slots: int, barrier: threading.Barrier) -> None:
    rig = Rig(acl, path, device)
    ring = [(rig.slot(gear), rig.events()) for _ in range(slots)]
    barrier.wait(30)
    for turn in range(batches):
        slot, events = ring[turn % slots]
        if turn >= slots:
            good(acl.rt.synchronize_event(events["out"]))
        rig.submit(slot, events)
    rig.close(*(events for _, events in ring))


@pytest.mark.parametrize(("threads", "devices", "slots"), [(1, 1, 3), (8, 1, 2), (8, 2, 2)])
@pytest.mark.parametrize("gear", [1, 4, 8])
def test_a_device_is_as_busy_as_it_can_be(tmp_path: Path, threads: int, devices: int, slots: int, gear: int) -> None:
    path = write_om(tmp_path, batch=(1, 4, 8))
    with simulate(SimOptions(compute="canned", service=SERVICE, copy_ms=3, devices=devices)) as sim:
        good(sim.acl.init())
        barrier = threading.Barrier(threads)
        workers = [
            threading.Thread(target=feed, args=(sim.acl, path, n % devices, gear, 24, slots, barrier))
            for n in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        good(sim.acl.finalize())
        for device in range(devices):
            # three milliseconds of copy each way hide behind the run, unless two slots of one thread are too few
            assert steady_ms(sim, device) == pytest.approx(max(SERVICE[gear], 3.0), rel=0.01)
        assert not [v for v in sim.checker.violations if not v.warning]


def test_one_slot_waits_for_each_of_its_parts(tmp_path: Path) -> None:
    path = write_om(tmp_path, batch=(1, 4, 8))
    with simulate(SimOptions(compute="canned", service=SERVICE, copy_ms=3, launch_us=0)) as sim:
        good(sim.acl.init())
        feed(sim.acl, path, 0, 4, 20, 1, threading.Barrier(1))
        assert steady_ms(sim) == pytest.approx(3 + 12.8 + 3)


def test_the_trace_tells_which_run_a_copy_belongs_to(tmp_path: Path) -> None:
    with simulate(SimOptions(compute="canned", service={1: 2.0}, copy_ms=1)) as sim:
        good(sim.acl.init())
        feed(sim.acl, write_om(tmp_path), 0, 0, 5, 2, threading.Barrier(1))
        for kind in ("upload", "execute", "download"):
            assert [i.batch for i in runs(sim, kind)] == [1, 2, 3, 4, 5]
        slices = [e for e in sim.machine.trace.chrome()["traceEvents"] if e["ph"] == "X"]
        assert {e["name"] for e in slices} >= {"upload 3", "execute 3", "download 3"}
        assert len({e["tid"] for e in slices}) == 3


def test_a_thread_that_sleeps_elsewhere_does_not_stop_time(tmp_path: Path) -> None:
    with simulate(SimOptions(compute="canned", service={1: 1000.0})) as sim:
        acl = sim.acl
        good(acl.init())
        ready, over = threading.Event(), threading.Event()

        def idle() -> None:
            good(acl.rt.set_device(0))
            ready.set()
            over.wait()
            good(acl.rt.reset_device(0))

        sleeper = threading.Thread(target=idle)
        sleeper.start()
        ready.wait()
        feed(acl, write_om(tmp_path), 0, 0, 5, 1, threading.Barrier(1))
        assert sim.machine.clock.now_ns() > 5e9
        over.set()
        sleeper.join()


def test_a_thread_that_computes_stops_time(tmp_path: Path) -> None:
    """A host that is busy for a while must not lose device time to it: it submits before time goes on."""
    with simulate(SimOptions(compute="canned", service={1: 1.0})) as sim:
        acl = sim.acl
        good(acl.init())
        started = threading.Event()

        def busy() -> None:
            rig = Rig(acl, path)
            slot, events = rig.slot(), rig.events()
            started.set()
            until_s = time.monotonic() + 0.2
            while time.monotonic() < until_s:
                pass
            rig.submit(slot, events)
            rig.close(events)

        path = write_om(tmp_path)
        rig = Rig(acl, path)
        slot, events = rig.slot(), rig.events()
        worker = threading.Thread(target=busy)
        worker.start()
        started.wait()
        rig.submit(slot, events)
        good(acl.rt.synchronize_event(events["out"]))
        worker.join()
        rig.close(events)
        ends = sorted(i.start_ns for i in runs(sim, "execute"))
        assert ends[1] - ends[0] < 1.1e6, "the second run began when the first was over, or earlier"


def test_queries_let_time_pass(tmp_path: Path) -> None:
    with simulate(SimOptions(compute="canned", service={1: 50.0})) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path))
        slot, events = rig.slot(), rig.events()
        rig.submit(slot, events)
        answers = []
        while not answers or answers[-1] == 0:
            answers.append(good(acl.rt.query_event_status(events["out"])))
        assert 2 < len(answers) < 20
        assert sim.machine.clock.now_ns() >= 50e6
        rig.close(events)


def test_timeouts_are_virtual_too(tmp_path: Path) -> None:
    options = SimOptions(compute="canned", faults=("hang the 1st execute_async",), lenient=True)
    with simulate(options) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path))
        slot, events = rig.slot(), rig.events()
        rig.submit(slot, events)
        assert acl.rt.synchronize_event_with_timeout(events["out"], 5000) == 507047
        assert acl.rt.synchronize_stream_with_timeout(rig.streams[1], 5000) == 507046
        assert 10e9 < sim.machine.clock.now_ns() < 11e9
        assert acl.rt.synchronize_stream(rig.streams[1]) == 507014, "the watchdog ends it after 547 s"
        assert sim.machine.clock.now_ns() > 547e9


def test_a_wait_that_nothing_ends_is_given_up() -> None:
    with simulate(SimOptions(check=False)) as sim:
        acl = sim.acl
        good(acl.rt.set_device(0))
        stream = good(acl.rt.create_stream())
        event = good(acl.rt.create_event_with_flag(1))
        good(acl.rt.stream_wait_event(stream, event))
        assert acl.rt.synchronize_stream(stream) == 107019


def test_the_real_clock_takes_real_time_and_no_cpu(tmp_path: Path) -> None:
    path = write_om(tmp_path)
    with simulate(SimOptions(compute="canned", clock="real", service={1: 20.0}, copy_ms=5.0)) as sim:
        good(sim.acl.init())
        wall_s, cpu_s = time.monotonic(), time.process_time()
        feed(sim.acl, path, 0, 0, 25, 2, threading.Barrier(1))
        wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
        assert wall_s > 0.5
        assert cpu_s < wall_s / 2
        assert steady_ms(sim) == pytest.approx(20, rel=0.3)
        good(sim.acl.finalize())
    assert not [t for t in threading.enumerate() if t.name.startswith("aclsim")]


def counted_while(call) -> int:
    """How far another thread counts while this one is in a call."""
    counter, over = [0], threading.Event()

    def count() -> None:
        while not over.is_set():
            counter[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    time.sleep(0.02)
    before = counter[0]
    call()
    counted = counter[0] - before
    over.set()
    thread.join()
    return counted


def test_calls_that_hold_the_interpreters_lock_stop_other_threads(tmp_path: Path) -> None:
    with simulate(SimOptions(compute="canned", clock="real", service={1: 400.0}, check=False)) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path))
        slot = rig.slot()
        held = counted_while(lambda: good(acl.mdl.execute(rig.model, slot.inputs, slot.outputs)))
        good(acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]))
        released = counted_while(lambda: good(acl.rt.synchronize_stream(rig.streams[1])))
        assert released > 10
        assert held < released / 2  # by how much, the machine's other work decides
        rig.close()


def test_a_missing_event_shows_as_poison_every_time(tmp_path: Path) -> None:
    with simulate(SimOptions(compute="canned", service={1: 0.01}, check=False)) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path))
        slot = rig.slot()
        up, compute, _ = rig.streams
        size_in, size_out = slot.fed[0][1], slot.made[0][1]
        view = acl.util.ptr_to_numpy(slot.pinned_out, (size_out // 4,), 11)
        for _ in range(20):
            good(acl.rt.memcpy_async(slot.fed[0][0], size_in, slot.pinned_in, size_in, H2D, up))
            good(acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, compute))
            good(acl.rt.synchronize_stream(compute))
            good(acl.rt.memcpy_async(slot.pinned_out, size_out, slot.made[0][0], size_out, D2H, up))
            assert np.isnan(view).all(), "the wrong stream is waited for"
            good(acl.rt.synchronize_stream(compute))
            assert np.isnan(view).all()
            good(acl.rt.synchronize_stream(up))
            assert not np.isnan(view).any()
        rig.close()
