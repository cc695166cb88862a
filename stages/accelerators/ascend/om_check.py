"""Owns the comparison of an OM with its model's description. Reads no file and asks no device."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stages.accelerators.ascend.constants import AIPP_RGB888, AIPP_YUV420SP
from stages.accelerators.ascend.om import OmFacts, OmTensor, tensor_bytes
from stages.accelerators.onnx_check import shape_text
from stages.model import ModelSpec, OmSpec, TensorSpec

# BT.601, narrow range, as NV12 frames are made here; the elements that can be read back (times 256), and the bias
NV12_MATRIX = {"matrixR0C0": 298, "matrixR0C1": 0, "matrixR1C0": 298, "matrixR1C1": -100, "matrixR1C2": -208}
NV12_BIAS = (16, 128, 128)
_BY_POSITION = re.compile(r"output_\d+_(?P<node>.+)_(?P<number>\d+)")
MEAN_TOLERANCE = 0.07  # grey levels; AIPP keeps means as bytes and float16, whose steps are 0.125 from 128 on
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

    By name where the file has the names, which ATC gives in several forms (``onnx_names``); else by position; else by
    shape and type, where there is one way only (``--out_nodes`` may name them in any order).
    """
    where = f"model {model.name}: om"
    named = outputs_by_name(model, facts)
    if named is None and len(model.outputs) != len(facts.outputs):
        has = ", ".join(t.name for t in facts.outputs)
        wants = ", ".join(t.name for t in model.outputs)
        problem = f"{where}: the file has the outputs {has}, its description {wants}"
        return [], [f"{problem}; convert the model with these outputs (--out_nodes), or correct the description"]
    found = named if named is not None else list(facts.outputs)
    most = facts.most_frames
    wrong = [pair for pair in zip(found, model.outputs, strict=True) if not _fits(*pair, most)]
    if wrong and named is None:
        fitting = [[t for t in facts.outputs if _fits(t, wanted, most)] for wanted in model.outputs]
        if all(len(each) == 1 for each in fitting) and len({each[0].index for each in fitting}) == len(fitting):
            return [each[0] for each in fitting], []
    problems = [
        f"{where}: output {tensor.name} is {shape_text(_open(tensor.dims[1:]))} {tensor.dtype} per frame, but the "
        f"model's description makes {shape_text(wanted.shape)} {wanted.dtype}; correct its shape, type or name"
        for tensor, wanted in wrong
    ]
    return found, problems


def outputs_by_name(model: ModelSpec, facts: OmFacts) -> list[OmTensor] | None:
    """The outputs that have the names of the description; None unless each of them is there once."""
    by_name: dict[str, list[OmTensor]] = {}
    for tensor in facts.outputs:
        for name in onnx_names(tensor.name):
            by_name.setdefault(name, []).append(tensor)
    found = [by_name.get(wanted.name, []) for wanted in model.outputs]
    if any(len(each) != 1 for each in found) or len({each[0].index for each in found}) != len(found):
        return None
    return [each[0] for each in found]


def onnx_names(name: str) -> set[str]:
    """What an output may be called in the ONNX file, by the name that ATC gave it.

    ``node:0:tensor``, ``node:0`` and ``output_2_node_0`` are its forms; exporters of PyTorch call the tensor of a node
    ``node_output_0``. Source: how the graph engine names outputs when it describes a model.
    """
    names = {name}
    node, _, rest = name.partition(":")
    number, colon, tensor = rest.partition(":")
    if colon and number.isdecimal():
        names.add(tensor)
        return names
    formed = _BY_POSITION.fullmatch(name)
    if formed is not None:
        node, number = formed["node"], formed["number"]
    if number.isdecimal():
        names.add(f"{node}_output_{number}")
        if int(number) == 0:
            names.add(node)
    return names


def taken_by_guess(model: ModelSpec, facts: OmFacts, found: Sequence[OmTensor]) -> str:
    """Which outputs could be one another's, for all that names, shapes and types tell; empty: none."""
    if outputs_by_name(model, facts) is not None:
        return ""
    most = facts.most_frames
    pairs = zip(model.outputs, found, strict=True)
    doubtful = [
        f"{tensor.name} as {wanted.name}"
        for wanted, tensor in pairs
        if sum(_fits(other, wanted, most) for other in facts.outputs) > 1
    ]
    return ", ".join(doubtful)


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
        kind = {AIPP_YUV420SP: "nv12", AIPP_RGB888: "rgb"}.get(int(_number(facts.aipp, "inputFormat") or 0), "")
        remedy = f"set `aipp: {kind}`" if kind else "convert it for RGB888_U8 or YUV420SP_U8"
        return [f"{where}: the file has AIPP built in, but its description says none; {remedy}"]
    problems = []
    picture = facts.picture
    shape, dtype = _wanted_input(model, om)
    dims = tuple(picture.dims[1:])
    if dims[-1:] == (1,) and len(dims) == len(shape) + 1:
        dims = dims[:-1]  # NV12 shows as lines, width, 1
    needed = facts.most_frames * tensor_bytes(shape, dtype)
    # all that static AIPP takes are bytes: some versions show the type of the network's own input all the same
    shown_as_networks = facts.aipp is not None and picture.size_bytes == needed
    if picture.dtype != dtype and not shown_as_networks:
        problems.append(
            f"{where}: input {picture.name} is {picture.dtype}, but its description makes {dtype}; "
            "correct `aipp` or the input's dtype, or convert the model again"
        )
    elif picture.size_bytes < needed or not _same(dims, shape, model, om):
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
    # other readings of get_input_dims with AIPP: the network's own input, and for NV12 the picture, not its planes
    if om.aipp != "none" and tuple(dims) == (3, model.height, model.width):
        return True
    return om.aipp == "nv12" and tuple(dims)[:2] == (model.height, model.width)


def _aipp_problems(where: str, model: ModelSpec, om: OmSpec, aipp: Mapping[str, Any]) -> list[str]:
    """What is told and contradicts; what this version of CANN does not tell is not judged."""
    wanted = AIPP_YUV420SP if om.aipp == "nv12" else AIPP_RGB888
    found = _number(aipp, "inputFormat")
    if found is not None and found != wanted:
        name = {1: "YUV420SP_U8", 2: "XRGB8888_U8", 3: "RGB888_U8", 4: "YUV400_U8"}.get(int(found), f"format {found:g}")
        return [f"{where}: its AIPP takes {name}, but its description says aipp: {om.aipp}; correct one of them"]
    problems = []
    swaps, converts = _number(aipp, "rbuvSwapSwitch"), _number(aipp, "cscSwitch")
    if om.aipp == "nv12":
        rows_of: dict[str, int] = (
            NV12_MATRIX if model.channels == "rgb" else {**NV12_MATRIX, "matrixR0C1": 516}
        )  # rows B, G, R
        elements = rows_of | {f"inputBias{n}": bias for n, bias in enumerate(NV12_BIAS)}
        other = any(_number(aipp, key) not in {None, value} for key, value in elements.items())
        if swaps or converts == 0 or other:
            problems.append(
                f"{where}: its AIPP does not turn NV12 of BT.601 narrow range into {model.channels.upper()}; set "
                "csc_switch: true, rbuv_swap_switch: false and that matrix in the AIPP file, and convert it again"
            )
    elif converts or (swaps is not None and bool(swaps) != (om.aipp != model.channels)):
        problems.append(
            f"{where}: its AIPP {'swaps' if swaps else 'does not swap'} red and blue"
            f"{' and converts colours' if converts else ''}, but pictures are {om.aipp} and the model "
            f"takes {model.channels}; correct `aipp`, or set rbuv_swap_switch: "
            f"{'true' if om.aipp != model.channels else 'false'} and csc_switch: false and convert it again"
        )
    if any(_number(aipp, key) for key in ("cropSwitch", "paddingSwitch", "resizeSwitch")):
        problems.append(
            f"{where}: its AIPP crops, pads or resizes; frames come in the model's size: convert it without"
        )
    for channel in range(3):
        subtracted = [_number(aipp, f"{key}Chn{channel}") for key in ("mean", "min")]
        factor = _number(aipp, f"varReciChn{channel}")
        mean = sum(each for each in subtracted if each is not None)
        scale = 1 / model.std[channel]
        means_differ = subtracted != [None, None] and abs(mean - model.mean[channel]) > MEAN_TOLERANCE
        if means_differ or (factor is not None and abs(factor - scale) > SCALE_TOLERANCE * abs(scale)):
            by = "" if factor is None else f" and multiplies by {factor:g}"
            problems.append(
                f"{where}: its AIPP subtracts {mean:g}{by} in channel {channel}, but the "
                f"model's input says mean {model.mean[channel]:g} and std {model.std[channel]:g}; correct one of them"
            )
            break
    return problems


def _number(aipp: Mapping[str, Any], key: str) -> float | None:
    """A parameter; None where it is not told. Elements of the matrix are ``matrixR0C1`` in some documents, ``R0C1`` in
    others."""
    value = aipp.get(key, aipp.get(key.removeprefix("matrix")))
    return None if value is None else float(value)


def _open(dims: Sequence[int]) -> tuple[int | None, ...]:
    return tuple(None if d < 0 else d for d in dims)
