"""What a subscriber has missed: by table, and against an oracle that knows what was published, dropped and lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.gaps import MAX_ANNOUNCED, Gap, Positions
from stages.messages import Status


def status(state: Any, epoch: int = 0, first: int | None = None, last: int | None = None, camera: str = "a") -> Status:
    return Status(camera=camera, epoch=epoch, state=state, cause="x", detail="", time_ns=0, from_seq=first, to_seq=last)


def feed(text: str) -> str:
    """``text``: ``0:5`` detections of epoch 0, seq 5; ``!0:3-4`` an announced gap; ``>1`` started epoch 1; ``restart``.

    Gives what each of the detections told: ``.`` nothing, ``dup``, or the ranges lost.
    """
    positions = Positions()
    told: list[str] = []
    for word in text.split():
        if word == "restart":
            positions.forget()
        elif word.startswith(">"):
            positions.announced(status("started", int(word[1:])))
        elif word.startswith("!"):
            epoch, _, span = word[1:].partition(":")
            first, _, last = span.partition("-")
            positions.announced(status("gap", int(epoch), int(first), int(last)))
        else:
            epoch, _, seq = word.partition(":")
            placed = positions.place("a", int(epoch), int(seq))
            lost = "+".join(f"{gap.epoch}:{gap.from_seq}-{gap.to_seq}" for gap in placed.gaps)
            told.append("dup" if placed.duplicate else lost or ".")
    return " ".join(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("0:0 0:1 0:2", ". . .", id="nothing missing"),
        pytest.param("0:7 0:8", ". .", id="joining in the middle is no gap"),
        pytest.param("3:7 3:8", ". .", id="joining in a later epoch is no gap"),
        pytest.param("0:0 0:2", ". 0:1-1", id="one lost"),
        pytest.param("0:0 0:9 0:10", ". 0:1-8 .", id="several lost, told once"),
        pytest.param(">0 0:3", "0:0-2", id="the start was seen, so the beginning is lost"),
        pytest.param(">0 0:0 0:1", ". .", id="started, nothing missing"),
        pytest.param("0:0 !0:1-3 0:4", ". .", id="announced"),
        pytest.param("0:0 !0:1-1 !0:2-3 0:4", ". .", id="announced in parts"),
        pytest.param("0:0 !0:1-3 0:6", ". 0:4-5", id="announced, and some lost behind"),
        pytest.param("0:0 !0:3-3 0:4", ". 0:1-2", id="announced, and some lost before"),
        pytest.param("0:0 !0:2-2 !0:4-4 0:6", ". 0:1-1+0:3-3+0:5-5", id="lost around what was announced"),
        pytest.param("0:0 !0:5-6 0:1 0:2 0:3 0:4 0:7", ". . . . . .", id="announced early"),
        pytest.param("0:0 !0:5-6 !0:1-2 0:3 0:4 0:7", ". . . .", id="announced out of order"),
        pytest.param("!0:4-5 0:6", ".", id="joined with an announcement"),
        pytest.param("!0:4-5 0:8", "0:6-7", id="joined with an announcement, then lost"),
        pytest.param("0:5 0:5 0:6", ". dup .", id="a duplicate"),
        pytest.param("0:5 0:2 0:3", ". . .", id="a publisher that was started anew"),
        pytest.param("0:5 >0 0:0", ". .", id="started anew, and told so"),
        pytest.param("0:5 >0 0:2", ". 0:0-1", id="started anew, beginning lost"),
        pytest.param("2:5 0:3 0:4", ". . .", id="started anew in an earlier epoch"),
        pytest.param("2:5 !0:0-2 0:3", ". .", id="started anew with a drop"),
        pytest.param("0:5 restart 0:90 0:91", ". . .", id="a heartbeat told the restart"),
        pytest.param("0:5 1:0 1:1", ". . .", id="next epoch"),
        pytest.param("0:5 >1 1:0", ". .", id="next epoch, told"),
        pytest.param("0:5 1:2", ". 1:0-1", id="next epoch, beginning lost"),
        pytest.param("0:5 !1:0-1 1:2", ". .", id="next epoch, beginning announced as dropped"),
        pytest.param("0:5 >1 !1:0-1 1:3", ". 1:2-2", id="next epoch, beginning dropped and then lost"),
        pytest.param("0:5 5:0", ". .", id="several epochs later"),
        pytest.param("0:0 !0:1-1 0:1", ". .", id="announced as dropped and yet there"),
        pytest.param("0:0 >0 0:1", ". 0:0-0", id="started again in the same epoch"),
    ],
)
def test_what_is_told(text: str, told: str) -> None:
    assert feed(text) == told


def test_cameras_do_not_disturb_each_other() -> None:
    positions = Positions()
    positions.place("a", 0, 0)
    assert positions.place("b", 0, 5).gaps == ()
    assert positions.place("a", 0, 2).gaps == (Gap(camera="a", epoch=0, from_seq=1, to_seq=1),)
    positions.announced(status("gap", 0, 6, 6, camera="b"))
    assert positions.place("b", 0, 7).gaps == ()


@pytest.mark.parametrize("count", [MAX_ANNOUNCED * 3])
def test_announcements_that_are_never_reached_do_not_pile_up(count: int) -> None:
    positions = Positions()
    positions.place("a", 0, 0)
    for seq in range(count):
        positions.announced(status("gap", 0, 10 + 2 * seq, 10 + 2 * seq))
    assert len(positions._positions["a"].announced) == MAX_ANNOUNCED


FATES = st.lists(st.sampled_from(["given", "given", "given", "lost", "dropped", "dropped, word lost"]), max_size=30)


@given(st.lists(FATES, min_size=1, max_size=3), st.booleans(), st.data())
def test_what_is_lost_is_told_exactly_and_what_is_dropped_is_not(
    epochs: list[list[str]], started_seen: bool, data: st.DataObject
) -> None:
    positions = Positions()
    told: set[tuple[int, int]] = set()
    expected: set[tuple[int, int]] = set()
    joined = False
    for epoch, fates in enumerate(epochs):
        unknown: set[tuple[int, int]] = set()  # lost since the last message that came
        if started_seen:
            positions.announced(status("started", epoch))
            joined = True
        for seq, fate in enumerate(fates):
            if fate == "given":
                placed = positions.place("a", epoch, seq)
                assert not placed.duplicate
                for gap in placed.gaps:
                    assert (gap.camera, gap.epoch) == ("a", epoch)
                    span = {(epoch, lost) for lost in range(gap.from_seq, gap.to_seq + 1)}
                    assert not span & told, "told twice"
                    told |= span
                if joined:
                    expected |= unknown
                unknown = set()
                joined = True
            elif fate == "dropped":
                positions.announced(status("gap", epoch, seq, seq))
                if not joined:
                    unknown = set()
                joined = True
            else:
                unknown.add((epoch, seq))
    assert told == expected
