"""The policy of connections: deadlines, waits between tries, states; a table and everything that may happen to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.camera import LinkSpec
from stages.decode.link import GUARDED, STEADY_NS, Link, Overdue

MS = 1_000_000
SPEC = LinkSpec(open_timeout_ms=1000, read_timeout_ms=500, stall_ms=2000, retry_first_ms=200, retry_longest_ms=1000)


def link(spec: LinkSpec = SPEC, draw: float = 1.0, **more) -> Link:
    return Link(spec, lambda: draw, due_ns=0, **more)


def fail(connection: Link, now_ns: int, cause: str = "refused") -> int | None:
    connection.connect(now_ns)
    return connection.lost(now_ns, cause)


# --- waits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "waits"),
    [(1.0, [200, 400, 800, 1000, 1000]), (0.0, [100, 200, 400, 500, 500]), (0.5, [150, 300, 600, 750, 750])],
)
def test_waits_double_up_to_the_longest_and_keep_to_their_upper_half(draw, waits) -> None:
    connection = link(draw=draw)
    assert [fail(connection, 0) for _ in waits] == waits
    assert connection.attempt == len(waits)


@pytest.mark.parametrize("cause", sorted(GUARDED))
def test_a_refused_password_is_tried_seldom_since_cameras_lock_users(cause) -> None:
    connection = link()
    assert [fail(connection, 0, cause) for _ in range(6)] == [2000, 4000, 8000, 16_000, 30_000, 30_000]


def test_an_outage_before_a_refused_password_is_no_reason_to_wait_for_long() -> None:
    connection = link()
    assert [fail(connection, 0) for _ in range(8)][-1] == 1000
    assert [fail(connection, 0, "unauthorised") for _ in range(2)] == [2000, 4000]
    assert fail(connection, 0) == 1000
    assert fail(connection, 0, "unauthorised") == 8000  # nor do outages between make it try more often


def test_a_stream_that_lasted_begins_with_the_first_wait_again_and_one_that_flickered_does_not() -> None:
    connection = link()
    assert [fail(connection, 0) for _ in range(3)] == [200, 400, 800]
    for lasted_ns, waits in ((STEADY_NS - 1, 1000), (STEADY_NS, 200)):
        connection.connect(0)
        connection.opened(0)
        assert connection.picture(0)
        assert connection.attempt == 0
        assert connection.lost(lasted_ns, "disconnected") == waits


def test_without_attempts_it_is_tried_for_ever() -> None:
    connection = link()
    for _ in range(5000):
        assert fail(connection, 0) is not None
    assert connection.state == "reconnecting"


def test_attempts_count_tries_since_the_last_picture() -> None:
    connection = link(LinkSpec(attempts=3))
    assert fail(connection, 0) is not None
    connection.connect(0)
    connection.opened(0)
    connection.picture(0)
    assert connection.lost(0, "disconnected") is not None
    assert [fail(connection, 0) is None for _ in range(3)] == [False, False, True]
    assert (connection.state, connection.due_ns) == ("failed", None)


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_what_is_overdue_when() -> None:
    connection = link()
    assert (connection.next_ns(0, 0), connection.overdue(10**12, 0, 0)) == (0, None)  # not begun: nothing is awaited
    connection.connect(10_000 * MS)
    assert connection.next_ns(0, 0) == 11_000 * MS
    assert connection.overdue(11_000 * MS - 1, 0, 0) is None
    assert connection.overdue(11_000 * MS, 0, 0) == Overdue("open", 1000 * MS)
    connection.opened(10_900 * MS)
    assert connection.next_ns(0, 0) == 11_400 * MS
    assert connection.overdue(11_400 * MS, 0, 0) == Overdue("data", 500 * MS)
    assert connection.overdue(11_400 * MS, 11_000 * MS, 0) is None
    assert connection.overdue(12_900 * MS, 12_800 * MS, 0) == Overdue("picture", 2000 * MS)
    assert connection.overdue(12_900 * MS, 12_800 * MS, 11_000 * MS) is None
    assert connection.next_ns(12_800 * MS, 11_000 * MS) == 13_000 * MS


def test_where_only_keyframes_are_decoded_pictures_are_rare() -> None:
    connection = link(keyframes=True)
    connection.connect(0)
    connection.opened(0)
    assert connection.overdue(29_999 * MS, 29_999 * MS, 0) is None
    assert connection.overdue(30_000 * MS, 30_000 * MS, 0) == Overdue("picture", 30_000 * MS)


# --- whatever happens -------------------------------------------------------------------------------------------------

specs = st.builds(
    LinkSpec,
    open_timeout_ms=st.integers(100, 10_000),
    read_timeout_ms=st.integers(100, 10_000),
    stall_ms=st.integers(100, 10_000),
    retry_first_ms=st.integers(10, 5000),
    retry_longest_ms=st.integers(5000, 100_000),
    attempts=st.none() | st.integers(1, 5),
)
causes = st.sampled_from(["refused", "timeout", "unauthorised", "forbidden", "no_picture", "disconnected"])
tries = st.lists(
    st.tuples(st.integers(0, 20_000), st.sampled_from(["refused", "opened", "streamed", "stalled"]), causes),
    min_size=1,
    max_size=40,
)


@given(spec=specs, tries=tries, draws=st.lists(st.floats(0, 1), min_size=40, max_size=40))
def test_waits_stay_within_bounds_and_states_follow_each_other(spec, tries, draws) -> None:
    left = iter(draws)
    connection = Link(spec, lambda: next(left), due_ns=0)
    now_ns, since_picture = 0, 0
    for lasts_ms, end, cause in tries:
        assert connection.due_ns is not None
        assert connection.next_ns(0, 0) == connection.due_ns
        now_ns = max(now_ns, connection.due_ns)
        connection.connect(now_ns)
        since_picture += 1
        assert (connection.state, connection.due_ns, connection.attempt) == ("connecting", None, since_picture)
        assert connection.next_ns(0, 0) > now_ns  # never a busy loop
        if end != "refused":
            connection.opened(now_ns)
            assert connection.next_ns(0, 0) > now_ns
        if end in {"streamed", "stalled"}:
            assert connection.picture(now_ns)
            assert not connection.picture(now_ns)
            since_picture = 0
            assert (connection.state, connection.attempt) == ("streaming", 0)
        now_ns += lasts_ms * MS
        if end == "stalled":
            connection.stalled()
            assert connection.state == "stalled"
        wait_ms = connection.lost(now_ns, cause)
        if wait_ms is None:
            assert spec.attempts is not None
            assert since_picture >= spec.attempts
            assert (connection.state, connection.due_ns) == ("failed", None)
            return
        assert spec.attempts is None or since_picture < spec.attempts
        guarded = cause in GUARDED
        longest_ms = max(spec.retry_longest_ms, 30_000) if guarded else spec.retry_longest_ms
        first_ms = max(spec.retry_first_ms, 2000) if guarded else spec.retry_first_ms
        assert max(10, first_ms // 2) <= wait_ms <= longest_ms
        assert (connection.state, connection.due_ns) == ("reconnecting", now_ns + wait_ms * MS)
