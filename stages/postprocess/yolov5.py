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
from stages.postprocess.candidates import (
    TOP_K,
    Candidates,
    Classes,
    above,
    best_class,
    finish,
    free_of_nan,
    from_centres,
    passing,
)
from stages.postprocess.head import check_classes, single_output


def objects_of_rows(
    raw: NDArray[Any], confidence: float, classes: Classes
) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[np.float32], NDArray[np.intp]]:
    """Anchors of (A, 5 + C) that pass: their indices, box columns, scores (objectness times best class), class ids."""
    anchors = above(raw[:, 4], confidence)
    rows = raw.take(anchors, axis=0)
    class_scores = rows[:, 5:]
    ids = best_class(class_scores)
    scores = rows[:, 4].astype(np.float32) * class_scores[np.arange(len(ids)), ids].astype(np.float32)
    ok = passing(scores, ids, confidence, classes, class_scores.shape[1])
    sound = free_of_nan(rows[:, 4:])
    if sound is not None:
        ok &= sound
    return anchors[ok], rows[:, :4][ok], scores[ok], ids[ok]


class YoloV5:
    """One output (A, 5 + C): cx cy w h in input pixels, objectness, class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        del model  # all that is needed stands in the rows

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "yolov5", 2)
        check_classes(model, "yolov5", tensor.shape[1] - 5, "rows less 4 for the box and 1 for objectness")

    @np.errstate(over="ignore", invalid="ignore")  # what overflows or is NaN is dropped
    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head."""
        _, boxes, scores, ids = objects_of_rows(outputs[0], confidence, classes)
        return finish(from_centres(boxes), scores, ids, top_k)
