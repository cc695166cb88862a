"""Owns what a run makes of its inputs: the ONNX model, prepared outputs or a callable. Does not own when.

Prepared outputs are zeros, but the first elements of each row: three numbers that the first input's row of the same
frame fixes (``canned_marks``), so that a test can tell which input an output belongs to.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.aipp import apply_aipp
from stages.accelerators.aclsim.machine.timeline import Task
from stages.accelerators.aclsim.om import OmDescription
from stages.accelerators.aclsim.options import Compute, SimOptions

MARKED_BYTES = 4096  # of an input's row


def canned_marks(row: NDArray[Any]) -> tuple[int, int, int]:
    """Three numbers from 0 to 250 that stand for the first bytes of a row."""
    digest = zlib.crc32(np.ascontiguousarray(row).reshape(-1).view(np.uint8)[:MARKED_BYTES].data)
    return digest % 251, digest // 251 % 251, digest // 63001 % 251


class Computer:
    """Runs models. ``over(task, code)`` is called, by a thread of its own, when a run on the real clock is over."""

    def __init__(self, options: SimOptions, over: Callable[[Task, int], None]) -> None:
        self._compute: str | Compute = options.compute
        self._fills = options.poisons  # memory that is not poisoned holds zeros already
        self._over = over
        self._sessions: dict[str, Any] = {}
        self._tasks: deque[Task] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def takes_time(self) -> bool:
        """Whether a run needs this computer's CPU."""
        return self._compute != "canned"

    def prepare(self, om: OmDescription) -> None:
        """Load what runs of this model need. Raises UserError."""
        if self._compute == "onnx" and om.onnx not in self._sessions:
            from stages.accelerators.onnx_session import open_session

            self._sessions[om.onnx] = open_session("simulated OM", om.onnx, 1)

    def run(self, om: OmDescription, picture: NDArray[Any], outputs: Sequence[NDArray[Any]], batch: int) -> None:
        """Fill ``outputs``, (batch, *shape) arrays of the types that the OM gives, from (batch, *shape) pixels."""
        if callable(self._compute):
            for output, made in zip(outputs, self._compute([picture], batch), strict=True):
                np.copyto(output, made, casting="unsafe")
        elif self._compute == "canned":
            for output in outputs:
                flat = output.reshape(batch, -1)
                if self._fills:
                    flat[:] = 0
                for row in range(batch):
                    marks = canned_marks(picture[row])
                    flat[row, :3] = marks[: flat.shape[1]]
        else:
            self._run_onnx(om, picture, outputs, batch)

    def start(self, task: Task) -> None:
        """Do the task's effect in a thread of its own and tell when it is over."""
        with self._wake:
            self._tasks.append(task)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="aclsim-compute", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """End the thread; may be called twice."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run_onnx(self, om: OmDescription, picture: NDArray[Any], outputs: Sequence[NDArray[Any]], batch: int) -> None:
        from stages.accelerators.onnx_session import quiet_run_options

        assert om.input is not None
        fed = picture if om.aipp is None else apply_aipp(om, picture).astype(om.input.dtype)
        session, options = self._sessions[om.onnx], quiet_run_options()
        step = om.onnx_batch or batch
        for start in range(0, batch, step):
            rows = fed[start : start + step]
            if len(rows) < step:
                rows = np.concatenate([rows, np.zeros((step - len(rows), *rows.shape[1:]), rows.dtype)])
            made = session.run([t.name for t in om.outputs], {om.input.name: rows}, options)
            for output, array in zip(outputs, made, strict=True):
                room = output[start : start + step]
                np.copyto(room, array[: len(room)], casting="unsafe")

    def _serve(self) -> None:
        while True:
            with self._wake:
                while not self._tasks and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                task = self._tasks.popleft()
            effect, task.effect, code = task.effect, None, 0
            try:
                if effect is not None:
                    effect()
            except Exception:  # noqa: BLE001  whatever a model throws is what a device calls a failed run
                code = codes.RT_MODEL_EXECUTE
            self._over(task, code)
