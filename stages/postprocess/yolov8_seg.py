"""Owns the layout ``yolov8_seg``: ``yolov8`` with mask coefficients, and prototypes. Does not own the masks' making.

Source: Ultralytics, ``Segment.forward`` in ultralytics/nn/modules/head.py (YOLOv8, 11, 12): (4 + C + m, A), boxes and
scores as in ``yolov8``, then m = 32 coefficients of masks, and prototypes (m, h, w), a quarter of the input's size. The
first may be transposed, and the two may come in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.letterbox import Geometry
from stages.model import ModelSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Candidates, Classes
from stages.postprocess.head import Details, check_classes, float_outputs, shape_text
from stages.postprocess.masks import mask_of
from stages.postprocess.yolov8 import channels_first, chosen_anchors


class YoloV8Seg(ByAnchors):
    """Two outputs: (4 + C + m, A) or its transpose, (m, h, w). See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        self.classes = len(model.labels)
        ranks = [len(t.shape) for t in model.outputs]
        self.rows_place, self.masks_place = (1, 0) if ranks == [3, 2] else (0, 1)
        self.masks = model.outputs[self.masks_place].shape[0] if sorted(ranks) == [2, 3] else 0
        shape = model.outputs[self.rows_place].shape if self.masks else (0, 0)
        self.first = channels_first(shape, 4 + self.classes + self.masks)

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        outputs = float_outputs(model, "yolov8_seg")
        if not self.masks:
            shapes = ", ".join(shape_text(t.shape) for t in outputs)
            raise UserError(
                f"model {model.name}: layout yolov8_seg reads two outputs, numbers x anchors and the masks' prototypes "
                f"m x h x w, but the model's are {shapes}; give the layout that it has"
            )
        numbers = outputs[self.rows_place].shape[0 if self.first else 1]
        check_classes(
            model,
            "yolov8_seg",
            numbers - 4 - self.masks,
            f"numbers less 4 for the box and {self.masks} for the mask",
            self.rows_place,
        )

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        return chosen_anchors(outputs[self.rows_place], confidence, classes, self.classes, self.first)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        rows = picked.columns(outputs[self.rows_place]) if self.first else picked.rows(outputs[self.rows_place])
        return picked.finish_class_rows(rows, top_k, self.classes)

    @np.errstate(over="ignore", invalid="ignore")  # a sum that is NaN is not above 0
    def details(
        self,
        outputs: Sequence[NDArray[Any]],
        found: Candidates,
        kept: NDArray[np.intp],
        boxes: NDArray[np.float32],
        geometry: Geometry,
    ) -> Details:
        """See DetailedHead: masks."""
        assert found.extra is not None
        prototypes = outputs[self.masks_place]
        return Details(
            masks=tuple(
                mask_of(found.extra[index], prototypes, box, geometry) for index, box in zip(kept, boxes, strict=True)
            )
        )
