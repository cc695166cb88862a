"""Owns which executor gets a batch of which model, and when. Pure. Which frames are in it is ``stages.batch``'s.

A full batch goes at once to the executor with the most room: while one computes the next is uploaded. (Unless the
device is so slow that frames of live cameras would become old there: of one that takes half of ``max_age_ms`` for a
batch nearly all results came too late. Then it waits like one that is not full, and newer frames take the places of
its own.) One that is not full, and could become so, goes

- to an executor that holds nothing: at once, unless frames of live cameras are expected so soon (``rhythm``) that by
  what batches took (``batch_size``) all have their results sooner when these wait for those. While the devices have
  little time left (``device_load``) they wait for any, too, where one more costs nothing or that is not known yet. If
  only frames of recordings wait, for which full batches count and not time, they wait for others unless nobody can add
  one. Never does the oldest wait longer than ``max_wait_ms`` for that;
- to one that computes only just before that is forecast to be over (``executor_forecast``): sooner it would wait
  there, closed, in place of here, open. The moment is not moved on by other batches that are given meanwhile, so that
  no model starves, and when the forecast was wrong the batch goes at once: the device has work first, full batches
  second.

A batch that would take longer than its frames in several smaller ones is cut: the first of these goes, what is left
waits with what comes.

An executor that is overdue, because it hangs or has become slow, gets a batch only when no other has room.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pipeline.runtime.batch_size import company_ns, first_part, one_more_is_free
from pipeline.runtime.cameras import Cameras
from pipeline.runtime.device_load import DeviceLoad
from pipeline.runtime.executor_forecast import ExecutorForecast
from pipeline.runtime.inflight import Batch, Frame, WorkerLine
from stages.batch import Batcher
from stages.messages import RawOutput

OF_MAX_AGE: Final = 8  # a batch that takes more than this part of the age allowed waits for its device outside of it

TRIED_AGAIN: Final = 64  # of so many batches that would be cut one is not: what it takes may have changed


class Schedule:
    """The next batches. ``executors`` are those that live, by name; ``free_outputs`` the free output slots by model."""

    def __init__(
        self,
        models: Iterable[str],
        batcher: Batcher[Frame],
        cameras: Cameras,
        executors: Mapping[str, WorkerLine],
        free_outputs: Mapping[str, list[int]],
    ) -> None:
        self._models = deque(models)
        self._batcher = batcher
        self._cameras = cameras
        self._executors = executors
        self._free_outputs = free_outputs
        self._forecasts: defaultdict[str, ExecutorForecast] = defaultdict(ExecutorForecast)
        self.next_due_ns: int | None = None  # when ``startable`` may have more, if nothing else happens
        self._cut: Counter[tuple[str, str, int]] = Counter()  # batches by executor, model, frames
        self._load = DeviceLoad()
        self._held: dict[str, int] = {}  # by model: the earliest moment for its batch that was forecast so far

    def started(self, worker: str, batch: Batch) -> None:
        """The batch was given to the executor."""
        self._held.pop(batch.model, None)
        self._models.rotate(-1)
        forecast, frames, most = self._forecasts[worker], len(batch.frames), self._batcher.max_batch(batch.model)
        forecast.given(batch.batch_id, batch.model, frames, batch.given_ns)
        full_ns = forecast.took(batch.model).likely_ns(most)
        if full_ns is not None:
            self._load.given(full_ns * frames // most, batch.given_ns)

    def ended(self, worker: str, batch: Batch, message: RawOutput) -> int:
        """It came back; gives the nanoseconds for which its device computed it."""
        return self._forecasts[worker].ended(batch.batch_id, message)

    def lost(self, worker: str) -> None:
        """The executor died."""
        self._forecasts[worker].lost()

    def startable(self, now_ns: int, *, live_only: bool) -> Iterator[tuple[str, WorkerLine]]:
        """Models of which a batch should go out now, each with the executor for it, in the order of their turns."""
        self.next_due_ns = None
        for model in list(self._models):
            turn = self._turn(model, now_ns, live_only=live_only)
            if turn is None:
                continue
            due_ns, worker = turn
            if due_ns <= now_ns:
                yield model, worker
            elif self.next_due_ns is None or due_ns < self.next_due_ns:
                self.next_due_ns = due_ns

    def most(self, model: str, worker: WorkerLine, *, live_only: bool) -> int:
        """How many frames of those that wait should be given to this executor now."""
        frames = min(self._batcher.waiting(model, live_only=live_only), self._batcher.max_batch(model))
        part = first_part(frames, self._forecasts[worker.name].took(model).known_ns)
        if part < frames:
            key = worker.name, model, frames
            self._cut[key] += 1
            if not self._cut[key] % TRIED_AGAIN:
                return frames
        return part

    def _turn(self, model: str, now_ns: int, *, live_only: bool) -> tuple[int, WorkerLine] | None:
        """From when a batch of this model should go to which executor; 0: at once. ``live_only``: see ``Batcher``."""
        frames = self._batcher.waiting(model, live_only=live_only)
        if not frames:
            self._held.pop(model, None)
            return None
        worker = roomiest(self._executors.values())
        if worker is None or not self._free_outputs[model]:
            return None
        more_can_come = self._cameras.more_can_come(model)
        due_ns = self._batcher.due_ns(model, more_can_come=more_can_come, live_only=live_only)
        if due_ns is None:
            return None
        if not due_ns:
            worker = roomiest(self._on_time(now_ns)) or worker
            if not self._slow(model, frames, worker):
                return 0, worker
        worker, latest_ns = self._first_free(model, frames, now_ns)
        if not due_ns or not self._cameras.can_add(model):
            due_ns = 1  # nothing would be waited for
        elif self._batcher.waiting(model, live_only=True):
            due_ns = 1 if latest_ns > now_ns else self._company_ns(model, frames, worker, now_ns, due_ns)
        return max(due_ns, latest_ns), worker

    def _company_ns(self, model: str, frames: int, worker: WorkerLine, now_ns: int, latest_ns: int) -> int:
        """Until when so many frames should wait for others before this executor, which is free."""
        if latest_ns <= now_ns:
            return latest_ns
        took = self._forecasts[worker.name].took(model)
        if one_more_is_free(frames, took.known_ns):
            devices = sum(1 for _ in self._on_time(now_ns))
            if self._load.pressed(devices, now_ns):
                return latest_ns
        room = self._batcher.max_batch(model) - frames
        expected_ns = self._cameras.expected_ns(model, now_ns, latest_ns)[:room]
        elsewhere = any(each is not worker and each.idle for each in self._on_time(now_ns))
        return company_ns(frames, expected_ns, now_ns, took.likely_ns, elsewhere=elsewhere) or now_ns

    def _on_time(self, now_ns: int) -> Iterator[WorkerLine]:
        return (each for each in self._executors.values() if not self._forecasts[each.name].overdue(now_ns))

    def _slow(self, model: str, frames: int, worker: WorkerLine) -> bool:
        """Whether frames of live cameras would become old behind what this executor computes."""
        compute_ns = self._forecasts[worker.name].compute_ns(model, frames) if worker.batches else None
        max_age_ns = None if compute_ns is None else self._batcher.max_age_ns(model)
        return compute_ns is not None and max_age_ns is not None and compute_ns > max_age_ns // OF_MAX_AGE

    def _first_free(self, model: str, frames: int, now_ns: int) -> tuple[WorkerLine, int]:
        """The executor that will have nothing to compute first, and when it should be given so many frames."""
        found: list[tuple[bool, int, int, int, WorkerLine]] = []
        for index, worker in enumerate(self._executors.values()):
            if worker.room > 0:
                forecast = self._forecasts[worker.name]
                latest_ns = forecast.latest_ns(model, frames) or 0 if worker.batches else 0
                # the forecast of one that is overdue lies in the past: it would be the first of all
                found.append((forecast.overdue(now_ns), latest_ns, -worker.room, index, worker))
        _, latest_ns, _, _, worker = min(found)
        if latest_ns > 0:
            latest_ns = self._held[model] = min(latest_ns, self._held.get(model, latest_ns))
        return worker, latest_ns


def roomiest(workers: Iterable[WorkerLine]) -> WorkerLine | None:
    """The worker that can be given most; of equal ones the first that was ready."""
    chosen, most = None, 0
    for worker in workers:
        if (room := worker.room) > most:
            chosen, most = worker, room
    return chosen
