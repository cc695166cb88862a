"""Owns the protocol of an output layout (``Head``) and the checks that all layouts share. Does not own any layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.letterbox import Geometry
from stages.messages import Mask
from stages.model import ModelSpec, TensorSpec
from stages.postprocess.candidates import TOP_K, Candidates, Classes


class Head(Protocol):
    """Reads the raw outputs of one layout. Pure: it holds constants of its model, nothing of any frame."""

    @property
    def suppresses(self) -> bool:
        """False: the model gives each object once, NMS would only do harm."""

    def check(self, model: ModelSpec) -> None:
        """Raise UserError, with the remedy, when the model's outputs or labels contradict this layout."""

    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """Candidates of **one** frame, and how many more were cut by ``top_k``.

        ``outputs[i]`` has shape ``model.outputs[i].shape`` and dtype float16 or float32; it may be read-only and is
        never modified. In place of a quantised one stands ``Codes``, which has what is used of an array.
        ``confidence`` is in 0..1, ``classes`` are the wanted class ids (each with a label) or None for all. The rules
        of what passes are those of ``stages.postprocess.candidates``. Raises BadItem when the values can't be of this
        layout.
        """


@dataclass(frozen=True, slots=True)
class Details:
    """What a model tells of the objects that were kept, besides boxes; in their order, in source pixels.

    ``keypoints`` float32 (n, k, 3) x y score, ``corners`` float32 (n, 4, 2).
    """

    keypoints: NDArray[np.float32] | None = None
    corners: NDArray[np.float32] | None = None
    masks: tuple[Mask, ...] = ()


@runtime_checkable
class DetailedHead(Head, Protocol):
    """A head whose model gives more than boxes."""

    def details(
        self,
        outputs: Sequence[NDArray[Any]],
        found: Candidates,
        kept: NDArray[np.intp],
        boxes: NDArray[np.float32],
        geometry: Geometry,
    ) -> Details:
        """Of the candidates ``kept``, whose boxes in source pixels are ``boxes`` (n, 4); ``outputs`` as before."""


def single_output(model: ModelSpec, layout: str, rank: int) -> TensorSpec:
    """The model's only output, of ``rank`` dimensions and a float type. Raises UserError when it's not so."""
    where = f"model {model.name}: layout {layout}"
    if len(model.outputs) != 1:
        names = ", ".join(t.name for t in model.outputs) or "none"
        raise UserError(
            f"{where} reads one output, but the model has {len(model.outputs)} ({names}); "
            "export it with its heads joined into one output, or give the layout that it has"
        )
    tensor = model.outputs[0]
    _check_floats(tensor, where)
    if len(tensor.shape) != rank or min(tensor.shape, default=0) < 1:
        raise UserError(
            f"{where} has {rank} dimensions besides the batch, but output {tensor.name} is {shape_text(tensor.shape)}; "
            "give the layout that the model has"
        )
    return tensor


def float_outputs(model: ModelSpec, layout: str) -> tuple[TensorSpec, ...]:
    """The model's outputs, at least one, all of a float type. Raises UserError when it's not so."""
    where = f"model {model.name}: layout {layout}"
    if not model.outputs:
        raise UserError(f"{where}: the model has no outputs; give the layout that it has")
    for tensor in model.outputs:
        _check_floats(tensor, where)
    return model.outputs


def _check_floats(tensor: TensorSpec, where: str) -> None:
    if tensor.dtype not in ("float32", "float16"):
        raise UserError(
            f"{where} reads float32 or float16, but output {tensor.name} is {tensor.dtype}; "
            "export the model with float outputs, or give the output's `scale` and `zero_point`"
        )


def boxes_and_scores(model: ModelSpec, layout: str) -> tuple[int, int]:
    """Which of the model's two outputs holds boxes (A, 4), and which a score per class (A, C); UserError if unclear."""
    where = f"model {model.name}: layout {layout}"
    outputs = float_outputs(model, layout)
    shapes = ", ".join(f"{t.name} {shape_text(t.shape)}" for t in outputs)
    if len(outputs) != 2 or any(len(t.shape) != 2 for t in outputs) or outputs[0].shape[0] != outputs[1].shape[0]:
        raise UserError(
            f"{where} reads two outputs, boxes (A x 4) and scores (A x classes), but the model's are {shapes}; "
            "give the layout that it has"
        )
    fitting = [
        (boxes, scores)
        for boxes, scores in ((0, 1), (1, 0))
        if outputs[boxes].shape[1] == 4 and outputs[scores].shape[1] == len(model.labels)
    ]
    if len(fitting) == 2:  # four classes: the name must tell
        fitting = [each for each in fitting if "box" in outputs[each[0]].name.lower()]
    if len(fitting) == 1 and model.labels:
        return fitting[0]
    remedy = (
        "give one output a name with 'box' in it" if fitting or len(model.labels) == 4 else "list one label per class"
    )
    raise UserError(
        f"{where} reads boxes (A x 4) and scores (A x classes), but with {len(model.labels)} labels it isn't clear "
        f"which is which of {shapes}; {remedy}, or give the layout that the model has"
    )


def check_classes(model: ModelSpec, layout: str, found: int, besides: str, place: int = 0) -> None:
    """Raise UserError unless the ``found`` classes of output ``place`` are as many as the model's labels."""
    if found == len(model.labels) and found > 0:
        return
    tensor = model.outputs[place]
    raise UserError(
        f"model {model.name}: output {tensor.name} is {shape_text(tensor.shape)}, which in layout {layout} means "
        f"{max(found, 0)} classes ({besides}), but {len(model.labels)} labels are given; "
        f"list one label per class, or give the layout that the model has"
    )


def shape_text(shape: Sequence[int]) -> str:
    """25200x85: a shape as people write it."""
    return "x".join(str(n) for n in shape) or "a single number"
