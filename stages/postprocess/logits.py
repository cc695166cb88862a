"""Owns the reading of scores that a file gives before their sigmoid. Does not own any layout.

A sigmoid of every score would cost more than everything else, so big tensors are compared in logit space, with a
margin, and only what is left gets its sigmoid, which then decides exactly.

Bits of IEEE floats order like integers once those of negative values are turned around (all but the sign flipped);
numpy compares float16 itself slowly.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.postprocess.candidates import as_integers

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


def in_order(logits: NDArray[Any]) -> NDArray[Any]:
    """Integers that order like the values; NaN with a clear sign bit above infinity, other NaN below -infinity."""
    bits = as_integers(logits)
    turned = bits >> (8 * bits.itemsize - 1)
    turned &= np.iinfo(bits.dtype).max
    turned ^= bits
    return turned


def above_floor(logits: NDArray[Any], floor: float) -> NDArray[np.bool_]:
    """Where ``logits`` (any shape) may exceed the floor: True for all that do, and for NaN with a clear sign bit."""
    dtype = logits.dtype
    nearest = np.array([floor], dtype)
    if nearest[0] > floor:
        nearest = np.nextafter(nearest, dtype.type(-np.inf))
    if floor >= 0:  # negative values have negative bits, as they are
        return np.asarray(as_integers(logits) > as_integers(nearest + dtype.type(0))[0])
    return np.asarray(in_order(logits) >= in_order(nearest)[0])


def best_class_of_logits(logits: NDArray[Any]) -> NDArray[np.intp]:
    """For each row of (n, classes) the class of the highest logit, the lowest one of equals; float32 or float16."""
    # + 0: minus zero, which orders below zero as bits, becomes zero
    return np.asarray(in_order(logits + logits.dtype.type(0)).argmax(axis=1))
