"""Owns where a picture lies in a model's input: crop, resize and pad, and the exact way back. Not colours or rotation.

Both directions use the same integers (the crop in source pixels, the size it is resized to, where it is put), never the
ideal scale: a box comes back to where its pixels came from even when rounding made the x and y scales differ.

Coordinates are those of pixel *edges*: a picture of width w spans 0 … w. ``cv2.resize(INTER_LINEAR)`` maps edges to
edges (centres at +0.5), so model = (source - crop) * resized / cropped + pad holds without an offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from stages.model import Placement

Roi = tuple[float, float, float, float]
Placed: TypeAlias = NDArray[np.uint8]  # (height, width, 3) of a Geometry: a view of the model's input


@dataclass(frozen=True, slots=True)
class Geometry:
    """Integers in pixels: the crop of the source, the size it is resized to, and its corner in the model's input."""

    model_width: int
    model_height: int
    crop_x: int
    crop_y: int
    crop_width: int
    crop_height: int
    left: int
    top: int
    width: int
    height: int

    def forward(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Points (n, 2) x y in source pixels to pixels of the model's input."""
        found: NDArray[np.float64] = np.asarray(points, np.float64) - (self.crop_x, self.crop_y)
        found *= (self.width, self.height)  # multiplied before divided, so that corners come out exact
        found /= (self.crop_width, self.crop_height)
        found += (self.left, self.top)
        return found

    def inverse_points(self, points: NDArray[Any], *, clip: bool) -> NDArray[np.float32]:
        """Points (…, 2) x y in pixels of the model's input to source pixels; with ``clip``, into the crop."""
        low, cropped = np.array(((self.crop_x, self.crop_y), (self.crop_width, self.crop_height)), np.float64)
        found: NDArray[np.float64] = np.asarray(points, np.float64) - (self.left, self.top)
        found *= cropped
        found /= (self.width, self.height)
        found += low
        if clip:
            np.clip(found, low, low + cropped, out=found)
        return found.astype(np.float32)

    def inverse(self, boxes: NDArray[Any]) -> NDArray[np.float32]:
        """Boxes (n, 4) x1 y1 x2 y2 in pixels of the model's input to source pixels, clipped to the crop.

        Worked in float64: a source pixel near 4000 has only 2e-4 of float32's precision left.
        """
        return _inverse(boxes, *_sides(self))


def inverse_of_frames(
    geometries: Sequence[Geometry], counts: Sequence[int], boxes: NDArray[Any]
) -> NDArray[np.float32]:
    """``Geometry.inverse`` for boxes of several frames, one frame's after the other's, ``counts`` of each."""
    first = geometries[0]
    if all(each is first or each == first for each in geometries):
        return first.inverse(boxes)
    of_each = np.array([_sides(each) for each in geometries]).repeat(counts, axis=0)
    return _inverse(boxes, *of_each.transpose(1, 0, 2))


@lru_cache(maxsize=1024)
def _sides(g: Geometry) -> NDArray[np.float64]:
    """(4, 4), each row for x1 y1 x2 y2: the border, the crop's size, its size in the input, the crop's corner."""
    sides = (
        (g.left, g.top) * 2,
        (g.crop_width, g.crop_height) * 2,
        (g.width, g.height) * 2,
        (g.crop_x, g.crop_y) * 2,
    )
    return np.array(sides, np.float64)


def _inverse(
    boxes: NDArray[Any],
    pad: NDArray[np.float64],
    cropped: NDArray[np.float64],
    resized: NDArray[np.float64],
    low: NDArray[np.float64],
) -> NDArray[np.float32]:
    found: NDArray[np.float64] = boxes - pad
    found *= cropped
    found /= resized
    found += low
    np.maximum(found, low, out=found)
    np.minimum(found, low + cropped, out=found)
    return found.astype(np.float32)


def geometry(  # noqa: PLR0917 - two sizes and how: the order is the obvious one
    source_width: int,
    source_height: int,
    model_width: int,
    model_height: int,
    placement: Placement,
    roi: Roi | None = None,
    *,
    scale_up: bool = True,
) -> Geometry:
    """Where a source picture goes. ``roi`` is x1 y1 x2 y2 as parts (0..1) of the upright picture.

    ``stretch`` fills the input. ``center`` and ``top_left`` keep the aspect ratio with the scale
    min(model_width / crop_width, model_height / crop_height); the side that doesn't fill is rounded to nearest for
    ``center`` (as YOLOv5 and its successors do) and down for ``top_left`` (as YOLOX does), and is never below 1.
    Without ``scale_up`` a crop that fits into the input keeps its size, pixel for pixel (``stretch`` fills it anyway).
    Raises ValueError for sizes below 1 and for names of placement that aren't known.
    """
    if min(source_width, source_height, model_width, model_height) < 1:
        raise ValueError(f"no geometry from {source_width}x{source_height} to {model_width}x{model_height}")
    x1, x2 = 0, source_width
    y1, y2 = 0, source_height
    if roi is not None:
        x1, x2 = _span(roi[0], roi[2], source_width)
        y1, y2 = _span(roi[1], roi[3], source_height)
    crop_width, crop_height = x2 - x1, y2 - y1
    if placement == "stretch":
        width, height, left, top = model_width, model_height, 0, 0
    elif placement in {"center", "top_left"}:
        nearest = placement == "center"
        if not scale_up and crop_width <= model_width and crop_height <= model_height:
            width, height = crop_width, crop_height
        elif crop_width * model_height >= crop_height * model_width:  # as wide as or wider than the model's input
            width, height = model_width, _scaled(crop_height, model_width, crop_width, nearest)
        else:
            width, height = _scaled(crop_width, model_height, crop_height, nearest), model_height
        left, top = ((model_width - width) // 2, (model_height - height) // 2) if nearest else (0, 0)
    else:
        raise ValueError(f"no placement is called {placement!r}")
    return Geometry(model_width, model_height, x1, y1, crop_width, crop_height, left, top, width, height)


def place(image: NDArray[np.uint8], geometry: Geometry, pad_value: int, out: NDArray[np.uint8]) -> None:
    """Crop and resize ``image`` (H, W, 3) into its place in ``out`` (model_height, model_width, 3); fill the border.

    ``out`` may be memory of a slot: OpenCV writes into the view of it, there is no copy between. Raises ValueError when
    a shape doesn't fit the geometry, before native code sees it.
    """
    active = place_in(geometry, out)
    resize(image, geometry, active)
    fill_border(geometry, pad_value, out)


def place_in(geometry: Geometry, out: NDArray[np.uint8]) -> Placed:
    """The part of ``out`` (model_height, model_width, 3) that the picture goes into. Raises ValueError as ``place``."""
    g = geometry
    if out.shape != (g.model_height, g.model_width, 3) or out.dtype != np.uint8:
        raise ValueError(f"the slot is {out.dtype} {out.shape}, the model wants {g.model_height}x{g.model_width}x3")
    return out[g.top : g.top + g.height, g.left : g.left + g.width]


def resize(image: NDArray[np.uint8], geometry: Geometry, active: Placed) -> None:
    """Crop and resize ``image`` into what ``place_in`` gave. Raises ValueError as ``place``."""
    g = geometry
    crop = image[g.crop_y : g.crop_y + g.crop_height, g.crop_x : g.crop_x + g.crop_width]
    if crop.shape != (g.crop_height, g.crop_width, 3) or crop.dtype != np.uint8:
        raise ValueError(f"the picture is {image.dtype} {image.shape}, its geometry is {g}")
    written = cv2.resize(crop, (g.width, g.height), dst=active, interpolation=cv2.INTER_LINEAR)
    if written is not active:  # an OpenCV that couldn't write in place gives a new array
        active[...] = written


def fill_border(geometry: Geometry, pad_value: int, out: NDArray[np.uint8]) -> None:
    """Fill what the picture leaves of ``out``."""
    g = geometry
    right, bottom = g.left + g.width, g.top + g.height
    if g.top > 0:
        out[: g.top] = pad_value
    if bottom < g.model_height:
        out[bottom:] = pad_value
    if g.left > 0:
        out[g.top : bottom, : g.left] = pad_value
    if right < g.model_width:
        out[g.top : bottom, right:] = pad_value


def _span(start: float, end: float, size: int) -> tuple[int, int]:
    """Pixels from ``start`` to ``end`` (parts of ``size``), to nearest, inside the picture, at least one."""
    first = min(max(int(start * size + 0.5), 0), size - 1)
    last = min(max(int(end * size + 0.5), first + 1), size)
    return first, last


def _scaled(size: int, numerator: int, denominator: int, nearest: bool) -> int:
    """``size * numerator / denominator`` in exact integers, rounded to nearest (half up) or down, at least 1."""
    doubled = 2 * size * numerator + (denominator if nearest else 0)
    return max(doubled // (2 * denominator), 1)
