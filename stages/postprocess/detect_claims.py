"""Owns what a rule of layout detection says: claims, and the pieces that several rules share. Not the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stages.postprocess.detect_facts import STRIDES, STRIDES_P6, AxisValues, FileFacts, OutputFacts

COCO_CLASSES: Final = 80
SCORE_SLACK: Final = 0.02  # sigmoids in float16 reach 1.007


@dataclass(slots=True)
class Claim:
    """That a file has a layout, with so many classes (0: the shapes don't say how many).

    ``reading``: layouts that are read alike have the same.
    """

    layout: str
    classes: int
    why: list[str]
    proof: list[str] = field(default_factory=list)
    against: list[str] = field(default_factory=list)
    task: str = "detect"
    reading: str = ""


class Rule(NamedTuple):
    """``says``: the shape in words, for documentation; ``claims`` gives none when the shapes are others."""

    layout: str
    says: str
    claims: Callable[[FileFacts], Iterator[Claim]]


def single(facts: FileFacts, rank: int) -> OutputFacts | None:
    """The only output, if it has that many axes and float values."""
    if len(facts.outputs) != 1:
        return None
    found = facts.outputs[0]
    return found if len(found.shape) == rank and found.floats else None


def grid_text(facts: FileFacts, anchors: int) -> str:
    """What grid has as many cells as there are ``anchors``, in words; empty if none."""
    for strides in (STRIDES, STRIDES_P6):
        if anchors == facts.cells(strides):
            named = ", ".join(map(str, strides))
            return f"{anchors} anchors are the cells of strides {named} over {facts.width}x{facts.height}"
    return ""


def grid_of_three(facts: FileFacts, anchors: int) -> str:
    """``_grid`` for three anchors per cell."""
    for strides in (STRIDES, STRIDES_P6):
        if anchors == 3 * facts.cells(strides):
            named = ", ".join(map(str, strides))
            return f"{anchors} rows are three anchors per cell of strides {named} over {facts.width}x{facts.height}"
    return ""


def in_pixels(claim: Claim, facts: FileFacts, values: AxisValues | None) -> None:
    """Boxes in columns 0 to 3 that are decoded: some of them are larger than any offset or share could be."""
    if values is None or values.flat(0, 4):
        return
    spread = max(values.high[:2])
    if spread <= max(facts.width, facts.height) / 16:
        claim.against.append(
            f"in a trial run its box centres stay below {spread:.3g}: offsets or shares, not pixels of the input"
        )


def scores_follow(claim: Claim, values: AxisValues | None, first: int) -> None:
    """Scores from column ``first`` on, which must lie in 0..1."""
    if values is not None and not values.within(-SCORE_SLACK, 1 + SCORE_SLACK, first):
        low, high = min(values.low[first:]), max(values.high[first:])
        claim.against.append(f"in a trial run what would be scores ran from {low:.3g} to {high:.3g}, not in 0..1")


def coco(claim: Claim) -> Claim:
    """The claim, with a proof more when it has COCO's number of classes."""
    if claim.classes == COCO_CLASSES:
        claim.proof.append("it makes 80 classes, as many as COCO has")
    return claim
