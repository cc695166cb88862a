"""The forecast of memory: from a plan, what sources say and what a device took; and the trial run that tells it."""

from __future__ import annotations

import dataclasses
import time
import types
from functools import cache
from typing import Any

import pytest

from pipeline.assets import street_clip
from pipeline.config import replay_site, resolve
from pipeline.plan import DevicePlan, RunPlan
from pipeline.planning import make_plan
from pipeline.preflight import rehearsal
from pipeline.preflight.memory_forecast import MIB, forecast
from pipeline.preflight.rehearsal import NoRoom, Slow, load_models, rehearse
from pipeline.runtime.rings import shared_memory_bytes
from stages.accelerators.accelerator import RunTimes
from stages.accelerators.canned import CannedDevice, CannedOptions
from stages.decode.choose import source_of
from stages.decode.source import SourceFacts
from stages.errors import BadItem, CampipeError, DeviceFailed

FACTS = SourceFacts(1920, 1080, 25.0, "h264", "yuv420p", "rtsp", None, None, 0, None, 40_000_000)


@cache
def plain(cameras: int) -> RunPlan:
    return make_plan(resolve(replay_site([street_clip()], copies=cameras)))


def plan(cameras: int = 2, **changes: Any) -> RunPlan:
    made = plain(cameras)
    return dataclasses.replace(made, cameras=tuple(dataclasses.replace(each, **changes) for each in made.cameras))


def decoders(facts: SourceFacts | None, cameras: int = 1, **changes: Any) -> float:
    made = plan(cameras, **changes)
    sources = {} if facts is None else {camera.name: facts for camera in made.cameras}
    return forecast(made, sources, {}).kinds["decode"] / MIB


def test_every_part_of_a_run_is_in_the_forecast() -> None:
    made = plan()
    found = forecast(made, {}, {"cpu": 100 * MIB})
    assert set(found.kinds) == {"engine", "forkserver", "tracker", "nms", "executor", "decode"}
    assert all(size > MIB for size in found.kinds.values())
    assert found.own_bytes == sum(found.kinds.values())
    assert found.shared_bytes == sum(shared_memory_bytes(made).values())
    assert found.all_bytes == found.own_bytes + found.shared_bytes
    assert found.kinds["executor"] - forecast(made, {}, {}).kinds["executor"] == 100 * MIB
    assert "observe" in forecast(dataclasses.replace(made, observe="127.0.0.1:9"), {}, {}).kinds


def test_a_decoder_holds_pictures_of_its_size_and_those_that_it_holds_back() -> None:
    small = dataclasses.replace(FACTS, width=640, height=360)
    assert decoders(small) < decoders(FACTS) < decoders(dataclasses.replace(FACTS, held_back=2))
    assert decoders(dataclasses.replace(FACTS, codec="mjpeg")) < decoders(FACTS)
    assert decoders(FACTS, 3) == pytest.approx(3 * decoders(FACTS))
    assert decoders(FACTS, preload=True) > decoders(FACTS) + 10
    assert decoders(FACTS, network=True) > decoders(FACTS)
    assert decoders(None) == pytest.approx(decoders(FACTS))  # one that could not be looked at may be large


def test_a_file_says_how_many_pictures_are_held_back() -> None:
    source = source_of(plan(1).cameras[0])
    try:
        assert 0 <= source.open().held_back <= 16
    finally:
        source.close()


class Refusing(CannedDevice):
    """Its lanes never end, or end with ``answer``."""

    def __init__(self, answer: RunTimes | Exception) -> None:
        super().__init__(CannedOptions(), time.monotonic_ns)
        self._answer = answer

    def lanes(self, count: int) -> Any:
        class Lanes:
            wake_fd = None

            def submit(self, *_: object) -> None:
                pass

            def finished(lanes: Any) -> Any:
                return [(0, self._answer)]

            def close(self) -> None:
                pass

        return Lanes()


def test_a_trial_run_fills_every_lane_of_every_executor() -> None:
    made = plan(1)
    submitted: list[int] = []

    class Counting(CannedDevice):
        def lanes(self, count: int) -> Any:
            lanes = super().lanes(count)
            submit = lanes.submit

            def counted(lane: int, model: str, frames: Any, outputs: Any) -> None:
                submitted.append(len(frames))
                submit(lane, model, frames, outputs)

            lanes.submit = counted  # type: ignore[method-assign]
            return lanes

    device = Counting(CannedOptions(service_ms=1.0), time.monotonic_ns)
    device.open()
    device.load(made.models[0], 4)
    try:
        taken = rehearse(device, DevicePlan("canned:0", 3, 1, 2), made.models, {made.models[0].name: 4})
    finally:
        device.close()
    assert submitted == [4] * 6
    assert taken > MIB


@pytest.mark.parametrize("answer", [BadItem("infer_failed", "no"), DeviceFailed("gone"), ValueError("odd")])
def test_a_trial_run_that_fails_is_told(answer: Exception) -> None:
    made = plan(1)
    with pytest.raises(CampipeError, match=str(answer).rpartition(" ")[2]):
        rehearse(Refusing(answer), DevicePlan("canned:0", 2, 1, 2), made.models, {made.models[0].name: 1})


def test_a_device_that_another_run_has_filled_is_no_problem_of_the_trial_run() -> None:
    made = plan(1)
    with pytest.raises(NoRoom, match="no model is loaded"):
        rehearse(
            CannedDevice(CannedOptions(), time.monotonic_ns),
            DevicePlan("canned:0", 2, 1, 2),
            made.models,
            {"coco-ssd": 1},
        )


def rehearse_slowly(monkeypatch: pytest.MonkeyPatch, service_s: float, count: int = 3) -> int:
    """So many models on two lanes of a device that takes so long for each run, in virtual time."""
    now_s = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda _: now_s.__setitem__(0, now_s[0] + 0.5))
    monkeypatch.setattr(rehearsal, "time", clock)

    class Lanes:
        wake_fd = None

        def __init__(self) -> None:
            self.ends_s: list[float] = []

        def submit(self, *_: object) -> None:
            self.ends_s.append(max([now_s[0], *self.ends_s]) + service_s)

        def finished(self) -> list[tuple[int, None]]:
            ended = [each for each in self.ends_s if each <= now_s[0]]
            self.ends_s = [each for each in self.ends_s if each > now_s[0]]
            return [(0, None)] * len(ended)

        def close(self) -> None:
            pass

    device: Any = type("Device", (), {"lanes": lambda *_: Lanes()})()
    models = [dataclasses.replace(plan(1).models[0], name=f"m{index}") for index in range(count)]
    return rehearse(device, DevicePlan("canned:0", 1, 1, 2), models, dict.fromkeys((m.name for m in models), 1))


def test_all_runs_together_may_take_longer_than_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rehearse_slowly(monkeypatch, 11.0) > MIB, "66 s for all"


def test_a_device_that_works_slowly_is_no_device_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Slow, match=r"^slow, 3 of 6 runs of blank pictures in 75 s$"):
        rehearse_slowly(monkeypatch, 20.0)


def test_a_device_on_which_no_run_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceFailed, match="model m0: no end of a run of blank pictures for 60 s"):
        rehearse_slowly(monkeypatch, 100.0)


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("failing", ["load", "rehearse"])
def test_a_device_that_the_run_of_the_same_site_has_filled_is_no_problem_of_the_site(
    monkeypatch: pytest.MonkeyPatch, failing: str, runs: bool
) -> None:
    def fail(*_: object) -> None:
        raise DeviceFailed("device canned:0: out of memory")

    monkeypatch.setattr(*((CannedDevice, "load") if failing == "load" else (rehearsal, "rehearse")), fail)
    made = plan(1)
    device = DevicePlan("canned:0", 1, 1, 2)
    if not runs:
        with pytest.raises(DeviceFailed, match="out of memory"):
            load_models(device, made.models, {"coco-ssd": 1})
        return
    opened = load_models(device, made.models, {"coco-ssd": 1}, runs=True)
    assert opened.own_bytes == 0
    assert opened.facts[-1].startswith("canned:0: not tried with all lanes, and its memory is not known: ")
    assert "out of memory" in opened.facts[-1]


@pytest.mark.parametrize("runs", [False, True])
def test_a_card_that_fails_after_all_lanes_were_tried_is_not_said_to_have_been_tried_without_them(
    monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    def fail(*_: object) -> None:
        raise DeviceFailed("device ascend:0: out of memory")

    opened_as_canned = rehearsal.open_device
    monkeypatch.setattr(rehearsal, "open_device", lambda _, *args, **more: opened_as_canned("canned:0", *args, **more))
    monkeypatch.setattr("pipeline.models.verify_device.run_on", fail)
    made = plan(1)
    device = DevicePlan("ascend:0", 1, 1, 2)
    if not runs:
        with pytest.raises(DeviceFailed, match="out of memory"):
            load_models(device, made.models, {"coco-ssd": 1})
        return
    opened = load_models(device, made.models, {"coco-ssd": 1}, runs=True)
    assert opened.facts[-1] == "ascend:0: not held against ONNX files: device ascend:0: out of memory"
    assert not any("not tried with all lanes" in fact for fact in opened.facts)
    assert opened.raw == {}


def test_what_is_slow_is_a_fact_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "WHOLE_S", -1.0)
    opened = load_models(DevicePlan("canned:0", 1, 1, 2, {"service_ms": "20"}), plan(1).models, {"coco-ssd": 1})
    assert opened.own_bytes == 0
    assert "not tried with all lanes, and its memory is not known: slow, 0 of 2 runs" in opened.facts[-1]
