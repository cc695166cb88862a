"""The account of what connections ask a publishing socket for: against a plain one, and its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.sinks import topics
from stages.sinks.topics import MOST_TOPIC_BYTES, MOST_TOPICS, MOST_UNREAD, UNKNOWN, Topics

STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([b"\0", b"\1", b"end"]), st.sampled_from([b"", b"a", b"ab", b"b"]))
)


@given(STEPS)
def test_totals_are_those_of_a_plain_account(steps: list[tuple[int, bytes, bytes]]) -> None:
    account, plain = Topics(), {n: set[bytes]() for n in range(4)}
    for connection, what, topic in steps:
        if what == b"end":
            account.forget(connection)
            plain[connection] = set()
        else:
            account.said(connection, what + topic)
            (plain[connection].add if what == b"\1" else plain[connection].discard)(topic)
    assert account._number == sum(map(len, plain.values()))
    assert account._all_bytes == sum(map(len, set[bytes]().union(*plain.values())))
    assert account._bytes.items() >= {n: sum(map(len, of)) for n, of in plain.items() if of}.items()
    assert account.excess() == {}


def fill(account: Topics, connection: int, number: int, size: int = 4) -> None:
    for each in range(number):
        account.said(connection, b"\1" + b"%d/" % connection + b"%0*d" % (size, each))


@pytest.mark.parametrize(("number", "size", "over"), [
    (MOST_TOPICS, 8, False), (MOST_TOPICS + 1, 8, True), (MOST_TOPIC_BYTES // 102, 100, False), (2001, 100, True),
])  # fmt: skip
def test_one_connection_has_its_limits(number: int, size: int, over: bool) -> None:
    account = Topics()
    fill(account, 7, number, size)
    assert list(account.excess()) == [7] * over
    assert account.excess(ended={7}) == {}
    account.forget(7)
    assert account.excess() == {}


def test_together_with_others_the_one_that_asks_for_most_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "ALL_TOPICS", 100)
    account = Topics()
    for connection, number in ((1, 30), (2, 60), (3, 20)):
        fill(account, connection, number)
    assert list(account.excess()) == [2]
    assert account.excess(ended={2}) == {}


def test_ends_of_subscriptions_that_never_were_hide_no_topics() -> None:
    account = Topics()
    for each in range(MOST_TOPICS + 1):
        account.said(1, b"\1%d" % each)
        account.said(1, b"\0x%d" % each)
    assert list(account.excess()) == [1]


def test_one_that_comes_and_goes_faster_than_it_is_read_is_too_much_and_one_that_is_read_is_not() -> None:
    account = Topics()
    for each in range(2 * MOST_UNREAD):
        account.said(1, bytes([each % 2]) + b"a")
        account.said(2, bytes([each % 2]) + b"a")
        if each % 1000 == 0:
            account.forget(2)
    assert list(account.excess()) == [1]
    account = Topics()
    for each in range(2 * MOST_UNREAD):
        account.said(1, bytes([each % 2]) + b"a")
        if each % 1000 == 0:
            account.all_read()
    assert account.excess() == {}


def test_those_without_a_descriptor_are_told_once_and_the_ends_of_others_are_not_theirs() -> None:
    account = Topics()
    for _ in range(2 * MOST_UNREAD):
        account.said(UNKNOWN, b"\0a")
    assert account.excess() == {}
    fill(account, UNKNOWN, MOST_TOPICS + 1)
    assert list(account.excess()) == [UNKNOWN]
    assert account.excess() == {}
