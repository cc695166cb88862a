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
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes, above
from stages.postprocess.head import shape_text, single_output


class EndToEnd(ByAnchors):
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

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        del classes  # no other class of a row could be meant
        return above(outputs[0][:, 4], confidence)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors. Raises BadItem for a class that is no whole number or has no label."""
        rows = picked.rows(outputs[0]).astype(np.float32)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            rows[~finite] = 0  # a score of 0 passes nowhere
        numbers = rows[:, 5]
        right = (numbers >= 0) & (numbers < self.classes) & (numbers == np.floor(numbers))
        if not right.all():
            number = float(numbers[~right][0])
            raise BadItem(
                "post_failed",
                f"class {number:g} is none of the {self.classes} labels; are the model's layout and labels right?",
            )
        scores, ids = rows[:, 4], numbers.astype(np.intp)
        ok = picked.passing(scores, ids, self.classes)
        return picked.finish(rows[:, :4], scores, ids, ok, top_k)
