"""Owns which boxes are kept, of several frames at once, by looking only at pairs that can overlap. Not the rule itself.

The rule is that of ``stages.postprocess.nms``, to the bit. Two boxes that share no x can't overlap, so with boxes
sorted by frame, class and left side, those that may overlap with one are a run after it, up to its right side; of
these pairs the ones that share y are left, and only they get an area. Of the pairs that suppress, greedy order is then
worked off in parallel: a box that no undecided better one may suppress is kept, what it suppresses is gone, and with
it every pair that either is in. Each round decides at least one box, and real scenes need two or three.

One call for all frames of a task, for it is the number of numpy calls that costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_INDEX_BITS: Final = 20
_MOST_FRAMES: Final = 1 << 9
_MOST_GROUPS: Final = 1 << 30


def rising_bits(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Integers that order as the (contiguous) float32 values do; minus zero below zero."""
    bits = values.view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def best_first(scores: NDArray[np.float32], frames: NDArray[np.intp] | None) -> NDArray[np.intp]:
    """Indices by frame (``frames`` (n,) rising, None: all of one), in a frame by falling score, lower index first."""
    n = len(scores)
    if n >> _INDEX_BITS or (frames is not None and n and frames[-1] >= _MOST_FRAMES):
        return np.lexsort((-scores, frames)) if frames is not None else np.argsort(-scores, kind="stable")
    keys = rising_bits(scores + np.float32(0)).astype(np.int64)  # + 0: minus zero equals zero
    np.negative(keys, out=keys)
    if frames is not None:
        keys += frames << 33
    keys <<= _INDEX_BITS
    keys += np.arange(n)
    keys.sort()  # with the index in the key no order is left open, so the fastest sort will do
    keys &= (1 << _INDEX_BITS) - 1
    return keys


def of_groups(frames: NDArray[np.intp] | None, ids: NDArray[Any] | None, count: int) -> NDArray[np.int64] | None:
    """A number (n,) for each box, equal for those of one frame and id; None when all are. ``count``: of frames."""
    if ids is None or not len(ids):
        return None if frames is None else frames.astype(np.int64)
    lowest, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if span == 1:
        return None if frames is None else frames.astype(np.int64)
    groups = ids.astype(np.int64)
    groups -= lowest
    if span * count > _MOST_GROUPS:  # ids that are no classes
        groups, span = np.unique(groups, return_inverse=True)[1].astype(np.int64), len(groups)
    if frames is not None:
        groups += frames * span
    return groups


class Sweep:
    """Boxes in their order of suppression, and which pairs of them may overlap.

    ``boxes`` (n, 4) float32 x1 y1 x2 y2, best first within a frame; ``groups`` as ``of_groups`` gives them.
    """

    def __init__(self, boxes: NDArray[np.float32], groups: NDArray[np.int64] | None) -> None:
        n = len(boxes)
        sides = np.array(boxes.T, order="C")
        lefts, rights = rising_bits(sides[0]).astype(np.int64), rising_bits(sides[2]).astype(np.int64)
        if groups is not None:
            shifted = groups << 32
            lefts += shifted
            rights += shifted
        self._ranks = lefts.argsort()
        self._sides = sides.take(self._ranks, axis=1)
        self._next = np.arange(1, n + 1)
        self._runs = lefts.take(self._ranks).searchsorted(rights.take(self._ranks))
        self._runs -= self._next
        np.maximum(self._runs, 0, out=self._runs)
        self.pairs = int(self._runs.sum())

    def kept(self, iou: np.float32 | NDArray[np.float32]) -> NDArray[np.bool_]:
        """(n,): True for the boxes that are kept. ``iou`` for all, or for each box (n,); equal within a frame."""
        better, worse = self._suppressing(iou)
        gone = np.zeros(len(self._ranks), np.bool_)
        while len(better):
            threatened = np.zeros(len(gone), np.bool_)
            threatened[worse] = True
            gone[worse.compress(~threatened.take(better))] = True
            open_pairs = np.flatnonzero(~(gone.take(better) | gone.take(worse)))
            better, worse = better.take(open_pairs), worse.take(open_pairs)
        return ~gone

    def _suppressing(self, iou: np.float32 | NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The pairs that overlap by more than ``iou``: the better box of each, the worse one."""
        runs, after = self._runs, self._next
        first = (after - 1).repeat(runs)
        second = (after + runs - runs.cumsum(dtype=np.intp)).repeat(runs)
        second += np.arange(self.pairs)
        x1, y1, x2, y2 = self._sides
        high = np.minimum(y2.take(first), y2.take(second))
        high -= np.maximum(y1.take(first), y1.take(second))
        near = np.flatnonzero(high > 0)
        first, second = first.take(near), second.take(near)
        inter = np.minimum(x2.take(first), x2.take(second))
        inter -= x1.take(second)  # the second one begins further right
        inter *= high.take(near)
        areas = (x2 - x1) * (y2 - y1)
        union = areas.take(first)
        union += areas.take(second)
        union -= inter
        union *= iou.take(self._ranks).take(first) if isinstance(iou, np.ndarray) else iou
        hits = np.flatnonzero(inter > union)
        one, other = self._ranks.take(first.take(hits)), self._ranks.take(second.take(hits))
        return np.minimum(one, other), np.maximum(one, other)


def starts_of(counts: Sequence[int]) -> list[int]:
    """Where each frame's part of what lies one after the other begins, and where the last one ends."""
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts
