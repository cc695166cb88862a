"""Owns the layouts ``yolov8`` and ``yolov8_rows``: a box and class scores per anchor, no objectness.

Does not own masks, keypoints and angles, which have layouts of their own.

Source: Ultralytics, ``Detect._inference`` in ultralytics/nn/modules/head.py (YOLOv8, v9, 11, 12): the distribution
focal loss is decoded in the file, ``torch.cat((dbox * strides, cls.sigmoid()), 1)`` gives (4 + C, A): centre x,
centre y, width, height in pixels of the input, then C scores in 0..1. What passes: ``non_max_suppression`` in
ultralytics/utils/nms.py with ``multi_label=False``.

Some exporters transpose that to rows, (A, 4 + C). ``yolov8`` takes both, told apart by the number of labels; should
both fit (as many anchors as numbers of one) it means channels first, and ``yolov8_rows`` says the other outright.
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
from stages.postprocess.highest import anchors_above, rows_above


def channels_first(shape: Sequence[int], numbers: int) -> bool:
    """Whether an output is (numbers, anchors) rather than (anchors, numbers)."""
    return shape[0] == numbers or shape[1] != numbers


def chosen_anchors(
    raw: NDArray[Any], confidence: float, classes: Classes, class_count: int, first: bool
) -> NDArray[np.intp]:
    """The anchors that may pass, of an output of either orientation."""
    scores = slice(4, 4 + class_count)
    return anchors_above(raw[scores], confidence, classes) if first else rows_above(raw, scores, confidence, classes)


class YoloV8(ByAnchors):
    """One output (4 + C, A), rows cx cy w h in input pixels, then a row per class; or its transpose. See Head."""

    suppresses = True
    layout = "yolov8"

    def __init__(self, model: ModelSpec) -> None:
        self.classes = len(model.labels)
        shape = model.outputs[0].shape if model.outputs else ()
        self.first = len(shape) == 2 and channels_first(shape, 4 + self.classes)

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, self.layout, 2)
        if self.first:
            check_classes(model, self.layout, tensor.shape[0] - 4, "channels less 4 for the box")
        else:
            check_classes(model, self.layout, tensor.shape[1] - 4, "rows less 4 for the box")

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        return chosen_anchors(outputs[0], confidence, classes, self.classes, self.first)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        rows = picked.columns(outputs[0]) if self.first else picked.rows(outputs[0])
        return picked.finish_class_rows(rows, top_k)


class YoloV8Rows(YoloV8):
    """One output (A, 4 + C): cx cy w h in input pixels, then class scores. See Head."""

    layout = "yolov8_rows"

    def __init__(self, model: ModelSpec) -> None:
        super().__init__(model)
        self.first = False
