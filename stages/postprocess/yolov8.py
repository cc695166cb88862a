"""Owns the layout ``yolov8``: channels first, no objectness. Does not own the transposed form (that is ``ssd``).

Source: Ultralytics, ``Detect._inference`` in ultralytics/nn/modules/head.py (YOLOv8, v9, 11, 12): the distribution
focal loss is decoded in the file, ``torch.cat((dbox * strides, cls.sigmoid()), 1)`` gives (4 + C, A): centre x,
centre y, width, height in pixels of the input, then C scores in 0..1. What passes: ``non_max_suppression`` in
ultralytics/utils/nms.py with ``multi_label=False``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.model import ModelSpec
from stages.postprocess.candidates import TOP_K, Candidates, Classes, bits_above, finish_class_rows, highest
from stages.postprocess.head import check_classes, single_output


class YoloV8:
    """One output (4 + C, A): rows cx cy w h in input pixels, then a row per class. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        del model  # all that is needed stands in the channels

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "yolov8", 2)
        check_classes(model, "yolov8", tensor.shape[0] - 4, "channels less 4 for the box")

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
        anchors = bits_above(highest(raw[4:], classes), confidence, raw.dtype)
        rows = np.ascontiguousarray(raw.take(anchors, axis=1).T)
        return finish_class_rows(rows, confidence, classes, top_k)
