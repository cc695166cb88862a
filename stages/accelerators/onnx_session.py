"""Owns how ONNX Runtime is set up and what its files say of themselves. Does not own runs.

Settings, measured on 2 cores with YOLOX-nano 416 and COCO-SSD 300 (milliseconds of CPU per frame, frames per second):
two executors of one thread 23 ms, 86/s; one executor of two threads 32 ms, 54/s, with spinning 37 ms, 54/s; two
executors of two threads 29 ms, 66/s, with spinning 35 ms, 57/s. So threads never spin: it takes the cores from
everybody else and wins nothing. Results are the same bits for 1 to 7 threads.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.errors import DeviceFailed, UserError

_NUMPY_NAMES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}

LOG_FATAL = 4  # ONNX Runtime's severity: its errors are raised, not printed as well; its warnings tell users nothing

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """An input or output as the file declares it; ``shape`` with the batch dimension, None for what is left open.

    ``scale``, ``zero_point``: of an output of codes, where the file tells (see ``onnx_scales``).
    """

    name: str
    dtype: str  # a numpy name, or ONNX Runtime's own for what numpy lacks
    shape: Shape
    scale: float | None = None
    zero_point: int = 0


def runtime() -> Any:
    """The module ``onnxruntime``: the only import of it, so that what must be set before is set.

    From 1.29 on its Linux packages send usage data (file names of models, timings, a device id that they keep in the
    user's cache) to their maker, unless this variable says no when they are loaded. Who sets it otherwise, decides
    otherwise. Raises UserError when it can't be imported.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(
            f"ONNX Runtime can't be imported ({error}); install campipe again, with its dependencies"
        ) from error
    return onnxruntime


def open_session(label: str, path: str, threads: int, content: bytes | None = None) -> Any:
    """An InferenceSession on the CPU. ``label`` (``model coco-ssd``) begins every message.

    ``content``: what to load instead of the file's own content. Raises UserError when the file can't be read or is no
    model that this ONNX Runtime can run.
    """
    onnxruntime = runtime()
    if content is None:
        check_file(label, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.use_deterministic_compute = True
    options.log_severity_level = LOG_FATAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    try:
        model: str | bytes = path if content is None else content
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no public base class
        if out_of_memory(error):
            raise DeviceFailed(f"{label}: not enough memory to load {path}") from error
        raise UserError(
            f"{label}: {path} can't be loaded: {reason(error)}; "
            f"give a complete ONNX file that ONNX Runtime {onnxruntime.__version__} can run"
        ) from error


def check_file(label: str, path: str) -> None:
    """Raise UserError unless ``path`` is a file that can be read and is not empty."""
    file = Path(path)
    try:
        if file.is_dir():
            raise UserError(f"{label}: {path} is a folder; name the ONNX file in it")
        if file.exists() and not file.is_file():  # a pipe would be waited for, a device never ends
            raise UserError(f"{label}: {path} is no regular file; name an ONNX file")
        with file.open("rb") as stream:
            if not stream.read(1):
                raise UserError(f"{label}: {path} is empty; get or export the file again")
    except OSError as error:
        raise UserError(
            f"{label}: {path} can't be read ({error.strerror}); correct the path or fetch the model"
        ) from error


def check_digest(label: str, path: str, sha256: str) -> None:
    """Raise UserError when the file is not the one that was described. An empty ``sha256`` is not checked."""
    if not sha256:
        return
    with Path(path).open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256.lower():
        raise UserError(
            f"{label}: {path} has sha256 {found}, but its description says {sha256}; "
            "get the file again, or correct the description if the file is the right one"
        )


def tensor_facts(nodes: Any) -> tuple[TensorFacts, ...]:
    """From ``session.get_inputs()`` or ``session.get_outputs()``."""
    return tuple(
        TensorFacts(
            node.name,
            _NUMPY_NAMES.get(node.type, node.type),
            tuple(d if isinstance(d, int) and d > 0 else None for d in node.shape),
        )
        for node in nodes
    )


def quiet_run_options() -> Any:
    """Run options under which a failing run prints nothing: it raises."""
    options = runtime().RunOptions()
    options.log_severity_level = LOG_FATAL
    return options


def reason(error: Exception) -> str:
    """The error's text in one line of at most 300 characters, without ONNX Runtime's numbering."""
    text = " ".join(str(error).split()) or type(error).__name__
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text if len(text) <= 300 else text[:297] + "..."


def out_of_memory(error: Exception) -> bool:
    """Whether a run failed for want of memory, which is no fault of the frames."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "bad alloc" in text or "bad_alloc" in text or "failed to allocate" in text
