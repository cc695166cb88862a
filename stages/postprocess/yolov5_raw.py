"""Owns the layout ``yolov5_raw``: three or four raw heads with anchors. Does not own files that decode themselves.

Source: Ultralytics YOLOv5, ``Detect.forward`` in models/yolo.py, and WongKinYiu/yolov7, ``Detect`` in models/yolo.py,
which decode alike: with t the raw numbers of an anchor in cell (x, y) of a head of that stride,
``xy = (2 * sigmoid(t) - 0.5 + cell) * stride``, ``wh = (2 * sigmoid(t))² * anchor``, objectness and class scores are
sigmoids. Anchors in pixels of the input: models/yolov5s.yaml (P5) and models/hub/yolov5s6.yaml (P6); those of YOLOv7
are in cfg/deploy/yolov7.yaml. What passes is the same as for ``yolov5``, and so is the order of anchors: heads by
stride, in a head by anchor, then row by row.

A head is (n * (5 + C), H, W), (n, 5 + C, H, W) or (n, H, W, 5 + C) with n anchors; the heads come in any order, for
their sizes tell their strides. With ``scores: probabilities`` the file has taken all the sigmoids itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.model import ModelSpec, TensorSpec
from stages.postprocess.batched import ByAnchors, Found, Picked
from stages.postprocess.candidates import Classes, above, from_centres
from stages.postprocess.head import float_outputs, shape_text
from stages.postprocess.logits import above_floor, best_class_of_logits, floor_of, sigmoid

P5: Final = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326))
P6: Final = (
    (19, 27, 44, 40, 38, 94),
    (96, 68, 86, 152, 180, 137),
    (140, 301, 303, 264, 238, 542),
    (436, 615, 739, 380, 925, 792),
)


_NO_PLACES: Final = np.empty((0, 5), np.float32)  # of a model that ``check`` refuses


class YoloV5Raw(ByAnchors):
    """Three or four outputs of raw x y w h, objectness, class scores per anchor and cell. See Head."""

    suppresses = True

    def __init__(self, model: ModelSpec) -> None:
        self.columns = 5 + len(model.labels)
        self.logits = model.head.scores != "probabilities"
        self.width, self.height = model.width, model.height
        self.given = model.head.anchors
        self.heads = [head for output in model.outputs if (head := self._grid(output)) is not None]
        self.order = sorted(range(len(self.heads)), key=lambda i: -self.heads[i][2] * self.heads[i][3])
        anchors = self.given or {3: P5, 4: P6}.get(len(self.heads), ())
        self.anchors = [np.array(each, np.float32).reshape(-1, 2) for each in anchors]
        counts = [self.heads[i][1] for i in self.order]
        self.places = self._places() if counts == [len(each) for each in self.anchors] and counts else _NO_PLACES

    def check(self, model: ModelSpec) -> None:
        """See Head. Every output must be a grid over the input, and there must be anchors for it."""
        outputs = float_outputs(model, "yolov5_raw")
        where = f"model {model.name}: layout yolov5_raw"
        for tensor in outputs:
            if self._grid(tensor) is None:
                raise UserError(
                    f"{where} with {len(model.labels)} labels has heads of n anchors x {self.columns} numbers in a "
                    f"grid over the input of {model.width}x{model.height}, but output {tensor.name} is "
                    f"{shape_text(tensor.shape)}; correct the labels or the input size, or give the layout that the "
                    "model has"
                )
        if not self.anchors:
            raise UserError(
                f"{where} knows anchors of three and of four heads, but the model has {len(outputs)} outputs; "
                "write `anchors` under `head`, a list of width, height, width, height, … for each"
            )
        sizes = [head[2:] for head in self.heads]
        counts = [self.heads[i][1] for i in self.order]
        if len(set(sizes)) != len(sizes) or counts != [len(each) for each in self.anchors]:
            raise UserError(
                f"{where}: the anchors are for heads of {', '.join(str(len(a)) for a in self.anchors)} anchors, but "
                f"the model's have {', '.join(str(n) for n in counts)}; correct `anchors` under `head`"
            )

    def _grid(self, tensor: TensorSpec) -> tuple[str, int, int, int] | None:
        """How the numbers lie, anchors, rows and columns of a head; None when it is none."""
        shape, columns = tensor.shape, self.columns
        # a file that leaves the number of anchors to the labels can't be both, unless its grid is as large as a row
        if len(shape) == 3 and shape[0] % columns == 0:
            found = ("channels", shape[0] // columns, shape[1], shape[2])
        elif len(shape) == 4 and shape[3] == columns and self._over(shape[1], shape[2]):
            found = ("last", shape[0], shape[1], shape[2])
        elif len(shape) == 4 and shape[1] == columns:
            found = ("channels", shape[0], shape[2], shape[3])
        else:
            return None
        return found if found[1] > 0 and self._over(found[2], found[3]) else None

    def _over(self, rows: int, columns: int) -> bool:
        """Whether such a grid lies over the input in square cells."""
        return (
            rows > 0
            and columns > 0
            and self.width % columns == 0
            and self.height % rows == 0
            and self.width // columns == self.height // rows
        )

    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """See ByAnchors. Indices are those of all heads, one after the other."""
        del classes  # the objectness is looked at first
        found, start = [], 0
        for index in self.order:
            how, count, height, width = self.heads[index]
            cells = height * width
            if how == "last":
                objectness = outputs[index].reshape(count * cells, self.columns)[:, 4]
            else:
                objectness = outputs[index].reshape(count, self.columns, cells)[:, 4]
            if self.logits:
                passing = np.flatnonzero(above_floor(objectness, floor_of(confidence)))
            else:
                passing = above(objectness.reshape(-1), confidence)
            found.append(passing + start)
            start += count * cells
        return np.concatenate(found)

    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """See ByAnchors."""
        raw = np.concatenate(
            [self._rows([each[row] for each in outputs], of_one) for row, of_one in picked.of_frames()]
        )
        class_scores = raw[:, 5:]
        if self.logits:
            objectness = sigmoid(raw[:, 4])
            ids, best = best_class_of_logits(class_scores)
        else:
            objectness = raw[:, 4].astype(np.float32)
            ids = class_scores.astype(np.float32, copy=False).argmax(axis=1)  # of a NaN, when there is one
            best = class_scores[np.arange(len(ids)), ids].astype(np.float32)
        scores = objectness * best
        ok = picked.passing(scores, ids, self.columns - 5)
        ok &= objectness > picked.confidence
        box = sigmoid(raw[:, :4]) if self.logits else raw[:, :4].astype(np.float32)
        places = self.places.take(picked.anchors, axis=0)
        box *= 2
        box[:, :2] += places[:, :2]
        box[:, :2] *= places[:, 2:3]
        box[:, 2:] *= box[:, 2:]
        box[:, 2:] *= places[:, 3:]
        return picked.finish(from_centres(box), scores, ids, ok, top_k)

    def _rows(self, outputs: Sequence[NDArray[Any]], anchors: NDArray[np.intp]) -> NDArray[Any]:
        """Rows (n, 5 + C) of the anchors of one frame."""
        parts, start = [], 0
        for index in self.order:
            how, count, height, width = self.heads[index]
            cells = height * width
            # anchor by anchor, each plane of numbers in its order: picking all numbers of a cell at a time misses the
            # cache
            size = count * cells if how == "last" else cells
            raw = outputs[index]
            planes = [raw.reshape(size, self.columns).T] if how == "last" else raw.reshape(count, self.columns, cells)
            edges = start + size * np.arange(len(planes) + 1)
            ends = anchors.searchsorted(edges).tolist()
            for plane, first, begin, end in zip(planes, edges.tolist(), ends, ends[1:], strict=False):
                if begin < end:
                    parts.append(plane.take(anchors[begin:end] - first, axis=1, mode="clip").T)
            start += count * cells
        return np.concatenate(parts) if parts else np.empty((0, self.columns), np.float32)

    def _places(self) -> NDArray[np.float32]:
        """For each anchor (A, 5) what is added to its x and y, its stride, its width and height."""
        found = []
        for anchors, index in zip(self.anchors, self.order, strict=True):
            _, count, height, width = self.heads[index]
            cell = np.arange(height * width)
            corner = np.stack((cell % width, cell // width), axis=1).astype(np.float32) - np.float32(0.5)
            stride = np.full((len(cell), 1), self.width // width, np.float32)
            found += [
                np.concatenate((corner, stride, np.tile(each, (len(cell), 1))), axis=1) for each in anchors[:count]
            ]
        return np.concatenate(found)
