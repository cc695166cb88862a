"""When batches go out, over a whole run in virtual time, against the same run without forecasts, as it was before them.

Then a batch went out as soon as its oldest frame had waited long enough and an executor had room, busy or not.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.virtual_run import MS, Camera, VirtualRun, paced
from searching import examples

from pipeline.runtime.executor_forecast import WAKE_NS, ExecutorForecast

Service = Callable[[str, str, int], int]

LOADS = [4, 8, 11, 14, 16]  # of 25 frames/s each; the device carries 17 to 18 of them


@contextmanager
def no_forecasts() -> Iterator[None]:
    """Batches close as soon as their time has come, though the device computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExecutorForecast, "latest_ns", lambda *_: None)
        yield


def stepped(noise: float = 0.0, seed: int = 0) -> Service:
    """A model with the batch sizes 1, 4 and 8 built in; others are padded. 465 frames/s."""
    rng = random.Random(seed)
    table = ((1, 5.2), (4, 12.8), (8, 17.2))
    return lambda _e, _m, frames: int(
        next(time_ms for size, time_ms in table if frames <= size) * MS * (1 + rng.uniform(0, noise))
    )


def linear(noise: float = 0.0, seed: int = 0) -> Service:
    """So long a batch and so long a frame. 465 frames/s."""
    rng = random.Random(seed)
    return lambda _e, _m, frames: int((3.5 + 1.7125 * frames) * MS * (1 + rng.uniform(0, noise)))


devices = st.sampled_from([stepped, linear])


def recordings(count: int, frames: int, model: str = "m", period_ns: int = 100_000) -> list[Camera]:
    return [Camera(f"{model}{i}", model, False, period_ns, 0, frames) for i in range(count)]


def throughput(run: VirtualRun) -> float:
    """Frames per virtual second."""
    return sum(one.frames for one in run.runs) / run.now_ns * 1e9


def lead_ns(run: VirtualRun, frames: int) -> int:
    """A result to the engine, a batch to the executor, its copy; the engine's sleep."""
    return 2 * run.hand_over_ns + run.copy_ns * frames + WAKE_NS


def check_gaps(run: VirtualRun) -> None:
    """The device stands still beside waiting frames only while they wait for company, and for the way to it."""
    for one, gap_ns in run.gaps_ns():
        assert gap_ns <= run.max_wait_ns + lead_ns(run, one.frames), one
    free_ns: dict[str, int] = {}
    for one in run.runs:
        if one.oldest_ns + run.max_wait_ns <= free_ns.get(one.executor, 0):
            assert one.started_ns - free_ns[one.executor] <= lead_ns(run, one.frames), "it had waited long enough"
        free_ns[one.executor] = one.executed_ns


@given(st.integers(0, 2**32), devices, st.sampled_from([0.0, 0.1]), st.sampled_from([1, 3, 16]))
@settings(max_examples=examples(60))
def test_at_full_load_every_frame_is_computed_as_soon_as_before(
    seed: int, device: Callable[..., Service], noise: float, count: int
) -> None:
    cameras = recordings(count, 160 // count)
    slots = [Camera(c.name, c.model, False, c.period_ns, 0, c.frames, 2 + -(-16 // count)) for c in cameras]
    run = VirtualRun(slots, device(noise, seed)).run()
    with no_forecasts():
        before = VirtualRun(slots, device(noise, seed)).run()
    assert throughput(run) >= 0.99 * throughput(before)
    check_gaps(run)
    assert run.detections == before.detections


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.05]), st.sampled_from(LOADS))
@settings(max_examples=examples(60))
def test_at_part_load_frames_wait_no_longer_and_batches_are_no_emptier(seed: int, noise: float, count: int) -> None:
    """Of a device with steps this holds only on average: whether 4 or 5 frames meet is chance, and costs 4 ms."""
    cameras = paced(count, 25, 0.4, random.Random(seed))
    run = VirtualRun(cameras, linear(noise, seed)).run()
    with no_forecasts():
        before = VirtualRun(cameras, linear(noise, seed)).run()
    waits, waits_before = run.waits_ns(), before.waits_ns()
    assert len(waits) >= len(waits_before), "no more is superseded"
    assert statistics.mean(waits) <= statistics.mean(waits_before) + MS
    assert waits[-1] <= waits_before[-1] + 4 * MS, "the time of a batch that has more frames"
    assert run.occupancy >= 0.98 * before.occupancy
    check_gaps(run)


@pytest.mark.parametrize("device", [stepped, linear])
def test_a_device_at_half_load_and_more_has_results_much_sooner(device: Callable[..., Service]) -> None:
    for count in (8, 14, 16) if device is stepped else (14, 16):
        cameras = paced(count, 25, 1.0, random.Random(3))
        waits = VirtualRun(cameras, device(0.03)).run().waits_ns()
        with no_forecasts():
            before = VirtualRun(cameras, device(0.03)).run().waits_ns()
        for share in (0.5, 0.95):
            assert waits[int(share * len(waits))] < 0.85 * before[int(share * len(before))], (count, share)


@given(st.integers(0, 2**32), st.sampled_from([1, 3, 9]), st.integers(1, 3), st.booleans())
@settings(max_examples=examples(60))
def test_batches_of_one_go_out_as_before(seed: int, count: int, lanes: int, live: bool) -> None:
    cameras = paced(count, 25, 0.3, random.Random(seed)) if live else recordings(count, 10, period_ns=3 * MS)
    found = []
    for _ in range(2):
        with no_forecasts() if found else pytest.MonkeyPatch.context():
            found.append(VirtualRun(cameras, linear(), {"executor/0": lanes, "executor/1": lanes}, max_batch=1).run())
    assert found[0].runs == found[1].runs


@given(
    st.integers(0, 2**32),
    devices,
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([0, 1]),
)
@settings(max_examples=examples(90))
def test_with_any_executors_models_and_deaths_all_frames_come_and_no_device_stands_still(
    seed: int, device: Callable[..., Service], lanes: list[int], counts: list[int], live: bool, deaths: int
) -> None:
    rng = random.Random(seed)
    cameras: list[Camera] = []
    for index, count in enumerate(counts):
        model = f"m{index}"
        some = paced(count, 25, 0.4, rng, model) if live else recordings(count, 10, model, 6 * MS)
        cameras += [Camera(f"{model}-{c.name}", model, c.live, c.period_ns, c.first_ns, c.frames) for c in some]
    executors = {f"executor/{index}": each for index, each in enumerate(lanes)}
    kills = [(rng.randrange(300) * MS, rng.choice(list(executors))) for _ in range(deaths)]
    run = VirtualRun(cameras, device(0.05, seed), executors, kills=kills).run()
    for camera in cameras:
        entry = run.dispatcher.cameras[camera.name].ledger.entry()
        assert entry.in_flight == 0
        if not camera.live:
            assert entry.published == camera.frames
    if not deaths:
        held = {name: [one for one in run.runs if one.executor == name] for name in executors}
        assert all(held.values()) or len(executors) > 1
        for one, gap_ns in run.gaps_ns():
            if len(executors) == 1:
                assert gap_ns <= run.max_wait_ns + lead_ns(run, one.frames)


def test_a_model_with_few_frames_is_not_starved_by_one_whose_batches_are_always_full() -> None:
    """A full batch goes at once, and the end of the last one moves on with each: the other must not wait for that."""
    busy = [Camera(f"b{i}", "busy", False, 100_000, 0, 120, 12) for i in range(4)]
    cameras = [*busy, Camera("rare", "rare", True, 100 * MS, 50 * MS, 9)]
    run = VirtualRun(cameras, linear()).run()
    with no_forecasts():
        before = VirtualRun(cameras, linear()).run()
    longest = [max(ns for (name, _), ns in each.latencies_ns.items() if name == "rare") for each in (run, before)]
    assert longest[0] <= longest[1] + 2 * 18 * MS, "it is overtaken by what was under way, and by nothing for ever"


def test_a_batch_in_which_every_live_camera_has_a_frame_waits_for_nothing() -> None:
    one = VirtualRun(paced(1, 25, 0.5, random.Random(1)), linear()).run()
    assert max(one.waits_ns()) < 7 * MS, "5.2 ms of it are the device's"
    together = VirtualRun([Camera(f"c{i}", "m", True, 40 * MS, MS, 10) for i in range(3)], linear()).run()
    assert {each.frames for each in together.runs} == {3}


def test_a_device_that_becomes_slower_or_faster_is_learnt_again() -> None:
    """Its clock is throttled after 0.5 s, and back at 1.5 s."""
    run = VirtualRun(paced(8, 25, 2.5, random.Random(2)), lambda *_: 0)

    def service_ns(_executor: str, _model: str, frames: int) -> int:
        return int((3.5 + 1.7 * frames) * MS * (2.0 if 500 * MS < run.now_ns < 1500 * MS else 1.0))

    run.service_ns = service_ns
    run.run()
    check_gaps(run)
    assert len(run.latencies_ns) == 8 * 62


def test_of_a_frames_time_its_decoding_its_batch_on_the_device_and_its_part_of_nms_are_work() -> None:
    """Whether its batch waited behind another or not."""
    run = VirtualRun(paced(14, 25, 0.4, random.Random(4)), linear()).run()
    service_ns = linear()
    expected = [service_ns("", "", one.frames) + run.nms_ns for one in run.runs for _ in range(one.frames)]
    assert any(one.started_ns > one.uploaded_ns for one in run.runs)
    assert sorted(run.works_ns) == sorted(expected)


@pytest.mark.parametrize("service_ms", [300, 430, 492, 600, 800])
@pytest.mark.parametrize("cameras", [7, 8, 12, 16])
def test_a_device_that_takes_half_of_the_allowed_age_for_a_batch_computes_nothing_for_nothing(
    service_ms: int, cameras: int
) -> None:
    """12 cameras on a device of 600 ms for a batch: 3 of some 200 frames were published, all others were too old."""
    run = VirtualRun(paced(cameras, 10, 20, random.Random(1)), lambda *_: service_ms * MS).run()
    published = {name: len(found) for name, found in run.detections.items()}
    computed = sum(one.frames for one in run.runs)
    assert sum(published.values()) >= 0.9 * computed
    assert computed >= 0.85 * min(8, cameras) * 20_000 / service_ms, "the device is as busy as it was"
    fair = sum(published.values()) / cameras
    assert all(fair / 1.6 <= published.get(camera.name, 0) <= fair * 1.6 for camera in run.cameras), published
