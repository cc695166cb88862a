"""Owns how a head reads several frames of an output slot at once. Does not own any layout.

What a numpy call costs besides its work is paid per call, and a frame has some twenty candidates to a hundred: so each
frame's big tensor is looked through on its own, and all that was picked goes through the rest together. A frame's
result does not depend on what it is read together with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stages.postprocess.candidates import (
    TOP_K,
    Candidates,
    Classes,
    best_class,
    finish,
    free_of_nan,
    from_centres,
    passing,
    selected,
    sound,
)
from stages.postprocess.head import Head
from stages.postprocess.nms_sweep import starts_of

TOGETHER: Final = 8 * TOP_K  # anchors that are read at once; of more, one frame's at a time


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of one frame: the row of the outputs, and as for ``Head.candidates``."""

    row: int
    confidence: float
    classes: Classes = None


@dataclass(frozen=True, slots=True)
class Found:
    """Candidates of several frames, one frame's after the other's; how many of each, and how many top-k cut."""

    candidates: Candidates
    counts: list[int]
    cut: list[int]

    def of(self, start: int, end: int) -> Candidates:
        """A part of the candidates, such as one frame's."""
        all_of = self.candidates
        return Candidates(
            all_of.boxes[start:end],
            all_of.scores[start:end],
            all_of.class_ids[start:end],
            None if all_of.rotated is None else all_of.rotated[start:end],
            None if all_of.extra is None else all_of.extra[start:end],
        )


@runtime_checkable
class BatchedHead(Head, Protocol):
    """A head that reads several frames at once."""

    def candidates_of_frames(
        self, outputs: Sequence[NDArray[Any]], wanted: Sequence[Wanted], top_k: int = TOP_K
    ) -> Found:
        """``candidates`` of each of ``wanted`` (at least one), to the bit; raises BadItem when it would for any.

        ``outputs[i]`` has shape (batch, *model.outputs[i].shape).
        """


ReadsFrames: TypeAlias = Callable[[Sequence[NDArray[Any]], Sequence[Wanted], int], Found]


def one_by_one(head: Head, outputs: Sequence[NDArray[Any]], wanted: Sequence[Wanted], top_k: int = TOP_K) -> Found:
    """The same by a head that reads one frame."""
    return joined(
        [head.candidates([raw[each.row] for raw in outputs], each.confidence, each.classes, top_k) for each in wanted]
    )


def batched(head: Head) -> ReadsFrames:
    """How to read several frames with any head; to be kept, for asking costs."""
    return head.candidates_of_frames if isinstance(head, BatchedHead) else partial(one_by_one, head)


def joined(frames: Sequence[tuple[Candidates, int]]) -> Found:
    """Candidates of each frame as those of all."""
    all_of, cut = [found for found, _ in frames], [cut for _, cut in frames]
    if len(all_of) == 1:
        return Found(all_of[0], [len(all_of[0])], cut)

    def together(name: str) -> Any:
        parts = [getattr(found, name) for found in all_of]
        return None if parts[0] is None else np.concatenate(parts)

    arrays = [together(name) for name in ("boxes", "scores", "class_ids", "rotated", "extra")]
    return Found(Candidates(*arrays), [len(found) for found in all_of], cut)


class Picked:
    """Anchors (n,) that were picked from several frames, one frame's after the other's."""

    def __init__(self, wanted: Sequence[Wanted], anchors: Sequence[NDArray[np.intp]]) -> None:
        self._wanted = wanted
        self._of_frames = anchors
        self._counts = [len(each) for each in anchors]
        self.anchors = anchors[0] if len(anchors) == 1 else np.concatenate(anchors)

    def __len__(self) -> int:
        return len(self.anchors)

    def of_frames(self) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Row of the outputs and anchors of each frame."""
        for each, anchors in zip(self._wanted, self._of_frames, strict=True):
            yield each.row, anchors

    def rows(self, *parts: NDArray[Any]) -> NDArray[Any]:
        """Of an output (batch, anchors, m), or of several that hold the anchors in turn, the rows (n, m); a copy."""
        if len(parts) > 1:
            return np.concatenate(
                [_rows_of_parts([raw[row] for raw in parts], of_one) for row, of_one in self.of_frames()]
            )
        raw = parts[0]
        if len(self._wanted) == 1:
            return np.asarray(raw[self._wanted[0].row].take(self.anchors, axis=0))
        starts = [each.row * raw.shape[1] for each in self._wanted]
        places = self.anchors + np.array(starts).repeat(self._counts)
        return np.asarray(raw.reshape(-1, raw.shape[2]).take(places, axis=0))

    def columns(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Of an output (batch, m, anchors) the rows (n, m) of these; a copy."""
        # clip: half the time of checking indices
        parts = [
            raw[each.row].take(anchors, axis=1, mode="clip")
            for each, anchors in zip(self._wanted, self._of_frames, strict=True)
        ]
        return np.ascontiguousarray((parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).T)

    @property
    def confidence(self) -> float | NDArray[np.float32]:
        """What a score must exceed: one number, or one for each anchor (n,)."""
        given = [each.confidence for each in self._wanted]
        if min(given) == max(given):
            return float(np.float32(given[0]))
        return np.array(given, np.float32).repeat(self._counts)

    def passing(self, scores: NDArray[np.float32], class_ids: NDArray[np.intp], class_count: int) -> NDArray[np.bool_]:
        """See ``candidates.passing``: each by what is wanted of its frame."""
        classes = [each.classes for each in self._wanted]
        if all(each == classes[0] for each in classes):
            return passing(scores, class_ids, self.confidence, classes[0], class_count)
        ok = passing(scores, class_ids, self.confidence, None, class_count)
        start = 0
        for each, count in zip(self._wanted, self._counts, strict=True):
            part = slice(start, start + count)
            ok[part] &= passing(scores[part], class_ids[part], each.confidence, each.classes, class_count)
            start += count
        return ok

    def finish(  # noqa: PLR0917 - the order of all functions here
        self,
        boxes: NDArray[np.float32],
        scores: NDArray[np.float32],
        class_ids: NDArray[Any],
        ok: NDArray[np.bool_],
        top_k: int,
        extra: NDArray[Any] | None = None,
        rotated: NDArray[np.float32] | None = None,
    ) -> Found:
        """Candidates are the anchors that are ``ok`` (n,) and whose boxes are sound; see ``candidates.finish``."""
        whole = sound(boxes, extra)
        if whole is not None:
            ok &= whole
        counts = self._counts
        if not ok.all():
            boxes, scores, class_ids, rotated, extra = selected(ok, boxes, scores, class_ids, rotated, extra)
            counts = [len(scores)] if len(counts) == 1 else self._counted(ok)
        copied = None if extra is None else extra.astype(np.float32)
        found = Found(Candidates(boxes, scores, class_ids.astype(np.int32), rotated, copied), counts, [0] * len(counts))
        return found if max(counts) <= top_k else _cut(found, top_k)

    def _counted(self, ok: NDArray[np.bool_]) -> list[int]:
        """How many are ``ok`` of each frame."""
        frames = np.arange(len(self._counts)).repeat(self._counts)
        counts: list[int] = np.bincount(frames.compress(ok), minlength=len(self._counts)).tolist()
        return counts

    def finish_scored(
        self, boxes: NDArray[np.float32], class_scores: NDArray[Any], top_k: int, extra: NDArray[Any] | None = None
    ) -> Found:
        """See ``candidates.finish_scored``: ``class_scores`` (n, classes), each row with one that may pass."""
        ids = best_class(class_scores)
        scores = class_scores[np.arange(len(ids)), ids].astype(np.float32)
        ok = self.passing(scores, ids, class_scores.shape[1])
        free = free_of_nan(class_scores)
        if free is not None:
            ok &= free
        return self.finish(boxes, scores, ids, ok, top_k, extra)

    def finish_class_rows(self, rows: NDArray[Any], top_k: int, class_count: int | None = None) -> Found:
        """See ``candidates.finish_class_rows``."""
        end = rows.shape[1] if class_count is None else 4 + class_count
        extra = rows[:, end:] if end < rows.shape[1] else None
        return self.finish_scored(from_centres(rows[:, :4]), rows[:, 4:end], top_k, extra)


def _rows_of_parts(parts: Sequence[NDArray[Any]], anchors: NDArray[np.intp]) -> NDArray[Any]:
    """Rows of the anchors (ascending) of one frame, whose anchors lie in several outputs, one after the other."""
    starts = starts_of([len(raw) for raw in parts])
    ends = anchors.searchsorted(starts).tolist()
    return np.concatenate(
        [
            raw.take(anchors[begin:end] - start, axis=0)
            for raw, start, begin, end in zip(parts, starts, ends, ends[1:], strict=False)
        ]
    )


def _cut(found: Found, top_k: int) -> Found:
    frames, start = [], 0
    for count in found.counts:
        one = found.of(start, start + count)
        frames.append(finish(one.boxes, one.scores, one.class_ids, top_k, rotated=one.rotated, extra=one.extra))
        start += count
    return joined(frames)


class ByAnchors(ABC):
    """A head in two steps: which anchors of a frame may pass, and what was picked of all frames read together."""

    @abstractmethod
    def _pick(self, outputs: Sequence[NDArray[Any]], confidence: float, classes: Classes) -> NDArray[np.intp]:
        """Indices, ascending, of the anchors of one frame that may pass, at little cost for the others."""

    @abstractmethod
    def _read(self, outputs: Sequence[NDArray[Any]], picked: Picked, top_k: int) -> Found:
        """What the picked anchors give; ``outputs`` of the whole batch."""

    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head."""
        found = self.candidates_of_frames([raw[None] for raw in outputs], (Wanted(0, confidence, classes),), top_k)
        return found.candidates, found.cut[0]

    @np.errstate(over="ignore", invalid="ignore")  # what overflows or is NaN is dropped
    def candidates_of_frames(
        self, outputs: Sequence[NDArray[Any]], wanted: Sequence[Wanted], top_k: int = TOP_K
    ) -> Found:
        """See BatchedHead."""
        anchors = [self._pick([raw[each.row] for raw in outputs], each.confidence, each.classes) for each in wanted]
        if len(wanted) > 1 and sum(map(len, anchors)) > TOGETHER:
            frames = []
            for each, of_frame in zip(wanted, anchors, strict=True):
                found = self._read(outputs, Picked((each,), (of_frame,)), top_k)
                frames.append((found.candidates, found.cut[0]))
            return joined(frames)
        return self._read(outputs, Picked(wanted, anchors), top_k)
