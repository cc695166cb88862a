"""Owns the device ``canned:N``: an accelerator that answers with prepared outputs. Does not own what they hold.

For benches and tests of everything around a device, on a machine that has none. It needs no model file. Outputs
arrive as by a DMA transfer, without CPU time: a slot that still holds the prepared rows is not written again. The
device's own time (``service_ms``) is slept, not computed; runs of one LaneSet follow one another.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.accelerator import RunTimes
from stages.accelerators.canned_rows import canned_rows
from stages.accelerators.compute_stream import ComputeStream
from stages.accelerators.submission import check_batch, check_frame
from stages.errors import BadItem, DeviceFailed, UserError
from stages.model import ModelSpec
from stages.stage import MonotonicClock

MOST_REMEMBERED = 4096  # outputs; as many as there are slots at most, were they never moved
MARKS = 16  # elements per row that are compared to see whether a slot still holds the prepared rows


@dataclass(frozen=True, slots=True)
class CannedOptions:
    """Options of the device, from its description.

    ``service_ms``: device time of a batch of any size. ``service_ms_by_batch``: ascending pairs of batch size and
    milliseconds; a batch takes the time of the smallest size that holds it. ``copies``: what the host's CPU has to
    copy: ``none``, ``in`` (each frame into a staging buffer, as for every real accelerator) or ``both`` (outputs too,
    as for devices that can't write into shared memory).
    """

    seed: int = 0
    objects: int = 5
    service_ms: float = 0.0
    service_ms_by_batch: tuple[tuple[int, float], ...] = ()
    copies: str = "in"

    def service_ns(self, batch: int) -> int:
        """Device time of a batch of this size; a size beyond the table takes the time of the largest."""
        for size, time_ms in self.service_ms_by_batch:
            if batch <= size:
                return int(time_ms * 1e6)
        return int((self.service_ms_by_batch[-1][1] if self.service_ms_by_batch else self.service_ms) * 1e6)


def canned_options(device: str, options: Mapping[str, str]) -> CannedOptions:
    """Read the options of ``device``. Raises UserError with all that is wrong."""
    known = [field.name for field in fields(CannedOptions)]
    values: dict[str, Any] = {}
    problems = []
    for key, text in options.items():
        try:
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
                problems.append(f"device {device}: there is no option {key}; {hint}")
            else:
                values[key] = _option(key, text.strip())
        except ValueError as error:
            problems.append(f"device {device}: {key} is {text!r}; {error}")
    if "service_ms" in values and "service_ms_by_batch" in values:
        problems.append(f"device {device}: service_ms and service_ms_by_batch exclude one another; give one of them")
    if problems:
        raise UserError.of(problems)
    return CannedOptions(**values)


def _option(key: str, text: str) -> Any:
    if key == "copies":
        if text not in ("none", "in", "both"):
            raise ValueError("give none, in or both")
        return text
    if key == "service_ms_by_batch":
        return _service_table(text)
    number = _number(text, "give a number of 0 or more")
    if key == "service_ms":
        return number
    if number != int(number):
        raise ValueError("give a whole number of 0 or more")
    return int(number)


def _service_table(text: str) -> tuple[tuple[int, float], ...]:
    remedy = "give ascending pairs like 1:5.2,4:12.8,8:23.5 (batch size:milliseconds)"
    table: list[tuple[int, float]] = []
    for pair in text.split(","):
        size, _, time_ms = pair.partition(":")
        if not size.strip().isdecimal() or int(size) <= (table[-1][0] if table else 0):
            raise ValueError(remedy)
        table.append((int(size), _number(time_ms, remedy)))
    return tuple(table)


def _number(text: str, remedy: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(remedy) from None
    if not 0 <= number < 1e9:
        raise ValueError(remedy)
    return number


class _Canned:
    """The prepared outputs of one model, and what tells that a slot holds them."""

    def __init__(self, spec: ModelSpec, max_batch: int, options: CannedOptions) -> None:
        self.spec = spec
        self.max_batch = max_batch
        self.rows = canned_rows(spec, options.seed, options.objects)
        # spread over the elements that are not zero: rows that were zeroed since must not pass
        self._marks = [self._spread(np.flatnonzero(row.ravel()), row.size) for row in self.rows]
        self._marked = [row.ravel()[marks] for row, marks in zip(self.rows, self._marks, strict=True)]

    @staticmethod
    def _spread(candidates: NDArray[np.intp], size: int) -> NDArray[np.intp]:
        if not len(candidates):
            candidates = np.arange(size)
        picks = np.linspace(0, len(candidates) - 1, min(MARKS, len(candidates))).astype(np.intp)
        return candidates[picks]

    def holds(self, index: int, output: NDArray[Any]) -> bool:
        """Whether every row of this output still looks like the prepared one."""
        found = output.reshape(len(output), -1)[:, self._marks[index]]
        return bool((found == self._marked[index]).all())


class CannedDevice:
    """See Device."""

    def __init__(self, options: CannedOptions, clock_ns: MonotonicClock) -> None:
        self._options = options
        self._clock_ns = clock_ns
        self._models: dict[str, _Canned] = {}

    def open(self) -> None:
        """See Device."""

    def load(self, model: ModelSpec, max_batch: int) -> None:
        """See Device. The model's file is not looked at."""
        known = self._models.get(model.name)
        if known is None or known.spec != model or known.max_batch < max_batch:
            self._models[model.name] = _Canned(model, max_batch, self._options)

    def lanes(self, count: int) -> CannedLanes:
        """See Device."""
        if not self._models:
            raise DeviceFailed("canned device: no model is loaded")
        lanes = CannedLanes(dict(self._models), count, self._options, self._clock_ns)
        lanes.open()
        return lanes

    def close(self) -> None:
        """See Device."""
        self._models.clear()


class CannedLanes:
    """See LaneSet."""

    def __init__(
        self, models: Mapping[str, _Canned], count: int, options: CannedOptions, clock_ns: MonotonicClock
    ) -> None:
        self._models = models
        self._count = count
        self._options = options
        self._clock_ns = clock_ns
        self._stream = ComputeStream("canned-run", count)
        self._staged: list[NDArray[np.uint8]] = []
        self._written: dict[int, tuple[str, int, int]] = {}  # by address: model, index of the output, rows
        self._device_free_ns = 0

    def open(self) -> None:
        """Allocate the staging buffers, start the thread that keeps the device's time."""
        if self._options.copies != "none":
            room_bytes = max(m.spec.frame_bytes * m.max_batch for m in self._models.values())
            # written, so that the memory is taken now and not when the first full batch comes
            self._staged = [np.full(room_bytes, 0, np.uint8) for _ in range(self._count)]
        self._stream.open()

    @property
    def wake_fd(self) -> int | None:
        """See LaneSet."""
        return self._stream.wake_fd

    def submit(self, lane: int, model: str, frames: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> None:
        """See LaneSet."""
        self._stream.check_free(lane)
        canned = self._models.get(model)
        if canned is None:
            raise BadItem("infer_failed", f"model {model} is not loaded")
        check_batch(canned.spec, canned.max_batch, frames, outputs)
        self._upload(lane, canned.spec, frames)
        uploaded_at_ns = self._clock_ns()
        service_ns = self._options.service_ns(len(frames))
        if service_ns == 0 and not self._options.service_ms_by_batch:
            self._download(canned, outputs)
            self._stream.put_ended(lane, RunTimes(uploaded_at_ns, uploaded_at_ns, self._clock_ns()))
            return

        def run() -> RunTimes:
            # the device starts when the upload is over and its last run has ended, however late this thread woke up
            end_ns = max(uploaded_at_ns, self._device_free_ns) + service_ns
            self._device_free_ns = end_ns
            while (left_ns := end_ns - self._clock_ns()) > 0 and not self._stream.stopping.wait(left_ns / 1e9):
                pass
            self._download(canned, outputs)
            return RunTimes(uploaded_at_ns, max(end_ns, uploaded_at_ns), self._clock_ns())

        self._stream.put(lane, run)

    def finished(self) -> list[tuple[int, RunTimes | Exception]]:
        """See LaneSet."""
        return self._stream.finished()

    def close(self) -> None:
        """See LaneSet. A run that sleeps ends at once."""
        self._stream.close()
        self._staged.clear()
        self._written.clear()

    def _upload(self, lane: int, spec: ModelSpec, frames: Sequence[NDArray[Any]]) -> None:
        shape = (spec.height, spec.width, 3)
        for row, frame in enumerate(frames):
            check_frame(shape, frame)
            if self._staged:
                start = row * spec.frame_bytes
                np.copyto(self._staged[lane][start : start + spec.frame_bytes].reshape(shape), frame)

    def _download(self, canned: _Canned, outputs: Sequence[NDArray[Any]]) -> None:
        for index, output in enumerate(outputs):
            address = output.ctypes.data
            name, of, rows = self._written.get(address, ("", -1, 0))
            known = name == canned.spec.name and of == index and rows >= len(output)
            if known and self._options.copies != "both" and canned.holds(index, output):
                continue
            np.copyto(output, canned.rows[index])
            if len(self._written) > MOST_REMEMBERED:
                self._written.clear()
            self._written[address] = (canned.spec.name, index, len(output))
