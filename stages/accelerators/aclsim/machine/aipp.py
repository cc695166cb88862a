"""Owns what static AIPP makes of pixels, on the CPU. Does not own the model behind it.

Order as on the device: channel swap, colour conversion, mean and factor, float16. The hardware's rounding of integer
steps is not documented: results may differ from it by one grey level.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.aclsim.om import Aipp, OmDescription


def apply_aipp(om: OmDescription, picture: NDArray[np.uint8]) -> NDArray[Any]:
    """From uint8 (n, lines, width, channels) to float16 (n, 3, h, w), or (n, h, w, 3) for a model that takes that."""
    aipp = om.aipp
    assert aipp is not None
    pixels = _pixels(aipp, picture, om.size)
    mean = np.asarray(aipp.mean, np.float32)
    factor = np.asarray(aipp.var_reci, np.float32)
    values = ((pixels.astype(np.float32) - mean) * factor).astype(np.float16)
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if om.planes else values


def _pixels(aipp: Aipp, picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[Any]:
    if aipp.input == "YUV420SP_U8":
        return _from_nv12(aipp, picture, size)
    if aipp.input == "XRGB8888_U8":
        picture = picture[..., 1:]
    return picture[..., ::-1] if aipp.rbuv_swap and aipp.input != "YUV400_U8" else picture


def _from_nv12(aipp: Aipp, picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[Any]:
    height, width = size
    planes = picture.reshape(len(picture), height * 3 // 2, width)
    luma = planes[:, :height].astype(np.int32)
    chroma = planes[:, height:].reshape(len(picture), height // 2, width // 2, 2)
    if aipp.rbuv_swap:
        chroma = chroma[..., ::-1]
    wide = chroma.repeat(2, axis=1).repeat(2, axis=2).astype(np.int32)
    yuv = np.concatenate([luma[..., None], wide], axis=3) - np.asarray(aipp.input_bias, np.int32)
    matrix = np.asarray(aipp.matrix, np.int32).reshape(3, 3)
    rgb: NDArray[np.int32] = np.clip((yuv @ matrix.T) >> 8, 0, 255)
    return rgb
