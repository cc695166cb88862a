"""Owns when an executor will have computed what it holds, learnt from its batches. Pure; ``schedule`` decides by it.

Two times are learnt for each model and size of batch, from the stamps in RawOutput: how long a batch is computed, from
the later of its upload's end and the end of the batch before it; and how long after it was given it was uploaded (the
hand-over to another process, the copy). A forecast that is too early costs a fuller batch, one that is too late leaves
the device without work, so the first time is guessed low and the second high.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Final

from stages.messages import RawOutput

REMEMBERED: Final = 16  # times of each size
KNOWN: Final = 4  # so many of them tell what a size takes: the first may have been a warm-up
OUTLIERS: Final = REMEMBERED // 4  # of them on the side that would be dangerous may lie beyond the guess
WAKE_NS: Final = 250_000  # so much later the engine may wake up than it wanted
FIRST_LEAD_NS: Final = 2_000_000  # before anything is known of the way to the device


class Durations:
    """What batches of one model took, by their number of frames, in nanoseconds. Robust: single outliers don't count.

    Sizes that were not seen lie between bounds: a larger batch takes no less time, and no more for each frame.
    """

    def __init__(self) -> None:
        self._seen: dict[int, deque[int]] = {}
        self._low: dict[int, int] = {}
        self._high: dict[int, int] = {}
        self._middle: dict[int, int] = {}

    def took(self, frames: int, time_ns: int) -> None:
        """A batch of so many frames took so long."""
        seen = self._seen.get(frames)
        if seen is None:
            seen = self._seen[frames] = deque(maxlen=REMEMBERED)
        seen.append(max(0, time_ns))
        ordered = sorted(seen)
        beyond = min(OUTLIERS, (len(ordered) - 1) // 2)
        self._low[frames], self._high[frames] = ordered[beyond], ordered[-1 - beyond]
        self._middle[frames] = ordered[len(ordered) // 2]

    def low_ns(self, frames: int) -> int | None:
        """A batch of so many frames hardly takes less; None when nothing is known."""
        if frames in self._low:
            return self._low[frames]
        bounds = [time_ns if size < frames else time_ns * frames // size for size, time_ns in self._low.items()]
        return max(bounds, default=None)

    def high_ns(self, frames: int) -> int | None:
        """A batch of so many frames hardly takes more; None when nothing is known."""
        if frames in self._high:
            return self._high[frames]
        bounds = [time_ns if size > frames else -(-time_ns * frames // size) for size, time_ns in self._high.items()]
        return min(bounds, default=None)

    def likely_ns(self, frames: int) -> int | None:
        """What a batch of so many frames takes; the least that it can be if none was seen, so that one is tried.

        None when nothing is known.
        """
        likely_ns = self._middle.get(frames)
        return self.low_ns(frames) if likely_ns is None else likely_ns

    def known_ns(self, frames: int) -> int | None:
        """What a batch of so many frames takes, if enough were seen."""
        return self._middle[frames] if len(self._seen.get(frames, ())) >= KNOWN else None


@dataclass(slots=True)
class _UnderWay:
    model: str
    frames: int
    given_ns: int


class ExecutorForecast:
    """Of one executor, which computes its batches one after the other; what it learnt outlives its incarnations."""

    def __init__(self) -> None:
        self._compute: defaultdict[str, Durations] = defaultdict(Durations)
        self._lead: defaultdict[str, Durations] = defaultdict(Durations)
        self._under_way: dict[int, _UnderWay] = {}
        self._computed_ns = 0  # the last batch that ended
        self._free_ns: int | None = 0

    @property
    def free_ns(self) -> int | None:
        """When all that it holds is computed, or a little before; None when too little is known."""
        return self._free_ns

    def given(self, batch_id: int, model: str, frames: int, now_ns: int) -> None:
        """It was given a batch."""
        one = self._under_way[batch_id] = _UnderWay(model, frames, now_ns)
        self._free_ns = self._after(self._free_ns, one)

    def ended(self, batch_id: int, message: RawOutput) -> int:
        """A batch came back; gives the nanoseconds for which it was computed."""
        one = self._under_way.pop(batch_id)
        computed_ns = max(0, message.executed_at_ns - max(message.uploaded_at_ns, self._computed_ns))
        self._computed_ns = message.executed_at_ns
        if len(message.failed) < one.frames:  # else it was not run at all
            self._compute[one.model].took(one.frames, computed_ns)
            self._lead[one.model].took(one.frames, message.uploaded_at_ns - one.given_ns)
        free_ns: int | None = self._computed_ns
        for other in self._under_way.values():
            free_ns = self._after(free_ns, other)
        self._free_ns = free_ns
        return computed_ns

    def lost(self) -> None:
        """It died, and what it held goes to others."""
        self._under_way.clear()
        self._computed_ns, self._free_ns = 0, 0

    def latest_ns(self, model: str, frames: int) -> int | None:
        """When it must be given a batch of so many frames so that its device never stands still for that."""
        if self._free_ns is None:
            return None
        lead_ns = self._lead[model].high_ns(frames)
        return self._free_ns - (FIRST_LEAD_NS if lead_ns is None else lead_ns) - WAKE_NS

    def took(self, model: str) -> Durations:
        """What batches of the model took."""
        return self._compute[model]

    def compute_ns(self, model: str, frames: int) -> int | None:
        """A batch of so many frames hardly takes longer than that; None when nothing is known."""
        return self._compute[model].high_ns(frames)

    def overdue(self, now_ns: int) -> bool:
        """Its oldest batch should have been computed twice over by now; False when too little is known."""
        oldest = next(iter(self._under_way.values()), None)
        if oldest is None:
            return False
        due_ns = self._after(self._computed_ns, oldest)
        compute_ns = self._compute[oldest.model].low_ns(oldest.frames)
        return due_ns is not None and compute_ns is not None and now_ns > due_ns + compute_ns + WAKE_NS

    def _after(self, free_ns: int | None, one: _UnderWay) -> int | None:
        """When it is free after this batch too."""
        compute_ns, lead_ns = self._compute[one.model].low_ns(one.frames), self._lead[one.model].low_ns(one.frames)
        if free_ns is None or compute_ns is None or lead_ns is None:
            return None
        # its upload hardly ends sooner than that; that of a batch that waits is hidden under what computes
        return max(free_ns, one.given_ns + lead_ns) + compute_ns
