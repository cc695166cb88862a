"""Restart budget: events in, decisions out."""

from __future__ import annotations

from pipeline.runtime.policy import LONGEST_DELAY_NS, NOT_STARTED_DELAY_NS, RestartPolicy

S = 1_000_000_000


def test_first_death_is_replaced_at_once_then_ever_later_then_never() -> None:
    policy = RestartPolicy(4, 60 * S)
    assert [policy.died(i) for i in range(5)] == [0, S // 10, S // 5, 2 * S // 5, None]


def test_deaths_outside_the_window_are_forgotten() -> None:
    policy = RestartPolicy(1, 60 * S)
    assert policy.died(0) == 0
    assert policy.died(61 * S) == 0
    assert policy.died(62 * S) is None


def test_the_delay_has_a_ceiling() -> None:
    policy = RestartPolicy(100, 60 * S)
    delays = [policy.died(i) for i in range(50)]
    assert max(d for d in delays if d is not None) == LONGEST_DELAY_NS


def test_a_budget_of_zero_never_restarts() -> None:
    assert RestartPolicy(0, S).died(0) is None


def test_a_process_that_could_not_be_had_counts_like_a_death_and_is_asked_for_again_later() -> None:
    policy = RestartPolicy(6, 60 * S)
    delays = [policy.not_started(i) for i in range(7)]
    assert delays == [NOT_STARTED_DELAY_NS] * 5 + [16 * S // 10, None]
