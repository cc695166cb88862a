"""More output layouts read anchor by anchor from their papers' formulas, and masks pixel by pixel.

Imports nothing of the product. Candidates are ``(x1, y1, x2, y2, score, class)`` in the order of their anchors, as in
``naive_heads``; numbers are Python's (float64), so scores agree to about 1e-6 and not to the bit.
"""

from __future__ import annotations

import math

import numpy as np


def sigmoid(x: float) -> float:
    if math.isnan(x):
        return math.nan
    if x < -700:
        return 0.0
    return 1 / (1 + math.exp(-x))


def best_of(values) -> tuple[int, float] | None:
    """Highest, the lowest index of equals; None when one is NaN."""
    values = [float(v) for v in values]
    if any(math.isnan(v) for v in values):
        return None
    best = max(range(len(values)), key=lambda i: (values[i], -i))
    return best, values[best]


def usable(box, *extra) -> bool:
    box = [np.float32(v) for v in box]  # a box may be too thin for float32
    return all(math.isfinite(v) for v in (*box, *extra)) and box[2] > box[0] and box[3] > box[1]


def corners(cx, cy, w, h):
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def passes(score, class_id, confidence, classes) -> bool:
    return score > confidence and not math.isinf(score) and (classes is None or class_id in classes)


ANCHORS = {
    8: [(10, 13), (16, 30), (33, 23)],
    16: [(30, 61), (62, 45), (59, 119)],
    32: [(116, 90), (156, 198), (373, 326)],
}


def yolov5_raw(levels, confidence, classes=None, anchors=ANCHORS, raw=True):
    """``levels``: stride to (anchors, rows, columns, 5 + C); ``raw``: sigmoids are still to be taken."""
    value = sigmoid if raw else float
    found = []
    for stride in sorted(levels):
        grid = levels[stride]
        for a, y, x in np.ndindex(grid.shape[:3]):
            t = [float(v) for v in grid[a, y, x]]
            objectness = value(t[4])
            best = best_of(t[5:])
            if not objectness > confidence or best is None:
                continue
            score = objectness * value(best[1])
            if not passes(score, best[0], confidence, classes):
                continue
            sx, sy, sw, sh = (value(v) for v in t[:4])
            box = corners(
                (2 * sx - 0.5 + x) * stride,
                (2 * sy - 0.5 + y) * stride,
                (2 * sw) ** 2 * anchors[stride][a][0],
                (2 * sh) ** 2 * anchors[stride][a][1],
            )
            if usable(box):
                found.append((*box, score, best[0]))
    return found


def yolov6(raw, confidence, classes=None):
    """(A, 5 + C): objectness, best class and product must each exceed."""
    found = []
    for row in raw.astype(np.float64).tolist():
        best = best_of(row[5:])
        if best is None or math.isnan(row[4]):
            continue
        score = row[4] * best[1]
        if row[4] > confidence and best[1] > confidence and passes(score, best[0], confidence, classes):
            box = corners(*row[:4])
            if usable(box):
                found.append((*box, score, best[0]))
    return found


def separate(boxes, scores, confidence, classes=None, decode=lambda box: box, value=float):
    """Boxes (A, 4) and scores (A, C): YOLO-NAS, RT-DETR."""
    found = []
    for box, row in zip(boxes.astype(np.float64).tolist(), scores, strict=True):
        best = best_of(row)
        if best is not None and passes(value(best[1]), best[0], confidence, classes):
            decoded = decode(box)
            if usable(decoded):
                found.append((*decoded, value(best[1]), best[0]))
    return found


def rtdetr(boxes, scores, width, height, confidence, classes=None, logits=False):
    """Boxes cx cy w h in parts of the input."""

    def decode(box):
        cx, cy, w, h = box
        return corners(cx * width, cy * height, w * width, h * height)

    return separate(boxes, scores, confidence, classes, decode, sigmoid if logits else float)


def distribution_head(scores, bins, width, height, strides, offset, confidence, classes=None, clips=False):
    """NanoDet, PicoDet: scores (A, C), bins (A, 4 (R + 1)); the integral of each softmax is a distance in strides."""
    places = [
        ((x + offset) * s, (y + offset) * s, s)
        for s in strides
        for y in range(math.ceil(height / s))
        for x in range(math.ceil(width / s))
    ]
    assert len(places) == len(scores)
    found = []
    for (px, py, stride), row, distribution in zip(places, scores, bins.astype(np.float64), strict=True):
        best = best_of(row)
        if best is None or not passes(best[1], best[0], confidence, classes):
            continue
        sides = []
        for t in distribution.reshape(4, -1).tolist():
            if any(math.isnan(v) for v in t) or math.isinf(max(t)):
                sides.append(math.nan)
                continue
            weights = [math.exp(v - max(t)) for v in t]
            sides.append(sum(i * w for i, w in enumerate(weights)) / sum(weights) * stride)
        box = [px - sides[0], py - sides[1], px + sides[2], py + sides[3]]
        if clips:
            box = [v if math.isnan(v) else min(max(v, 0), (width, height)[i % 2]) for i, v in enumerate(box)]
        if usable(box):
            found.append((*box, best[1], best[0]))
    return found


def with_extra(raw, class_count, confidence, classes=None):
    """(A, 4 + C + m) to candidates, each with its m numbers."""
    found = []
    for row in raw.astype(np.float64).tolist():
        best = best_of(row[4 : 4 + class_count])
        extra = row[4 + class_count :]
        if best is not None and passes(best[1], best[0], confidence, classes):
            box = corners(*row[:4])
            if usable(box, *extra):
                found.append(((*box, best[1], best[0]), extra))
    return found


def rotated_corners(cx, cy, w, h, angle):
    """Corners of a rectangle turned about its centre, (+, +) (+, -) (-, -) (-, +)."""
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return [tuple(turn @ (sx * w / 2, sy * h / 2) + (cx, cy)) for sx, sy in ((1, 1), (1, -1), (-1, -1), (-1, 1))]


def probabilistic_iou(a, b) -> float:
    """Of two boxes cx cy w h angle: one less the Hellinger distance of their normal distributions."""
    means, covariances = [], []
    for cx, cy, w, h, angle in (a, b):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        means.append(np.array((cx, cy)))
        covariances.append(turn @ np.diag((w**2 / 12, h**2 / 12)) @ turn.T)
    mean = (covariances[0] + covariances[1]) / 2
    d = means[0] - means[1]
    distance = d @ np.linalg.inv(mean) @ d / 8
    dets = [np.linalg.det(c) for c in (mean, *covariances)]
    distance += math.log(dets[0] / math.sqrt(dets[1] * dets[2])) / 2
    return 1 - math.sqrt(max(1 - math.exp(-max(distance, 0)), 0))


def suppress_rotated(boxes, scores, ids, iou) -> list[int]:
    """Greedy, best first, of equal scores the lower index."""
    kept: list[int] = []
    for i in sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i)):
        rivals = (k for k in kept if ids[k] == ids[i])
        if not any(probabilistic_iou([float(v) for v in boxes[k]], [float(v) for v in boxes[i]]) > iou for k in rivals):
            kept.append(i)
    return kept


def mask_values(coefficients, prototypes, box, to_model, model_size):
    """For every pixel of the source rectangle around ``box``: the interpolated weighted sum, -inf outside the box.

    ``to_model`` takes a point of the source to the model's input.
    """
    m, rows, columns = prototypes.shape
    left, top = math.floor(box[0]), math.floor(box[1])
    right, bottom = max(math.ceil(box[2]), left + 1), max(math.ceil(box[3]), top + 1)
    sums = np.zeros((rows, columns))
    for k in range(m):
        sums += float(coefficients[k]) * prototypes[k].astype(np.float64)
    values = np.full((bottom - top, right - left), -math.inf)
    for y in range(top, bottom):
        for x in range(left, right):
            if not (box[0] <= x + 0.5 < box[2] and box[1] <= y + 0.5 < box[3]):
                continue
            mx, my = to_model(x + 0.5, y + 0.5)
            u = min(max(mx * columns / model_size[0] - 0.5, 0), columns - 1)
            v = min(max(my * rows / model_size[1] - 0.5, 0), rows - 1)
            x0, y0 = int(u), int(v)
            x1, y1 = min(x0 + 1, columns - 1), min(y0 + 1, rows - 1)
            upper = sums[y0, x0] * (1 - (u - x0)) + sums[y0, x1] * (u - x0)
            lower = sums[y1, x0] * (1 - (u - x0)) + sums[y1, x1] * (u - x0)
            values[y - top, x - left] = upper * (1 - (v - y0)) + lower * (v - y0)
    return left, top, values


def decode_runs(counts, width, height) -> np.ndarray:
    """COCO's uncompressed RLE, column by column, back to (height, width)."""
    flat, inside = [], False
    for count in counts:
        flat += [inside] * count
        inside = not inside
    assert len(flat) == width * height
    return np.array(flat, bool).reshape(width, height).T
