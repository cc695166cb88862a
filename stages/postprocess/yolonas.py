"""Owns the layout ``yolonas``: boxes by their corners in one output, class scores in another. Not exports with NMS.

Source: Deci-AI/super-gradients, ``NDFLHeads.forward_eval`` in
src/super_gradients/training/models/detection_models/yolo_nas/dfl_heads.py, whose first result an export without
post-processing writes: ``pred_bboxes`` (A, 4) x1 y1 x2 y2 in pixels of the input and ``pred_scores`` (A, C) in 0..1.
Anchors whose best class exceeds the confidence pass; other detectors that export boxes and scores apart are read alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.model import ModelSpec
from stages.postprocess.candidates import TOP_K, Candidates, Classes, finish_scored, rows_above
from stages.postprocess.head import boxes_and_scores


class YoloNas:
    """Two outputs in any order: (A, 4) x1 y1 x2 y2 in input pixels, (A, C) class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        self.places = boxes_and_scores(model, "yolonas") if len(model.outputs) == 2 else (0, 1)

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        boxes_and_scores(model, "yolonas")

    @np.errstate(over="ignore", invalid="ignore")  # what overflows or is NaN is dropped
    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head."""
        boxes, scores = (outputs[place] for place in self.places)
        anchors = rows_above(scores, slice(0, None), confidence, classes)
        chosen = boxes.take(anchors, axis=0).astype(np.float32)
        return finish_scored(chosen, scores.take(anchors, axis=0), confidence, classes, top_k)
