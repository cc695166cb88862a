"""Owns the comparison of an OM with its model's description. Reads no file and asks no device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stages.accelerators.ascend.constants import AIPP_RGB888, AIPP_YUV420SP
from stages.accelerators.ascend.om import OmFacts, OmTensor, tensor_bytes
from stages.accelerators.onnx_check import shape_text
from stages.model import ModelSpec, OmSpec, TensorSpec

# BT.601, narrow range, as NV12 frames are made here; the elements that can be read back (times 256), and the bias
NV12_MATRIX = {"matrixR0C0": 298, "matrixR0C1": 0, "matrixR1C0": 298, "matrixR1C1": -100, "matrixR1C2": -208}
NV12_BIAS = (16, 128, 128)
MEAN_TOLERANCE = 0.01  # grey levels
SCALE_TOLERANCE = 0.002  # of the factor: AIPP files carry few digits


def om_problems(model: ModelSpec, om: OmSpec, facts: OmFacts, soc: str) -> list[str]:
    """Where the file contradicts the description; each a sentence with its remedy. Empty: none."""
    where = f"model {model.name}: om"
    problems = []
    if om.soc and soc and om.soc.lower() != soc.lower():
        problems.append(
            f"{where}: it is described as made for {om.soc}, but this chip is {soc}; convert the model again with "
            f"--soc_version={soc}"
        )
    told = om.batch if isinstance(om.batch, tuple) else (om.batch,)
    if told != facts.batches or isinstance(om.batch, tuple) != facts.dynamic:
        has = f"the batches {list(facts.batches)}" if facts.dynamic else f"the batch {facts.batches[0]} built in"
        batch = list(facts.batches) if facts.dynamic else facts.batches[0]
        problems.append(f"{where}: the file has {has}, but its description says {om.batch}; set `batch: {batch}`")
    problems += _input_problems(where, model, om, facts)
    _, missing = match_outputs(model, facts)
    return problems + missing


def match_outputs(model: ModelSpec, facts: OmFacts) -> tuple[list[OmTensor], list[str]]:
    """The file's outputs in the order of ``model.outputs``, and what is wrong with them.

    By name where the file has the names: ATC keeps them, after the node's own (``Concat_5:0:rows``); else by position.
    """
    by_name = {tensor.name.rsplit(":", 1)[-1]: tensor for tensor in facts.outputs}
    where = f"model {model.name}: om"
    named = all(t.name in by_name for t in model.outputs)
    if not named and len(model.outputs) != len(facts.outputs):
        has = ", ".join(t.name for t in facts.outputs)
        wants = ", ".join(t.name for t in model.outputs)
        problem = f"{where}: the file has the outputs {has}, its description {wants}"
        return [], [f"{problem}; convert the model with these outputs (--out_nodes), or correct the description"]
    found = [by_name[t.name] for t in model.outputs] if named else list(facts.outputs)
    problems = [
        f"{where}: output {tensor.name} is {shape_text(_open(tensor.dims[1:]))} {tensor.dtype} per frame, but the "
        f"model's description makes {shape_text(wanted.shape)} {wanted.dtype}; correct its shape, type or name"
        for tensor, wanted in zip(found, model.outputs, strict=True)
        if not _fits(tensor, wanted, facts.most_frames)
    ]
    return found, problems


def _fits(tensor: OmTensor, wanted: TensorSpec, frames: int) -> bool:
    # float16 widens to float32 without loss: an OM may give its outputs in half the bytes
    widened = tensor.dtype == "float16" and wanted.dtype == "float32"
    size_bytes = frames * tensor_bytes(wanted.shape, tensor.dtype)
    return (
        math.prod(tensor.dims[1:]) == math.prod(wanted.shape)
        and (tensor.dtype == wanted.dtype or widened)
        and tensor.size_bytes >= size_bytes  # it may be rounded up
    )


def _input_problems(where: str, model: ModelSpec, om: OmSpec, facts: OmFacts) -> list[str]:
    if (om.aipp == "none") != (facts.aipp is None):
        if facts.aipp is None:
            problem = f"{where}: its description says aipp: {om.aipp}, but the file has no AIPP"
            return [f"{problem}; set `aipp: none`, or convert the model with --insert_op_conf"]
        kind = {AIPP_YUV420SP: "nv12", AIPP_RGB888: "rgb"}.get(int(facts.aipp.get("inputFormat", 0)), "")
        remedy = f"set `aipp: {kind}`" if kind else "convert it for RGB888_U8 or YUV420SP_U8"
        return [f"{where}: the file has AIPP built in, but its description says none; {remedy}"]
    problems = []
    picture = facts.picture
    shape, dtype = _wanted_input(model, om)
    dims = tuple(picture.dims[1:])
    if dims[-1:] == (1,) and len(dims) == len(shape) + 1:
        dims = dims[:-1]  # NV12 shows as lines, width, 1
    if picture.dtype != dtype:
        problems.append(
            f"{where}: input {picture.name} is {picture.dtype}, but its description makes {dtype}; "
            "correct `aipp` or the input's dtype, or convert the model again"
        )
    elif picture.size_bytes < facts.most_frames * tensor_bytes(shape, dtype) or not _same(dims, shape, model, om):
        problems.append(
            f"{where}: input {picture.name} is {shape_text(_open(picture.dims))} ({picture.size_bytes} bytes), but its "
            f"description makes {shape_text((None, *shape))}; correct width, height and layout, or convert it again"
        )
    if facts.aipp:
        problems += _aipp_problems(where, model, om, facts.aipp)
    return problems


def _wanted_input(model: ModelSpec, om: OmSpec) -> tuple[tuple[int, ...], str]:
    if om.aipp == "nv12":
        return (model.height * 3 // 2, model.width), "uint8"
    if om.aipp != "none":
        return (model.height, model.width, 3), "uint8"
    planes = model.input_layout == "nchw"
    return ((3, model.height, model.width) if planes else (model.height, model.width, 3)), model.input_dtype


def _same(dims: Sequence[int], shape: Sequence[int], model: ModelSpec, om: OmSpec) -> bool:
    if tuple(dims) == tuple(shape):
        return True
    # the other reading of get_input_dims for NV12: the picture, not its planes
    return om.aipp == "nv12" and tuple(dims)[:2] == (model.height, model.width)


def _aipp_problems(where: str, model: ModelSpec, om: OmSpec, aipp: Mapping[str, Any]) -> list[str]:
    problems = []
    wanted = AIPP_YUV420SP if om.aipp == "nv12" else AIPP_RGB888
    found = int(aipp.get("inputFormat", 0))
    if found != wanted:
        name = {1: "YUV420SP_U8", 2: "XRGB8888_U8", 3: "RGB888_U8", 4: "YUV400_U8"}.get(found, f"format {found}")
        problems.append(
            f"{where}: its AIPP takes {name}, but its description says aipp: {om.aipp}; correct one of them"
        )
        return problems
    swapped = bool(aipp.get("rbuvSwapSwitch", 0))
    if om.aipp == "nv12":
        matrix = {key: int(_element(aipp, key)) for key in NV12_MATRIX}
        bias = tuple(int(aipp.get(f"inputBias{n}", 0)) for n in range(3))
        rows_of = NV12_MATRIX if model.channels == "rgb" else {**NV12_MATRIX, "matrixR0C1": 516}  # rows B, G, R
        if swapped or not aipp.get("cscSwitch", 0) or matrix != rows_of or bias != NV12_BIAS:
            problems.append(
                f"{where}: its AIPP does not turn NV12 of BT.601 narrow range into {model.channels.upper()}; set "
                "csc_switch: true, rbuv_swap_switch: false and that matrix in the AIPP file, and convert it again"
            )
    elif swapped != (om.aipp != model.channels) or aipp.get("cscSwitch", 0):
        problems.append(
            f"{where}: its AIPP {'swaps' if swapped else 'does not swap'} red and blue"
            f"{' and converts colours' if aipp.get('cscSwitch', 0) else ''}, but pictures are {om.aipp} and the model "
            f"takes {model.channels}; correct `aipp`, or set rbuv_swap_switch: "
            f"{'true' if om.aipp != model.channels else 'false'} and csc_switch: false and convert it again"
        )
    if int(aipp.get("cropSwitch", 0)) or int(aipp.get("paddingSwitch", 0)) or int(aipp.get("resizeSwitch", 0)):
        problems.append(
            f"{where}: its AIPP crops, pads or resizes; frames come in the model's size: convert it without"
        )
    for channel in range(3):
        mean = float(aipp.get(f"meanChn{channel}", 0)) + float(aipp.get(f"minChn{channel}", 0))
        factor = float(aipp.get(f"varReciChn{channel}", 1))
        scale = 1 / model.std[channel]
        if abs(mean - model.mean[channel]) > MEAN_TOLERANCE or abs(factor - scale) > SCALE_TOLERANCE * abs(scale):
            problems.append(
                f"{where}: its AIPP subtracts {mean:g} and multiplies by {factor:g} in channel {channel}, but the "
                f"model's input says mean {model.mean[channel]:g} and std {model.std[channel]:g}; correct one of them"
            )
            break
    return problems


def _element(aipp: Mapping[str, Any], key: str) -> Any:
    """An element of the matrix: the documents can be read as ``matrixR0C1`` and as ``R0C1``."""
    return aipp.get(key, aipp.get(key.removeprefix("matrix"), 0))


def _open(dims: Sequence[int]) -> tuple[int | None, ...]:
    return tuple(None if d < 0 else d for d in dims)
