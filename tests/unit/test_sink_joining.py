"""How long a publisher waits for subscribers that were there before it."""

from __future__ import annotations

import pytest

from stages.sinks.joining import MORE_NS, QUIET_NS, Joining

JOIN_NS = 300_000_000
BEGAN_NS = 7_000_000_000


@pytest.mark.parametrize(
    ("news_ns", "over_ns"),
    [
        ([], JOIN_NS),
        ([1, JOIN_NS - QUIET_NS], JOIN_NS),
        ([JOIN_NS - 1], JOIN_NS - 1 + QUIET_NS),
        ([JOIN_NS - 1, JOIN_NS + QUIET_NS // 2], JOIN_NS + QUIET_NS // 2 + QUIET_NS),
        (range(0, JOIN_NS + 2 * MORE_NS, QUIET_NS // 2), JOIN_NS + MORE_NS),
    ],
    ids=["nobody", "soon", "late", "one after the other", "a flood"],
)
def test_it_waits_for_join_ms_and_while_subscribers_ask_but_not_for_ever(news_ns: list[int], over_ns: int) -> None:
    joining = Joining(BEGAN_NS, JOIN_NS)
    for at_ns in news_ns:
        if at_ns >= over_ns:
            break
        assert joining.goes_on(BEGAN_NS + at_ns, news=True), at_ns
    assert joining.goes_on(BEGAN_NS + over_ns - 1, news=False)
    assert not joining.goes_on(BEGAN_NS + over_ns, news=False)
