"""How long a worker may give no result: times of its work in, a limit out; and who is overdue by it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from made.plans import run_plan

from pipeline.plan import DevicePlan
from pipeline.runtime.deadline import FACTOR, LEARNT, LEAST_NS, REMEMBERED, WorkDeadline
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.inflight import Batch, OutputHold, WorkerLine
from stages.messages import RawOutput

S = 1_000_000_000
CEILING = 60 * S
PLAN = run_plan(models=(), devices=(DevicePlan("cpu", 1, 1, 1),))


def after(*times_ns: int) -> int:
    deadline = WorkDeadline()
    for each in times_ns:
        deadline.took(each)
    return deadline.limit_ns(CEILING)


def test_a_worker_of_quick_batches_that_gives_no_result_is_not_waited_for_a_minute() -> None:
    assert after(*[S // 100] * LEARNT) == LEAST_NS


def test_nothing_is_concluded_from_the_first_few() -> None:
    assert after(*[S // 100] * (LEARNT - 1)) == CEILING


def test_a_slow_device_is_given_its_time() -> None:
    assert after(*[S // 100] * LEARNT, S) == FACTOR * S
    assert after(*[10 * S] * LEARNT) == CEILING


def test_one_long_pause_is_forgotten() -> None:
    assert after(50 * S, *[S // 100] * (2 * REMEMBERED)) == LEAST_NS


@given(st.lists(st.integers(-S, 100 * S), max_size=350), st.integers(S, 100 * S))
def test_it_is_never_beyond_the_ceiling_and_covers_the_recent_past(times_ns: list[int], ceiling_ns: int) -> None:
    deadline = WorkDeadline()
    for each in times_ns:
        deadline.took(each)
    limit_ns = deadline.limit_ns(ceiling_ns)
    assert limit_ns <= ceiling_ns
    assert limit_ns >= min(ceiling_ns, LEAST_NS)
    recent = times_ns[-REMEMBERED:]
    if recent:
        assert limit_ns >= min(ceiling_ns, FACTOR * max(recent))


def line_with_batch(dispatcher: Dispatcher, name: str, given_ns: int) -> WorkerLine:
    dispatcher.worker_ready(name, "executor", 1)
    line = dispatcher.workers[name]
    line.batches[1] = Batch(1, "m", [], OutputHold("m", 0), given_ns)
    dispatcher.schedule.started(name, line.batches[1])
    return line


def test_a_worker_that_lives_and_gives_no_result_is_overdue_by_what_its_own_work_takes() -> None:
    dispatcher = Dispatcher(PLAN, lambda: 0)
    at_ns = 0
    for name, each_ns in (("quick", S // 100), ("slow", 2 * S)):
        for _ in range(LEARNT):
            line_with_batch(dispatcher, name, at_ns)
            at_ns += each_ns
            dispatcher.receive(name, RawOutput(1, 2, [], at_ns, at_ns, at_ns, at_ns))
    for name in ("quick", "slow", "new"):
        line_with_batch(dispatcher, name, at_ns)
    assert dispatcher.overdue(at_ns + LEAST_NS, CEILING) == []
    assert dispatcher.overdue(at_ns + LEAST_NS + 1, CEILING) == ["quick"]
    assert dispatcher.overdue(at_ns + FACTOR * 2 * S + 1, CEILING) == ["quick", "slow"]
    assert dispatcher.overdue(at_ns + CEILING + 1, CEILING) == ["quick", "slow", "new"]
    dispatcher.worker_lost("quick", blame=True)
    line_with_batch(dispatcher, "quick", at_ns)
    assert dispatcher.overdue(at_ns + LEAST_NS + 1, CEILING) == ["quick"], "its next incarnation is known already"


def test_time_in_which_the_engine_itself_was_stopped_makes_nobody_overdue() -> None:
    dispatcher = Dispatcher(PLAN, lambda: 0)
    line_with_batch(dispatcher, "any", 0)
    assert dispatcher.overdue(2 * CEILING, CEILING, awake_since_ns=2 * CEILING - S) == []
    assert dispatcher.overdue(2 * CEILING, CEILING, awake_since_ns=CEILING - S) == ["any"]
