"""Owns what stands for a model's OM on the simulator. Does not own the file's form (``aclsim.om``)."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from typing import Any

from stages.accelerators.ascend.atc import DEFAULT_SOC, NV12_ROWS
from stages.accelerators.ascend.om_file import kind_of_om
from stages.accelerators.onnx_session import check_digest
from stages.errors import UserError
from stages.model import ModelSpec, OmSpec, TensorSpec

log = logging.getLogger(__name__)


def simulated_om(model: ModelSpec, max_batch: int, stack: ExitStack, *, canned: bool) -> OmSpec:
    """The model's own OM when it is a simulated one, else one derived from its ONNX file, which is logged.

    The derived one is a file without a name, so that nothing is left behind however the process ends; ``stack`` closes
    it.
    A real OM can't be run here; what the description says of it is simulated: batch, AIPP, chip. Without a section
    ``om`` the batch is that of the ONNX file, or the powers of two up to ``max_batch``. Raises UserError for an OM that
    is named and is not there, is damaged, or is something else.
    """
    from stages.accelerators.aclsim.om import OmDescription

    om, why = model.om, "its description names no OM"
    if om is not None and om.path:
        label = f"model {model.name}: om"
        kind = kind_of_om(label, om.path)
        check_digest(label, om.path, om.sha256)
        if kind == "simulated":
            try:
                OmDescription.read(om.path)
            except UserError as error:
                raise UserError.of([f"{label}: {problem}" for problem in error.problems]) from None
            return om
        why = f"{om.path} is for a card, and only what its description says of it is simulated"
    if om is None:
        om = OmSpec("", "", _batches(model.fixed_batch, max_batch))
    log.info("model %s: simulated from its ONNX file, with batch %s: %s", model.name, om.batch, why)
    description = _describe(model, om, canned=canned)
    fd = os.memfd_create(f"{model.name}.om")
    stack.callback(os.close, fd)
    path = f"/proc/self/fd/{fd}"
    description.write(path)
    return OmSpec(path, "", om.batch, om.aipp, om.soc)


def _batches(fixed: int | None, most: int) -> int | tuple[int, ...]:
    if fixed is not None:
        return fixed
    if most == 1:
        return 1
    return (*(1 << n for n in range((most - 1).bit_length())), most)


def _describe(model: ModelSpec, om: OmSpec, *, canned: bool) -> Any:
    from stages.accelerators.aclsim.om import OmDescription, describe

    soc = om.soc or DEFAULT_SOC
    aipp = _aipp(model, om)
    if not canned:
        return describe(model.path, batch=om.batch, aipp=aipp, soc=soc, width=model.width, height=model.height)
    shape = (3, model.height, model.width) if model.input_layout == "nchw" else (model.height, model.width, 3)
    return OmDescription(
        model.path,
        om.batch,
        soc,
        aipp,
        input=TensorSpec("images", shape, model.input_dtype),
        outputs=model.outputs,
        onnx_batch=model.fixed_batch,
    )


def _aipp(model: ModelSpec, om: OmSpec) -> Any:
    from stages.accelerators.aclsim.om import Aipp

    if om.aipp == "none":
        return None
    factors = tuple(1 / std for std in model.std)
    if om.aipp == "nv12":
        ordered = NV12_ROWS if model.channels == "rgb" else NV12_ROWS[::-1]
        matrix = tuple(number for row in ordered for number in row)
        return Aipp("YUV420SP_U8", model.mean, factors, rbuv_swap=False, matrix=matrix)
    return Aipp("RGB888_U8", model.mean, factors, rbuv_swap=om.aipp != model.channels)
