"""Owns greedy non-maximum suppression of oriented boxes. Does not own their candidates, nor their corners.

The order and the rule are those of ``stages.postprocess.nms``; the overlap is the probabilistic IoU of J. M. Llerena
et al., "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for Object Detection" (2021), which
Ultralytics trains and suppresses oriented boxes with: a box is the normal distribution with the mean and covariance of
a uniform one over it, ``diag(w², h²) / 12`` turned by the angle; with S the sum of two covariances and d the difference
of the means, the Bhattacharyya distance is ``B = dᵀ S⁻¹ d / 4 + ln(det S / (4 sqrt(det S1 det S2))) / 2``, and the
overlap ``1 - sqrt(1 - exp(-B))``, 1 for equal boxes. It falls faster than the IoU of the polygons. Worked in float64.
Suppressed when the overlap is more than ``iou``; greedy, so a box that is itself suppressed suppresses nothing
(Ultralytics' fast variant lets it).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.postprocess.nms import greedy


@np.errstate(all="ignore")  # what overflows gives NaN, which suppresses nothing
def suppress_rotated(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], ids: NDArray[Any], iou: float, class_agnostic: bool
) -> NDArray[np.intp]:
    """Indices of the boxes that are kept, best first.

    ``boxes`` float32 (n, 5) cx cy w h and the angle in radians, w and h above 0; otherwise as ``nms.suppress``.
    """
    order: NDArray[np.intp] = np.argsort(-scores, kind="stable")
    if len(order) <= 1:
        return order
    x, y, w, h, angle = boxes[order].T.astype(np.float64)
    along, across, cos, sin = w * w / 12, h * h / 12, np.cos(angle), np.sin(angle)
    table = np.stack(
        (
            x,
            y,
            along * cos * cos + across * sin * sin,
            along * sin * sin + across * cos * cos,
            (along - across) * cos * sin,
            along * across,  # the determinant
        )
    )
    same = class_agnostic or bool((ids == ids[0]).all())
    return greedy(order, table, None if same else ids[order], lambda first, second: _overlaps(first, second, iou))


def _overlaps(first: NDArray[np.float64], second: NDArray[np.float64], iou: float) -> NDArray[np.bool_]:
    """(m, n): whether a box of ``first`` (6, m) suppresses the one of ``second`` (6, n)."""
    dx, dy, sxx, syy, sxy = (
        first[i][:, None] - second[i] if i < 2 else first[i][:, None] + second[i] for i in range(5)
    )
    determinant = sxx * syy - sxy * sxy
    distance = (syy * dx * dx - 2 * sxy * dx * dy + sxx * dy * dy) / determinant / 4
    distance += np.log(determinant / (4 * np.sqrt(first[5][:, None] * second[5]))) / 2
    overlap = 1 - np.sqrt(-np.expm1(-np.maximum(distance, 0)))
    result: NDArray[np.bool_] = overlap > iou
    return result
