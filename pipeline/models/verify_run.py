"""Owns running a model on pictures outside of a pipeline: the product's own letterbox, scaling, head and NMS.

Call it in a process of its own: it loads ONNX Runtime and the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.models.verify_views import Picture
from stages.accelerators.onnx_check import disagreements
from stages.accelerators.onnx_session import open_session, quiet_run_options, reason, tensor_facts
from stages.accelerators.pixels import PixelWriter
from stages.camera import CameraSpec
from stages.errors import UserError
from stages.frames import HeapRing
from stages.letterbox import geometry, place
from stages.messages import PostItem, PostTask
from stages.model import ModelSpec, output_slot_bytes, output_views
from stages.postprocess.stage import Postprocess

MOST_OBJECTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """Objects of one picture: boxes (n, 4) in its pixels, scores (n,), class ids (n,). ``fault``: why none."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    fault: str = ""


class Trial:
    """One model file, open, to be run with any description of what it is fed."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._session: Any = None

    def open(self) -> None:
        """Load the file. Raises UserError when it can't be, or contradicts its description."""
        label = f"model {self._model.name}"
        self._session = open_session(label, self._model.path, 1)
        inputs, outputs = tensor_facts(self._session.get_inputs()), tensor_facts(self._session.get_outputs())
        problems = disagreements(self._model, inputs, outputs)
        if problems:
            raise UserError.of(problems)

    def raw(self, model: ModelSpec, picture: Picture) -> list[NDArray[Any]]:
        """The raw outputs for one picture (without the batch axis), fed as ``model`` says."""
        height, width = picture.shape[:2]
        where = geometry(width, height, model.width, model.height, model.placement, scale_up=model.scale_up)
        frame = np.empty((model.height, model.width, 3), np.uint8)
        ordered = picture if model.channels == "rgb" else np.ascontiguousarray(picture[:, :, ::-1])
        place(ordered, where, model.pad_value, frame)
        writer = PixelWriter(model)
        fed = np.empty((model.fixed_batch or 1, *writer.input_shape), writer.dtype)
        writer.write(frame, fed[0])
        fed[1:] = fed[0]
        names = [t.name for t in model.outputs]
        try:
            outputs = self._session.run(names, {self._session.get_inputs()[0].name: fed}, quiet_run_options())
        except Exception as error:  # its exceptions have no public base class
            raise UserError(f"model {model.name}: a run fails: {reason(error)}; export the model again") from error
        return [output[0] for output in outputs]

    def found(self, model: ModelSpec, picture: Picture, confidence: float) -> Found:
        """The objects of one picture that score more than ``confidence``."""
        return objects_of(model, self.raw(model, picture), picture.shape[1], picture.shape[0], confidence)


def objects_of(model: ModelSpec, raw: list[NDArray[Any]], width: int, height: int, confidence: float) -> Found:
    """What the stage makes of the raw outputs for a picture of that size. Raises UserError for a wrong layout."""
    ring = HeapRing(f"outputs/{model.name}", 1, output_slot_bytes(model, 1))
    for view, output in zip(output_views(model, ring.begin_write(0), 1, 1), raw, strict=True):
        if view[0].shape != output.shape:
            raise UserError(
                f"model {model.name}: an output has shape {output.shape}, but its description says {view[0].shape}; "
                "correct the input's size or the output's shape"
            )
        view[0] = output
    generation = ring.end_write(0)
    camera = CameraSpec("picture", "", model.name, confidence=confidence, iou=model.iou, max_objects=MOST_OBJECTS)
    stage = Postprocess([model], [camera], {model.name: ring}, {model.name: 1}, lambda: 0)
    stage.open()
    (done,) = stage.step(PostTask(1, model.name, 0, generation, [PostItem(0, "picture", width, height)]))
    if done.failed:
        return Found(
            np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32), done.failed[0].detail
        )
    (found,) = done.objects
    return Found(
        np.frombuffer(found.boxes, "<f4").reshape(-1, 4).copy(),
        np.frombuffer(found.scores, "<f4").copy(),
        np.frombuffer(found.class_ids, "<i4").copy(),
    )


def overlaps(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """(m, n): intersection over union of boxes x1 y1 x2 y2."""
    a, b = first[:, None].astype(np.float64), second[None].astype(np.float64)
    size = np.maximum(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0)
    inter = size[..., 0] * size[..., 1]
    areas = [(each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (a, b)]
    union = areas[0] + areas[1] - inter
    shares: NDArray[np.float64] = np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)
    return shares
