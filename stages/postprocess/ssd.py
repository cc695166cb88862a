"""Owns the layout ``ssd``: rows of box and class scores, no objectness. Does not own the decoding of SSD's anchors.

Source: W. Liu et al., "SSD: Single Shot MultiBox Detector" (2016), sections 2.1 and 2.2: each default box carries
four offsets and a score per class, without an objectness of its own. The default model's file decodes the offsets
itself (divisors 10 and 5 of the TensorFlow object detection API) and has no background class, so that what arrives is
(A, 4 + C): centre x, centre y, width, height in pixels of the input, then C scores in 0..1. A channels-last export of
YOLOv8 and its successors looks the same and is read the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.model import ModelSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes
from stages.postprocess.head import check_classes, single_output
from stages.postprocess.highest import rows_above


class Ssd(ByAnchors):
    """One output (A, 4 + C): cx cy w h in input pixels, then class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        del model  # all that is needed stands in the rows

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "ssd", 2)
        check_classes(model, "ssd", tensor.shape[1] - 4, "rows less 4 for the box")

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        return rows_above(outputs[0], slice(4, None), confidence, classes)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        return picked.finish_class_rows(picked.rows(outputs[0]), top_k)
