"""When a file counts as cut, and what is said of it."""

from __future__ import annotations

import pytest

from stages.decode.truncation import Outcome, Promise, missing

S = 1_000_000_000
FRAME = S // 25


def outcome(packets=100, frames=None, reached=None, cut=False, nominal=FRAME):
    return Outcome(
        packets, packets if frames is None else frames, packets * FRAME if reached is None else reached, cut, nominal
    )


@pytest.mark.parametrize(
    ("name", "promise", "found", "said"),
    [
        ("whole", Promise(100, 4 * S), outcome(), None),
        ("half", Promise(100, 4 * S), outcome(50), "the file stops after 50 of 100 frames"),
        ("the last one missing", Promise(100, 4 * S), outcome(99), None),
        ("the last two missing", Promise(100, 4 * S), outcome(98), "the file stops after 98 of 100 frames"),
        ("cut in the last", Promise(100, 4 * S), outcome(100, 99, cut=True), "the file stops after 99 of 100 frames"),
        ("an edit list hides 13", Promise(100, int(3.5 * S)), outcome(100, 87, int(3.48 * S)), None),
        ("an edit list, packets left out", Promise(100, int(3.5 * S)), outcome(87, 87, int(3.48 * S)), None),
        ("decode errors", Promise(100, 4 * S), outcome(100, 91), None),
        ("empty chunks at the end of AVI", Promise(101, 4 * S), outcome(100, 100, int(3.96 * S)), None),
        ("tree.avi", Promise(444, 17_760_000_000), outcome(68), "the file stops after 68 of 444 frames"),
        ("count only, whole", Promise(100, None), outcome(), None),
        ("count only, half", Promise(100, None), outcome(50), "the file stops after 50 of 100 frames"),
        ("time only, whole", Promise(None, 4 * S), outcome(), None),
        ("time only, a frame short", Promise(None, 4 * S), outcome(99), None),
        ("time only, half", Promise(None, 4 * S), outcome(50), "the file stops at 2.00 s of 4.00 s, after 50 frames"),
        ("time only, the last frame lasts long", Promise(None, 60 * S), outcome(4, 4, 45 * S), None),
        ("nothing promised", Promise(None, None), outcome(50), None),
        ("only cut", Promise(None, None), outcome(50, 49, cut=True),
         "the end of the file is missing, after 49 frames"),
        ("nothing came", Promise(100, 4 * S), outcome(0), "the file stops after 0 of 100 frames"),
        ("longer than promised", Promise(50, 2 * S), outcome(), None),
    ],
)  # fmt: skip
def test_table(name, promise, found, said) -> None:
    assert missing(promise, found) == said
