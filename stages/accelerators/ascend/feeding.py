"""Owns how a frame becomes the input of an OM: uint8 pixels where AIPP is built in, else as for the ONNX file.

Knows no device: it writes into memory that it is given.
"""

from __future__ import annotations

from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from stages.accelerators.pixels import PixelWriter
from stages.accelerators.submission import check_frame
from stages.model import ModelSpec, OmSpec


class Feeder(Protocol):
    """Writes frames. Holds scratch memory: one feeder per thread."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one frame."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the input."""

    def write(self, frame: NDArray[Any], destination: NDArray[Any]) -> None:
        """Write one uint8 (height, width, 3) frame to a contiguous ``input_shape`` array.

        Raises BadItem when the frame is of another size or type.
        """


def feeder_of(model: ModelSpec, om: OmSpec) -> Feeder:
    """The feeder for this OM."""
    if om.aipp == "none":
        return PixelWriter(model)
    if om.aipp == "nv12":
        return Nv12Feeder(model)
    return PictureFeeder(model, swap=om.aipp != model.channels)


class PictureFeeder:
    """Pixels as they are, three bytes each; ``swap``: red and blue change places."""

    def __init__(self, model: ModelSpec, *, swap: bool) -> None:
        self.input_shape = (model.height, model.width, 3)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self._swap = swap

    def write(self, frame: NDArray[Any], destination: NDArray[Any]) -> None:
        """See Feeder."""
        check_frame(self.input_shape, frame)
        if self._swap:
            cv2.cvtColor(frame, cv2.COLOR_RGB2BGR, destination)
        else:
            np.copyto(destination, frame)


class Nv12Feeder:
    """NV12, half the bytes: a full plane of Y, then U and V in turn for each 2x2 pixels; BT.601, narrow range.

    cv2 gives the planes one after the other (I420); U and V are interleaved here.
    """

    def __init__(self, model: ModelSpec) -> None:
        self.input_shape = (model.height * 3 // 2, model.width)
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self._frame_shape = (model.height, model.width, 3)
        self._convert = cv2.COLOR_RGB2YUV_I420 if model.channels == "rgb" else cv2.COLOR_BGR2YUV_I420
        self._planes = np.empty(self.input_shape, np.uint8)

    def write(self, frame: NDArray[Any], destination: NDArray[Any]) -> None:
        """See Feeder."""
        check_frame(self._frame_shape, frame)
        height, width, _ = self._frame_shape
        cv2.cvtColor(frame, self._convert, self._planes)
        np.copyto(destination[:height], self._planes[:height])
        u, v = self._planes[height:].reshape(2, height // 2, width // 2)
        pairs = destination[height:].reshape(height // 2, width // 2, 2)
        pairs[..., 0] = u
        pairs[..., 1] = v
