"""Owns the lanes of one executor thread: staging, order, what becomes of failures. Does not queue work (``streams``).

One thread makes every call of a LaneSet, and none of them blocks while it works, but for the choice of another batch
size (``streams``): the host looks at events (``query_event_status``) when a timer of the kernel's says that the oldest
batch may be over. So no second thread shares the context, no event is looked at by another thread than the one that
recorded it, and the interpreter's lock is never held in a wait. The timer learns how long batches take: a few looks
each. (On a simulator's virtual clock, where time passes only while all threads wait, ``finished`` waits in place of
looking.)

What fails: a fault after which the device can't be used (``errors.LOST_CODES``), or a batch that does not end in
``hang_ms``, is told as DeviceFailed, the engine starts another process and sends its frames again. After any other
failure the streams are drained, everything but the staged pictures is built anew, with a context of its own, and what
was under way is run again from there, one batch at a time; a batch that then fails alone is told as BadItem.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.accelerator import RunTimes
from stages.accelerators.ascend.buffers import Buffers, BufferSet, LaneModel
from stages.accelerators.ascend.errors import HUNG_CODES, AclError, error_of
from stages.accelerators.ascend.loaded import LoadedModel, Seat
from stages.accelerators.ascend.options import AscendOptions
from stages.accelerators.ascend.owned import Owner
from stages.accelerators.ascend.runtime import Runtime
from stages.accelerators.ascend.streams import Streams
from stages.accelerators.ascend.wake import WakeTimer
from stages.accelerators.submission import check_batch
from stages.errors import BadItem, DeviceFailed
from stages.stage import MonotonicClock

log = logging.getLogger(__name__)

FIRST_LOOK: Final = 0.9  # of the time that a batch took lately
LOOK_SHARE: Final = 40  # looks after the first come at this fraction of it,
LEAST_LOOK_NS: Final = 200_000  # within these bounds
MOST_LOOK_NS: Final = 2_000_000
LATE_NS: Final = 20_000_000  # beyond twice the time that a batch took lately: then streams are asked for errors
LEARN: Final = 0.25  # weight of the last batch
SHORTEN: Final = 0.8  # when the first look finds a batch over, it took less: else a late look would make the next later
VIRTUAL_WAIT_MS: Final = 1000  # on a simulator's virtual clock, where time passes only while all threads wait
DEAD_DRAIN_MS: Final = 100  # of a device that has failed already: nobody waits for it twice
MOST_REBUILDS: Final = 3  # without a batch that ended well between them


class Place(Protocol):
    """What lanes ask of their device."""

    runtime: Runtime
    owner: Owner

    def rebuild(self, seat: Seat) -> None:
        """Give the seat a new context and new instances, for the calling thread."""

    def leave(self, seat: Seat) -> None:
        """The seat is free again."""

    def batch_ended(self) -> None:
        """Count a batch; now and then look at free memory."""


@dataclass(slots=True, eq=False)
class _Run:
    """One batch in a lane."""

    lane: int
    model: LaneModel
    rows: int
    outputs: Sequence[NDArray[Any]]
    one: BufferSet | None = None
    event: int = 0
    started_at_ns: int = 0
    looks: int = 0  # in vain
    tries: int = 0  # that failed, perhaps because of others


class AscendLanes:
    """See LaneSet."""

    def __init__(  # noqa: PLR0917  wired in one place
        self,
        place: Place,
        seat: Seat,
        models: Sequence[LoadedModel],
        count: int,
        sets: int,
        options: AscendOptions,
        clock_ns: MonotonicClock,
    ) -> None:
        self._place = place
        self._owner = place.owner
        self._seat = seat
        self._options = options
        self._clock_ns = clock_ns
        self._models = {model.spec.name: LaneModel(model) for model in models}
        self._sets = min(count, sets)
        self._streams = Streams(self._owner, seat.name, options.variant, options.hang_ms)
        self._buffers = Buffers(self._owner, seat.name, list(self._models.values()), count, self._sets)
        self._timer = WakeTimer()
        self._busy = [False] * count
        self._free: list[BufferSet] = []
        self._waiting: deque[_Run] = deque()
        self._running: deque[_Run] = deque()  # in the order of submission, in which they are told
        self._ended: list[tuple[int, RunTimes | Exception]] = []
        self._alone = 0  # so many batches are still to be run one at a time
        self._rebuilds = 0
        self._last_end_ns = 0
        self._dead: DeviceFailed | None = None
        self._virtual = options.clock == "virtual"
        self._open = False

    def open(self) -> None:
        """Allocate everything. The seat's context is current."""
        with ExitStack() as undo:
            undo.callback(self._release)
            self._buffers.open_pictures()
            self._build()
            self._timer.open()
            undo.pop_all()
        self._open = True

    @property
    def wake_fd(self) -> int | None:
        """See LaneSet."""
        return self._timer.fd

    def submit(self, lane: int, model: str, frames: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> None:
        """See LaneSet."""
        if not self._open or not 0 <= lane < len(self._busy) or self._busy[lane]:
            raise ValueError(f"lane {lane} of {len(self._busy)} is not free")
        if self._dead is not None:
            raise self._dead
        bound = self._models.get(model)
        if bound is None:
            raise BadItem("infer_failed", f"model {model} is not loaded")
        check_batch(bound.spec, bound.max_batch, frames, outputs)
        staged, most, write = self._buffers.lanes[lane].rows[model], bound.facts.most_frames, bound.feeder.write
        for row, frame in enumerate(frames):
            write(frame, staged[row // most][row % most])
        self._busy[lane] = True
        self._waiting.append(_Run(lane, bound, len(frames), outputs))
        self._enter()
        self._start()
        self._arm(self._clock_ns())

    def finished(self) -> list[tuple[int, RunTimes | Exception]]:
        """See LaneSet."""
        if not self._open:
            return []
        self._timer.clear()
        if self._dead is None:  # else there may be no context any more, and the first error is the one to tell
            self._enter()
            try:
                self._look(self._clock_ns())
            except AclError as error:
                self._failed(error)
            self._start()
        if self._dead is not None:
            self._ended += [(run.lane, self._dead) for run in (*self._running, *self._waiting)]
            self._running.clear()
            self._waiting.clear()
        self._arm(self._clock_ns())
        ended, self._ended = self._ended, []
        for lane, _ in ended:
            self._busy[lane] = False
        return ended

    def close(self) -> None:
        """See LaneSet. What never ends is not released: the device may still write there, until the process is gone."""
        if not self._open:
            return
        self._open = False
        known_dead = self._dead is not None
        self._waiting.clear()
        self._running.clear()
        self._ended.clear()
        try:
            self._enter()
            told = self._streams.drain(
                min(DEAD_DRAIN_MS, self._options.hang_ms) if known_dead else self._options.hang_ms
            )
            if told is not None and not known_dead:
                log.warning("%s: told when it was closed: %s", self._seat.name, told)
        except AclError as error:
            if error.code in HUNG_CODES:
                self._owner.abandoned = str(error)
                log.warning("%s: its memory is left to the end of the process: %s", self._seat.name, error)
        finally:
            try:
                self._release()
            finally:  # an interrupt in between must not keep the thread's hold on the device
                self._place.leave(self._seat)

    def _enter(self) -> None:
        self._place.runtime.enter(self._seat.context)

    def _build(self) -> None:
        self._streams.open(self._sets)
        self._buffers.open_sets({name: self._seat.instances(name) for name in self._models})
        self._streams.attach(self._buffers.sets)
        self._free = list(reversed(self._buffers.sets))

    def _release(self) -> None:
        with ExitStack() as stack:  # last in, first out; all of them, whatever fails
            stack.callback(self._timer.close)
            stack.callback(self._streams.close)
            stack.callback(self._buffers.close)
        self._free.clear()

    # --- running ------------------------------------------------------------------------------------------------------

    def _limit(self) -> int:
        return 1 if self._alone or not self._options.overlap else self._sets

    def _start(self) -> None:
        """Queue what waits, as far as sets are free."""
        while self._waiting and self._free and len(self._running) < self._limit() and self._dead is None:
            run = self._waiting.popleft()
            one = self._free.pop()
            run.one = one
            self._running.append(run)
            run.started_at_ns = self._clock_ns()
            try:
                address = self._buffers.lanes[run.lane].address
                run.event = self._streams.queue(one, run.model, run.rows, address)
            except AclError as error:
                self._failed(error)

    def _look(self, now_ns: int) -> None:
        """Take the batches that are over; their results are copied to where they belong."""
        over: list[_Run] = []
        for run in self._running:
            if not self._is_over(run, first=run is self._running[0]):
                break
            over.append(run)
        if not over:
            if self._running:
                self._running[0].looks += 1
            self._check_late(now_ns)
            return
        self._streams.check()  # before results are believed
        for run in over:
            one = run.one
            assert one is not None
            self._streams.take_back(one, run.event)
        self._learn(over[0], now_ns)
        for run in over:
            self._running.popleft()
            self._take(run, now_ns)

    def _is_over(self, run: _Run, *, first: bool) -> bool:
        if self._virtual and first:
            return self._streams.wait(run.event, VIRTUAL_WAIT_MS)
        return self._streams.has_ended(run.event)

    def _learn(self, run: _Run, now_ns: int) -> None:
        """How long a batch takes, from the oldest one of those that are over."""
        took_ns, known_ns = now_ns - max(run.started_at_ns, self._last_end_ns), run.model.estimate_ns
        if run.looks or not known_ns:
            run.model.estimate_ns += (took_ns - known_ns) * (LEARN if known_ns else 1)
        else:
            run.model.estimate_ns = min(took_ns, known_ns) * SHORTEN
        self._last_end_ns = now_ns

    def _take(self, run: _Run, now_ns: int) -> None:
        one, model = run.one, run.model
        assert one is not None
        results = one.results[model.spec.name]
        for number, start, count in model.chunks(run.rows):
            for output, rows in zip(run.outputs, results[number], strict=True):
                np.copyto(output[start : start + count], rows[:count])
        self._free.append(one)
        self._alone = max(0, self._alone - 1)
        self._rebuilds = 0
        # when the upload was over the host has not seen: it was queued then
        self._ended.append((run.lane, RunTimes(run.started_at_ns, now_ns, self._clock_ns())))
        self._place.batch_ended()

    def _arm(self, now_ns: int) -> None:
        """Let the descriptor become readable when the oldest batch may be over."""
        if self._ended or (self._dead is not None and (self._running or self._waiting)):
            self._timer.arm(0)
            return
        if not self._running:
            return
        run = self._running[0]
        if self._virtual:
            self._timer.arm(LEAST_LOOK_NS if run.looks else 0)
            return
        estimate_ns = run.model.estimate_ns
        first_ns = max(run.started_at_ns, self._last_end_ns) + int(estimate_ns * FIRST_LOOK)
        step_ns = int(min(MOST_LOOK_NS, max(LEAST_LOOK_NS, estimate_ns / LOOK_SHARE)))
        self._timer.arm(max(first_ns - now_ns, step_ns))

    # --- failing ------------------------------------------------------------------------------------------------------

    def _check_late(self, now_ns: int) -> None:
        """A stream that has failed stops, and a device may hang: then the event never tells of an end."""
        if not self._running:
            return
        run = self._running[0]
        took_ns = now_ns - max(run.started_at_ns, self._last_end_ns)
        if took_ns > LATE_NS + 2 * run.model.estimate_ns:
            self._streams.check()
        if took_ns > self._options.hang_ms * 1_000_000:
            text = f"a batch of model {run.model.spec.name} has not ended in {self._options.hang_ms} ms"
            raise error_of(507047, "rt.query_event_status", text)

    def _failed(self, error: AclError) -> None:
        """Decide what becomes of a failure: the process ends, or the lanes are rebuilt and batches run again."""
        if self._dead is not None:
            return
        self._rebuilds += 1
        if error.needs_new_process or self._rebuilds > MOST_REBUILDS:
            self._dead = error
            return
        log.warning("%s: %s; its lanes are rebuilt", self._seat.name, error)
        again = list(self._running)
        self._running.clear()
        self._free.clear()
        alone = len(again) == 1
        for run in again:
            run.one = None
            run.tries += 1
        if alone and again and again[0].tries > 1:
            run = again.pop()
            self._ended.append((run.lane, BadItem("infer_failed", str(error))))
            self._alone = max(0, self._alone - 1)
        self._alone = max(self._alone, len(again))
        self._waiting.extendleft(reversed(again))
        self._rebuild()

    def _rebuild(self) -> None:
        try:
            told = self._streams.drain(self._options.hang_ms)
            if told is not None and told.needs_new_process:
                raise told
            self._buffers.close_sets()
            self._streams.close()
            self._place.rebuild(self._seat)
            self._build()
        except AclError as error:
            self._dead = error
            if error.code in HUNG_CODES:
                self._owner.abandoned = str(error)
