"""Owns the layout ``rtdetr``: one box per query, in parts of the input, each object once. Does not own NMS.

Source: Y. Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection", and lyuwenyu/RT-DETR, ``RTDETRTransformer``
(boxes are sigmoids: centre x, centre y, width, height in 0..1 of the input) and ``RTDETRPostProcessor`` (focal loss:
scores are the sigmoids of the logits); no NMS, queries are matched to objects one to one. Its export without
post-processing gives (Q, C) logits and (Q, 4) boxes, as Hugging Face's does; Ultralytics' gives one output
(Q, 4 + C) with the sigmoid taken. A query is one candidate, of its best class (as ``RTDETRPredictor`` in
ultralytics/models/rtdetr/predict.py takes it; the original counts further classes of a query as further objects).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.model import ModelSpec
from stages.postprocess.candidates import (
    TOP_K,
    Candidates,
    Classes,
    finish,
    finish_scored,
    from_centres,
    passing,
    rows_above,
)
from stages.postprocess.head import boxes_and_scores, check_classes, single_output
from stages.postprocess.logits import above_floor, best_class_of_logits, floor_of


class RtDetr:
    """One output (Q, 4 + C) or two, (Q, 4) and (Q, C): cx cy w h in 0..1, class scores or logits. See Head."""

    suppresses = False

    def __init__(self, model: ModelSpec) -> None:
        self.size = np.array((model.width, model.height) * 2, np.float32)
        self.places = boxes_and_scores(model, "rtdetr") if len(model.outputs) == 2 else None
        self.logits = model.head.scores == "logits"
        if self.places is not None and model.head.scores == "auto":
            self.logits = "logit" in model.outputs[self.places[1]].name.lower()

    def check(self, model: ModelSpec) -> None:
        """See Head. Of two outputs the scores' name must tell what they are, or ``scores`` under ``head``."""
        if self.places is None:
            tensor = single_output(model, "rtdetr", 2)
            check_classes(model, "rtdetr", tensor.shape[1] - 4, "rows less 4 for the box")
            return
        _, place = boxes_and_scores(model, "rtdetr")
        name = model.outputs[place].name
        if model.head.scores == "auto" and not any(word in name.lower() for word in ("logit", "score", "prob")):
            raise UserError(
                f"model {model.name}: layout rtdetr can't tell by its name whether output {name} holds logits or "
                "probabilities; write `scores: logits` or `scores: probabilities` under `head`"
            )

    @np.errstate(over="ignore", invalid="ignore")  # what overflows or is NaN is dropped
    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head."""
        if self.places is None:
            boxes, class_scores = outputs[0][:, :4], outputs[0][:, 4:]
        else:
            boxes, class_scores = (outputs[place] for place in self.places)
        if not self.logits:
            chosen = rows_above(class_scores, slice(0, None), confidence, classes)
            return finish_scored(
                self._corners(boxes, chosen), class_scores.take(chosen, axis=0), confidence, classes, top_k
            )
        chosen = np.flatnonzero(above_floor(class_scores, floor_of(confidence)).any(axis=1))
        rows = class_scores.take(chosen, axis=0)
        ids, scores = best_class_of_logits(rows)
        ok = passing(scores, ids, confidence, classes, rows.shape[1])
        return finish(self._corners(boxes, chosen[ok]), scores[ok], ids[ok], top_k)

    def _corners(self, boxes: NDArray[Any], chosen: NDArray[np.intp]) -> NDArray[np.float32]:
        """x1 y1 x2 y2 in pixels of the input."""
        return from_centres(boxes.take(chosen, axis=0).astype(np.float32) * self.size)
