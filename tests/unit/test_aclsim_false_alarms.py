"""What the sanitizer of ``acl`` must not accuse: programs that are right in ways it can't see, or that ask first."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from oracles.aclsim_rig import good

from stages.accelerators.aclsim import SimOptions, Simulation, simulate
from stages.accelerators.aclsim.checker import stream_rules
from stages.accelerators.aclsim.violations import UnknownName, UnorderedStreamUse


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with simulate(SimOptions()) as made:
        good(made.acl.init())
        good(made.acl.rt.set_device(0))
        yield made


@pytest.fixture
def acl(sim: Simulation) -> Any:
    return sim.acl


def test_asking_whether_a_name_is_there_is_no_violation(sim: Simulation, acl: Any) -> None:
    assert not hasattr(acl.rt, "no_such_call")
    assert not hasattr(acl, "no_such_part")
    assert getattr(acl.mdl, "no_such_call", None) is None
    try:
        found = acl.util.no_such_call
    except AttributeError:
        found = None
    try:
        found = acl.util.nor_such_a_call
    except (ImportError, AttributeError):
        found = None
    assert found is None
    assert not sim.checker.violations


def swallowed(acl: Any) -> Exception | None:
    """A handler of everything: that it is for a missing name, nobody can know."""
    try:
        acl.HOST_TO_DEVICE  # noqa: B018  looked at by its instruction
    except Exception as error:
        return error
    return None


def test_using_a_name_that_is_not_there_is_a_violation(sim: Simulation, acl: Any) -> None:
    with pytest.raises(UnknownName):
        acl.rt.malloc(64, acl.GDDR_MEM)
    with pytest.raises(UnknownName):
        acl.rt.register_mem(1)
    assert isinstance(swallowed(acl), UnknownName)
    assert not hasattr(acl, "GDDR_MEM")  # asked after it was used
    assert [type(each) for each in sim.checker.violations] == [UnknownName] * 3


def feeding(acl: Any, stream: int, memory: int, context: int, then: Any) -> threading.Thread:
    def work() -> None:
        good(acl.rt.set_context(context))
        good(acl.rt.memset_async(memory, 64, 0, 64, stream))
        then()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_stream_handed_on_by_a_thread_that_is_about_to_end_is_no_false_alarm(
    sim: Simulation, acl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_rules, "GRACE_S", 20)  # else too little where the machine is busy
    stream, context, memory = good(acl.rt.create_stream()), good(acl.rt.get_context()), good(acl.rt.malloc(64, 0))
    handed: queue.Queue[int] = queue.Queue()

    def hand_on() -> None:
        handed.put(stream)
        time.sleep(0.004)  # it ends a little later than the queue tells

    for _ in range(3):
        thread = feeding(acl, stream, memory, context, hand_on)
        good(acl.rt.memset_async(memory, 64, 1, 64, handed.get()))
        good(acl.rt.synchronize_stream(stream))
        thread.join()
    assert not sim.checker.violations


def test_a_stream_of_a_thread_that_goes_on_is_told(sim: Simulation, acl: Any) -> None:
    stream, context, memory = good(acl.rt.create_stream()), good(acl.rt.get_context()), good(acl.rt.malloc(64, 0))
    queued, over = threading.Event(), threading.Event()

    def stay() -> None:
        queued.set()
        over.wait(20)

    thread = feeding(acl, stream, memory, context, stay)
    assert queued.wait(20)
    with pytest.raises(UnorderedStreamUse):
        acl.rt.memset_async(memory, 64, 1, 64, stream)
    over.set()
    thread.join()


def test_threads_that_take_turns_on_a_stream_and_synchronise_are_no_false_alarm(sim: Simulation, acl: Any) -> None:
    stream, context, memory = good(acl.rt.create_stream()), good(acl.rt.get_context()), good(acl.rt.malloc(64, 0))
    over = threading.Event()
    queued: queue.Queue[bool] = queue.Queue()

    def stay() -> None:
        good(acl.rt.synchronize_stream(stream))
        queued.put(True)
        over.wait(20)

    threads = [feeding(acl, stream, memory, context, stay)]
    queued.get(timeout=20)
    threads.append(feeding(acl, stream, memory, context, stay))
    queued.get(timeout=20)
    over.set()
    for thread in threads:
        thread.join()
    assert not sim.checker.violations
