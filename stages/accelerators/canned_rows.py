"""Owns plausible raw outputs for one frame in each known layout, made up from a seed. Does not own how they are served.

Objects stand well inside the picture and apart from one another as chance will have it; each is found by several
candidates, as detectors do, so that post-processing has its usual work. Everything else is background: small scores,
boxes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.canned_objects import CANDIDATES, Objects, Outputs, Rows, distributions, logit, raw_heads
from stages.errors import UserError
from stages.model import ModelSpec
from stages.postprocess.classify import Classify
from stages.postprocess.head import Head
from stages.postprocess.quantised import codes_of
from stages.postprocess.registry import LAYOUTS, checked
from stages.postprocess.rtdetr import RtDetr
from stages.postprocess.yolonas import YoloNas
from stages.postprocess.yolov8 import YoloV8
from stages.postprocess.yolov8_obb import YoloV8Obb
from stages.postprocess.yolov8_pose import YoloV8Pose
from stages.postprocess.yolov8_seg import YoloV8Seg
from stages.postprocess.yolox import Yolox


def canned_rows(model: ModelSpec, seed: int, objects: int) -> list[NDArray[Any]]:
    """One array per output of the model, of its shape and type, for one frame with ``objects`` objects.

    The same for the same model and seed. Scores of objects lie above the model's default confidence, those of
    everything else below 0.02. A classifier has one object, whatever is asked. Raises UserError for outputs that
    contradict the layout, and for more objects than they can hold.
    """
    make = _LAYOUTS.get(model.layout)
    if make is None:
        raise UserError(
            f"model {model.name}: canned devices know the layouts {', '.join(sorted(_LAYOUTS))}, not {model.layout}; "
            "use another device or another model"
        )
    head = checked(LAYOUTS[model.layout], model)
    made = make(Objects(model, np.random.default_rng(seed), objects), head)
    if made is None:
        shapes = ", ".join(str(t.shape) for t in model.outputs)
        raise UserError(
            f"model {model.name}: outputs of {shapes} can't hold {objects} objects in layout {model.layout}; "
            "correct their shapes, or ask for fewer objects"
        )
    found = []
    for tensor, values in zip(model.outputs, made, strict=True):
        rows = np.ascontiguousarray(codes_of(tensor, values.reshape(tensor.shape)))
        rows.flags.writeable = False
        found.append(rows)
    return found


def _rows(found: Objects, anchors: int, extra: int = 0) -> tuple[Rows, NDArray[np.intp], NDArray[np.int64]] | None:
    """Rows of cx cy w h, scores, ``extra`` zeros; where the candidates are among them; which object each is of.

    The candidates stand at anchors drawn at random among the background's.
    """
    classes = len(found.model.labels)
    boxes, scores, ids = found.candidates()
    if len(boxes) > anchors:
        return None
    rows = found.background(anchors, 4 + classes + extra)
    rows[:, 4 + classes :] = 0
    at = found.rng.choice(anchors, len(boxes), replace=False)
    rows[at, :4] = boxes
    rows[at, 4 + ids] = scores
    return rows, at, np.arange(len(boxes)) // CANDIDATES


def _with_objectness(found: Objects, anchors: int) -> Rows | None:
    """cx cy w h, objectness, scores: detectors are sure of an object first and of its class second."""
    made = _rows(found, anchors)
    if made is None:
        return None
    rows, at, _ = made
    objectness = found.rng.uniform(0, 0.02, anchors)
    objectness[at] = np.sqrt(rows[at, 4:].max(axis=1))  # both must stay above the confidence
    rows[at, 4:] = np.where(rows[at, 4:] > 0.02, np.sqrt(rows[at, 4:]), rows[at, 4:])
    return np.insert(rows, 4, objectness, axis=1)


def corners_of_centres(boxes: Rows) -> Rows:
    """x1 y1 x2 y2 of cx cy w h."""
    half = boxes[:, 2:4] / 2
    return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)


def _single(found: Objects, head: Head) -> Outputs | None:
    """cx cy w h, scores: rows, or channels first."""
    (tensor,) = found.model.outputs
    first = isinstance(head, YoloV8) and head.first
    made = _rows(found, tensor.shape[1 if first else 0])
    return None if made is None else [made[0].T if first else made[0]]


def _yolov5(found: Objects, _head: Head) -> Outputs | None:
    rows = _with_objectness(found, found.model.outputs[0].shape[0])
    return None if rows is None else [rows]


def _yolov6(found: Objects, _head: Head) -> Outputs | None:
    made = _rows(found, found.model.outputs[0].shape[0])
    return None if made is None else [np.insert(made[0], 4, 1, axis=1)]


def _yolox(found: Objects, head: Head) -> Outputs | None:
    """Raw grid: offsets from the cell in cells, logarithms of the size in strides; strides 8, 16, 32, row by row."""
    assert isinstance(head, Yolox)
    rows = _with_objectness(found, len(head.cells))
    if rows is None:
        return None
    rows[:, :2] = rows[:, :2] / head.strides - head.cells
    rows[:, 2:4] = np.log(rows[:, 2:4] / head.strides)
    return [rows]


def _yolov8_seg(found: Objects, head: Head) -> Outputs | None:
    """The first prototype is of all of an object, the others are waves that eat into its edges."""
    assert isinstance(head, YoloV8Seg)
    shape = found.model.outputs[head.rows_place].shape
    made = _rows(found, shape[1 if head.first else 0], head.masks)
    if made is None:
        return None
    rows, at, of = made
    coefficients = found.rng.normal(0, 0.5 / max(head.masks, 1), (len(found.scores), head.masks))
    coefficients[:, 0] = 1
    rows[at, -head.masks :] = coefficients[of]
    _, high, wide = found.model.outputs[head.masks_place].shape
    y, x = np.mgrid[:high, :wide] / max(high, wide)
    waves = found.rng.uniform(5, 30, (head.masks, 3))
    prototypes = np.stack([np.sin(a * x + b * y + c) for a, b, c in waves])
    prototypes[0] = 0.5
    outputs = [rows.T if head.first else rows, prototypes]
    return outputs if head.rows_place == 0 else outputs[::-1]


def _yolov8_pose(found: Objects, head: Head) -> Outputs | None:
    assert isinstance(head, YoloV8Pose)
    shape = found.model.outputs[0].shape
    assert head.side is not None
    extra = shape[head.side] - 4 - len(found.model.labels)
    made = _rows(found, shape[1 - head.side], extra)
    if made is None:
        return None
    rows, at, of = made
    points = found.rng.uniform(-0.45, 0.45, (len(found.scores), extra // head.values, head.values))[of]
    points[..., :2] = points[..., :2] * rows[at, None, 2:4] + rows[at, None, :2]
    points[..., 2:] += 0.5  # scores
    rows[at, -extra:] = points.reshape(len(at), extra)
    return [rows if head.side else rows.T]


def _yolov8_obb(found: Objects, head: Head) -> Outputs | None:
    assert isinstance(head, YoloV8Obb)
    made = _rows(found, found.model.outputs[0].shape[1 if head.first else 0], 1)
    if made is None:
        return None
    rows, at, of = made
    rows[:, -1] = found.rng.uniform(-np.pi / 4, np.pi / 4, len(rows))
    rows[at, -1] = found.rng.uniform(-np.pi / 4, np.pi / 4, len(found.scores))[of]
    return [rows.T if head.first else rows]


def _yolonas(found: Objects, head: Head) -> Outputs | None:
    assert isinstance(head, YoloNas)
    made = _rows(found, found.model.outputs[0].shape[0])
    if made is None:
        return None
    outputs = [corners_of_centres(made[0]), made[0][:, 4:]]
    return outputs if head.places == (0, 1) else outputs[::-1]


def _rtdetr(found: Objects, head: Head) -> Outputs | None:
    """Each object once, in shares of the input."""
    assert isinstance(head, RtDetr)
    queries, count = found.model.outputs[0].shape[0], len(found.scores)
    if count > queries:
        return None
    rows = found.background(queries, 4 + len(found.model.labels))
    at = found.rng.choice(queries, count, replace=False)
    rows[at, :4] = found.boxes
    rows[at, 4 + found.ids] = found.scores
    rows[:, :4] /= head.size
    scores = logit(rows[:, 4:]) if head.logits else rows[:, 4:]
    if head.places is None:
        return [np.concatenate((rows[:, :4], scores), axis=1)]
    outputs = [rows[:, :4], scores]
    return outputs if head.places == (0, 1) else outputs[::-1]


def _end2end(found: Objects, _head: Head) -> Outputs | None:
    """x1 y1 x2 y2 score class, best first, one row per object; the unused ones hold zeros."""
    shape, count = found.model.outputs[0].shape, len(found.scores)
    if count > shape[0]:
        return None
    rows = np.zeros(shape)
    order = np.argsort(-found.scores)
    rows[:count, :4] = corners_of_centres(found.boxes[order])
    rows[:count, 4] = found.scores[order]
    rows[:count, 5] = found.ids[order]
    return [rows]


def _classify(found: Objects, head: Head) -> Outputs | None:
    """The class of the first object, the others share what is left."""
    assert isinstance(head, Classify)
    scores = found.rng.uniform(0.5, 1, len(found.model.labels))
    if len(found.scores) and len(scores) > 1:
        scores[found.ids[0]] = 0
        scores *= (1 - found.scores[0]) / scores.sum()
        scores[found.ids[0]] = found.scores[0]
    else:
        scores /= scores.sum()
    return [np.log(scores) if head.logits else scores]


_LAYOUTS: Final[dict[str, Callable[[Objects, Head], Outputs | None]]] = {
    "ssd": _single,
    "yolov5": _yolov5,
    "yolov5_raw": raw_heads,
    "yolov6": _yolov6,
    "yolov8": _single,
    "yolov8_rows": _single,
    "yolov8_seg": _yolov8_seg,
    "yolov8_pose": _yolov8_pose,
    "yolov8_obb": _yolov8_obb,
    "yolox": _yolox,
    "yolonas": _yolonas,
    "rtdetr": _rtdetr,
    "nanodet": distributions,
    "picodet": distributions,
    "end2end": _end2end,
    "classify": _classify,
}
