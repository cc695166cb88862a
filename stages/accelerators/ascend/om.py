"""Owns what a loaded OM says of itself, read by the vendor's calls. Does not own what it should say (``om_check``).

Sizes and shapes are those of the largest gear; the image input of a model with static AIPP shows as what AIPP takes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.accelerators.ascend.calls import Acl
from stages.accelerators.ascend.constants import (
    AIPP_NONE,
    AIPP_STATIC,
    DTYPES,
    DYNAMIC_AIPP_NAME,
    DYNAMIC_TENSOR_NAME,
    SHAPE_BYTES,
)
from stages.accelerators.ascend.errors import AclError
from stages.errors import UserError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OmTensor:
    """An input or output: ``dims`` with the batch axis (-1 where it is open), ``size_bytes`` for the largest gear."""

    index: int
    name: str
    dims: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OmFacts:
    """What the file is. ``batches``: one built-in batch, or the gears in ascending order."""

    picture: OmTensor
    outputs: tuple[OmTensor, ...]
    batches: tuple[int, ...]
    inputs: int  # all of them, the one that carries the gear included
    shape_index: int | None  # position of that one; None: the batch is built in
    shape_bytes: int
    aipp: Mapping[str, Any] | None  # the vendor's dictionary for static AIPP

    @property
    def dynamic(self) -> bool:
        """Whether the batch is chosen per run."""
        return self.shape_index is not None

    @property
    def most_frames(self) -> int:
        """Frames of the largest run."""
        return self.batches[-1]

    def gear(self, frames: int) -> int:
        """The smallest batch that holds so many frames; the largest when none does."""
        return next((batch for batch in self.batches if batch >= frames), self.batches[-1])


def read_om(acl: Acl, label: str, model_id: int, desc: int) -> OmFacts:
    """Read the facts through a filled description. Raises UserError for kinds of OM that are not supported."""
    mdl = acl.mdl
    count = mdl.get_num_inputs(desc)
    names = [mdl.get_input_name_by_index(desc, index) for index in range(count)]
    shape_index = next((i for i, name in enumerate(names) if name == DYNAMIC_TENSOR_NAME), None)
    if DYNAMIC_AIPP_NAME in names:
        raise UserError(f"{label}: {_DYNAMIC_AIPP}")
    pictures = [index for index in range(count) if index != shape_index]
    if len(pictures) != 1:
        listed = ", ".join(names[index] for index in pictures) or "none"
        raise UserError(
            f"{label}: the OM has {len(pictures)} inputs ({listed}); convert a model with the picture as its only input"
        )
    picture = _input(acl, desc, pictures[0], names[pictures[0]])
    aipp = _aipp(acl, label, model_id, picture)
    batches: tuple[int, ...] = ()
    if shape_index is not None:  # a static model has none; some versions may not like to be asked
        gears = mdl.get_dynamic_batch(desc)
        batches = tuple(sorted(gears["batch"][: gears["batchCount"]]))
    if shape_index is not None and not batches:
        raise UserError(
            f"{label}: the OM leaves the picture's size open (dynamic image size or dims); "
            "convert it with a fixed size, and --dynamic_batch_size for several batches"
        )
    outputs = tuple(_output(acl, desc, index) for index in range(mdl.get_num_outputs(desc)))
    open_axes = [t.name for t in (picture, *outputs) if any(d < 0 for d in t.dims[1:])]
    if open_axes or not picture.dims or not picture.size_bytes:
        named = ", ".join(open_axes) or picture.name
        raise UserError(f"{label}: the OM leaves sizes of {named} open; convert it with fixed sizes (--input_shape)")
    return OmFacts(
        picture,
        outputs,
        batches or (picture.dims[0],),
        count,
        shape_index,
        max(SHAPE_BYTES, mdl.get_input_size_by_index(desc, shape_index)) if shape_index is not None else 0,
        aipp,
    )


_DYNAMIC_AIPP = (
    "the OM has dynamic AIPP, which is not supported; convert it with static AIPP (aipp_mode: static), or without AIPP"
)


def _aipp(acl: Acl, label: str, model_id: int, picture: OmTensor) -> Mapping[str, Any] | None:
    """The parameters of static AIPP, empty where this CANN does not tell them; None: the model has no AIPP.

    What can't be asked does not keep a model from running: then the picture's type tells (AIPP takes bytes), and its
    size is compared all the same.
    """
    mdl = acl.mdl
    try:
        kind, _ = mdl.get_aipp_type(model_id, picture.index)
    except AclError as error:
        if error.needs_new_process:
            raise
        kind = AIPP_STATIC if picture.dtype == "uint8" else AIPP_NONE
        log.warning("%s: whether it has AIPP is taken from its input's type, %s: %s", label, picture.dtype, error)
    if kind not in (AIPP_NONE, AIPP_STATIC):
        raise UserError(f"{label}: {_DYNAMIC_AIPP}")
    if kind == AIPP_NONE:
        return None
    if mdl.get_first_aipp_info is None:
        return {}
    try:
        return mdl.get_first_aipp_info(model_id, picture.index) or {}
    except AclError as error:
        if error.needs_new_process:
            raise
        log.warning("%s: what its AIPP does is not checked: %s", label, error)
        return {}


def _dims(told: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(told["dims"][: told["dimCount"]])


def _input(acl: Acl, desc: int, index: int, name: str) -> OmTensor:
    dims = _dims(acl.mdl.get_input_dims(desc, index))
    dtype = DTYPES.get(acl.mdl.get_input_data_type(desc, index), "an unknown type")
    return OmTensor(index, name, dims, dtype, acl.mdl.get_input_size_by_index(desc, index))


def _output(acl: Acl, desc: int, index: int) -> OmTensor:
    dims = _dims(acl.mdl.get_output_dims(desc, index))
    dtype = DTYPES.get(acl.mdl.get_output_data_type(desc, index), "an unknown type")
    name = acl.mdl.get_output_name_by_index(desc, index)
    return OmTensor(index, name, dims, dtype, acl.mdl.get_output_size_by_index(desc, index))


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a tensor; 0 for a type that numpy has not."""
    try:
        return math.prod(shape) * np.dtype(dtype).itemsize
    except TypeError:
        return 0
