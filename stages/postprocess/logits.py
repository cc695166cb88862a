"""Owns the reading of scores that a file gives before their sigmoid. Does not own any layout.

A sigmoid of every score would cost more than everything else, so big tensors are compared in logit space, with a
margin, and only what is left gets its sigmoid, which then decides exactly.

Compared by their bits, as in ``candidates``; otherwise worked in float32, for numpy is slow with float16.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.postprocess.candidates import as_integers, threshold_bits
from stages.postprocess.codes import as_codes

_UNSIGNED: Final[dict[int, np.dtype[Any]]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}  # by bytes of a float
MARGIN = 0.01  # logits; float32's own error is a thousandth of it


def sigmoid(logits: NDArray[Any]) -> NDArray[np.float32]:
    """``1 / (1 + exp(-x))`` in float32, of any float type; 0 and 1 for infinities, NaN for NaN."""
    found: NDArray[np.float32] = logits.astype(np.float32)
    np.negative(found, out=found)
    with np.errstate(over="ignore"):
        np.exp(found, out=found)
    found += np.float32(1)
    np.reciprocal(found, out=found)
    return found


def softmax(logits: NDArray[Any]) -> NDArray[np.float32]:
    """Over the last axis, in float32: ``exp(x) / sum(exp(x))`` with the highest subtracted first."""
    found = logits.astype(np.float32)
    found -= found.max(axis=-1, keepdims=True)
    np.exp(found, out=found)
    found /= found.sum(axis=-1, keepdims=True)
    return found


def floor_of(confidence: float) -> float:
    """A logit that everything exceeds whose sigmoid exceeds the confidence; not much below it."""
    if confidence <= 0:
        return -math.inf
    bounded = min(confidence, 0.999)  # near 1 the sigmoid in float32 has steps that are wide in logits
    return math.log(bounded / (1 - bounded)) - MARGIN


def above_floor(logits: NDArray[Any], floor: float) -> NDArray[np.bool_]:
    """Where ``logits`` (any shape) exceed the floor; for NaN it may be either."""
    codes = as_codes(logits)
    if codes is not None:
        return codes.above(floor)
    bits = as_integers(logits)
    limit = threshold_bits(floor, logits.dtype)
    if limit >= 0:
        return np.asarray(bits > limit)
    # As unsigned integers come all that isn't negative, then what is, the nearest to zero first.
    unsigned = _UNSIGNED[logits.itemsize]
    return np.asarray(logits.view(unsigned) < unsigned.type(limit % (1 << 8 * logits.itemsize)))


def best_class_of_logits(logits: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """For each row of (n, classes) the class of the highest logit, the lowest one of equals, and its sigmoid.

    The sigmoid is NaN for rows that hold a NaN, which numpy takes for the highest.
    """
    rows = logits.astype(np.float32, copy=False)
    ids = rows.argmax(axis=1)
    return ids, sigmoid(rows[np.arange(len(ids)), ids])
