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
from stages.postprocess.candidates import (
    TOP_K,
    Candidates,
    Classes,
    best_class,
    finish,
    from_centres,
    passing,
    rows_above,
)
from stages.postprocess.head import check_classes, single_output


class YoloV6:
    """One output (A, 5 + C): cx cy w h in input pixels, objectness, class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        del model  # all that is needed stands in the rows

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "yolov6", 2)
        check_classes(model, "yolov6", tensor.shape[1] - 5, "rows less 4 for the box and 1 for objectness")

    @np.errstate(over="ignore", invalid="ignore")  # what overflows or is NaN is dropped
    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head."""
        raw = outputs[0]
        rows = raw.take(rows_above(raw, slice(5, None), confidence, classes), axis=0)
        class_scores = rows[:, 5:]
        ids = best_class(class_scores)
        best = class_scores[np.arange(len(ids)), ids].astype(np.float32)
        objectness = rows[:, 4].astype(np.float32)
        scores = objectness * best
        ok = passing(scores, ids, confidence, classes, class_scores.shape[1])
        ok &= (objectness > np.float32(confidence)) & (best > np.float32(confidence))
        ok &= ~np.isnan(rows[:, 4:]).any(axis=1)
        return finish(from_centres(rows[ok, :4]), scores[ok], ids[ok], top_k)
