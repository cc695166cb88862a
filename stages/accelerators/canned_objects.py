"""Owns the made-up objects of a canned device's pictures, and raw heads and distributions that hold them.

Does not own the other layouts (``canned_rows``).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stages.model import ModelSpec
from stages.postprocess.head import Head
from stages.postprocess.nanodet import NanoDet
from stages.postprocess.yolov5_raw import YoloV5Raw

CANDIDATES: Final = 6  # rows that find the same object

Rows: TypeAlias = NDArray[np.float64]
Outputs: TypeAlias = list[NDArray[Any]]


def logit(p: Rows) -> Rows:
    """The inverse of the sigmoid."""
    bounded = p.clip(1e-6, 1 - 1e-6)
    return np.asarray(np.log(bounded / (1 - bounded)))


class Objects:
    """Objects of one picture: ``boxes`` (n, 4) cx cy w h in input pixels, ``scores`` (n,), ``ids`` (n,)."""

    def __init__(self, model: ModelSpec, rng: np.random.Generator, count: int) -> None:
        self.model = model
        self.rng = rng
        size = np.array([model.width, model.height], np.float64)
        extent = rng.uniform(0.08, 0.3, (count, 2)) * size
        centre = extent / 2 + rng.uniform(0, 1, (count, 2)) * (size - extent)
        self.boxes = np.concatenate((centre, extent), axis=1)
        lowest = min(0.9, max(0.55, model.confidence + 0.1))
        self.scores = rng.uniform(lowest, 0.97, count)
        self.ids = rng.integers(0, max(1, len(model.labels)), count)

    def candidates(self) -> tuple[Rows, Rows, NDArray[np.int64]]:
        """Boxes, scores and ids of the candidates: each object several times, a little off, less and less sure."""
        boxes = np.repeat(self.boxes, CANDIDATES, axis=0)
        boxes[:, :2] += self.rng.normal(0, 0.02, (len(boxes), 2)) * boxes[:, 2:]
        falling = np.tile(np.linspace(1, 0.8, CANDIDATES), len(self.scores))
        return boxes, np.repeat(self.scores, CANDIDATES) * falling, np.repeat(self.ids, CANDIDATES)

    def background(self, anchors: int, columns: int) -> Rows:
        """Rows of nothing: any box cx cy w h, then numbers below 0.02."""
        rows = self.rng.uniform(0, 0.02, (anchors, columns))
        size = (self.model.width, self.model.height)
        rows[:, 0:2] = self.rng.uniform(0, 1, (anchors, 2)) * size
        rows[:, 2:4] = self.rng.uniform(0.02, 0.3, (anchors, 2)) * size
        return rows


def raw_heads(found: Objects, head: Head) -> Outputs | None:
    """Maps of three raw heads: each candidate in the cell of its centre, with the anchors that are most like it."""
    assert isinstance(head, YoloV5Raw)
    columns = head.columns
    maps = [found.rng.uniform(0, 0.02, (n, high, wide, columns)) for _, n, high, wide in head.heads]
    for each in maps:
        each[..., :4] = found.rng.uniform(0.1, 0.9, each[..., :4].shape)
    sides = [(place, a, side) for place, of in zip(head.order, head.anchors, strict=True) for a, side in enumerate(of)]
    boxes, scores, ids = found.candidates()
    for first in range(0, len(boxes), CANDIDATES):
        shape = boxes[first, 2:]
        near = sorted(sides, key=lambda each: float(np.abs(np.log(shape / each[2])).max()))
        used = False
        for box, score, class_id, (place, anchor, side) in zip(
            boxes[first:], scores[first:], ids[first:], near[:CANDIDATES], strict=False
        ):
            grid = maps[place]
            stride = found.model.width / grid.shape[2]
            x, y = (min(max(int(v / stride), 0), n - 1) for v, n in zip(box[:2], grid.shape[2:0:-1], strict=True))
            numbers = np.concatenate(((box[:2] / stride - (x, y) + 0.5) / 2, np.sqrt(box[2:] / side) / 2))
            if grid[anchor, y, x, 4] > 0.02 or numbers.max() >= 1 or numbers.min() <= 0:
                continue  # another object's, or nothing that this anchor could say
            grid[anchor, y, x, :4] = numbers
            grid[anchor, y, x, 4] = grid[anchor, y, x, 5 + class_id] = np.sqrt(score)
            used = True
        if not used:
            return None
    made: Outputs = []
    for (how, _, _, _), each in zip(head.heads, maps, strict=True):
        numbers = logit(each) if head.logits else each
        made.append(numbers if how == "last" else numbers.transpose(0, 3, 1, 2))
    return made


def distributions(found: Objects, head: Head) -> Outputs | None:
    """Class scores and, for each side, a distribution whose mean is its distance in strides."""
    assert isinstance(head, NanoDet)
    assert head.points is not None
    classes, points = head.classes, head.points.astype(np.float64)
    place = head.parts[0][1]
    width = found.model.outputs[place].shape[1] - (classes if head.parts[0][0] == place else 0)
    bins = width // 4
    scores = found.rng.uniform(0, 0.02, (len(points), classes))
    numbers = found.rng.normal(0, 1, (len(points), 4, bins))
    free = np.ones(len(points), np.bool_)
    boxes, all_scores, ids = found.candidates()
    for number in np.arange(len(boxes)).reshape(-1, CANDIDATES).T.ravel():  # of each object its best candidate first
        box, score, class_id = boxes[number], all_scores[number], ids[number]
        fit = np.flatnonzero(free & (box[2:].max() / points[:, 2] < bins - 1))
        if not len(fit):
            if number % CANDIDATES == 0:
                return None
            continue
        at = fit[np.abs(points[fit, :2] - box[:2]).max(axis=1).argmin()]
        # a point must lie in its box: boxes smaller than a cell are moved to it
        centre = np.clip(box[:2], points[at, :2] - box[2:] * 0.45, points[at, :2] + box[2:] * 0.45)
        low, high = centre - box[2:] / 2, centre + box[2:] / 2
        sides = np.concatenate((points[at, :2] - low, high - points[at, :2])) / points[at, 2]
        free[at] = False
        scores[at, class_id] = score
        whole = sides.astype(np.intp)
        share = sides - whole
        numbers[at] = -40  # nothing, once the softmax is taken
        numbers[at, np.arange(4), whole] = np.log(np.maximum(1 - share, 1e-9))
        numbers[at, np.arange(4), whole + 1] = np.log(np.maximum(share, 1e-9))
    if head.logits:
        scores = logit(scores)
    flat = numbers.reshape(len(points), width)
    made: Outputs = [np.empty(0)] * len(found.model.outputs)
    first = 0
    for of_scores, of_bins in head.parts:
        span = slice(first, first := first + found.model.outputs[of_scores].shape[0])
        if of_scores == of_bins:
            made[of_scores] = np.concatenate((scores[span], flat[span]), axis=1)
        else:
            made[of_scores], made[of_bins] = scores[span], flat[span]
    return made
