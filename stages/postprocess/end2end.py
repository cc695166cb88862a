"""Owns the layout ``end2end``: finished boxes, one row each. Does not own NMS: the model needs none.

Source: Ultralytics, ``Detect.postprocess`` in ultralytics/nn/modules/head.py (YOLOv10, 26: one-to-one head) and
exports with ``nms=True``: (N, 6) x1 y1 x2 y2 in pixels of the input, score in 0..1, class id as a number. Unused rows
hold zeros or low scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.errors import BadItem, UserError
from stages.model import ModelSpec
from stages.postprocess.candidates import TOP_K, Candidates, Classes, above, finish, passing
from stages.postprocess.head import shape_text, single_output


class EndToEnd:
    """One output (N, 6): x1 y1 x2 y2 in input pixels, score, class id. See Head."""

    suppresses = False

    def __init__(self, model: ModelSpec) -> None:
        self.classes = len(model.labels)

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "end2end", 2)
        if tensor.shape[1] != 6:
            raise UserError(
                f"model {model.name}: layout end2end has rows of 6 (box, score, class), but output {tensor.name} is "
                f"{shape_text(tensor.shape)}; give the layout that the model has"
            )
        if not model.labels:
            raise UserError(f"model {model.name}: no labels are given; list one label per class, in the model's order")

    @np.errstate(over="ignore", invalid="ignore")  # what overflows or is NaN is dropped
    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head. Raises BadItem for a class that is no whole number or has no label."""
        raw = outputs[0]
        rows = raw.take(above(raw[:, 4], confidence), axis=0).astype(np.float32)
        rows = rows[np.isfinite(rows).all(axis=1)]
        numbers = rows[:, 5]
        right = (numbers >= 0) & (numbers < self.classes) & (numbers == np.floor(numbers))
        if not right.all():
            number = float(numbers[~right][0])
            raise BadItem(
                "post_failed",
                f"class {number:g} is none of the {self.classes} labels; are the model's layout and labels right?",
            )
        scores, ids = rows[:, 4], numbers.astype(np.intp)
        ok = passing(scores, ids, confidence, classes, self.classes)
        return finish(rows[ok, :4], scores[ok], ids[ok], top_k)
