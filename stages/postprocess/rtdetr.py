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
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes, from_centres
from stages.postprocess.head import boxes_and_scores, check_classes, single_output
from stages.postprocess.highest import rows_above
from stages.postprocess.logits import above_floor, best_class_of_logits, floor_of


class RtDetr(ByAnchors):
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

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        scores = outputs[0][:, 4:] if self.places is None else outputs[self.places[1]]
        if self.logits:
            return np.flatnonzero(above_floor(scores, floor_of(confidence)).any(axis=1))
        return rows_above(scores, slice(0, None), confidence, classes)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        if self.places is None:
            rows = picked.rows(outputs[0])
            boxes, class_scores = rows[:, :4], rows[:, 4:]
        else:
            boxes, class_scores = (picked.rows(outputs[place]) for place in self.places)
        corners = from_centres(boxes.astype(np.float32) * self.size)
        if not self.logits:
            return picked.finish_scored(corners, class_scores, top_k)
        ids, scores = best_class_of_logits(class_scores)
        ok = picked.passing(scores, ids, class_scores.shape[1])
        return picked.finish(corners, scores, ids, ok, top_k)
