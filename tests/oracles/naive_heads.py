"""Each output layout read anchor by anchor, from the papers' formulas: what the fast heads must equal.

Imports nothing of the product. A candidate is ``(x1, y1, x2, y2, score, class)``; every function gives the candidates
in the order of their anchors and the number that ``top_k`` cut. Float32 throughout (float64 inside ``exp``).
"""

from __future__ import annotations

import math

import numpy as np

F = np.float32


def _best_class(scores) -> tuple[int, np.float32] | None:
    """Best class, the lowest of equals; None when a score is NaN."""
    best, best_score = 0, F(scores[0])
    for class_id, value in enumerate(scores):
        score = F(value)
        if math.isnan(score):
            return None
        if score > best_score:
            best, best_score = class_id, score
    return best, best_score


def _corners(cx, cy, w, h) -> list[np.float32]:
    return [F(cx) - F(w) / F(2), F(cy) - F(h) / F(2), F(cx) + F(w) / F(2), F(cy) + F(h) / F(2)]


def _wanted(score, class_id, confidence, classes) -> bool:
    return score > F(confidence) and not math.isinf(score) and (classes is None or class_id in classes)


def _finish(found: list, top_k: int) -> tuple[list, int]:
    """Drop boxes that aren't finite or have no area, then cut to the ``top_k`` best."""
    found = [c for c in found if all(math.isfinite(v) for v in c[:4]) and c[2] > c[0] and c[3] > c[1]]
    ranked = sorted(range(len(found)), key=lambda i: (-float(found[i][4]), i))
    return [found[i] for i in sorted(ranked[:top_k])], max(len(found) - top_k, 0)


def _without_objectness(anchors, confidence, classes, top_k):
    """``anchors`` yields 4 + C numbers each."""
    found = []
    with np.errstate(all="ignore"):
        for row in anchors:
            best = _best_class(row[4:])
            if best is not None and _wanted(best[1], best[0], confidence, classes):
                found.append((*_corners(*row[:4]), best[1], best[0]))
        return _finish(found, top_k)


def ssd(raw, confidence, classes=None, top_k=1000):
    """(A, 4 + C)."""
    return _without_objectness(raw, confidence, classes, top_k)


def yolov8(raw, confidence, classes=None, top_k=1000):
    """(4 + C, A)."""
    return _without_objectness((raw[:, a] for a in range(raw.shape[1])), confidence, classes, top_k)


def yolov5(raw, confidence, classes=None, top_k=1000, decode=lambda _anchor, box: box):
    """(A, 5 + C), boxes decoded."""
    found = []
    with np.errstate(all="ignore"):
        for anchor, row in enumerate(raw):
            objectness = F(row[4])
            if not objectness > F(confidence):
                continue
            best = _best_class(row[5:])
            if best is None:
                continue
            score = objectness * best[1]
            if _wanted(score, best[0], confidence, classes):
                found.append((*_corners(*decode(anchor, row[:4])), score, best[0]))
        return _finish(found, top_k)


def yolox(raw, width, height, confidence, classes=None, top_k=1000):
    """(A, 5 + C), boxes as offsets on the grids of strides 8, 16 and 32."""
    places = []
    for stride in (8, 16, 32):
        for row in range(height // stride):
            places.extend((column, row, stride) for column in range(width // stride))
    assert len(places) == len(raw)

    def decode(anchor, box):
        column, row, stride = places[anchor]
        x, y, w, h = (F(v) for v in box)
        size = [F(_exp(float(t))) * F(stride) for t in (w, h)]
        return (x + F(column)) * F(stride), (y + F(row)) * F(stride), *size

    return yolov5(raw, confidence, classes, top_k, decode)


def _exp(t: float) -> float:
    try:
        return math.exp(t)
    except OverflowError:
        return math.inf


def end2end(raw, confidence, classes=None, top_k=1000):
    """(N, 6) x1 y1 x2 y2 score class."""
    found = []
    for row in raw:
        numbers = [F(v) for v in row]
        if not all(math.isfinite(v) for v in numbers):
            continue
        if _wanted(numbers[4], int(numbers[5]), confidence, classes):
            found.append((*numbers[:5], int(numbers[5])))
    return _finish(found, top_k)
