"""Greedy non-maximum suppression written from its definition, box by box: what the fast one must equal exactly.

Imports nothing of the product. O(n²), float32 scalars, every operation rounded by itself.
"""

from __future__ import annotations

import numpy as np

ZERO = np.float32(0)


def overlaps_too_much(a, b, iou: float) -> bool:
    """Whether two boxes x1 y1 x2 y2 (float32) overlap by more than ``iou``."""
    width = max(min(a[2], b[2]) - max(a[0], b[0]), ZERO)
    height = max(min(a[3], b[3]) - max(a[1], b[1]), ZERO)
    inter = width * height
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    union = (area_a + area_b) - inter
    return bool(inter > np.float32(iou) * union)


def naive_suppress(boxes, scores, class_ids, iou: float, class_agnostic: bool) -> list[int]:
    """Indices of the boxes that are kept, best first; of equal scores the lower index goes first."""
    order = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))
    rows = [[np.float32(v) for v in box] for box in boxes]
    kept: list[int] = []
    with np.errstate(all="ignore"):
        for i in order:
            for k in kept:
                same = class_agnostic or class_ids[k] == class_ids[i]
                if same and overlaps_too_much(rows[k], rows[i], iou):
                    break
            else:
                kept.append(i)
    return kept
