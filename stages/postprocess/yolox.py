"""Owns the layout ``yolox``: raw offsets on the grid, with objectness. Does not own exports that decode in the file.

Source: Z. Ge et al., "YOLOX: Exceeding YOLO Series in 2021", and Megvii-BaseDetection/YOLOX: ``YOLOXHead.forward`` in
yolox/models/yolo_head.py with ``decode_in_inference`` off, which is how its exporter writes ONNX files, gives
(A, 5 + C) with the sigmoid of objectness and classes taken; ``demo_postprocess`` in yolox/utils/demo_utils.py decodes
``xy = (t + grid) * stride``, ``wh = exp(t) * stride``. Anchors: strides 8, 16, 32, row by row of each grid. What
passes: the objectness must exceed the confidence, and so must objectness times best class, as for YOLOv5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.model import ModelSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes, above, from_centres
from stages.postprocess.head import check_classes, single_output
from stages.postprocess.yolov5 import scored_rows

STRIDES: Final = (8, 16, 32)


def grid_of(width: int, height: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Grid cell (A, 2) x, y and stride (A, 1) of every anchor of an input of that size; float32."""
    cells, strides = [], []
    for stride in STRIDES:
        x, y = np.meshgrid(np.arange(width // stride), np.arange(height // stride))
        cells.append(np.stack((x.ravel(), y.ravel()), axis=1))
        strides.append(np.full((x.size, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)


class Yolox(ByAnchors):
    """One output (A, 5 + C): raw x y w h, objectness, class scores. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        self.cells, self.strides = grid_of(model.width, model.height)

    def check(self, model: ModelSpec) -> None:
        """See Head. The number of anchors must be that of the grids of the input's size."""
        tensor = single_output(model, "yolox", 2)
        check_classes(model, "yolox", tensor.shape[1] - 5, "rows less 4 for the box and 1 for objectness")
        expected = len(grid_of(model.width, model.height)[0])
        if tensor.shape[0] != expected:
            raise UserError(
                f"model {model.name}: layout yolox has {expected} anchors for an input of {model.width}x{model.height} "
                f"(strides 8, 16, 32), but output {tensor.name} has {tensor.shape[0]}; "
                "correct the input size, or give the layout that the model has"
            )

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors."""
        del classes  # the objectness is looked at first
        return above(outputs[0][:, 4], confidence)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        offsets, scores, ids, ok = scored_rows(picked.rows(outputs[0]), picked)
        box = offsets.astype(np.float32)
        stride = self.strides[picked.anchors]
        box[:, :2] = (box[:, :2] + self.cells[picked.anchors]) * stride
        box[:, 2:] = np.exp(box[:, 2:]) * stride
        return picked.finish(from_centres(box), scores, ids, ok, top_k)
