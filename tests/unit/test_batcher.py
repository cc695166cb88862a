"""Batcher rules by table, and fairness against a plain model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from stages.batch import Batcher


@dataclass
class Item:
    camera: str
    arrived_ns: int
    number: int = 0
    alone: bool = False


def batcher(max_batch: int = 4, max_wait_ns: int = 100, live: bool = False, cameras: str = "abc") -> Batcher[Item]:
    made: Batcher[Item] = Batcher()
    made.add_model("m", max_batch, max_wait_ns)
    for name in cameras:
        made.add_camera(name, "m", live=live, max_age_ns=1000)
    return made


def test_nothing_waits_nothing_is_due() -> None:
    assert batcher().due_ns("m", more_can_come=True) is None


def test_a_partial_batch_is_due_after_max_wait_a_full_one_at_once() -> None:
    b = batcher(max_batch=2)
    b.put(Item("a", 50))
    assert b.due_ns("m", more_can_come=True) == 150
    b.put(Item("b", 60))
    assert b.due_ns("m", more_can_come=True) == 0


def test_a_partial_batch_does_not_wait_when_nobody_can_add_to_it() -> None:
    b = batcher(max_batch=8)
    b.put(Item("a", 50))
    assert b.due_ns("m", more_can_come=False) == 0


def test_the_oldest_frame_decides_even_when_its_camera_is_last_in_rotation() -> None:
    b = batcher(max_batch=8)
    b.put(Item("c", 10))
    b.put(Item("a", 70))
    assert b.due_ns("m", more_can_come=True) == 110


def test_a_silent_camera_is_never_waited_for_beyond_max_wait() -> None:
    b = batcher(max_batch=3)
    b.put(Item("a", 0))
    batch, _ = b.take("m", 100)
    assert [i.camera for i in batch] == ["a"]


def test_a_frame_that_is_suspect_goes_alone_and_order_is_kept() -> None:
    b = batcher(max_batch=8, cameras="a")
    for number in range(4):
        b.put(Item("a", number, number))
    first, _ = b.take("m", 0)
    for item in first[:2]:
        item.alone = True
    b.put_back(first)
    sizes = []
    numbers = []
    while b.waiting("m"):
        batch, _ = b.take("m", 0)
        sizes.append(len(batch))
        numbers += [i.number for i in batch]
    assert sizes == [1, 1, 2]
    assert numbers == [0, 1, 2, 3]


def test_live_keeps_the_newest_and_names_the_superseded() -> None:
    b = batcher(live=True)
    assert b.put(Item("a", 0, 0)) == []
    assert [i.number for i in b.put(Item("a", 1, 1))] == [0]
    assert b.waiting("m") == 1


def test_live_frames_that_are_too_old_are_not_run() -> None:
    b = batcher(live=True)
    b.put(Item("a", 0))
    b.put(Item("b", 2000))
    batch, too_old = b.take("m", 2500)
    assert [i.camera for i in batch] == ["b"]
    assert [i.camera for i in too_old] == ["a"]
    assert b.waiting("m") == 0


def test_removing_a_camera_gives_its_frames_back() -> None:
    b = batcher()
    b.put(Item("a", 0, 7))
    b.put(Item("b", 0, 8))
    assert [i.number for i in b.remove_camera("a")] == [7]
    assert b.waiting("m") == 1
    assert [i.camera for i in b.take("m", 0)[0]] == ["b"]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=80), st.integers(1, 9))
def test_every_frame_leaves_once_in_its_cameras_order(events: list[tuple[str, bool]], max_batch: int) -> None:
    b = batcher(max_batch, cameras="abcd")
    put: dict[str, list[int]] = {c: [] for c in "abcd"}
    got: dict[str, list[int]] = {c: [] for c in "abcd"}

    def take() -> None:
        batch, too_old = b.take("m", 0)
        assert len(batch) <= max_batch
        assert not too_old
        for item in batch:
            got[item.camera].append(item.number)

    for number, (camera, also_take) in enumerate(events):
        b.put(Item(camera, number, number))
        put[camera].append(number)
        if also_take:
            take()
    while b.waiting("m"):
        take()
    assert got == put


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 20), min_size=1), st.integers(1, 12))
def test_a_batch_is_shared_as_evenly_as_waiting_frames_allow(waiting: dict[str, int], max_batch: int) -> None:
    b = batcher(max_batch, cameras="abcd")
    for camera, count in waiting.items():
        for number in range(count):
            b.put(Item(camera, number))
    batch, _ = b.take("m", 0)
    share = Counter(i.camera for i in batch)
    assert len(batch) == min(max_batch, sum(waiting.values()))
    for camera, count in waiting.items():
        for other, others_count in waiting.items():
            # nobody gets two more than another who still had frames waiting
            if share[camera] > share[other] + 1:
                assert share[other] == others_count, (share, waiting)
        assert share[camera] <= count


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["put", "take", "back", "change", "withdraw"])), max_size=60
    )
)
def test_what_waits_is_counted_whatever_happens_to_it(events: list[tuple[str, str]]) -> None:
    b = batcher(3, cameras="abcd")
    live = dict.fromkeys("abcd", False)
    waiting: dict[str, list[int]] = {name: [] for name in live}
    taken: list[Item] = []
    for number, (camera, what) in enumerate(events):
        match what:
            case "put":
                b.put(Item(camera, number * 100, number))
                waiting[camera] = [*([] if live[camera] else waiting[camera]), number]
            case "take":
                taken, too_old = b.take("m", number * 100, at_most=1 + number % 3)
                for item in (*taken, *too_old):
                    waiting[item.camera].remove(item.number)
            case "back":
                b.put_back(taken)
                for item in reversed(taken):
                    waiting[item.camera].insert(0, item.number)
                taken = []
            case "change":
                live[camera] = not live[camera]
                b.change_camera(camera, live=live[camera], max_age_ns=1000)
            case "withdraw":
                assert [item.number for item in b.withdraw(camera)] == waiting[camera]
                waiting[camera] = []
        assert b.waiting("m") == sum(map(len, waiting.values()))
        assert b.waiting("m", live_only=True) == sum(len(waiting[name]) for name in live if live[name])


def test_fewer_are_taken_when_fewer_are_asked_for() -> None:
    b = batcher(max_batch=4)
    for camera in "abc":
        b.put(Item(camera, 0))
    assert [item.camera for item in b.take("m", 0, at_most=2)[0]] == ["a", "b"]
    assert [item.camera for item in b.take("m", 0, at_most=9)[0]] == ["c"]
