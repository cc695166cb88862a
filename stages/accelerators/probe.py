"""Owns finding out what an ONNX file takes and gives. Does not own what it means (layout, labels).

Call it in a process of its own: it loads ONNX Runtime and the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stages.accelerators.onnx_check import shape_text
from stages.accelerators.onnx_scales import with_scales
from stages.accelerators.onnx_session import TensorFacts, open_session, quiet_run_options, reason, tensor_facts
from stages.errors import UserError
from stages.model import TensorSpec


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a file takes and gives. ``batch``: the number of frames it has built in; None: any number.

    ``claims_any``: it says that it takes any number, and does not keep that: ``batch`` is 1.
    """

    path: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    batch: int | None
    claims_any: bool = False

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs for one frame. Raises UserError when the file leaves a size open."""
        problems = [
            f"{self.path}: output {t.name} is {shape_text(t.shape)}: its size can't be found out; "
            "list the outputs (name, shape, dtype) in the model's description"
            for t in self.outputs
            if len(t.shape) < 1 or None in t.shape[1:]
        ]
        if problems:
            raise UserError.of(problems)
        return tuple(
            TensorSpec(t.name, tuple(n for n in t.shape[1:] if n), t.dtype, t.scale, t.zero_point) for t in self.outputs
        )


def describe(path: str, *, width: int | None = None, height: int | None = None) -> ModelFacts:
    """What the ONNX file at ``path`` takes and gives; picklable.

    Sizes that the file leaves open are found by running it once on zeros; ``width`` and ``height`` (pixels) stand in
    where it leaves those of the input open. A file that claims any batch size is run with two frames too: ``batch``
    is 1 when it can't. What stays open stays None. Raises UserError for what is no ONNX model or can't be run.
    """
    session = open_session("model", path, 1)
    inputs = tensor_facts(session.get_inputs())
    outputs = with_scales(tensor_facts(session.get_outputs()), path)
    batch = inputs[0].shape[0] if len(inputs) == 1 and inputs[0].shape else None
    shape = _frame_shape(inputs, width, height)
    if shape is None:
        return ModelFacts(path, inputs, outputs, batch)
    first = _run_zeros(session, inputs[0], (batch or 1, *shape))
    if isinstance(first, Exception):
        raise UserError(
            f"model: {path} can't be run on a picture of {shape_text(shape)}: {reason(first)}; "
            "correct the size of its input, or export the model again"
        ) from first
    found = tuple(
        replace(t, dtype=str(array.dtype), shape=(t.shape[0] if t.shape else batch, *array.shape[1:]))
        for t, array in zip(outputs, first, strict=True)
    )
    claims_any = False
    if batch is None:
        two = _run_zeros(session, inputs[0], (2, *shape))
        if isinstance(two, Exception) or any(a.shape != (2, *t.shape[1:]) for a, t in zip(two, found, strict=True)):
            batch, claims_any = 1, True
    fed = (TensorFacts(inputs[0].name, inputs[0].dtype, (batch, *shape)),)
    return ModelFacts(path, fed, found, batch, claims_any)


def _frame_shape(inputs: tuple[TensorFacts, ...], width: int | None, height: int | None) -> tuple[int, ...] | None:
    """The shape of one picture, None when it is not known or the file takes something else than one picture."""
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        return None
    declared = inputs[0].shape[1:]
    planes_last = declared[2] == 3 and declared[0] != 3
    open_sizes = (height, width, 3) if planes_last else (3, height, width)
    shape = tuple(d if d is not None else o for d, o in zip(declared, open_sizes, strict=True))
    return None if None in shape else tuple(n for n in shape if n)


def _run_zeros(session: Any, tensor: TensorFacts, shape: tuple[int, ...]) -> list[Any] | Exception:
    try:
        zeros = np.zeros(shape, tensor.dtype)
        return list(session.run(None, {tensor.name: zeros}, quiet_run_options()))
    except Exception as error:  # noqa: BLE001  its exceptions have no public base class; the caller says what it means
        return error
