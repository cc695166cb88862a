"""Owns the layout ``yolov8_obb``: oriented boxes. Does not own their suppression (that is ``nms_rotated``).

Source: Ultralytics, ``OBB.forward`` in ultralytics/nn/modules/head.py (YOLOv8, 11, 12): (4 + C + 1, A): centre x,
centre y, width, height in pixels of the input, C scores in 0..1, the angle in radians by which the width's direction is
turned from x towards y. Corners: ``xywhr2xyxyxyxy`` in ultralytics/utils/ops.py,
``centre ± w/2 (cos, sin) ± h/2 (-sin, cos)`` in the order + +, + -, - -, - +. The output may be transposed.

An object's box is what encloses its corners; corners may lie outside the picture, the box is clipped to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.letterbox import Geometry
from stages.model import ModelSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Candidates, Classes, best_class
from stages.postprocess.head import Details, check_classes, single_output
from stages.postprocess.yolov8 import channels_first, chosen_anchors


def corners_of(rotated: NDArray[np.float32]) -> NDArray[np.float32]:
    """Corners (n, 4, 2) of boxes (n, 5) cx cy w h angle."""
    cos, sin = np.cos(rotated[:, 4]), np.sin(rotated[:, 4])
    half_width, half_height = rotated[:, 2] * np.float32(0.5), rotated[:, 3] * np.float32(0.5)
    along = np.stack((half_width * cos, half_width * sin), axis=1)
    across = np.stack((-half_height * sin, half_height * cos), axis=1)
    centre = rotated[:, :2]
    return np.stack(
        (centre + along + across, centre + along - across, centre - along - across, centre - along + across), axis=1
    )


class YoloV8Obb(ByAnchors):
    """One output (4 + C + 1, A) or its transpose: cx cy w h, class scores, angle. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        self.classes = len(model.labels)
        shape = model.outputs[0].shape if model.outputs else ()
        self.first = len(shape) == 2 and channels_first(shape, 5 + self.classes)

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "yolov8_obb", 2)
        numbers = tensor.shape[0 if self.first else 1]
        check_classes(model, "yolov8_obb", numbers - 5, "numbers less 4 for the box and 1 for its angle")

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        return chosen_anchors(outputs[0], confidence, classes, self.classes, self.first)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        rows = picked.columns(outputs[0]) if self.first else picked.rows(outputs[0])
        class_scores = rows[:, 4:-1]
        ids = best_class(class_scores)
        scores = class_scores[np.arange(len(ids)), ids].astype(np.float32)
        rotated = np.concatenate((rows[:, :4], rows[:, -1:]), axis=1).astype(np.float32)
        ok = picked.passing(scores, ids, self.classes)
        ok &= ~np.isnan(class_scores).any(axis=1)
        ok &= (rotated[:, 2:4] > 0).all(axis=1)
        corners = corners_of(rotated)
        boxes = np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1)
        return picked.finish(boxes, scores, ids, ok, top_k, rotated=rotated)

    def details(
        self,
        outputs: Sequence[NDArray[Any]],
        found: Candidates,
        kept: NDArray[np.intp],
        boxes: NDArray[np.float32],
        geometry: Geometry,
    ) -> Details:
        """See DetailedHead: corners."""
        del outputs, boxes
        assert found.rotated is not None
        return Details(corners=geometry.inverse_points(corners_of(found.rotated[kept]), clip=False))
