"""Owns whether two ways of feeding a model that find the same objects differ in how sure of them it is. Runs no model.

Bars in another place or of another colour leave the boxes where they are, for a box is put back by the numbers by which
its picture was placed. What may differ is the score. So the same objects are compared, picture by picture, on many
parts of pictures, of unlike shapes and with objects at their borders: the mean of the differences of their scores in a
picture, over all pictures, against how it scatters.

Parts of one photograph, and frames of one clip, show the same objects: they are one source, and no independent samples.
From ENOUGH sources on the mean of each counts once, and how these means scatter tells how sure theirs is (Student's t,
one source fewer than there are as degrees of freedom). Fewer can't show that. Then it is assumed how alike the parts of
a source are (ALIKE, the intraclass correlation; the variance of a mean of m of them is that of one, times
(1 + (m - 1) ALIKE) / m, see Kish, Survey Sampling, 1965), and nothing is sure of less than WARY.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.models.verify_run import Found, overlaps
from pipeline.models.verify_scores import SAME_PLACE, STRONG

FAINT: Final = 0.05  # least score of an object's counterpart
FEWEST: Final = 20  # pictures with objects
SURE: Final = 4.0  # standard errors from 0
ENOUGH: Final = 6  # sources, to see how they scatter
SURE_OF_FEW: Final = (5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02)  # SURE for ENOUGH sources and more: t at 0.001
LIKELY: Final = 3.0  # standard errors over sources that are worth a note
ALIKE: Final = 0.3  # correlation of the parts of a source that is assumed where it can't be seen
WARY: Final = 0.02  # of a score: what fewer sources must tell at least
MATTERS: Final = 0.005  # of a score: less is not worth a change
SMALL: Final = 0.03  # of a score: differences that are surely less than this are as good as none


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much the same objects score more in the second way; ``error``: the standard error of the mean.

    ``error`` is that over sources from ENOUGH of them on, else that over pictures, which then holds for these alone.
    ``doubt``: how far the mean must be from 0 to hold for other pictures too.
    """

    pictures: int
    sources: int
    mean: float
    error: float
    doubt: float

    @property
    def gains(self) -> bool:
        """Whether the second way is surely better, by something that matters."""
        return self._sure and self.mean >= MATTERS

    @property
    def may_gain(self) -> bool:
        """Whether it is better on these pictures, which is not sure of others when ``gains`` is false."""
        return self._likely and self.mean >= MATTERS

    @property
    def loses(self) -> bool:
        """Whether it is worse, by something that matters, on these pictures at least."""
        return self._likely and self.mean <= -MATTERS

    @property
    def equal(self) -> bool:
        """Whether the two are as good as each other, on these pictures at least."""
        return self.pictures >= FEWEST and abs(self.mean) + 3 * self.error <= SMALL

    @property
    def _sure(self) -> bool:
        return self.pictures >= FEWEST and abs(self.mean) >= self.doubt

    @property
    def _likely(self) -> bool:
        errors = LIKELY if self.sources >= ENOUGH else SURE
        return self.pictures >= FEWEST and abs(self.mean) >= errors * self.error

    def __str__(self) -> str:
        of = "1 source" if self.sources == 1 else f"{self.sources} sources"
        return f"{self.mean:+.4f} ± {self.error:.4f} over {self.pictures} pictures of unlike shapes from {of}"


def shift_of(first: Sequence[Sequence[Found]], second: Sequence[Sequence[Found]], sources: Sequence[Hashable]) -> Shift:
    """Of what two ways found from FAINT on in the same pictures, each seen as it is and as in a mirror.

    ``sources``: of each picture, the photograph or clip it is a part of. Pictures without a common object are left out.
    """
    gaps = [
        [gap for views in zip(a, b, strict=True) for gap in _gaps(*views)] for a, b in zip(first, second, strict=True)
    ]
    told = [(float(np.mean(each)), source) for each, source in zip(gaps, sources, strict=True) if each]
    return shift_over([mean for mean, _ in told], [source for _, source in told])


def shift_over(gaps: Sequence[float], sources: Sequence[Hashable]) -> Shift:
    """Of the mean difference of scores in each picture, and its source."""
    by_source: dict[Hashable, list[float]] = {}
    for gap, source in zip(gaps, sources, strict=True):
        by_source.setdefault(source, []).append(gap)
    count, many = len(gaps), len(by_source)
    if count < 2:
        return Shift(count, many, gaps[0] if gaps else 0.0, float("inf"), float("inf"))
    if many >= ENOUGH:
        means = [float(np.mean(each)) for each in by_source.values()]
        error = float(np.std(means, ddof=1)) / many**0.5
        sure = SURE_OF_FEW[many - ENOUGH] if many - ENOUGH < len(SURE_OF_FEW) else SURE
        return Shift(count, many, float(np.mean(means)), error, sure * error)
    error = float(np.std(gaps, ddof=1)) / count**0.5
    alike = sum(len(each) * (1 + (len(each) - 1) * ALIKE) for each in by_source.values()) / count
    return Shift(count, many, float(np.mean(gaps)), error, max(WARY, SURE * error * alike**0.5))


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
