"""Owns the short way from a frame's planes to a smaller picture: shrunk first, coloured last. Not slots, not borders.

Colours of all pixels cost more than anything else where four, nine or more of them become one. Shrinking and the change
from YUV to RGB are both linear, so their order can be turned round: what comes out differs from the long way
(``PictureConverter``, then ``letterbox.resize``) by rounding, and by what edges of strong colours exceed RGB. That
holds where the crop is a whole multiple of its place in the model's input, as 1280x720, 1920x1080 and 3840x2160 are of
640x360: then the pixels that ``INTER_LINEAR`` looks at share whole chroma samples. Other frames take the long way.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import cv2
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from stages.decode.upright import quarter_turns
from stages.letterbox import Geometry, Placed

_FULL_RANGE: Final = 2  # AVCOL_RANGE_JPEG
# Kr and Kb by AVColorSpace: ITU-R BT.709, BT.601 (also where nothing is said, as swscale does), BT.2020
_WEIGHTS: Final = {1: (0.2126, 0.0722), 2: (0.299, 0.114), 5: (0.299, 0.114), 6: (0.299, 0.114), 9: (0.2627, 0.0593)}


def colour_matrix(space: int, *, full: bool, channels: Literal["rgb", "bgr"]) -> NDArray[np.float64] | None:
    """(3, 4): of Y, U, V and 1 to the channels, all 0..255; None for a space that isn't known here.

    Source: ITU-R BT.601, BT.709, BT.2020, with Y in 16..235 and U, V in 16..240, or all in 0..255 when ``full``.
    """
    weights = _WEIGHTS.get(space)
    if weights is None:
        return None
    kr, kb = weights
    kg = 1 - kr - kb
    luma, chroma, black = (1.0, 1.0, 0.0) if full else (255 / 219, 255 / 224, 16.0)
    matrix = np.array(
        (
            (luma, 0, 2 * (1 - kr) * chroma),
            (luma, -2 * (1 - kb) * kb / kg * chroma, -2 * (1 - kr) * kr / kg * chroma),
            (luma, 2 * (1 - kb) * chroma, 0),
        )
    )
    rows = matrix if channels == "rgb" else matrix[::-1]
    return np.column_stack((rows, -rows @ (black, 128, 128)))


class PlaneShrinker:
    """One per stream: the matrix of its colours and the memory of its shrunk planes are kept from frame to frame."""

    def __init__(self, channels: Literal["rgb", "bgr"]) -> None:
        self._channels: Literal["rgb", "bgr"] = channels
        self._colours: tuple[int, int, str] | None = None  # that _matrix is for
        self._matrix: NDArray[np.float64] | None = None
        self._geometry: Geometry | None = None  # that _step is for
        self._step = 0
        self._shrunk: list[NDArray[np.uint8]] = []
        self._merged: NDArray[np.uint8] = np.empty((0, 0, 3), np.uint8)

    def lines(self, frame: VideoFrame, geometry: Geometry) -> list[NDArray[Any]] | None:
        """The frame's planes Y, U, V for ``write``: views, (height, width) each. None: it has to go the long way.

        ``geometry`` is for the frame's upright size.
        """
        if geometry is not self._geometry:
            self._geometry, self._step = geometry, _multiple(geometry)
        if not self._step or self._matrix_of(frame) is None or quarter_turns(frame):
            return None
        lines: list[NDArray[Any]] = []
        for plane in frame.planes:
            width, stride = plane.width, plane.line_size
            if stride < width:  # negative: upside down in memory
                return None
            lines.append(np.ndarray((plane.height, width), np.uint8, memoryview(plane), 0, (stride, 1)))
        return lines

    def write(self, lines: list[NDArray[Any]], geometry: Geometry, active: Placed) -> None:
        """Put what ``lines`` gave, for this geometry, into what ``letterbox.place_in`` gave."""
        g, step, matrix = geometry, self._step, self._matrix
        assert step
        assert matrix is not None
        if self._merged.shape[:2] != (g.height, g.width):
            self._shrunk = [np.empty((g.height, g.width), np.uint8) for _ in range(3)]
            self._merged = np.empty((g.height, g.width, 3), np.uint8)
        # Of an odd multiple the one pixel in the middle counts, of an even one the mean of the two around it.
        how = cv2.INTER_NEAREST_EXACT if step % 2 else cv2.INTER_LINEAR
        planes: list[NDArray[Any]] = []
        for plane, scale, shrunk in zip(lines, (1, 2, 2), self._shrunk, strict=True):
            x, y, width, height = (n // scale for n in (g.crop_x, g.crop_y, g.crop_width, g.crop_height))
            crop = plane[y : y + height, x : x + width]
            planes.append(crop if scale == step else cv2.resize(crop, (g.width, g.height), shrunk, interpolation=how))
        cv2.merge(planes, self._merged)
        written = cv2.transform(self._merged, matrix, active)
        if written is not active:  # an OpenCV that couldn't write in place gives a new array
            active[...] = written

    def _matrix_of(self, frame: VideoFrame) -> NDArray[np.float64] | None:
        pixels = frame.format
        colours = (int(frame.colorspace), int(frame.color_range), "" if pixels is None else pixels.name)
        if colours != self._colours:
            space, span, name = colours
            self._colours = colours
            known = name in {"yuv420p", "yuvj420p"}
            full = span == _FULL_RANGE or name == "yuvj420p"
            self._matrix = colour_matrix(space, full=full, channels=self._channels) if known else None
        return self._matrix


def _multiple(g: Geometry) -> int:
    """How many pixels each way become one; 0 where it is no whole number, only one, or the crop cuts chroma samples."""
    step = g.crop_width // g.width
    whole = (g.crop_width, g.crop_height) == (step * g.width, step * g.height)
    cut = (g.crop_x | g.crop_y | g.crop_width | g.crop_height) & 1
    return step if whole and step > 1 and not cut else 0
