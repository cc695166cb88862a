"""Whether a device gives what the ONNX file gives: the same, rounded, red and blue exchanged, scaled otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ascend.driving import tiny_spec
from made.plans import run_plan
from made.specs import model_spec

from pipeline.models.verify_device import Raw, judge, run_on
from pipeline.models.verify_variants import with_other_channels, with_scaling
from pipeline.plan import DevicePlan
from pipeline.preflight import trial
from pipeline.preflight.rehearsal import Opened
from pipeline.runtime.isolated import NoAnswer
from stages.accelerators.ascend.device import AscendDevice
from stages.accelerators.ascend.options import ascend_options
from stages.accelerators.registry import open_device
from stages.errors import UserError
from stages.model import ModelSpec, OmSpec


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    return replace(tiny_spec(tmp_path), std=(255.0, 255.0, 255.0))


def on_cpu(model: ModelSpec) -> Raw:
    device = open_device("cpu", 1, {})
    device.open()
    try:
        device.load(model, 1)
        return run_on(device, model)
    finally:
        device.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda raw: raw, "by 0 of their size, on drawn pictures"),
        (lambda raw: [[a.astype(np.float16) for a in outputs] for outputs in raw], "on drawn pictures"),
        (lambda raw: [[a + a.std() * 2 for a in outputs] for outputs in raw], "INT8 may do that"),
    ],
    ids=["same", "half", "other"],
)
def test_how_near_a_device_comes_is_said(model: ModelSpec, change: Callable[[Raw], Raw], says: str) -> None:
    line = judge(model, "ascend:0", change(on_cpu(model)))
    assert line.startswith("tiny: its numbers differ from those of the ONNX file by ")
    assert line.partition(":")[2].count("INT8") == says.count("INT8")
    assert says in line


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (with_other_channels, "if that is fed with channels bgr: red and blue are exchanged; correct `aipp`"),
        (lambda model: with_scaling(model, "0..255"), "fed with scaling 0..255: what scales the pixels differs"),
    ],
    ids=["channels", "scaling"],
)
def test_a_device_file_that_was_made_wrongly_is_refused_by_its_cause(
    model: ModelSpec, wrong: Callable[[ModelSpec], ModelSpec], says: str
) -> None:
    given = on_cpu(wrong(model))
    with pytest.raises(UserError, match="model tiny: on ascend:0 its numbers differ") as caught:
        judge(model, "ascend:0", given)
    assert says in str(caught.value)


def test_an_onnx_file_that_has_other_outputs_than_the_cards_own_is_no_fault_of_the_card(model: ModelSpec) -> None:
    given = on_cpu(model)
    other = replace(model, outputs=tuple(replace(each, name=f"cut/{each.name}") for each in model.outputs))
    line = judge(other, "ascend:0", given)
    assert line.startswith("tiny: not held against its ONNX file: ")
    assert "no output 'cut/" in line


def test_what_is_wrong_with_one_model_of_a_card_does_not_hide_what_is_wrong_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: dict[str, str | UserError] = {
        "good": "good: near",
        "swapped": UserError("model swapped: red and blue are exchanged"),
        "crash": NoAnswer("looking into it ended its process (status -11)"),
        "strange": UserError("model strange: scaled otherwise"),
    }

    def call(_context: object, _timeout_s: float, _function: object, model: ModelSpec, *_: object) -> str:
        answer = said[model.name]
        if isinstance(answer, UserError):
            raise answer
        return answer

    monkeypatch.setattr(trial, "call_in_process", call)
    device = DevicePlan("ascend:0", 1, 1, 2)
    plan = run_plan("gate", devices=(device,), models=tuple(model_spec(name=name) for name in (*said, "untried")))
    lines, problems = trial.held_against_files(plan, device, Opened(0.1, raw={name: [] for name in said}))
    assert lines == ["  good: near"]
    assert problems == [
        "model swapped: red and blue are exchanged",
        "model crash: running its ONNX file on the CPU: looking into it ended its process (status -11)",
        "model strange: scaled otherwise",
    ]


@pytest.mark.parametrize("batch", [4, (1, 4)])
@pytest.mark.parametrize("aipp", ["none", "rgb", "bgr", "nv12"])
def test_a_card_gives_what_the_file_gives(model: ModelSpec, aipp: Any, batch: int | tuple[int, ...]) -> None:
    model = replace(model, om=OmSpec("", "", batch, aipp))
    device = AscendDevice("ascend-sim:0", ascend_options("ascend-sim:0", {}, simulated=True), 1, 2, time.monotonic_ns)
    device.open()
    device.load(model, 4)
    given = run_on(device, model)
    device.close()
    told = judge(model, "ascend:0", given)
    assert ("NV12, which has fewer colours" in told) == (aipp == "nv12")
    assert ("INT8" in told) == (aipp == "nv12"), "it is no reason otherwise"
