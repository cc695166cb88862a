"""Owns the layout ``classify``: what a whole frame shows. Does not own detectors.

A classifier gives a score per class, (C,) or (C, 1, 1). Ultralytics' exports (``Classify.forward`` in
ultralytics/nn/modules/head.py) have taken the softmax; torchvision's give logits, for which ``scores: logits`` takes
it here. The best ``top`` classes that exceed the confidence become objects with the frame's box (the roi's, when the
camera has one); other than with detectors, one place is several candidates. An output with a NaN gives none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.errors import BadItem, UserError
from stages.model import ModelSpec
from stages.postprocess.candidates import TOP_K, Candidates, Classes, finish, passing
from stages.postprocess.head import check_classes, float_outputs, shape_text
from stages.postprocess.logits import softmax

TOLERANCE: Final = 0.05  # of float16 probabilities


class Classify:
    """One output (C,): probabilities, or logits when the model's options say so. See Head."""

    suppresses = False

    def __init__(self, model: ModelSpec) -> None:
        self.logits = model.head.scores == "logits"
        self.top = model.head.top
        self.frame = np.array((0, 0, model.width, model.height), np.float32)

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        outputs = float_outputs(model, "classify")
        shape = outputs[0].shape
        if len(outputs) != 1 or len(shape) < 1 or math.prod(shape[1:]) != 1:
            raise UserError(
                f"model {model.name}: layout classify reads one output with a score per class, but the model's are "
                f"{', '.join(shape_text(t.shape) for t in outputs)}; give the layout that it has"
            )
        check_classes(model, "classify", shape[0], "one score each")

    @np.errstate(over="ignore", invalid="ignore")  # what overflows or is NaN is dropped
    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head. Raises BadItem for probabilities that can't be any."""
        raw = outputs[0].reshape(-1)
        scores = softmax(raw) if self.logits else raw.astype(np.float32)
        if not self.logits and (scores.min() < -TOLERANCE or scores.max() > 1 + TOLERANCE):
            raise BadItem(
                "post_failed",
                f"scores from {scores.min():.3g} to {scores.max():.3g} are no probabilities; if the model gives "
                "logits, write `scores: logits` under `head`",
            )
        ids = np.arange(len(scores))
        ok = passing(scores, ids, confidence, classes, len(scores)) & ~np.isnan(scores).any()
        chosen = ids[ok][np.argsort(-scores[ok], kind="stable")[: self.top]]
        chosen.sort()
        return finish(np.tile(self.frame, (len(chosen), 1)), scores[chosen], chosen, top_k)
