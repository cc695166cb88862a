"""Owns whether two ways of feeding a model that find the same objects differ in how sure of them it is. Runs no model.

Bars in another place or of another colour leave the boxes where they are, for a box is put back by the numbers by which
its picture was placed. What may differ is the score. So the same objects are compared, picture by picture, on many
parts of pictures, of unlike shapes and with objects at their borders: the mean of the differences of their scores in a
picture, over all pictures, against how it scatters. Parts of one picture overlap and are not independent, so more is
asked of them (SURE) than of different pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.models.verify_run import Found, overlaps
from pipeline.models.verify_scores import SAME_PLACE, STRONG

FAINT: Final = 0.05  # least score of an object's counterpart
FEWEST: Final = 20  # pictures with objects
SURE: Final = 4.0  # standard errors from 0
MATTERS: Final = 0.005  # of a score: less is not worth a change
SMALL: Final = 0.03  # of a score: differences that are surely less than this are as good as none


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much the same objects score more in the second way; ``error``: the standard error of the mean."""

    pictures: int
    mean: float
    error: float

    @property
    def gains(self) -> bool:
        """Whether the second way is surely better, by something that matters."""
        return self._sure and self.mean >= MATTERS

    @property
    def loses(self) -> bool:
        """Whether it is surely worse, by something that matters."""
        return self._sure and self.mean <= -MATTERS

    @property
    def equal(self) -> bool:
        """Whether the two are as good as each other."""
        return self.pictures >= FEWEST and abs(self.mean) + 3 * self.error <= SMALL

    @property
    def _sure(self) -> bool:
        return self.pictures >= FEWEST and abs(self.mean) >= SURE * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.error:.4f} over {self.pictures} pictures of unlike shapes"


def shift_of(first: Sequence[Sequence[Found]], second: Sequence[Sequence[Found]]) -> Shift:
    """Of what two ways found from FAINT on in the same pictures, each seen as it is and as in a mirror.

    Pictures without a common object are left out.
    """
    gaps = [
        [gap for views in zip(a, b, strict=True) for gap in _gaps(*views)] for a, b in zip(first, second, strict=True)
    ]
    means = [float(np.mean(each)) for each in gaps if each]
    if len(means) < 2:
        return Shift(len(means), means[0] if means else 0.0, float("inf"))
    return Shift(len(means), float(np.mean(means)), float(np.std(means, ddof=1)) / len(means) ** 0.5)


def _gaps(first: Found, second: Found) -> list[float]:
    """Differences of score of the objects that both found and one at least is sure of; each counterpart once."""
    same = overlaps(first.boxes, second.boxes) * (first.class_ids[:, None] == second.class_ids[None])
    free = np.ones(len(second.scores), bool)
    gaps = []
    for number in np.argsort(-first.scores, kind="stable"):
        if not free.any():
            break
        partner = int(np.where(free, same[number], -1).argmax())
        if same[number, partner] < SAME_PLACE:
            continue
        free[partner] = False
        mine, theirs = float(first.scores[number]), float(second.scores[partner])
        if max(mine, theirs) >= STRONG:
            gaps.append(theirs - mine)
    return gaps
