"""Owns the layouts ``nanodet`` and ``picodet``: class scores and distributions of the distances to a box's sides.

Does not own exports that decode in the file.

Source: X. Li et al., "Generalized Focal Loss" (2020), section 3.2: the distance from a point to a side is the mean
``sum(i * softmax(t)[i])`` of a distribution over 0 … R, in strides. RangiLyu/nanodet, ``NanoDetPlusHead`` in
nanodet/model/head/nanodet_plus_head.py: one output (A, C + 4 * (R + 1)), scores with the sigmoid taken, then left, top,
right, bottom; points lie at ``cell * stride`` (the first NanoDet: ``(cell + 0.5) * stride``), boxes are clipped to the
input. PaddlePaddle/PaddleDetection, ``PicoHead`` in ppdet/modeling/heads/pico_head.py: scores (A, C) and distributions
(A, 4 * (R + 1)) in an output each for every stride; points lie at ``(cell + 0.5) * stride``. Anchors: strides 8, 16,
32 and usually 64, row by row of each grid of ``ceil(size / stride)`` cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.model import ModelSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes
from stages.postprocess.head import float_outputs, shape_text
from stages.postprocess.highest import rows_above
from stages.postprocess.logits import above_floor, best_class_of_logits, floor_of, softmax

USUAL_STRIDES = ((8, 16, 32, 64), (8, 16, 32))


def points_of(width: int, height: int, strides: Sequence[int], offset: float) -> NDArray[np.float32]:
    """x, y and stride (A, 3) of every anchor of an input of that size."""
    levels = []
    for stride in strides:
        x, y = np.meshgrid(np.arange(-(-width // stride)), np.arange(-(-height // stride)))
        cells = np.stack((x.ravel() + offset, y.ravel() + offset, np.ones(x.size)), axis=1)
        levels.append(cells * stride)
    return np.concatenate(levels).astype(np.float32)


class NanoDet(ByAnchors):
    """One output (A, C + 4 (R + 1)), or for each stride (A, C) and (A, 4 (R + 1)). See Head."""

    suppresses = True
    layout = "nanodet"
    offset = 0.0
    clips = True

    def __init__(self, model: ModelSpec) -> None:
        self.classes = len(model.labels)
        self.logits = model.head.scores == "logits"
        self.size = np.array((model.width, model.height) * 2, np.float32)
        offset = self.offset if model.head.cell_offset is None else model.head.cell_offset
        self.parts = self._parts(model)  # of each piece: place of its scores, of its distributions
        self.strides = self._strides(model)
        self.points = points_of(model.width, model.height, self.strides or (), offset) if self.strides else None

    def check(self, model: ModelSpec) -> None:
        """See Head. The number of anchors must be that of the grids of the input's size."""
        outputs = float_outputs(model, self.layout)
        where = f"model {model.name}: layout {self.layout}"
        if not self.parts:
            shapes = ", ".join(shape_text(t.shape) for t in outputs)
            raise UserError(
                f"{where} has rows of {self.classes} class scores and 4 distributions, in one output or in two for "
                f"each stride, but the model's outputs are {shapes}; list one label per class, or give the layout that "
                "the model has"
            )
        if self.points is None:
            anchors = sum(model.outputs[place].shape[0] for place, _ in self.parts)
            raise UserError(
                f"{where}: {anchors} anchors fit no grids of strides "
                f"{' '.join(map(str, model.head.strides or USUAL_STRIDES[0]))} over an input of "
                f"{model.width}x{model.height}; correct the input size, or write `strides` under `head`"
            )

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors. Indices are those of all strides, one after the other."""
        found, first, columns = [], 0, slice(0, self.classes)
        for place, _ in self.parts:
            raw = outputs[place]
            if self.logits:
                chosen = np.flatnonzero(above_floor(raw[:, columns], floor_of(confidence)).any(axis=1))
            else:
                chosen = rows_above(raw, columns, confidence, classes)
            found.append(chosen + first if first else chosen)
            first += len(raw)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        class_scores = picked.rows(*(outputs[place] for place, _ in self.parts))
        if self.parts[0][0] == self.parts[0][1]:
            class_scores, bins = class_scores[:, : self.classes], class_scores[:, self.classes :]
        else:
            bins = picked.rows(*(outputs[place] for _, place in self.parts))
        boxes = self._corners(bins, picked.anchors)
        if not self.logits:
            return picked.finish_scored(boxes, class_scores, top_k)
        ids, best = best_class_of_logits(class_scores)
        return picked.finish(boxes, best, ids, picked.passing(best, ids, self.classes), top_k)

    def _corners(self, bins: NDArray[Any], anchors: NDArray[np.intp]) -> NDArray[np.float32]:
        """x1 y1 x2 y2 in pixels of the input, of distributions (n, 4 * (R + 1))."""
        assert self.points is not None
        means = softmax(bins.reshape(len(bins), 4, -1)) if len(bins) else np.empty((0, 4, 1), np.float32)
        distances = means @ np.arange(means.shape[2], dtype=np.float32)
        points = self.points[anchors]
        distances *= points[:, 2:]
        boxes: NDArray[np.float32] = np.concatenate(
            (points[:, :2] - distances[:, :2], points[:, :2] + distances[:, 2:]), axis=1
        )
        if self.clips:
            np.clip(boxes, 0, self.size, out=boxes)
        return boxes

    def _parts(self, model: ModelSpec) -> list[tuple[int, int]]:
        """Places of scores and distributions, largest grid first; empty when the outputs are nothing like it."""
        shapes = [t.shape for t in model.outputs]
        if not shapes or any(len(shape) != 2 for shape in shapes) or self.classes < 1:
            return []
        if len(shapes) == 1:
            bins, rest = divmod(shapes[0][1] - self.classes, 4)
            return [(0, 0)] if bins >= 2 and not rest else []
        parts = []
        for rows in sorted({shape[0] for shape in shapes}, reverse=True):
            pair = [place for place, shape in enumerate(shapes) if shape[0] == rows]
            if len(pair) != 2:
                return []
            if (
                shapes[pair[0]][1] != self.classes
            ):  # both may be as wide: then the scores come first, as they are written
                pair.reverse()
            columns = shapes[pair[1]][1]
            if shapes[pair[0]][1] != self.classes or columns % 4 or columns < 8:
                return []
            parts.append((pair[0], pair[1]))
        widths = {shapes[place][1] for _, place in parts}
        return parts if len(widths) == 1 else []

    def _strides(self, model: ModelSpec) -> tuple[int, ...] | None:
        """Strides whose grids have as many cells as the outputs have anchors; None when there are none."""
        if not self.parts:
            return None
        found = [model.outputs[place].shape[0] for place, _ in self.parts]
        given = model.head.strides
        for strides in (given,) if given is not None else USUAL_STRIDES:
            cells = [math.prod(-(-side // stride) for side in (model.width, model.height)) for stride in strides]
            if found in (cells, [sum(cells)]) and all(a < b for a, b in pairwise(strides)):
                return strides
        return None


class PicoDet(NanoDet):
    """The same with points in the middle of their cells and boxes that are not clipped. See Head."""

    layout = "picodet"
    offset = 0.5
    clips = False
