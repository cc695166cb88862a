"""Owns looking into a model file: its facts from ONNX Runtime, and from a trial run. Guesses nothing.

``look_into`` runs in a process of its own, for a file may crash native code or fill the memory; ``facts_of`` starts it.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime.isolated import call_in_process
from stages.accelerators.onnx_session import TensorFacts
from stages.errors import UserError
from stages.model import TensorSpec
from stages.postprocess.detect_facts import STRIDES, FileFacts, OutputFacts

TIMEOUT_S: Final = 120.0
SIDE: Final = 640  # pixels, where a file leaves the size of its input open: what YOLO models are trained at
FLOATS: Final = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found: the tensors as declared, one picture's facts, the batch built in (None: any size).

    ``claims_any``: the file says that it takes any batch, but takes only one frame.
    """

    path: str
    inputs: tuple[TensorFacts, ...]
    declared: tuple[TensorFacts, ...]
    batch: int | None
    planes_first: bool
    size_assumed: bool
    facts: FileFacts
    claims_any: bool = False


def facts_of(path: str, size: tuple[int, int] | None = None) -> Looked:
    """What the file takes and gives. ``size`` (width, height) stands in where the file leaves that of its input open.

    Raises UserError for what is no model, can't be run, crashes, or takes too long.
    """
    try:
        return call_in_process(multiprocessing.get_context("spawn"), TIMEOUT_S, look_into, path, size)
    except UserError as error:
        raise UserError.of([each if path in each else f"{path}: {each}" for each in error.problems]) from None


def look_into(path: str, size: tuple[int, int] | None) -> Looked:
    """See ``facts_of``; call it in a process of its own."""
    from stages.accelerators.onnx_session import open_session, tensor_facts
    from stages.accelerators.probe import describe

    session = open_session("model", path, 1)
    inputs, declared = tensor_facts(session.get_inputs()), tensor_facts(session.get_outputs())
    meta = session.get_modelmeta()
    metadata = {str(key): str(value) for key, value in meta.custom_metadata_map.items()}
    width, height, planes_first, assumed = _input_size(inputs, metadata, size)
    del session
    described = describe(path, width=width, height=height)
    outputs = tuple(
        TensorSpec(t.name, tuple(n or 0 for n in t.shape[1:]), t.dtype, t.scale, t.zero_point)
        for t in described.outputs
        if t.shape
    )
    seen = _with_values(path, described.inputs[0], described.batch, outputs)
    facts = FileFacts(width, height, inputs[0].dtype, seen, metadata, str(meta.producer_name))
    return Looked(path, inputs, declared, described.batch, planes_first, assumed, facts, described.claims_any)


def _input_size(
    inputs: tuple[TensorFacts, ...], metadata: dict[str, str], size: tuple[int, int] | None
) -> tuple[int, int, bool, bool]:
    """Width, height, whether colour planes come first, whether the size is assumed."""
    if len(inputs) != 1:
        names = ", ".join(t.name for t in inputs) or "none"
        raise UserError(
            f"the file has {len(inputs)} inputs ({names}); export it with the picture as its only input, everything "
            "else as constants"
        )
    shape = inputs[0].shape
    if len(shape) != 4 or 3 not in (shape[1] or 3, shape[3] or 3):
        shown = "x".join("?" if n is None else str(n) for n in shape)
        raise UserError(f"input {inputs[0].name} is {shown}, not a batch of colour pictures; campipe feeds those only")
    planes_first = shape[1] == 3 or shape[3] != 3
    height, width = shape[2:] if planes_first else shape[1:3]
    stated = _image_size(metadata.get("imgsz", ""))
    asked = size or stated or (SIDE, SIDE)
    assumed = (width is None or height is None) and size is None and stated is None
    return width or asked[0], height or asked[1], planes_first, assumed


def _image_size(text: str) -> tuple[int, int] | None:
    """Width and height from Ultralytics' ``imgsz``: [height, width], or one number."""
    from stages.postprocess.detect_facts import literal

    found = literal(text)
    if type(found) is int:
        found = [found, found]
    if isinstance(found, (list, tuple)) and len(found) == 2 and all(type(n) is int and 16 <= n <= 8192 for n in found):
        return found[1], found[0]
    return None


def _with_values(
    path: str, tensor: TensorFacts, batch: int | None, outputs: tuple[TensorSpec, ...]
) -> tuple[OutputFacts, ...]:
    """The outputs with what they held for one picture in 0..1 and in 0..255: the file's scaling isn't known yet."""
    from stages.accelerators.onnx_session import open_session, quiet_run_options
    from stages.postprocess.quantised import floats_of

    if None in tensor.shape[1:] or tensor.dtype not in (*FLOATS, "uint8"):
        return tuple(OutputFacts.of(t, []) for t in outputs)
    session = open_session("model", path, 1)
    shape = tuple(n or 1 for n in tensor.shape[1:])
    picture = trial_picture(shape)
    fed = [picture, picture / 255] if tensor.dtype in FLOATS else [picture]
    runs = [
        session.run(None, {tensor.name: np.repeat(each[None], batch or 1, 0).astype(tensor.dtype)}, quiet_run_options())
        for each in fed
    ]
    return tuple(OutputFacts.of(t, [floats_of(t, run[index][0]) for run in runs]) for index, t in enumerate(outputs))


def trial_picture(shape: tuple[int, ...]) -> NDArray[Any]:
    """Something with edges, surfaces and noise, 0..255 in float64, the same each time; of one frame's ``shape``."""
    random = np.random.default_rng(0)
    picture = random.uniform(0, 255, shape)
    rows = 1 if shape[0] == 3 else 0
    height, width = shape[rows], shape[rows + 1]
    y, x = np.mgrid[:height, :width]
    smooth = 127 + 120 * np.sin(x / width * 9) * np.cos(y / height * 7)
    blocks = ((x * 6 // width + y * 5 // height) % 2).astype(bool)
    scene = np.where(blocks, smooth, 255 - smooth)
    mixed: NDArray[Any] = np.clip(picture * 0.15 + (scene[None] if rows else scene[..., None]) * 0.85, 0, 255)
    return mixed


def absolute(name: str) -> str:
    """The path of a file that the user named, absolute."""
    return str(Path(name).expanduser().absolute())


__all__ = ["STRIDES", "Looked", "absolute", "facts_of", "look_into", "trial_picture"]
