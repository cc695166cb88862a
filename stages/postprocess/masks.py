"""Owns the mask of one object: prototypes and coefficients into runs over source pixels. Does not own any layout.

Source: D. Bolya et al., "YOLACT: Real-time Instance Segmentation" (2019), sections 3.2 and 3.3: a mask is the sigmoid
of the prototypes weighted with the object's coefficients, cropped to its box, 1 where it exceeds 0.5, that is where
the weighted sum exceeds 0. The sum is interpolated linearly, from the middles of the prototypes' pixels to the middles
of the source's pixels, so that edges follow the source's resolution; outside the outermost middles the nearest holds.
A pixel is of the object when its middle lies in the box too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.letterbox import Geometry
from stages.messages import Mask


def mask_of(
    coefficients: NDArray[np.float32], prototypes: NDArray[Any], box: NDArray[np.float32], geometry: Geometry
) -> Mask:
    """``coefficients`` (m,), ``prototypes`` (m, h, w) over the model's input, ``box`` x1 y1 x2 y2 in source pixels."""
    g = geometry
    x1, y1, x2, y2 = (float(v) for v in box)
    left, top = math.floor(x1), math.floor(y1)
    width, height = max(math.ceil(x2) - left, 1), max(math.ceil(y2) - top, 1)
    rows, columns = prototypes.shape[1:]
    x = np.arange(left, left + width) + 0.5
    y = np.arange(top, top + height) + 0.5
    across = _Line(((x - g.crop_x) * g.width / g.crop_width + g.left) * columns / g.model_width - 0.5, columns)
    down = _Line(((y - g.crop_y) * g.height / g.crop_height + g.top) * rows / g.model_height - 0.5, rows)
    part = prototypes[:, down.first : down.end, across.first : across.end]
    flat = part.reshape(len(part), -1).astype(np.float32, copy=False)
    sums = (coefficients @ flat).reshape(part.shape[1:])
    inside = down.spread(across.spread(sums.T).T).T > 0  # (width, height): runs go down the columns
    inside[(x < x1) | (x >= x2)] = False
    inside[:, (y < y1) | (y >= y2)] = False
    return Mask(x=left, y=top, width=width, height=height, counts=runs(inside.reshape(-1)))


def runs(inside: NDArray[np.bool_]) -> list[int]:
    """Lengths of runs of a flat mask, the first of pixels outside, 0 when the first pixel is inside."""
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    counts: list[int] = np.diff(edges, prepend=0, append=len(inside)).tolist()
    return [0, *counts] if inside[0] else counts


class _Line:
    """Linear interpolation along one axis of ``size`` numbers at ``places``, of which only a part is needed."""

    def __init__(self, places: NDArray[np.float64], size: int) -> None:
        places = np.clip(places, 0, size - 1)
        below = places.astype(np.intp)
        self.first = int(below[0])
        self.end = min(int(below[-1]) + 2, size)
        self._below = below - self.first
        self._above = np.minimum(self._below + 1, self.end - self.first - 1)
        self._share = (places - below).astype(np.float32)[:, None]

    def spread(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values (end - first, n) at the places: (len(places), n)."""
        found = values.take(self._above, axis=0)
        lower = values.take(self._below, axis=0)
        found -= lower
        found *= self._share
        found += lower
        return found
