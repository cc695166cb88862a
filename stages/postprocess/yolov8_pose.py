"""Owns the layout ``yolov8_pose``: ``yolov8`` with keypoints. Does not own what a keypoint means.

Source: Ultralytics, ``Pose.kpts_decode`` in ultralytics/nn/modules/head.py (YOLOv8, 11, 12): (4 + C + 3 k, A), boxes
and scores as in ``yolov8``, then k times x y in pixels of the input and a score in 0..1 (whether it can be seen);
models trained without have (4 + C + 2 k, A). The output may be transposed. Keypoints are clipped to the picture, as
``scale_coords`` in ultralytics/utils/ops.py does; without a score they get 1.
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
from stages.postprocess.head import Details, shape_text, single_output
from stages.postprocess.yolov8 import chosen_anchors


class YoloV8Pose(ByAnchors):
    """One output (4 + C + 3 k, A) or its transpose: cx cy w h, class scores, x y score of each keypoint. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        self.classes = len(model.labels)
        self.values = model.head.keypoint_values
        shape = model.outputs[0].shape if model.outputs else ()
        self.side: int | None = None
        if len(shape) == 2:  # there are more anchors than numbers of one, and many a number of anchors would fit too
            side = 0 if shape[0] <= shape[1] else 1
            self.side = side if self._fits(shape[side]) else None

    def _fits(self, numbers: int) -> bool:
        count, rest = divmod(numbers - 4 - self.classes, self.values)
        return count >= 1 and not rest

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        tensor = single_output(model, "yolov8_pose", 2)
        if self.side is None or not model.labels:
            raise UserError(
                f"model {model.name}: layout yolov8_pose with {len(model.labels)} labels has 4 + {len(model.labels)} "
                f"numbers and {self.values} for each keypoint, but output {tensor.name} is {shape_text(tensor.shape)}; "
                "correct the labels or `keypoint_values` under `head`, or give the layout that the model has"
            )

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        return chosen_anchors(outputs[0], confidence, classes, self.classes, self.side == 0)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        rows = picked.columns(outputs[0]) if self.side == 0 else picked.rows(outputs[0])
        return picked.finish_class_rows(rows, top_k, self.classes)

    def details(
        self,
        outputs: Sequence[NDArray[Any]],
        found: Candidates,
        kept: NDArray[np.intp],
        boxes: NDArray[np.float32],
        geometry: Geometry,
    ) -> Details:
        """See DetailedHead: keypoints."""
        del outputs, boxes
        assert found.extra is not None
        values = found.extra[kept].reshape(len(kept), -1, self.values)
        keypoints = np.ones((*values.shape[:2], 3), np.float32)
        keypoints[..., :2] = geometry.inverse_points(values[..., :2], clip=True)
        if self.values == 3:
            np.clip(values[..., 2], 0, 1, out=keypoints[..., 2])
        return Details(keypoints=keypoints)
