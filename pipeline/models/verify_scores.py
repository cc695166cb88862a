"""Owns how well a model does on a picture, and when one way of feeding it is better than another. Runs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.models.verify_run import Found, overlaps

STRONG: Final = 0.3
WEAK: Final = 0.15
SAME_PLACE: Final = 0.5  # intersection over union of an object and its counterpart
LEAST: Final = 0.3
FEWEST_PICTURES: Final = 8  # on which something is found, for the colours of photographs to tell anything
STANDARD_ERRORS: Final = 3.0  # of the mean difference of their scores, that it must be away from 0


def pair_score(found: Found, mirrored: Found, width: int) -> float:
    """The score of a view, from what was found in it and in its mirror image (whose boxes are still mirrored)."""
    back = mirrored.boxes.copy()
    back[:, [0, 2]] = width - mirrored.boxes[:, [2, 0]]
    if not len(found.scores) and not len(mirrored.scores):
        return 0.0
    same = overlaps(found.boxes, back) >= SAME_PLACE
    same &= found.class_ids[:, None] == mirrored.class_ids[None]
    total = 0.0
    for scores, matched in ((found.scores, same.any(axis=1)), (mirrored.scores, same.any(axis=0))):
        strong = scores >= STRONG
        total += float(scores[strong & matched].sum()) - float(scores[strong & ~matched].sum())
    return max(total / 2, 0.0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Scores of many pictures fed in two ways: their sums, and the mean difference in standard errors of it."""

    pictures: int
    first: float
    second: float
    errors: float

    @property
    def sure(self) -> bool:
        """Whether one way is better beyond the scatter."""
        return self.pictures >= FEWEST_PICTURES and abs(self.errors) >= STANDARD_ERRORS


def evidence(first: Sequence[float], second: Sequence[float]) -> Evidence:
    """Of the scores of the same pictures; those on which neither way finds anything are left out."""
    pairs = np.array([pair for pair in zip(first, second, strict=True) if max(pair) > 0], np.float64).reshape(-1, 2)
    if len(pairs) < 2:
        return Evidence(len(pairs), float(pairs[:, 0].sum()), float(pairs[:, 1].sum()), 0.0)
    gaps = pairs[:, 1] - pairs[:, 0]
    error = max(float(gaps.std(ddof=1)) / len(gaps) ** 0.5, 1e-9)
    sums = pairs.sum(axis=0)
    return Evidence(len(pairs), float(sums[0]), float(sums[1]), float(gaps.mean()) / error)


def apart(first: Sequence[Found], second: Sequence[Found]) -> str:
    """How far the objects that two ways find in the same pictures are apart, in words."""
    both = alone = 0
    gaps: list[float] = []
    shifts: list[float] = []
    for a, b in zip(first, second, strict=True):
        keep = [each.scores >= STRONG for each in (a, b)]
        boxes = a.boxes[keep[0]], b.boxes[keep[1]]
        same = overlaps(*boxes) * (a.class_ids[keep[0]][:, None] == b.class_ids[keep[1]][None])
        matched = [(i, int(row.argmax())) for i, row in enumerate(same) if len(row) and row.max() >= SAME_PLACE]
        both += len(matched)
        alone += len(boxes[0]) + len(boxes[1]) - 2 * len(matched)
        for i, j in matched:
            size = float(np.sqrt(np.prod(np.maximum(boxes[0][i, 2:] - boxes[0][i, :2], 1e-6))))
            gaps.append(float(np.abs(boxes[0][i] - boxes[1][j]).max()) / size)
            shifts.append(float(b.scores[keep[1]][j] - a.scores[keep[0]][i]))
    if not both:
        return f"no object is found either way, {alone} one way alone"
    return (
        f"{both} objects are found either way, {alone} one way alone; their boxes are apart by {np.median(gaps):.1%} "
        f"of their size, their scores by {np.mean(shifts):+.3f}"
    )


def better(other: float, now: float, margin: float) -> bool:
    """Whether a score is clearly better than another."""
    return other >= now * margin and other >= now + LEAST
