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
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes
from stages.postprocess.head import boxes_and_scores
from stages.postprocess.highest import rows_above


class YoloNas(ByAnchors):
    """Two outputs in any order: (A, 4) x1 y1 x2 y2 in input pixels, (A, C) class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        self.places = boxes_and_scores(model, "yolonas") if len(model.outputs) == 2 else (0, 1)

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        boxes_and_scores(model, "yolonas")

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        return rows_above(outputs[self.places[1]], slice(0, None), confidence, classes)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        boxes, scores = (picked.rows(outputs[place]) for place in self.places)
        return picked.finish_scored(boxes.astype(np.float32), scores, top_k)
