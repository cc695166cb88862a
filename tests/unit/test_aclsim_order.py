"""The race detector against a naive happens-before over the whole history, O(n^2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.accelerators.aclsim.checker.order import Access, Point, Ranges, StreamClock

BYTES, STREAMS, EVENTS = 12, 3, 2

touches = st.tuples(
    st.sampled_from(["task", "host"]),
    st.integers(0, STREAMS - 1),
    st.integers(0, BYTES - 1),
    st.integers(1, BYTES),
    st.booleans(),
)
orders = st.one_of(
    st.tuples(st.just("record"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("wait"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("sync_event"), st.just(0), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("sync_stream"), st.integers(0, STREAMS - 1), st.just(0)),
)
histories = st.lists(st.one_of(touches, orders), max_size=40)


@dataclass
class Op:
    """One step and the steps right before it."""

    kind: str
    actor: int  # a stream, -1 for the host
    bytes: frozenset[int] = frozenset()
    write: bool = False
    before: set[int] = field(default_factory=set)


class Naive:
    """All steps as a graph; whether one comes before another is a search."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.last: dict[int, int] = {}
        self.records: dict[int, int] = {}
        self.extra: dict[int, set[int]] = {}

    def add(self, op: Op) -> int:
        index = len(self.ops)
        if op.actor in self.last:
            op.before.add(self.last[op.actor])
        if op.actor >= 0 and -1 in self.last:  # the host submits it now
            op.before.add(self.last[-1])
        op.before |= self.extra.pop(op.actor, set())
        self.ops.append(op)
        self.last[op.actor] = index
        return index

    def follows(self, earlier: int, later: int) -> bool:
        seen, todo = set(), [later]
        while todo:
            index = todo.pop()
            if index == earlier:
                return True
            if index not in seen:
                seen.add(index)
                todo += self.ops[index].before
        return False

    def races(self, index: int) -> list[int]:
        op = self.ops[index]
        return [
            other
            for other, known in enumerate(self.ops[:index])
            if known.bytes & op.bytes and (known.write or op.write) and not self.follows(other, index)
        ]


def play(history: list[tuple]) -> tuple[list[tuple[int, int | None]], Naive]:
    """What the detector says of each step that touches bytes (the step it races with), and the naive graph."""
    naive, ranges = Naive(), Ranges(BYTES)
    clocks = [StreamClock() for _ in range(STREAMS)]
    points: dict[int, Point] = {}
    told: list[tuple[int, int | None]] = []
    for step in history:
        match step:
            case ("task" | "host" as who, stream, start, size, write):
                end = min(BYTES, start + size)
                index = naive.add(Op("touch", stream if who == "task" else -1, frozenset(range(start, end)), write))
                if who == "task":
                    clocks[stream].tick += 1
                    access = Access(clocks[stream], clocks[stream].tick, ("step", index), write, "task")
                    conflict = ranges.touch(start, end, access)
                else:
                    conflict = ranges.host(start, end, write=write)
                told.append((index, None if conflict is None else conflict.site[1]))
            case ("record", stream, event):
                clocks[stream].tick += 1
                points[event] = clocks[stream].point()
                naive.records[event] = naive.add(Op("record", stream))
            case ("wait", stream, event):
                clocks[stream].tick += 1
                if event in points:
                    clocks[stream].wait_for(points[event])
                index = naive.add(Op("wait", stream))
                if event in naive.records:
                    naive.ops[index].before.add(naive.records[event])
            case ("sync_event", _, event):
                if event in points:
                    list(points[event].learnt())
                    naive.add(Op("sync", -1, before={naive.records[event]}))
            case ("sync_stream", stream, _):
                list(clocks[stream].point().learnt())
                before = {naive.last[stream]} if stream in naive.last else set()
                naive.add(Op("sync", -1, before=before))
    return told, naive


@given(histories)
@settings(max_examples=200, deadline=None)
def test_what_is_told_is_a_race(history: list[tuple]) -> None:
    told, naive = play(history)
    for index, conflict in told:
        if conflict is not None:
            assert conflict in naive.races(index)


@given(histories)
@settings(max_examples=200, deadline=None)
def test_the_first_race_is_found(history: list[tuple]) -> None:
    told, naive = play(history)
    first = next((index for index, _ in told if naive.races(index)), None)
    found = next((index for index, conflict in told if conflict is not None), None)
    assert found == first


def test_cells_are_joined_when_all_is_over() -> None:
    ranges, clock = Ranges(1 << 20), StreamClock()
    for n in range(5000):
        clock.tick += 1
        ranges.touch(64 * n, 64 * n + 64, Access(clock, clock.tick, ("", n), True, "task"))
        clock.done = clock.tick
    assert len(ranges) < 2000


def test_never_written_bytes_are_known() -> None:
    ranges, clock = Ranges(100), StreamClock()
    assert ranges.unwritten(0, 100) == 0
    ranges.host(0, 40, write=True)
    ranges.touch(50, 100, Access(clock, 1, ("", 0), True, "task"))
    assert ranges.unwritten(0, 40) is None
    assert ranges.unwritten(10, 60) == 40
    assert ranges.unwritten(50, 100) is None
