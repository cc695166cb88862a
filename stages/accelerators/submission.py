"""Owns what every device checks of a submission before it touches memory. Knows no device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.errors import BadItem
from stages.model import ModelSpec


def check_batch(
    spec: ModelSpec, max_batch: int, frames: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]
) -> None:
    """Raise BadItem unless the number of frames fits, ValueError unless a device may write into ``outputs``.

    Devices write by address: through a wrong array they would destroy memory.
    """
    if not 1 <= len(frames) <= max_batch:
        raise BadItem("infer_failed", f"{len(frames)} frames do not fit a batch of 1 to {max_batch}")
    for tensor, array in zip(spec.outputs, outputs, strict=True):
        shape = (len(frames), *tensor.shape)
        if array.shape != shape or array.dtype != tensor.dtype:
            raise ValueError(f"output {tensor.name}: {array.shape} {array.dtype}, not {shape} {tensor.dtype}")
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError(f"output {tensor.name}: the array is not contiguous or not writable")


def check_frame(shape: tuple[int, ...], frame: NDArray[Any]) -> None:
    """Raise BadItem unless the frame is uint8 of this (height, width, 3)."""
    if frame.shape != shape or frame.dtype != np.uint8:
        found = "x".join(map(str, frame.shape))
        raise BadItem("bad_frame", f"is {found} {frame.dtype}, not {'x'.join(map(str, shape))} uint8")
