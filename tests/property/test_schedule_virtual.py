"""When batches go out, over a whole run in virtual time, against the same run decided in simpler ways.

Without forecasts a batch goes out as soon as its oldest frame has waited long enough and an executor has room, busy or
not. Without sizes a free device is given all that is there once the oldest has waited ``max_wait_ms``.
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

from pipeline.runtime import schedule
from pipeline.runtime.device_load import DeviceLoad
from pipeline.runtime.executor_forecast import WAKE_NS, ExecutorForecast

Service = Callable[[str, str, int], int]

LOADS = [4, 8, 11, 14, 16]  # of 25 frames/s each; the device carries 17 to 18 of them


@contextmanager
def no_forecasts() -> Iterator[None]:
    """Batches close as soon as their time has come, though the device computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExecutorForecast, "latest_ns", lambda *_: None)
        yield


@contextmanager
def no_sizes() -> Iterator[None]:
    """A free device waits for as long as it may, and gets all that is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule.Schedule, "_company_ns", lambda *args: args[-1])
        patch.setattr(schedule, "first_part", lambda frames, _took: frames)
        yield


@contextmanager
def known_to_have_time() -> Iterator[None]:
    """Devices have time left from the first moment on, in which nobody knows that yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceLoad, "pressed", lambda *_: False)
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


def built_for_four(noise: float = 0.0, seed: int = 0) -> Service:
    """One frame takes as long as four. 444 frames/s."""
    rng = random.Random(seed)
    return lambda _e, _m, frames: int(-(-frames // 4) * 9 * MS * (1 + rng.uniform(0, noise)))


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
    with known_to_have_time():
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
    together = VirtualRun([Camera(f"c{i}", "m", True, 40 * MS, MS, 25) for i in range(3)], stepped()).run()
    assert [each.frames for each in together.runs[-5:]] == [3] * 5
    assert max(ns for (_, seq), ns in together.latencies_ns.items() if seq >= 20) < 16 * MS, (
        "12.8 of it are the device's"
    )


def test_a_device_that_becomes_slower_or_faster_is_learnt_again() -> None:
    """Its clock is throttled after 0.5 s, and back at 1.5 s."""
    run = VirtualRun(paced(8, 25, 2.5, random.Random(2)), lambda *_: 0)

    def service_ns(_executor: str, _model: str, frames: int) -> int:
        return int((3.5 + 1.7 * frames) * MS * (2.0 if 500 * MS < run.now_ns < 1500 * MS else 1.0))

    run.service_ns = service_ns
    run.run()
    check_gaps(run)
    assert len(run.latencies_ns) >= 8 * 62 - 1, "at most one came too late for the next of its camera, when it changed"


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


def in_bursts(count: int, fps: float, seconds: float, rng: random.Random) -> list[Camera]:
    """Cameras of recorders with four each: a recorder sends the frames of all of them within 2 ms."""
    period_ns = int(1e9 / fps)
    first_ns = [1 + rng.randrange(period_ns) for _ in range(-(-count // 4))]
    return [
        Camera(f"c{i:02}", "m", True, period_ns, first_ns[i // 4] + rng.randrange(2 * MS), int(seconds * fps))
        for i in range(count)
    ]


def settled_ns(run: VirtualRun) -> list[int]:
    """As ``waits_ns``, of frames after the device and the cameras have become known."""
    return sorted(ns for (_, seq), ns in run.latencies_ns.items() if seq >= 15)


@pytest.mark.parametrize("arrivals", [paced, in_bursts])
@pytest.mark.parametrize("device", [stepped, linear, built_for_four])
def test_live_frames_have_their_results_no_later_than_if_a_free_device_waited_at_any_load(
    device: Callable[..., Service], arrivals: Callable[..., list[Camera]]
) -> None:
    """Of one set of phases this holds only on average: of a few together."""
    most = {"max_batch": 4} if device is built_for_four else {}
    for count in (2, 4, 9):
        waits: list[int] = []
        waits_before: list[int] = []
        for seed in range(3):
            cameras = arrivals(count, 25, 1.2, random.Random(seed))
            waits += settled_ns(VirtualRun(cameras, device(0.03), **most).run())
            with no_sizes():
                waits_before += settled_ns(VirtualRun(cameras, device(0.03), **most).run())
        assert len(waits) >= len(waits_before), "no more is superseded"
        assert statistics.mean(waits) <= 1.02 * statistics.mean(waits_before), count
        late, late_before = (statistics.quantiles(each, n=20)[-1] for each in (waits, waits_before))
        assert late <= 1.25 * late_before, count


def in_one_burst(count: int, fps: float, seconds: float) -> list[Camera]:
    """All send within 3 ms."""
    period_ns, rng = int(1e9 / fps), random.Random(count)
    return [Camera(f"c{i}", "m", True, period_ns, MS + rng.randrange(3 * MS), int(seconds * fps)) for i in range(count)]


def eight_or_padded(_executor: str, _model: str, _frames: int) -> int:
    """A model with a fixed batch of 8. 465 frames/s."""
    return int(17.2 * MS)


@pytest.mark.parametrize("executors", [1, 2])
def test_a_fixed_batch_that_just_fits_between_two_bursts_loses_no_frames_at_the_start(executors: int) -> None:
    """A device that got the first frame of a burst for itself had to compute three batches of which two fit."""
    lanes = {f"executor/{index}": 2 for index in range(executors)}
    cameras = in_one_burst(16 * executors, 25, 0.8)
    run = VirtualRun(cameras, eight_or_padded, lanes).run()
    assert sum(camera.frames for camera in cameras) == len(run.latencies_ns), "none was superseded"
    assert {one.frames for one in run.runs} == {8}


@pytest.mark.parametrize("device", [stepped(), eight_or_padded])
def test_near_saturation_bursts_for_two_models_do_not_delay_each_other(device: Service) -> None:
    """The first frame of a burst, taken alone, put the batches of both models off: p99 from 31 to 46 and 54 ms."""
    bursts = [Camera(f"a{c.name}", "a", True, c.period_ns, c.first_ns, c.frames) for c in in_one_burst(8, 25, 1.2)]
    cameras = [*bursts, *(Camera(f"b{c.name}", "b", True, c.period_ns, c.first_ns, c.frames) for c in bursts)]
    run = VirtualRun(cameras, device, late_ns=3 * MS).run()
    with no_sizes():
        before = VirtualRun(cameras, device, late_ns=3 * MS).run()
    assert sum(camera.frames for camera in cameras) == len(run.latencies_ns), "none was superseded"
    assert settled_ns(run)[-1] <= 1.05 * settled_ns(before)[-1]


def test_near_saturation_frames_wait_for_company_that_costs_nothing_though_nobody_knows_when_it_comes() -> None:
    """Recorders of four cameras each that send within 2 ms, and late by up to 3: of one frame as dear as four."""
    rng = random.Random(3)
    cameras = in_bursts(16, 25, 1.6, rng)
    run = VirtualRun(cameras, built_for_four(0.03), max_batch=4, late_ns=3 * MS).run()
    with no_sizes():
        before = VirtualRun(cameras, built_for_four(0.03), max_batch=4, late_ns=3 * MS).run()
    assert run.occupancy >= 0.98 * before.occupancy
    assert statistics.mean(settled_ns(run)) <= 1.03 * statistics.mean(settled_ns(before))


def test_at_low_load_a_frame_does_not_wait_for_company_that_makes_it_late() -> None:
    for count, device in ((2, stepped), (4, stepped), (4, linear)):
        cameras = paced(count, 25, 1.4, random.Random(count))
        waits = settled_ns(VirtualRun(cameras, device(0.03)).run())
        with no_sizes():
            before = settled_ns(VirtualRun(cameras, device(0.03)).run())
        assert statistics.median(waits) < 0.75 * statistics.median(before), (count, device)


def test_cameras_of_one_recorder_share_batches_that_cost_no_more_for_it() -> None:
    run = VirtualRun(in_bursts(4, 25, 1.2, random.Random(1)), built_for_four(0.03), max_batch=4).run()
    assert {one.frames for one in run.runs[-10:]} == {4}


def test_a_camera_that_does_not_come_in_time_is_not_waited_for_any_longer() -> None:
    """One of four stops half way."""
    cameras = in_bursts(4, 25, 2, random.Random(1))
    cameras[3] = Camera("c03", "m", True, 40 * MS, cameras[3].first_ns, 25)
    run = VirtualRun(cameras, built_for_four(0.03), max_batch=4).run()
    assert {one.frames for one in run.runs[-10:]} == {3}
    assert max(settled_ns(run)) < 14 * MS, "9 of it are the device's, 2 the burst's"


def test_two_frames_are_run_one_after_the_other_where_that_is_sooner_and_together_again_when_it_no_longer_is() -> None:
    """The device changes after two seconds. Until then two frames take 12.8 ms together, 10.4 one after the other."""
    run = VirtualRun(paced(5, 25, 8, random.Random(5)), lambda *_: 0)
    before, after = stepped(0.03), built_for_four(0.03)

    def service_ns(executor: str, model: str, frames: int) -> int:
        return (before if run.now_ns < 2000 * MS else after)(executor, model, frames)

    run.service_ns = service_ns
    run.run()
    first = [one.frames for one in run.runs if 500 * MS < one.given_ns < 2000 * MS]
    assert sum(size == 2 for size in first) <= len(first) / 32
    assert sum(one.frames == 2 for one in run.runs if one.given_ns > 6000 * MS) > 20


@given(st.integers(0, 2**32), devices, st.sampled_from([1, 2, 5]))
@settings(max_examples=examples(30))
def test_recordings_wait_for_full_batches_and_are_computed_as_before(
    seed: int, device: Callable[..., Service], count: int
) -> None:
    """Decoding is slower than the device: it is free now and then."""
    cameras = recordings(count, 40, period_ns=4 * MS)
    run = VirtualRun(cameras, device(0.03, seed)).run()
    with no_sizes():
        before = VirtualRun(cameras, device(0.03, seed)).run()
    assert run.detections == before.detections
    assert run.now_ns <= 1.02 * before.now_ns
    if device is linear:
        assert run.runs == before.runs
