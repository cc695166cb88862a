"""Owns the comparison of the raw outputs of two models, part by part, and the likely cause of a difference. Runs none.

Parts are what a layout's numbers mean: boxes, objectness, classes, each per scale (stride) where anchors lie on grids.
The cause is looked for by experiment: the second model is fed in other ways, and the one that brings its outputs back
to the first's names what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.models.verify_run import Found, overlaps
from stages.model import ModelSpec, TensorSpec
from stages.postprocess.quantised import floats_of

STRIDES: Final = (8, 16, 32, 64)
WITH_OBJECTNESS: Final = ("yolov5", "yolov6", "yolox")
ROWS: Final = ("ssd", "yolov8_rows", "rtdetr")
CHANNELS: Final = ("yolov8", "yolov8_seg", "yolov8_pose", "yolov8_obb")
EXPLAINED: Final = 0.35  # a way of feeding explains the difference when it leaves at most this part of it
SMALL: Final = 0.05  # mean difference over the mean size of the numbers: what rounding and INT8 leave
NOTHING: Final = 1e-5  # below this, relative to the numbers, two outputs are the same

Place = tuple[Any, ...]  # slices, and the numbers of rows that no slice gives


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one part: mean and greatest absolute difference, and the mean size of the first model's numbers."""

    tensor: str
    scale: str
    group: str
    mean: float
    most: float
    size: float

    @property
    def relative(self) -> float:
        """The mean difference as a part of the numbers' mean size."""
        return self.mean / self.size if self.size else (0.0 if self.mean == 0 else np.inf)


def parts_of(model: ModelSpec, tensor: TensorSpec) -> Iterator[tuple[str, str, Place]]:
    """Scale, group and place of each part of one output of this model."""
    shape = tensor.shape
    if model.layout == "yolov5_raw":
        yield from _map_parts(shape, 5 + len(model.labels))
        return
    axis, groups = _groups(model, shape)
    anchors = 1 - axis
    for scale, span in _scales(model, shape[anchors] if len(shape) == 2 else 0):
        for group, columns in groups:
            place = [slice(None)] * len(shape)
            if len(shape) == 2:
                place[axis], place[anchors] = columns, span
            yield scale, group, tuple(place)


def _map_parts(shape: Sequence[int], numbers: int) -> Iterator[tuple[str, str, Place]]:
    """Of a raw map, (n x numbers, h, w), (n, numbers, h, w) or (n, h, w, numbers): what each anchor's numbers mean."""
    last = len(shape) == 4 and shape[3] == numbers
    scale = f"{shape[-2]}x{shape[-3]}" if last else f"{shape[-1]}x{shape[-2]}"
    for group, columns in (("boxes", range(4)), ("objectness", range(4, 5)), ("classes", range(5, numbers))):
        picked = np.array(columns)
        if len(shape) == 3:
            firsts = np.arange(0, shape[0], numbers)
            yield scale, group, ((firsts[:, None] + picked).ravel(), slice(None), slice(None))
        elif last:
            yield scale, group, (slice(None), slice(None), slice(None), picked)
        else:
            yield scale, group, (slice(None), picked, slice(None), slice(None))


def _groups(model: ModelSpec, shape: Sequence[int]) -> tuple[int, list[tuple[str, slice]]]:
    """The axis that numbers of an anchor lie along, and which of them are what."""
    boxes, classes = ("boxes", slice(0, 4)), len(model.labels)
    if len(shape) != 2:
        return 1, [("all", slice(None))]
    if model.layout in WITH_OBJECTNESS:
        return 1, [boxes, ("objectness", slice(4, 5)), ("classes", slice(5, None))]
    if model.layout in ROWS and shape[1] == 4 + classes:
        return 1, [boxes, ("classes", slice(4, None))]
    if model.layout in CHANNELS:
        axis = 0 if shape[0] <= shape[1] else 1  # there are more anchors than numbers of one
        rest = [("others", slice(4 + classes, None))] if shape[axis] > 4 + classes else []
        return axis, [boxes, ("classes", slice(4, 4 + classes)), *rest]
    if model.layout == "end2end":
        return 1, [boxes, ("scores", slice(4, 5)), ("class numbers", slice(5, 6))]
    if shape[1] == 4:
        return 1, [boxes]
    return 1, [("classes", slice(None))]


def _scales(model: ModelSpec, anchors: int) -> list[tuple[str, slice]]:
    """Which anchors belong to which stride; one scale for all when they lie on no grid."""
    for count in (3, 4):
        cells = [-(-model.width // s) * -(-model.height // s) for s in STRIDES[:count]]
        for each in (1, 3):
            if anchors == each * sum(cells):
                ends = np.cumsum([0, *(each * n for n in cells)])
                spans = [slice(int(a), int(b)) for a, b in pairwise(ends)]
                return [(f"stride {s}", span) for s, span in zip(STRIDES[:count], spans, strict=True)]
    return [("all", slice(None))]


def differences(
    model: ModelSpec,
    first: Sequence[Sequence[NDArray[Any]]],
    second: Sequence[Sequence[NDArray[Any]]],
    second_model: ModelSpec | None = None,
) -> list[Difference]:
    """Part by part over several pictures; ``first[i]`` are the outputs of one model for picture i.

    ``second_model``: whose ``second`` is; None: the same. Quantised outputs are compared as what they stand for.
    """
    found = []
    for index, (tensor, other) in enumerate(zip(model.outputs, (second_model or model).outputs, strict=True)):
        a = np.stack([np.asarray(floats_of(tensor, each[index]), np.float64) for each in first])
        b = np.stack([np.asarray(floats_of(other, each[index]), np.float64) for each in second])
        for scale, group, place in parts_of(model, tensor):
            mine, theirs = a[(slice(None), *place)], b[(slice(None), *place)]
            gap = np.abs(np.nan_to_num(mine - theirs, nan=np.inf))
            found.append(
                Difference(tensor.name, scale, group, float(gap.mean()), float(gap.max()), float(np.abs(mine).mean()))
            )
    return found


def distance(differences: Sequence[Difference]) -> float:
    """One number for how far two models are apart: the mean over the parts of their relative differences."""
    values = [min(each.relative, 1e6) for each in differences]
    return float(np.mean(values)) if values else 0.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Objects of two models on the same pictures; ``score_shift``: mean difference of the scores of those in both."""

    both: int
    first_only: int
    second_only: int
    score_shift: float


def agreement(first: Sequence[Found], second: Sequence[Found]) -> Agreement:
    """Matched by class and an intersection over union of at least 0.5, best first."""
    both = first_only = second_only = 0
    shifts: list[float] = []
    for a, b in zip(first, second, strict=True):
        same = overlaps(a.boxes, b.boxes) * (a.class_ids[:, None] == b.class_ids[None])
        taken: set[int] = set()
        for row in range(len(a.scores)):
            order = [int(c) for c in np.argsort(-same[row]) if same[row, c] >= 0.5 and int(c) not in taken]
            if order:
                taken.add(order[0])
                shifts.append(float(b.scores[order[0]] - a.scores[row]))
        both += len(taken)
        first_only += len(a.scores) - len(taken)
        second_only += len(b.scores) - len(taken)
    return Agreement(both, first_only, second_only, float(np.mean(shifts)) if shifts else 0.0)


def cause(base: float, tried: dict[str, float], agreed: Agreement, dtypes: tuple[str, str]) -> str:
    """The likely cause, with its evidence. ``tried``: the distance for each other way of feeding the second model."""
    if base <= NOTHING:
        return "the outputs are the same"
    best = min(tried, key=lambda what: tried[what], default="")
    if best and tried[best] <= base * EXPLAINED:
        what, _, _ = best.partition(" ")
        names = {"channels": "channel order", "scaling": "normalisation", "placement": "padding"}
        return (
            f"{names.get(what, what)}: fed with {best}, the second model differs by {tried[best]:.2g} of the numbers' "
            f"size, against {base:.2g} as described"
        )
    alone = agreed.first_only + agreed.second_only
    if agreed.both and alone <= 0.25 * agreed.both and abs(agreed.score_shift) < 0.1:
        kinds = "" if dtypes[0] == dtypes[1] else f" ({dtypes[0]} against {dtypes[1]})"
        return (
            f"precision{kinds}: both find the same {agreed.both} objects ({alone} are found by one alone, scores shift "
            f"by {agreed.score_shift:+.3f}), and no other way of feeding comes closer"
        )
    if base <= SMALL and not alone:
        return f"precision: the numbers differ by {base:.2g} of their size, and no other way of feeding comes closer"
    return (
        f"not the feeding: no other channel order, scaling or padding brings them together ({base:.2g} of the numbers' "
        f"size apart; {agreed.both} objects found by both, {alone} by one alone); these are different weights, or an "
        "export or quantisation that went wrong"
    )
