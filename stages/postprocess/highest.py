"""Owns the one pass over a big tensor of class scores: which anchors have one that exceeds the confidence. No layout.

The pass takes as long as the memory, if it is made of long vectors. numpy needs 31 ns for the maximum of a row of 80,
so rows are compared with rows first, the first eighth of all anchors with the second, and so on. What is left is a row
for each eight anchors, and few of those exceed the confidence. Two rows of classes at a time are faster than one,
because the memory has more to do at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.postprocess.candidates import Classes, as_integers, bits_above, threshold_bits
from stages.postprocess.codes import Codes, as_codes

FEW_CLASSES: Final = 16
PARTS: Final = 8  # anchors that share a row of maxima
MANY_ANCHORS: Final = 4000  # below it rows are as fast
CROWDED: Final = (
    0.25  # part of those rows that exceed the confidence from which looking closer costs more than it saves
)
CLASSES_AT_A_TIME: Final = 20


def anchors_above(class_scores: NDArray[Any], confidence: float, classes: Classes) -> NDArray[np.intp]:
    """Indices, ascending, of the anchors of (classes, anchors), of any strides, that may pass.

    Their highest score exceeds the confidence. With ``classes`` the best class may still be an unwanted one.
    """
    codes = as_codes(class_scores)
    if codes is not None:
        return np.flatnonzero(codes.codes_above(highest(codes.raw, classes), confidence))
    return bits_above(highest(as_integers(class_scores), classes), confidence, class_scores.dtype)


def rows_above(rows: NDArray[Any], columns: slice, confidence: float, classes: Classes = None) -> NDArray[np.intp]:
    """Indices, ascending, of the rows (A, n) whose highest score among ``columns`` exceeds the confidence.

    With ``classes`` the best class may still be an unwanted one, which ``finish_scored`` sees.
    """
    codes = as_codes(rows)
    places = _near(rows if codes is None else codes, columns, confidence, classes)
    if places is None:
        return anchors_above(rows[:, columns].T, confidence, classes)
    chosen = anchors_above(rows[places][:, columns].T, confidence, classes)
    return places.take(chosen)


def _near(rows: NDArray[Any] | Codes, columns: slice, confidence: float, classes: Classes) -> NDArray[np.intp] | None:
    """Rows, ascending, among which are all whose scores exceed the confidence; None when each is to be looked at."""
    if isinstance(rows, Codes):
        bits, limit = rows.raw, rows.limit(confidence)
    else:
        bits, limit = as_integers(rows), threshold_bits(confidence, rows.dtype)
    count, width = bits.shape
    class_count = len(range(width)[columns])
    if count < MANY_ANCHORS or not bits.flags.c_contiguous or class_count <= FEW_CLASSES:
        return None
    if classes is not None and 4 * len(classes) <= class_count:
        return None
    length = count // PARTS
    parts = bits[: length * PARTS].reshape(PARTS, length * width)
    most = np.maximum(parts[0], parts[1])
    for part in parts[2:]:
        np.maximum(part, most, out=most)
    best = np.maximum.reduce(most.reshape(length, width)[:, columns], axis=1)
    places = np.flatnonzero(best > limit)
    if len(places) > CROWDED * length:
        return None
    near = (places + length * np.arange(PARTS)[:, None]).reshape(-1)
    rest = np.arange(length * PARTS, count)
    return np.concatenate((near, rest)) if len(rest) else near


def highest(bits: NDArray[Any], classes: Classes) -> NDArray[Any]:
    """The highest score of each anchor of (classes, anchors), integers that order as scores do, of any strides.

    When few classes are wanted only theirs are read, for one class of 80 in a twentieth of the time. An anchor whose
    best class isn't wanted may get less than its highest score, so ``passing`` must still look at it.
    """
    wanted: Iterable[int] | None = classes if classes is not None and 4 * len(classes) <= len(bits) else None
    if wanted is None and len(bits) <= FEW_CLASSES:
        wanted = range(len(bits))  # a reduction of short rows is slow: 3 classes of 8400 anchors take 0.3 ms, so 0.04
    if wanted is None:
        return _highest_of_all(bits)
    best = np.full(bits.shape[1], np.iinfo(bits.dtype).min, bits.dtype)
    for class_id in wanted:
        np.maximum(best, bits[class_id], out=best)
    return best


def _highest_of_all(bits: NDArray[Any]) -> NDArray[Any]:
    half, odd = divmod(len(bits), 2)
    if bits.strides[1] != bits.itemsize or bits.shape[1] < MANY_ANCHORS:
        return np.asarray(np.maximum.reduce(bits, axis=0))
    best: NDArray[Any] | None = bits[-1] if odd else None
    pairs = np.empty((min(half, CLASSES_AT_A_TIME), bits.shape[1]), bits.dtype)
    for first in range(0, half, CLASSES_AT_A_TIME):
        end = min(first + CLASSES_AT_A_TIME, half)
        higher = np.maximum(bits[first:end], bits[half + first : half + end], out=pairs[: end - first])
        found: NDArray[Any] = np.maximum.reduce(higher, axis=0)
        best = found if best is None else np.maximum(best, found, out=found)
    assert best is not None
    return best
