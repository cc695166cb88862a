"""Owns the layout ``yolov5``: decoded rows with objectness. Does not own the three raw heads.

Source: Ultralytics YOLOv5, ``Detect.forward`` in models/yolo.py (YOLOv7 alike): the file decodes
``xy = (2 * sigmoid(t) - 0.5 + grid) * stride`` and ``wh = (2 * sigmoid(t))² * anchor`` and gives (A, 5 + C): centre x,
centre y, width, height in pixels of the input, then objectness and C class scores in 0..1. What passes:
``non_max_suppression`` in utils/general.py with ``multi_label=False``: the objectness must exceed the confidence, and
so must objectness times best class. YOLOX and YOLOv6 exports that decode in the file look the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.model import ModelSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes, above, best_class, free_of_nan, from_centres
from stages.postprocess.head import check_classes, single_output


def scored_rows(
    rows: NDArray[Any], picked: Picked
) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.intp], NDArray[np.bool_]]:
    """Of rows (n, 5 + C): box columns, scores (objectness times best class), class ids, and which of them pass."""
    class_scores = rows[:, 5:]
    ids = best_class(class_scores)
    scores = rows[:, 4].astype(np.float32)
    scores *= class_scores[np.arange(len(ids)), ids]
    ok = picked.passing(scores, ids, class_scores.shape[1])
    free = free_of_nan(rows[:, 4:])
    if free is not None:
        ok &= free
    return rows[:, :4], scores, ids, ok


class YoloV5(ByAnchors):
    """One output (A, 5 + C): cx cy w h in input pixels, objectness, class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        del model  # all that is needed stands in the rows

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "yolov5", 2)
        check_classes(model, "yolov5", tensor.shape[1] - 5, "rows less 4 for the box and 1 for objectness")

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        del classes  # the objectness is looked at first
        return above(outputs[0][:, 4], confidence)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        boxes, scores, ids, ok = scored_rows(picked.rows(outputs[0]), picked)
        return picked.finish(from_centres(boxes), scores, ids, ok, top_k)
