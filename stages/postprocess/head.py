"""Owns the protocol of an output layout (``Head``) and the checks that all layouts share. Does not own any layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from stages.errors import UserError
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
        never modified. ``confidence`` is in 0..1, ``classes`` are the wanted class ids (each with a label) or None
        for all. The rules of what passes are those of ``stages.postprocess.candidates``. Raises BadItem when the
        values can't be of this layout.
        """


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
    if tensor.dtype not in ("float32", "float16"):
        raise UserError(
            f"{where} reads float32 or float16, but output {tensor.name} is {tensor.dtype}; "
            "export the model with float outputs"
        )
    if len(tensor.shape) != rank or min(tensor.shape, default=0) < 1:
        raise UserError(
            f"{where} has {rank} dimensions besides the batch, but output {tensor.name} is {shape_text(tensor.shape)}; "
            "give the layout that the model has"
        )
    return tensor


def check_classes(model: ModelSpec, layout: str, found: int, besides: str) -> None:
    """Raise UserError unless the output's ``found`` classes are as many as the model's labels."""
    if found == len(model.labels) and found > 0:
        return
    tensor = model.outputs[0]
    raise UserError(
        f"model {model.name}: output {tensor.name} is {shape_text(tensor.shape)}, which in layout {layout} means "
        f"{max(found, 0)} classes ({besides}), but {len(model.labels)} labels are given; "
        f"list one label per class, or give the layout that the model has"
    )


def shape_text(shape: Sequence[int]) -> str:
    """25200x85: a shape as people write it."""
    return "x".join(str(n) for n in shape) or "a single number"
