"""Owns the command line that would make a model's OM. Runs nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

from stages.accelerators.probe import describe
from stages.errors import CampipeError
from stages.model import ModelSpec

DEFAULT_SOC = "Ascend310P3"
EXAMPLE_BATCH = 8


def atc_command(model: ModelSpec, soc: str = "") -> str:
    """``atc --framework=5 …`` for this model, with the batch that its ONNX file has built in, or 8."""
    batch = model.fixed_batch or EXAMPLE_BATCH
    planes = model.input_layout == "nchw"
    frame = (3, model.height, model.width) if planes else (model.height, model.width, 3)
    shape = ",".join(map(str, (batch, *frame)))
    path = Path(model.path)
    words = [
        "atc",
        "--framework=5",
        f"--model={path}",
        f"--output={path.with_suffix('')}",
        f"--input_format={'NCHW' if planes else 'NHWC'}",
        f"--input_shape={_input_name(model)}:{shape}",
        f"--soc_version={soc or DEFAULT_SOC}",
    ]
    return shlex.join(words)


def no_om(model: ModelSpec, soc: str = "") -> str:
    """The refusal of a model without an OM, with the way to one."""
    name = Path(model.path).with_suffix(".om").name
    batch = model.fixed_batch or EXAMPLE_BATCH
    return (
        f"model {model.name}: its description has no section `om`, which Ascend devices need; convert the model with "
        f"`{atc_command(model, soc)}` and write `om: {{file: {name}, batch: {batch}}}` into its description"
    )


def _input_name(model: ModelSpec) -> str:
    try:
        return describe(model.path, width=model.width, height=model.height).inputs[0].name
    except (CampipeError, IndexError):  # the command is an example then
        return "images"
