"""Owns the command line that would make a model's OM, and the AIPP file that goes with it. Runs nothing.

Source: options of ATC and template of its AIPP file. For ONNX ``--input_format`` is NCHW or ND; with AIPP it must be
NCHW, whatever the layout of the bytes that AIPP takes (uint8, NHWC or NV12).
"""

from __future__ import annotations

import shlex
from pathlib import Path

from stages.accelerators.ascend.om_check import NV12_BIAS
from stages.accelerators.probe import describe
from stages.errors import CampipeError
from stages.model import ModelSpec, OmSpec

DEFAULT_SOC = "Ascend310P3"
EXAMPLE_BATCH = 8
EXAMPLE_GEARS = (1, 4, 8)
NV12_ROWS = ((298, 0, 409), (298, -100, -208), (298, 516, 0))  # to R, G, B; times 256; BT.601, narrow range


def atc_command(model: ModelSpec, soc: str = "", om: OmSpec | None = None) -> str:
    """``atc --framework=5 …`` for this model as ``om`` describes its file.

    Without ``om``: with the batch that its ONNX file has built in, or 8, and without AIPP.
    """
    om = om or OmSpec(str(Path(model.path).with_suffix(".om")), "", model.fixed_batch or EXAMPLE_BATCH)
    planes = model.input_layout == "nchw"
    frame = (3, model.height, model.width) if planes else (model.height, model.width, 3)
    shape = ",".join(map(str, (om.batch if isinstance(om.batch, int) else -1, *frame)))
    words = [
        "atc",
        "--framework=5",
        f"--model={model.path}",
        f"--output={_output(model, om).with_suffix('')}",
        f"--input_format={'NCHW' if planes else 'ND'}",
        f"--input_shape={_input_name(model)}:{shape}",
    ]
    if not isinstance(om.batch, int):
        words.append(f"--dynamic_batch_size={','.join(map(str, om.batch))}")
    if om.aipp != "none":
        words.append(f"--insert_op_conf={_aipp_file(model, om)}")
    words.append(f"--soc_version={soc or om.soc or DEFAULT_SOC}")
    return shlex.join(words)


def aipp_config(model: ModelSpec, om: OmSpec) -> str:
    """The content of the AIPP file, in one line: what turns the picture that ``om`` takes into the model's input."""
    fields: list[tuple[str, object]] = [
        ("aipp_mode", "static"),
        ("input_format", "YUV420SP_U8" if om.aipp == "nv12" else "RGB888_U8"),
        ("src_image_size_w", model.width),
        ("src_image_size_h", model.height),
        ("csc_switch", "true" if om.aipp == "nv12" else "false"),
        ("rbuv_swap_switch", "true" if om.aipp in ("rgb", "bgr") and om.aipp != model.channels else "false"),
    ]
    if om.aipp == "nv12":
        rows = NV12_ROWS if model.channels == "rgb" else NV12_ROWS[::-1]
        fields += [(f"matrix_r{r}c{c}", number) for r, row in enumerate(rows) for c, number in enumerate(row)]
        fields += [(f"input_bias_{n}", bias) for n, bias in enumerate(NV12_BIAS)]
    for channel, (mean, std) in enumerate(zip(model.mean, model.std, strict=True)):
        whole = int(min(max(mean, 0), 255))  # a byte, and float16 for the rest: so that nothing is rounded away
        fields += [
            (f"mean_chn_{channel}", whole),
            (f"min_chn_{channel}", f"{mean - whole:.6g}"),
            (f"var_reci_chn_{channel}", f"{1 / std:.9g}"),
        ]
    return "aipp_op { " + " ".join(f"{key}: {value}" for key, value in fields) + " }"


def no_om(model: ModelSpec, soc: str = "") -> str:
    """The refusal of a model without an OM, with the ways to one."""
    name = Path(model.path).with_suffix(".om").name
    batch = model.fixed_batch or EXAMPLE_BATCH
    text = (
        f"model {model.name}: its description has no section `om`, which Ascend devices need; convert the model with "
        f"`{atc_command(model, soc)}` and write `om: {{file: {name}, batch: {batch}}}` into its description"
    )
    if model.fixed_batch is not None or model.input_layout != "nchw" or not model.input_dtype.startswith("float"):
        return text
    best = OmSpec(str(Path(model.path).with_suffix(".om")), "", EXAMPLE_GEARS, model.channels)
    return (
        f"{text}; or, with several batches and with the pixels' arithmetic on the card, {_with_aipp(model, best, soc)} "
        f"and `om: {{file: {name}, batch: {list(EXAMPLE_GEARS)}, aipp: {best.aipp}}}`"
    )


def missing_om(model: ModelSpec, om: OmSpec, soc: str = "") -> str:
    """The refusal of an OM that is described and is not there, with the command that makes it."""
    text = f"model {model.name}: its OM {om.path or 'file'} is not there; correct om.file"
    if om.path:
        file = Path(om.path)
        near = sorted(each.name for each in file.parent.glob(f"{file.stem}_linux_*.om"))
        if near:
            return f"{text}: {', '.join(near)} is (atc appends system and processor)"
    if om.aipp != "none" and model.input_layout != "nchw":
        return (
            f"{text}, or set `aipp: none`: for ONNX models, AIPP needs planes (NCHW), and this one takes rows of pixels"
        )
    if om.aipp == "none":
        return f"{text}, or convert it: `{atc_command(model, soc, om)}`"
    return f"{text}, or convert it: {_with_aipp(model, om, soc)}"


def _with_aipp(model: ModelSpec, om: OmSpec, soc: str) -> str:
    return f"`{atc_command(model, soc, om)}` with `{aipp_config(model, om)}` in `{_aipp_file(model, om)}`"


def _output(model: ModelSpec, om: OmSpec) -> Path:
    return Path(om.path) if om.path else Path(model.path)


def _aipp_file(model: ModelSpec, om: OmSpec) -> str:
    return str(_output(model, om).with_suffix(".aipp.cfg"))


def _input_name(model: ModelSpec) -> str:
    try:
        return describe(model.path, width=model.width, height=model.height).inputs[0].name
    except (CampipeError, IndexError):  # the command is an example then
        return "images"
