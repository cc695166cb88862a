"""Whether a device gives what the ONNX file gives: the same, rounded, red and blue exchanged, scaled otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ascend.driving import tiny_spec

from pipeline.models.verify_device import Raw, judge, run_on
from pipeline.models.verify_variants import with_other_channels, with_scaling
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


@pytest.mark.parametrize("aipp", ["none", "rgb", "bgr"])
def test_a_card_gives_what_the_file_gives(model: ModelSpec, aipp: str) -> None:
    model = replace(model, om=OmSpec("", "", (1, 4), aipp))  # type: ignore[arg-type]
    device = AscendDevice("ascend-sim:0", ascend_options("ascend-sim:0", {}, simulated=True), 1, 2, time.monotonic_ns)
    device.open()
    device.load(model, 4)
    given = run_on(device, model)
    device.close()
    assert "INT8" not in judge(model, "ascend:0", given)
