"""Owns the comparison of a model's description with what its ONNX file says and does. Does not load files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.onnx_scales import scale_problems
from stages.accelerators.onnx_session import Shape, TensorFacts, out_of_memory, quiet_run_options, reason
from stages.accelerators.pixels import PixelWriter
from stages.errors import DeviceFailed, UserError
from stages.model import ModelSpec, TensorSpec
from stages.postprocess.detect import contradictions

log = logging.getLogger(__name__)


def shape_text(shape: Sequence[int | None]) -> str:
    """1x3x?x?: a shape as people write it."""
    return "x".join("?" if n is None else str(n) for n in shape) or "a single number"


def fits(declared: Shape, wanted: Sequence[int | None]) -> bool:
    """Whether a declared shape allows the wanted one; None stands for any size, on both sides."""
    return len(declared) == len(wanted) and all(
        d is None or w is None or d == w for d, w in zip(declared, wanted, strict=True)
    )


def disagreements(model: ModelSpec, inputs: Sequence[TensorFacts], outputs: Sequence[TensorFacts]) -> list[str]:
    """Where the file contradicts the description; each a sentence with its remedy. Empty: none."""
    return [*_input_problems(model, inputs), *_output_problems(model, outputs), *scale_problems(model, outputs)]


def _input_problems(model: ModelSpec, inputs: Sequence[TensorFacts]) -> list[str]:
    where = f"model {model.name}"
    if len(inputs) != 1:
        names = ", ".join(t.name for t in inputs) or "none"
        problem = f"{where}: the file has {len(inputs)} inputs ({names})"
        return [f"{problem}; export it with the picture as its only input, everything else as constants"]
    found = inputs[0]
    problems = []
    size = (model.height, model.width)
    frame = (3, *size) if model.input_layout == "nchw" else (*size, 3)
    other = (*size, 3) if model.input_layout == "nchw" else (3, *size)
    if not fits(found.shape, (None, *frame)):
        if fits(found.shape, (None, *other)):
            layout = "nhwc" if model.input_layout == "nchw" else "nchw"
            remedy = f"set `layout: {layout}` of its input"
        else:
            remedy = "correct width, height and layout of its input"
        problems.append(
            f"{where}: input {found.name} is {shape_text(found.shape)}, but its description makes "
            f"{shape_text((None, *frame))} ({model.input_layout}); {remedy}"
        )
    elif found.shape[0] is not None and found.shape[0] != model.fixed_batch:
        says = "any number of frames" if model.fixed_batch is None else f"{model.fixed_batch}"
        problems.append(
            f"{where}: the file takes {found.shape[0]} frame(s) at a time, but its description says {says}; "
            f"set `batch: {found.shape[0]}`"
        )
    if found.dtype != model.input_dtype:
        problems.append(
            f"{where}: input {found.name} is {found.dtype}, but its description says {model.input_dtype}; "
            f"set `dtype: {found.dtype}` of its input, or export the model again with {model.input_dtype}"
        )
    return problems


def _output_problems(model: ModelSpec, outputs: Sequence[TensorFacts]) -> list[str]:
    where = f"model {model.name}"
    by_name = {t.name: t for t in outputs}
    problems = []
    if not model.outputs:
        problems.append(f"{where}: no outputs are described; list name, shape and dtype of each")
    for wanted in model.outputs:
        found = by_name.get(wanted.name)
        if found is None:
            problems.append(f"{where}: the file has no output {wanted.name!r}; it has {_names(by_name)}")
            continue
        if not fits(found.shape, (None, *wanted.shape)):
            problems.append(
                f"{where}: output {found.name} is {shape_text(found.shape)}, but its description makes "
                f"{shape_text((None, *wanted.shape))}; correct its shape or its name"
            )
        if found.dtype != wanted.dtype:
            problems.append(
                f"{where}: output {found.name} is {found.dtype}, but its description says {wanted.dtype}; "
                f"set `dtype: {found.dtype}` of that output"
            )
    return problems


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def warm_up(model: ModelSpec, session: Any, max_batch: int) -> int | None:
    """Run once with the smallest and once with the largest batch; give how many frames a run takes (None: any number).

    The runs are real ones, over noise: what the file claims and does not keep shows here. A file whose rows depend on
    the other frames of the batch (dynamic quantisation takes one scale for all) is run frame by frame, so that what is
    found in a frame does not depend on the company it was in. So is a file that claims any batch but has 1 built in.
    Both with a warning.

    Raises UserError when a run of the smallest batch fails, gives another shape than described, or numbers that its
    layout can't have.
    """
    writer = PixelWriter(model)
    noise = np.random.default_rng(0).integers(0, 256, (2, *writer.frame_shape), np.uint8)
    noise[1] //= 4  # of another range than the first: a shared scale shows
    name = session.get_inputs()[0].name
    smallest = model.fixed_batch or 1
    batch = np.zeros((max(smallest, max_batch if model.fixed_batch is None else 0), *writer.input_shape), writer.dtype)

    def run(frames: Sequence[int]) -> list[NDArray[Any]]:
        for row, index in enumerate(frames):
            writer.write(noise[index], batch[row])
        return _run(model, session, name, batch[: len(frames)])

    single = [run([0] * smallest), run([1] * smallest)]
    metadata = dict(session.get_modelmeta().custom_metadata_map)
    problems = contradictions(model, [output[0] for output in single[0]], metadata)
    if problems:
        raise UserError.of(problems)
    largest = len(batch)
    if largest == smallest:
        return model.fixed_batch
    alternating = [row % 2 for row in range(largest)]
    try:
        together = run(alternating)
    except UserError as error:
        log.warning("%s; it is run frame by frame", error.problems[0])
        return 1
    for row, index in enumerate(alternating):
        if not all(np.array_equal(t[row], s[0], equal_nan=True) for t, s in zip(together, single[index], strict=True)):
            log.warning(
                "model %s: a frame's outputs depend on the other frames of its batch; it is run frame by frame "
                "(set `batch: 1` to say so)",
                model.name,
            )
            return 1
    return None


def _run(model: ModelSpec, session: Any, name: str, batch: NDArray[Any]) -> list[NDArray[Any]]:
    size = len(batch)
    many = size > 1 and model.fixed_batch is None
    remedy = "the file claims any batch size but has 1 built in: set `batch: 1`" if many else "export the model again"
    try:
        outputs = session.run([t.name for t in model.outputs], {name: batch}, quiet_run_options())
    except Exception as error:  # its exceptions have no public base class
        if out_of_memory(error):
            raise DeviceFailed(f"model {model.name}: not enough memory for a batch of {size}") from error
        raise UserError(f"model {model.name}: a batch of {size} fails: {reason(error)}; {remedy}") from error
    problems = [
        f"model {model.name}: a batch of {size} gives output {wanted.name} as {shape_text(found.shape)} {found.dtype}, "
        f"not {shape_text((size, *wanted.shape))} {wanted.dtype}; "
        + (remedy if many else "correct the output's shape in the model's description")
        for wanted, found in zip(model.outputs, outputs, strict=True)
        if not _is(found, wanted, size)
    ]
    if problems:
        raise UserError.of(problems)
    return list(outputs)


def _is(found: NDArray[Any], wanted: TensorSpec, size: int) -> bool:
    return found.shape == (size, *wanted.shape) and found.dtype == np.dtype(wanted.dtype)
