"""Owns the lanes of one executor thread on ONNX Runtime: staging buffers, upload, runs. Does not load or check models.

The executor's thread fills the staging buffer of one lane while the run thread computes another: on a CPU this is what
the copy stream and the compute stream are on an accelerator. ONNX Runtime writes straight into the output arrays that
it is given; nothing is allocated per run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.accelerator import RunTimes
from stages.accelerators.compute_stream import ComputeStream
from stages.accelerators.onnx_session import out_of_memory, quiet_run_options, reason
from stages.accelerators.pixels import PixelWriter
from stages.accelerators.submission import check_batch
from stages.errors import BadItem, DeviceFailed
from stages.model import ALIGN_BYTES, ModelSpec
from stages.stage import MonotonicClock


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model that is loaded, checked and warm."""

    spec: ModelSpec
    session: Any
    input_name: str
    max_batch: int
    frames_per_run: int | None  # None: the whole batch in one run
    fed: ModelSpec  # the input as the session takes it: that of ``spec``, or uint8 when pre-processing is folded in

    @property
    def staged_frames(self) -> int:
        """Frames that a lane must have room for: the largest batch, and what pads its last run."""
        if self.frames_per_run is None:
            return self.max_batch
        return -(-self.max_batch // self.frames_per_run) * self.frames_per_run


def aligned_zeros(size_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory that starts at a cache line. Zeros, for what pads a batch must not be slow (denormals, NaN).

    Written ones, so that the memory is taken now and not when the first full batch comes.
    """
    memory = np.full(size_bytes + ALIGN_BYTES, 0, np.uint8)
    start = -memory.ctypes.data % ALIGN_BYTES
    return memory[start : start + size_bytes]


class _Bound:
    """One model in one LaneSet: what its runs need besides the lane's staging buffer."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.writer = PixelWriter(model.fed)
        self.frame_bytes = math.prod(self.writer.input_shape) * self.writer.dtype.itemsize
        self.dtypes = [np.dtype(t.dtype) for t in model.spec.outputs]
        # a run that is padded can't write into the output slot: it has no room for the rows nobody asked for
        padded = model.frames_per_run if model.frames_per_run is not None and model.frames_per_run > 1 else 0
        self.scratch = [
            aligned_zeros(padded * t.frame_bytes).view(dtype).reshape(padded, *t.shape)
            for t, dtype in zip(model.spec.outputs, self.dtypes, strict=True)
        ]

    def staged(self, buffer: NDArray[np.uint8]) -> NDArray[Any]:
        """The lane's buffer as the model's input for as many frames as it may have to take."""
        frames = self.model.staged_frames
        return buffer[: frames * self.frame_bytes].view(self.writer.dtype).reshape(frames, *self.writer.input_shape)

    def run(self, staged_address: int, outputs: Sequence[NDArray[Any]], options: Any) -> None:
        """Run the staged frames, as many as ``outputs`` have rows, into ``outputs``."""
        count = len(outputs[0])
        step = self.model.frames_per_run or count
        for start in range(0, count, step):
            rows = [o[start : start + step] for o in outputs]
            padded = len(rows[0]) < step
            self._run_once(staged_address + start * self.frame_bytes, step, self.scratch if padded else rows, options)
            if padded:
                for row, scratch in zip(rows, self.scratch, strict=True):
                    np.copyto(row, scratch[: len(row)])

    def _run_once(self, address: int, frames: int, outputs: Sequence[NDArray[Any]], options: Any) -> None:
        session, specs = self.model.session, self.model.spec.outputs
        binding = session.io_binding()  # 15 microseconds with its bindings: not worth keeping one per address
        shape = [frames, *self.writer.input_shape]
        binding.bind_input(self.model.input_name, "cpu", 0, self.writer.dtype, shape, address)
        for spec, dtype, array in zip(specs, self.dtypes, outputs, strict=True):
            binding.bind_output(spec.name, "cpu", 0, dtype, list(array.shape), array.ctypes.data)
        session.run_with_iobinding(binding, options)


class OnnxLanes:
    """See LaneSet."""

    def __init__(self, models: Sequence[OnnxModel], count: int, clock_ns: MonotonicClock) -> None:
        self._count = count
        self._clock_ns = clock_ns
        self._loaded = tuple(models)
        self._models: dict[str, _Bound] = {}
        self._staged: list[dict[str, NDArray[Any]]] = []
        self._stream = ComputeStream("onnx-run", count)
        self._options: Any = None

    def open(self) -> None:
        """Allocate the buffers, start the run thread."""
        self._models = {model.spec.name: _Bound(model) for model in self._loaded}
        room_bytes = max(b.model.staged_frames * b.frame_bytes for b in self._models.values())
        for _ in range(self._count):
            buffer = aligned_zeros(room_bytes)  # a lane runs one model at a time: all share it
            self._staged.append({name: bound.staged(buffer) for name, bound in self._models.items()})
        self._options = quiet_run_options()
        self._stream.open()

    @property
    def wake_fd(self) -> int | None:
        """See LaneSet."""
        return self._stream.wake_fd

    def submit(self, lane: int, model: str, frames: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> None:
        """See LaneSet."""
        self._stream.check_free(lane)
        bound = self._models.get(model)
        if bound is None:
            raise BadItem("infer_failed", f"model {model} is not loaded")
        check_batch(bound.model.spec, bound.model.max_batch, frames, outputs)
        staged = self._staged[lane][model]
        for row, frame in enumerate(frames):
            bound.writer.write(frame, staged[row])
        address, uploaded_at_ns = staged.ctypes.data, self._clock_ns()

        def run() -> RunTimes:
            try:
                bound.run(address, outputs, self._options)
            except Exception as error:  # its exceptions have no public base class
                if out_of_memory(error):
                    raise DeviceFailed(f"model {model}: not enough memory for a batch of {len(outputs[0])}") from error
                raise BadItem("infer_failed", reason(error)) from error
            now_ns = self._clock_ns()
            return RunTimes(uploaded_at_ns, now_ns, now_ns)

        self._stream.put(lane, run)

    def finished(self) -> list[tuple[int, RunTimes | Exception]]:
        """See LaneSet."""
        return self._stream.finished()

    def close(self) -> None:
        """See LaneSet. What runs is told to end early, at its next node."""
        if self._options is not None:
            self._options.terminate = True
        self._stream.close()
        self._models.clear()
        self._staged.clear()
