"""Owns plausible raw outputs for one frame in each known layout, made up from a seed. Does not own how they are served.

Objects stand well inside the picture and apart from one another as chance will have it; each is found by several
candidates, as detectors do, so that post-processing has its usual work. Everything else is background: small scores,
boxes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.model import ModelSpec

CANDIDATES = 6  # rows that find the same object
STRIDES = (8, 16, 32)

Rows = NDArray[np.float64]


def canned_rows(model: ModelSpec, seed: int, objects: int) -> list[NDArray[Any]]:
    """One array per output of the model, of its shape and type, for one frame with ``objects`` objects.

    The same for the same model and seed. Scores of objects lie above the model's default confidence, those of
    everything else below 0.02. Raises UserError for a layout or shape that nothing is known of.
    """
    make = _LAYOUTS.get(model.layout)
    if make is None:
        raise UserError(
            f"model {model.name}: canned devices know the layouts {', '.join(sorted(_LAYOUTS))}, not {model.layout}; "
            "use another device or another model"
        )
    if len(model.outputs) != 1 or len(model.outputs[0].shape) != 2:
        raise UserError(
            f"model {model.name}: canned devices know models with one output of 2 dimensions, this one has "
            f"{[t.shape for t in model.outputs]}; use another device or another model"
        )
    shape = model.outputs[0].shape
    found = _Objects(model, np.random.default_rng(seed), objects)
    rows = make(found, shape)
    if rows is None:
        raise UserError(
            f"model {model.name}: an output of {shape} can't be of layout {model.layout} with {objects} objects; "
            "correct its shape or layout, or ask for fewer objects"
        )
    rows = np.ascontiguousarray(rows.astype(model.outputs[0].dtype))
    rows.flags.writeable = False
    return [rows]


class _Objects:
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

    def background(self, shape: tuple[int, int], first_score: int) -> Rows:
        """Rows (A, C) of nothing: any box, then scores below 0.02 from column ``first_score`` on."""
        rows = self.rng.uniform(0, 0.02, shape)
        size = (self.model.width, self.model.height)
        rows[:, 0:2] = self.rng.uniform(0, 1, (shape[0], 2)) * size
        rows[:, 2:4] = self.rng.uniform(0.02, 0.3, (shape[0], 2)) * size
        return rows


def _rows(found: _Objects, anchors: int, columns: int, objectness: bool) -> Rows | None:
    """cx cy w h [objectness] scores: the candidates at anchors drawn at random among the background's."""
    first = 5 if objectness else 4
    boxes, scores, ids = found.candidates()
    if len(boxes) > anchors or columns <= first + max(ids, default=0):
        return None
    rows = found.background((anchors, columns), first)
    at = found.rng.choice(anchors, len(boxes), replace=False)
    rows[at, :4] = boxes
    if objectness:
        # detectors are sure of an object first and of its class second; both must stay above the confidence
        rows[at, 4] = np.sqrt(scores)
        scores = np.sqrt(scores)
    rows[at, first + ids] = scores
    return rows


def _ssd(found: _Objects, shape: tuple[int, ...]) -> Rows | None:
    return _rows(found, shape[0], shape[1], objectness=False)


def _yolov8(found: _Objects, shape: tuple[int, ...]) -> Rows | None:
    rows = _rows(found, shape[1], shape[0], objectness=False)
    return None if rows is None else rows.T


def _yolov5(found: _Objects, shape: tuple[int, ...]) -> Rows | None:
    return _rows(found, shape[0], shape[1], objectness=True)


def _yolox(found: _Objects, shape: tuple[int, ...]) -> Rows | None:
    """Raw grid: offsets from the cell in cells, logarithms of the size in strides; strides 8, 16, 32, row by row."""
    grid = []
    for stride in STRIDES:
        x, y = np.meshgrid(np.arange(found.model.width // stride), np.arange(found.model.height // stride))
        grid.append(np.stack((x.ravel(), y.ravel(), np.full(x.size, stride)), axis=1))
    cells = np.concatenate(grid).astype(np.float64)
    rows = _rows(found, shape[0], shape[1], objectness=True)
    if rows is None or len(cells) != shape[0]:
        return None
    rows[:, :2] = rows[:, :2] / cells[:, 2:] - cells[:, :2]
    rows[:, 2:4] = np.log(rows[:, 2:4] / cells[:, 2:])
    return rows


def _end2end(found: _Objects, shape: tuple[int, ...]) -> Rows | None:
    """x1 y1 x2 y2 score class, best first, one row per object; the unused ones hold zeros."""
    count = len(found.scores)
    if shape[1] != 6 or count > shape[0]:
        return None
    rows = np.zeros((shape[0], 6))
    order = np.argsort(-found.scores)
    half = found.boxes[order, 2:] / 2
    rows[:count, :2] = found.boxes[order, :2] - half
    rows[:count, 2:4] = found.boxes[order, :2] + half
    rows[:count, 4] = found.scores[order]
    rows[:count, 5] = found.ids[order]
    return rows


_LAYOUTS: dict[str, Callable[[_Objects, tuple[int, ...]], Rows | None]] = {
    "ssd": _ssd,
    "yolov8": _yolov8,
    "yolov5": _yolov5,
    "yolox": _yolox,
    "end2end": _end2end,
}
