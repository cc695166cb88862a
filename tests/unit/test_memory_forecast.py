"""The forecast of memory: from a plan, what sources say and what a device took; and the trial run that tells it."""

from __future__ import annotations

import dataclasses
import time
from functools import cache
from typing import Any

import pytest

from pipeline.assets import street_clip
from pipeline.config import replay_site, resolve
from pipeline.memory_forecast import MIB, forecast
from pipeline.plan import DevicePlan, RunPlan
from pipeline.planning import make_plan
from pipeline.rehearsal import NoRoom, rehearse
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
