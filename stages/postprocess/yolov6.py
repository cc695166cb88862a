"""Owns the layout ``yolov6``: decoded rows whose objectness is 1 or nearly says nothing. Not the raw heads.

Source: C. Li et al., "YOLOv6: A Single-Stage Object Detection Framework for Industrial Applications", and
meituan/YOLOv6: ``Detect.forward`` in yolov6/models/effidehead.py decodes in the file, from 0.2 on with an objectness of
ones, and gives (A, 5 + C): centre x, centre y, width, height in pixels of the input, objectness, C class scores in
0..1. What passes: ``non_max_suppression`` in yolov6/utils/nms.py: the objectness must exceed the confidence, the best
class must, and their product must. It reads a file of layout ``yolov5`` almost alike, but looks at the classes first,
for with an objectness of ones that is the cheap order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.model import ModelSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes, best_class, free_of_nan, from_centres
from stages.postprocess.head import check_classes, single_output
from stages.postprocess.highest import rows_above


class YoloV6(ByAnchors):
    """One output (A, 5 + C): cx cy w h in input pixels, objectness, class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        del model  # all that is needed stands in the rows

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "yolov6", 2)
        check_classes(model, "yolov6", tensor.shape[1] - 5, "rows less 4 for the box and 1 for objectness")

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        return rows_above(outputs[0], slice(5, None), confidence, classes)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        rows = picked.rows(outputs[0])
        class_scores = rows[:, 5:]
        ids = best_class(class_scores)
        best = class_scores[np.arange(len(ids)), ids].astype(np.float32)
        objectness = rows[:, 4].astype(np.float32)
        scores = objectness * best
        ok = picked.passing(scores, ids, class_scores.shape[1])
        confidence = picked.confidence
        ok &= objectness > confidence
        ok &= best > confidence
        free = free_of_nan(rows[:, 4:])
        if free is not None:
            ok &= free
        return picked.finish(from_centres(rows[:, :4]), scores, ids, ok, top_k)
