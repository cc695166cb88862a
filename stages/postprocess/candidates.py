"""Owns the value ``Candidates`` and the cheap steps that every head shares. Does not own any layout or NMS.

The rules, the same for every layout:

- A score passes when it is **strictly greater** than the confidence, compared in float32. (Ultralytics, torchvision and
  OpenCV do the same; it also makes the all-zero rows that end-to-end exports pad with fall away at confidence 0.)
- An anchor is one candidate, of its best class; of equal class scores the lowest class id wins. A ``classes`` filter
  looks at that best class: an anchor whose best class isn't wanted is dropped, not renamed.
- An anchor with a NaN among its scores, or with an infinite score, never passes. A box that isn't finite, or has no
  area (``x2 <= x1`` or ``y2 <= y1``), is dropped, as is one whose keypoints, angle or mask coefficients aren't finite.
- Where a file gives logits, all this is said of their sigmoid, ``1 / (1 + exp(-x))`` in float32.
- Of more than ``top_k`` candidates the best are kept, of equal scores those with the lower index; the others are
  counted.
- Candidates keep the order of their anchors.

Thresholds are in 0..1. Bits of non-negative IEEE floats order like integers, so big tensors are compared and
maximised through an integer view: numpy has no fast float16 comparison (a maximum over 84x8400 takes 3.3 ms as
float16, 0.09 ms as int16), and NaN raises no floating-point flags on the way. Quantised outputs come as ``Codes``,
which are compared as codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stages.postprocess.codes import as_codes

TOP_K: Final = 1000  # candidates of a frame that go on to NMS; Ultralytics takes 30,000, which bounds no time

Classes: TypeAlias = tuple[int, ...] | frozenset[int] | None  # wanted class ids; None: all

# by bytes of a float
_SIGNED: Final[dict[int, np.dtype[Any]]] = {2: np.dtype(np.int16), 4: np.dtype(np.int32)}
_UNSIGNED: Final[dict[int, np.dtype[Any]]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
_INFINITY: Final = {2: 0x7C00, 4: 0x7F800000}  # bits
_NEGATIVE_INFINITY: Final = {2: 0xFC00, 4: 0xFF800000}


@dataclass(frozen=True, slots=True)
class Candidates:
    """Boxes of one frame that passed the confidence, before NMS, in the order of their anchors.

    ``boxes`` float32 (n, 4) x1 y1 x2 y2 in pixels of the model's input, ``scores`` float32 (n,), ``class_ids`` int32
    (n,). ``rotated`` float32 (n, 5) cx cy w h in those pixels and the angle in radians, of oriented boxes, which
    ``boxes`` enclose; ``extra`` float32 (n, m), what the layout needs later for its masks or keypoints. All are copies:
    nothing refers to the raw outputs any more.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    rotated: NDArray[np.float32] | None = None
    extra: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.scores)


def as_integers(raw: NDArray[Any]) -> NDArray[Any]:
    """The bits of a float16 or float32 array as signed integers; a view.

    Non-negative values order as in the float array and above all negative ones; NaN with a clear sign bit comes last,
    above infinity, NaN with the sign bit set is negative.
    """
    return raw.view(_SIGNED[raw.itemsize])


@lru_cache(maxsize=1024)
def threshold_bits(confidence: float, dtype: np.dtype[Any]) -> int:
    """The integer b so that a value of ``dtype`` exceeds the confidence, as float32, exactly if its bits exceed b."""
    wanted = np.float32(confidence + 0.0)  # + 0.0: minus zero has other bits
    floor = wanted.astype(dtype)
    if np.float32(floor) > wanted:  # rounded up: the largest value that does not exceed the confidence decides
        floor = np.nextafter(floor, dtype.type(-np.inf))
    return int(floor.reshape(1).view(_SIGNED[dtype.itemsize])[0])


def above(values: NDArray[Any], confidence: float) -> NDArray[np.intp]:
    """Indices where the 1-d ``values`` (any stride) exceed the confidence and are finite, ascending."""
    codes = as_codes(values)
    if codes is not None:
        return np.flatnonzero(codes.above(confidence))
    # Copied first: for 25,200 int16 at a stride numpy needs 0.27 ms to compare them, 0.1 ms to copy and compare.
    return bits_above(as_integers(np.ascontiguousarray(values)), confidence, values.dtype)


def bits_above(bits: NDArray[Any], confidence: float, dtype: np.dtype[Any]) -> NDArray[np.intp]:
    """``above`` for what ``as_integers`` gave of values of ``dtype``."""
    chosen = np.flatnonzero(bits > bits.dtype.type(threshold_bits(confidence, dtype)))
    found = bits.take(chosen, mode="clip")  # infinity and NaN are above all, and there are few, if any
    if len(found) and found.max() >= _INFINITY[dtype.itemsize]:
        chosen = chosen[found < _INFINITY[dtype.itemsize]]
    return chosen


def best_class(class_scores: NDArray[Any]) -> NDArray[np.intp]:
    """For each row of (n, classes) the class of the highest score, the lowest one of equals.

    Right for rows whose best score is positive. A NaN with a clear sign bit is the highest and so found here; for the
    others there is ``free_of_nan``.
    """
    return np.asarray(as_integers(class_scores).argmax(axis=1))


def free_of_nan(rows: NDArray[Any]) -> NDArray[np.bool_] | None:
    """True for the rows that hold no NaN; None when no row holds a NaN with its sign bit set.

    That is the usual case and told by one maximum: as an unsigned integer such a NaN, which is what x86 makes of 0/0,
    is larger than anything else.
    """
    if not rows.size or rows.view(_UNSIGNED[rows.itemsize]).max() <= _NEGATIVE_INFINITY[rows.itemsize]:
        return None
    return np.asarray(~np.isnan(rows).any(axis=1))


def passing(
    scores: NDArray[np.float32],
    class_ids: NDArray[np.intp],
    confidence: float | NDArray[np.float32],
    classes: Classes,
    class_count: int,
) -> NDArray[np.bool_]:
    """True where the score exceeds the confidence (one for all or one for each), is finite, and the class is wanted."""
    ok: NDArray[np.bool_] = scores > (confidence if isinstance(confidence, np.ndarray) else np.float32(confidence))
    ok &= scores < np.float32(np.inf)
    if classes is not None:
        ok &= _wanted(classes, class_count)[class_ids]
    return ok


@lru_cache(maxsize=1024)
def _wanted(classes: tuple[int, ...] | frozenset[int], class_count: int) -> NDArray[np.bool_]:
    """For each class of a model whether it is wanted."""
    table = np.zeros(class_count, np.bool_)
    table[[c for c in classes if 0 <= c < class_count]] = True
    return table


def from_centres(centred: NDArray[Any]) -> NDArray[np.float32]:
    """Centre x, centre y, width, height (n, 4) to float32 x1 y1 x2 y2: ``centre -/+ size / 2``."""
    box = np.array(centred.T, np.float32, order="C")  # rows of all x, all y, …: long loops instead of many of two
    half = box[2:] * np.float32(0.5)
    np.add(box[:2], half, out=box[2:])
    box[:2] -= half
    return box.T


def finish_scored(  # noqa: PLR0917 - the order of all functions here, and one more
    boxes: NDArray[np.float32],
    class_scores: NDArray[Any],
    confidence: float,
    classes: Classes,
    top_k: int,
    extra: NDArray[Any] | None = None,
) -> tuple[Candidates, int]:
    """Candidates among chosen anchors: boxes (n, 4) x1 y1 x2 y2, scores of all classes (n, C), extra (n, m).

    Each anchor must have a score that exceeds the confidence; whether its best one is finite and wanted is seen here.
    """
    ids = best_class(class_scores)
    scores = class_scores[np.arange(len(ids)), ids].astype(np.float32)
    ok = passing(scores, ids, confidence, classes, class_scores.shape[1])
    sound = free_of_nan(class_scores)
    if sound is not None:
        ok &= sound
    if not ok.all():
        boxes, scores, ids = boxes[ok], scores[ok], ids[ok]
        extra = None if extra is None else extra[ok]
    return finish(boxes, scores, ids, top_k, extra=extra)


def finish(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    class_ids: NDArray[Any],
    top_k: int,
    *,
    rotated: NDArray[np.float32] | None = None,
    extra: NDArray[Any] | None = None,
) -> tuple[Candidates, int]:
    """Drop boxes that aren't finite or have no area, cut to ``top_k``; the second value is the number cut."""
    ok = sound(boxes, extra)
    if ok is not None:
        boxes, scores, class_ids, rotated, extra = selected(ok, boxes, scores, class_ids, rotated, extra)
    cut = max(len(scores) - top_k, 0)
    if cut:
        best = best_of(scores, top_k)
        boxes, scores, class_ids, rotated, extra = selected(best, boxes, scores, class_ids, rotated, extra)
    copied = None if extra is None else extra.astype(np.float32)
    return Candidates(boxes, scores, class_ids.astype(np.int32), rotated, copied), cut


def sound(boxes: NDArray[np.float32], extra: NDArray[Any] | None) -> NDArray[np.bool_] | None:
    """True (n,) for boxes that are finite and have an area, and whose ``extra`` is finite; None when all are."""
    extended, finite = boxes[:, 2:] > boxes[:, :2], np.isfinite(boxes)
    finite_extra = None if extra is None else np.isfinite(extra)
    if extended.all() and finite.all() and (finite_extra is None or finite_extra.all()):
        return None
    ok: NDArray[np.bool_] = np.asarray(extended.all(axis=1) & finite.all(axis=1))
    if finite_extra is not None:
        ok &= finite_extra.all(axis=1)
    return ok


def selected(which: NDArray[Any], *arrays: Any) -> tuple[Any, ...]:
    """Of each array that isn't None the part that ``which`` (a mask or indices) says."""
    return tuple(None if each is None else each[which] for each in arrays)


def best_of(scores: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Indices, ascending, of the ``count`` highest scores; of equal ones those with the lower index. Linear time."""
    if count <= 0:
        return np.empty(0, np.intp)
    limit = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = scores > limit
    tied = np.flatnonzero(scores == limit)
    chosen[tied[: count - int(np.count_nonzero(chosen))]] = True
    return np.flatnonzero(chosen)
