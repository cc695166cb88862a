"""Owns pre-processing as part of a model: uint8 frames in, what ``pixels`` does put in front. Does not own its runs.

A fold is never trusted: the folded session must give the bits of the plain way, over all 256 values of every channel
and over whole random pictures, or it is not used.

Whether it pays was measured with ``tools/bench/preprocess``: CPU time from slot to the model's first node, folded /
plain, median of 30 turns, one thread, on a busy machine of two cores (EPYC, Zen 3):

=====================  =======  =======  =======  =======
input                  300x300           640x640
---------------------  ----------------  ----------------
batch                        1        8        1        8
=====================  =======  =======  =======  =======
float32, as is            1.45     1.64     1.27     2.05
float32, / 255            0.95     1.71     1.49     2.16
float32, mean and std     2.57     4.72     5.63     4.46
float16, as is            0.21     0.26     0.31     0.17
float16, / 255            0.47     0.97     1.01     0.73
float16, mean and std     15.8     18.8     20.9     17.5
=====================  =======  =======  =======  =======

The plain way itself takes 0.1 to 0.3 ms at 300x300 and 0.5 to 1.3 ms at 640x640. With float32 a table look-up per plane
beats ONNX Runtime's Transpose, Cast and arithmetic, each of which writes all of it once more. With float16, which
it computes as float32, a cast back is saved. In whole runs no gain can be told from noise: medians were 1.00 for
COCO-SSD, 0.99 for COCO-SSD in INT8, 1.00 for YOLOX-nano, 1.00 to 1.04 for YOLOv5n in float16, 10th to 90th percentile
0.88 to 1.13. So ``auto`` folds nothing; ``on`` is for trying it on other machines, the results are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.fold_wire import ELEMENT_TYPES, Node, with_front
from stages.accelerators.onnx_session import quiet_run_options, reason
from stages.accelerators.pixels import PixelWriter, pixel_table
from stages.errors import UserError
from stages.model import ModelSpec

FoldMode = Literal["auto", "on", "off"]
MODES: tuple[FoldMode, ...] = ("auto", "on", "off")
LARGEST_BYTES = 1 << 30  # of a file: it is copied in memory, and protobuf ends at 2 GiB


class NotFolded(Exception):
    """The plain way is to be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How the pixel table is computed by ONNX operators: ``steps`` of (operator, per-channel constants)."""

    compute: str  # numpy type of the steps
    steps: tuple[tuple[str, NDArray[np.float64]], ...]

    def table(self, dtype: str) -> NDArray[Any]:
        """(3, 256): what each pixel value becomes, computed as the operators compute it."""
        values = np.tile(np.arange(256, dtype=self.compute), (3, 1))
        with np.errstate(over="ignore"):
            for operator, constants in self.steps:
                column = constants.astype(self.compute)[:, None]
                values = values - column if operator == "Sub" else values / column
            return values.astype(dtype)


def fold_mode(value: str) -> FoldMode:
    """The mode that a user wrote. Raises UserError."""
    for mode in MODES:
        if value == mode:
            return mode
    raise UserError(f"device cpu: fold is {value[:80]!r}; give one of {', '.join(MODES)}")


def pays(_model: ModelSpec) -> bool:
    """Whether ``auto`` folds this model: none, as the head of this file has it."""
    return False


def folded_input(model: ModelSpec) -> ModelSpec:
    """The description of the same model with its pre-processing folded in: what the session is fed."""
    plain = (0.0, 0.0, 0.0)
    return replace(model, input_dtype="uint8", input_layout="nhwc", mean=plain, std=(1.0, 1.0, 1.0), sha256="")


def arithmetic(model: ModelSpec) -> Arithmetic:
    """The cheapest operators that give exactly the model's pixel table. Raises NotFolded when there are none."""
    mean, std = np.array(model.mean, np.float64), np.array(model.std, np.float64)
    steps = []
    if mean.any():
        steps.append(("Sub", mean))
    if (std != 1).any():
        steps.append(("Div", std))
    wanted = pixel_table(model).tobytes()
    for compute in ("float32", "float64"):
        found = Arithmetic(compute, tuple(steps))
        if found.table(model.input_dtype).tobytes() == wanted:
            return found
    raise NotFolded(f"no operators give the values of mean {model.mean} and std {model.std} exactly")


def folded_bytes(model: ModelSpec, content: bytes, input_name: str) -> tuple[bytes, str]:
    """The ONNX file with a uint8 (batch, height, width, 3) input, and that input's name. Raises NotFolded."""
    if model.input_dtype == "uint8" and model.input_layout == "nhwc":
        raise NotFolded("it takes frames as they are: there is nothing to fold")
    prefix = "campipe_pixels"
    while prefix.encode() in content:  # a name that nothing in the file has
        prefix += "_"
    planes = model.input_layout == "nchw"
    nodes: list[Node] = []
    constants: dict[str, NDArray[Any]] = {}
    last = prefix

    def then(kind: str, *more: str, **attributes: Any) -> None:
        nonlocal last
        output = f"{prefix}.{len(nodes)}"
        nodes.append(Node(kind, (last, *more), output, attributes))
        last = output

    # Early, while a value is one byte. But ONNX Runtime, which computes float16 as float32, drops a rounding to float16
    # that it finds next to its own cast back: the Transpose keeps them apart.
    last_step = model.input_dtype == "float16"
    if planes and not last_step:
        then("Transpose", perm=(0, 3, 1, 2))
    if model.input_dtype != "uint8":
        how = arithmetic(model)
        then("Cast", to=ELEMENT_TYPES[how.compute])
        for operator, per_channel in how.steps:
            name = f"{prefix}.{operator}"
            one = bool((per_channel == per_channel[0]).all())
            shape: tuple[int, ...] = () if one else (3, 1, 1) if planes and not last_step else (3,)
            values = per_channel[:1] if one else per_channel
            constants[name] = values.astype(how.compute).reshape(shape)
            then(operator, name)
        if how.compute != model.input_dtype:
            then("Cast", to=ELEMENT_TYPES[model.input_dtype])
    if planes and last_step:
        then("Transpose", perm=(0, 3, 1, 2))
    nodes[-1] = replace(nodes[-1], output=input_name)
    try:
        return with_front(content, input_name, prefix, (model.height, model.width, 3), nodes, constants), prefix
    except ValueError as error:
        raise NotFolded(f"its file can't be edited: {error}") from error


def folded_session(model: ModelSpec, plain: Any, max_batch: int, open_session: Callable[[bytes], Any]) -> Any:
    """A session that takes uint8 frames and gives, bit for bit, what ``plain`` gives. Raises NotFolded with the reason.

    ``open_session`` makes a session of the content of an ONNX file.
    """
    path = Path(model.path)
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise NotFolded("its file is too large to be edited in memory")
        content = path.read_bytes()
    except OSError as error:
        raise NotFolded(f"its file can't be read again ({error.strerror})") from error
    name = plain.get_inputs()[0].name
    edited, pixels = folded_bytes(model, content, name)
    try:
        folded = open_session(edited)
    except Exception as error:
        raise NotFolded(f"ONNX Runtime refuses the edited model: {reason(error)}") from error
    if len(folded.get_inputs()) != 1 or folded.get_inputs()[0].name != pixels:
        raise NotFolded("the edited model has other inputs than were put in")
    for frames in sorted({model.fixed_batch or 1, model.fixed_batch or max_batch}):
        for first in (0, 1):
            difference = _difference(model, plain, folded, _pictures(model, frames, first))
            if difference:
                raise NotFolded(difference)
    return folded


def _difference(model: ModelSpec, plain: Any, folded: Any, pictures: NDArray[np.uint8]) -> str:
    """How the outputs of the two ways differ on these pictures in one run; empty: not at all."""
    frames = len(pictures)
    writer = PixelWriter(model)
    values = np.zeros((frames, *writer.input_shape), writer.dtype)
    for picture, value in zip(pictures, values, strict=True):
        writer.write(picture, value)
    outputs = [t.name for t in model.outputs]
    try:
        expected = plain.run(outputs, {plain.get_inputs()[0].name: values}, quiet_run_options())
        found = folded.run(outputs, {folded.get_inputs()[0].name: pictures}, quiet_run_options())
    except Exception as error:  # noqa: BLE001  its exceptions have no public base class
        return f"a run fails: {reason(error)}"
    for name, a, b in zip(outputs, expected, found, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"output {name} is {b.dtype} {b.shape} instead of {a.dtype} {a.shape}"
        if a.tobytes() != b.tobytes():
            off = int((a.reshape(-1).view(np.uint8) != b.reshape(-1).view(np.uint8)).sum())
            return f"output {name} differs in {off} of {a.nbytes} bytes for a batch of {frames}"
    return ""


def _pictures(model: ModelSpec, frames: int, first: int) -> NDArray[np.uint8]:
    """Noise and, in every second picture, steps over all values, other ones per channel; ``first`` 1: those first."""
    shape = (frames, model.height, model.width, 3)
    pictures = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    pictures[1 - first :: 2] = (np.arange(model.height * model.width * 3).reshape(shape[1:]) // 2 % 256).astype(
        np.uint8
    )
    return pictures
