"""Owns greedy non-maximum suppression within frames. Does not own candidates, top-k or the cut to max_objects.

Exactly defined, so that any correct implementation keeps the same set:

- Order: higher score first; of equal scores the lower index first. Each box in turn is kept unless a box that was kept
  before it (of the same class, unless ``class_agnostic``) overlaps it by more than ``iou``. Classes that are to
  suppress each other are given one id, see ``group_ids``.
- Overlap, in float32, each operation rounded: ``w = min(x2) - max(x1)``, ``h`` alike, both at least 0;
  ``inter = w * h``; ``union = (area_a + area_b) - inter`` with ``area = (x2 - x1) * (y2 - y1)``; suppressed when
  ``inter > iou * union``. (A quotient would need a rule for 0/0.) Boxes that share no area never suppress each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stages.postprocess.nms_sweep import Sweep, best_first, of_groups

Overlaps: TypeAlias = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]]

BLOCK: Final = 64  # boxes compared all with all at a time; 32 and 128 take longer for 160 and for 1000 boxes

PAIRS_OF_A_BOX: Final = 64  # with more pairs that share x than this for each box of a frame, blocks take less time
PAIRS: Final = 1 << 17  # of all frames together; of more they are worked on in two halves, so that memory stays small

_LATER: Final = np.triu(np.ones((BLOCK, BLOCK), np.bool_), 1)


def suppress(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    class_ids: NDArray[Any],
    iou: float,
    class_agnostic: bool,
) -> NDArray[np.intp]:
    """Indices of the boxes that are kept, best first.

    ``boxes`` float32 (n, 4) x1 y1 x2 y2 with x1 <= x2 and y1 <= y2, ``scores`` float32 (n,) without NaN, ``class_ids``
    (n,) integers; ``iou`` in 0..1. Time grows with the pairs that share some x, where they are many with n times the
    number kept, at worst n².
    """
    return suppress_frames(boxes, scores, None if class_agnostic else class_ids, [len(scores)], [iou])[0]


@np.errstate(over="ignore", invalid="ignore")  # an area that overflows gives a union of inf or NaN: suppresses nothing
def suppress_frames(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    ids: NDArray[Any] | None,
    counts: Sequence[int],
    ious: Sequence[float],
) -> tuple[NDArray[np.intp], list[int]]:
    """``suppress`` for frames whose boxes lie one after the other, ``counts`` of each: never across frames.

    ``ids`` as ``class_ids``, None: all boxes of a frame suppress each other; ``ious`` one for each frame. Gives indices
    of the boxes that are kept, frame by frame and best first, and how many of each frame.
    """
    frames = None if len(counts) == 1 else np.arange(len(counts)).repeat(counts)
    order = best_first(scores, frames)
    if len(order) <= 1:
        return order, list(counts)
    groups = of_groups(frames, ids, len(counts))
    sweep = Sweep(boxes.take(order, axis=0), None if groups is None else groups.take(order))
    if sweep.pairs > (PAIRS_OF_A_BOX * len(order) if frames is None else PAIRS):
        if frames is not None:
            return _in_halves(boxes, scores, ids, counts, ious)
        kept = _dense(boxes, order, ids, np.float32(ious[0]))
        return kept, [len(kept)]
    same = min(ious) == max(ious)
    alive = sweep.kept(np.float32(ious[0]) if same else np.array(ious, np.float32).repeat(counts))
    if frames is None:
        kept = order.compress(alive)
        return kept, [len(kept)]
    return order.compress(alive), np.bincount(frames.compress(alive), minlength=len(counts)).tolist()


def _in_halves(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    ids: NDArray[Any] | None,
    counts: Sequence[int],
    ious: Sequence[float],
) -> tuple[NDArray[np.intp], list[int]]:
    middle = len(counts) // 2
    start = sum(counts[:middle])
    first, of_first = suppress_frames(
        boxes[:start], scores[:start], None if ids is None else ids[:start], counts[:middle], ious[:middle]
    )
    second, of_second = suppress_frames(
        boxes[start:], scores[start:], None if ids is None else ids[start:], counts[middle:], ious[middle:]
    )
    return np.concatenate((first, second + start)), of_first + of_second


def _dense(
    boxes: NDArray[np.float32], order: NDArray[np.intp], ids: NDArray[Any] | None, iou: np.float32
) -> NDArray[np.intp]:
    """Where most boxes may overlap most: those that are kept against all others, a block at a time."""
    table = np.empty((5, len(order)), np.float32)  # x1 y1 x2 y2 area, best first
    table[:4] = boxes[order].T
    np.multiply(table[2] - table[0], table[3] - table[1], out=table[4])
    ordered = None if ids is None or (ids == ids[0]).all() else ids[order]
    return greedy(order, table, ordered, lambda first, second: _overlaps(first, second, iou))


def greedy(
    order: NDArray[np.intp], table: NDArray[Any], ids: NDArray[Any] | None, overlaps: Overlaps
) -> NDArray[np.intp]:
    """The part of ``order`` (best first, n >= 1) that is kept.

    ``table`` (m, n) describes the boxes in that order; ``overlaps`` says of (m, a) and (m, b) which suppress which, as
    (a, b). ``ids`` (n,): only boxes of equal ids do, None: all.
    """
    kept: list[NDArray[np.intp]] = []
    while True:
        block, block_ids = table[:, :BLOCK], None if ids is None else ids[:BLOCK]
        alive = _survivors(_of_equal_ids(overlaps(block, block), block_ids, block_ids))
        kept.append(order[:BLOCK][alive])
        if len(order) <= BLOCK:
            return np.concatenate(kept)
        # `take` and not an index: numpy gives the result of an index on the second axis a layout that is slow to use
        block, block_ids = block.take(alive, axis=1), None if block_ids is None else block_ids[alive]
        order, table, ids = order[BLOCK:], table[:, BLOCK:], None if ids is None else ids[BLOCK:]
        clear = np.flatnonzero(~_of_equal_ids(overlaps(block, table), block_ids, ids).any(axis=0))
        if not len(clear):
            return np.concatenate(kept)
        order, table, ids = order[clear], table.take(clear, axis=1), None if ids is None else ids[clear]


def group_ids(groups: Sequence[Sequence[int]], class_count: int) -> NDArray[np.int32]:
    """For each class the id to give ``suppress`` for it: the lowest of its group, its own when it's in none."""
    ids = np.arange(class_count, dtype=np.int32)
    for group in groups:
        ids[list(group)] = min(group)
    return ids


def _overlaps(first: NDArray[np.float32], second: NDArray[np.float32], iou: np.float32) -> NDArray[np.bool_]:
    """(m, n): whether a kept box of ``first`` (5, m) suppresses the one of ``second`` (5, n)."""
    size = np.minimum(first[2:4, :, None], second[2:4, None])
    size -= np.maximum(first[:2, :, None], second[:2, None])
    width, height = size
    # One side made at least 0 is enough: if the other is negative, inter is too, and what follows as false as with 0.
    np.maximum(width, 0, out=width)
    inter, union = np.multiply(width, height, out=width), height
    np.add(first[4][:, None], second[4], out=union)
    union -= inter
    union *= iou
    result: NDArray[np.bool_] = inter > union
    return result


def _of_equal_ids(
    overlaps: NDArray[np.bool_], first: NDArray[Any] | None, second: NDArray[Any] | None
) -> NDArray[np.bool_]:
    if first is not None and second is not None:
        overlaps &= first[:, None] == second
    return overlaps


def _survivors(overlaps: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Which boxes of a block (best first) are kept, given which overlap which within it."""
    n = len(overlaps)
    overlaps &= _LATER[:n, :n]
    alive = [True] * n
    # Row by row: by the time a box comes up as the first of a pair, all that may suppress it have been seen.
    for pair in overlaps.ravel().nonzero()[0].tolist():
        better, worse = divmod(pair, n)
        if alive[better]:
            alive[worse] = False
    return np.flatnonzero(alive)
