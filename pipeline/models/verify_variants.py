"""Owns the other ways to feed a model, how well each does on pictures, and when one is clearly better. Runs no model.

The score of a way on a view: the scores of the objects that are found both in the view and in its mirror image, less
the scores of those that are found in one of them alone. Wrong scaling makes a detector see nothing, or things
everywhere; the latter seldom lie where their mirror images are. An object counts from STRONG on; its counterpart may
be as weak as WEAK, so that an object at the limit is not taken for one that was made up.

What each question rests on:

- Scaling: all views; wrong by a factor of 255 leaves nothing.
- Stretching: the strips. Whole pictures are mostly 4:3 or 16:9, and every detector bears that much; so a model whose
  family is stretched is only doubted when the whole pictures say so.
- Top left or centre, and the colour of the bars: most detectors look the same everywhere, then the objects are the same
  and their scores decide (``verify_equal``): a fault when they are surely less as described, which parts of a few
  pictures seldom show; a note when they look so, or the two ways are equivalent. A model that does not look the same
  everywhere finds less where it was not trained to look.
- Channel order: photographs of streets say little of it, so the colour chart comes first where the model knows oranges;
  then many pictures, those given and some of a street, each fed both ways: the differences of their scores must be
  large against how they scatter (``evidence``). Where they are not, the file's own word for who exported it decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

import numpy as np

from pipeline.models.inspect_input import IMAGENET_MEAN, IMAGENET_STD, InputGuess, Triple
from pipeline.models.verify_equal import ENOUGH, FAINT, shift_of
from pipeline.models.verify_run import Found
from pipeline.models.verify_scores import WEAK, Evidence, apart, better, evidence, pair_score
from pipeline.models.verify_views import CHART_LABEL, Part, Picture, View
from stages.model import ModelSpec, Placement

MARGIN: Final = 1.15  # a way must do better by this factor, and by LEAST, to be called better
WIDE_MARGIN: Final = 1.3  # where the model's family speaks for what is described, or little is at stake
CHART_SURE: Final = 0.25  # difference of the oranges' scores that tells the channel order

SCALINGS: Final[dict[str, tuple[Triple, Triple]]] = {
    "0..1": ((0.0,) * 3, (255.0,) * 3),
    "0..255": ((0.0,) * 3, (1.0,) * 3),
    "-1..1": ((127.5,) * 3, (127.5,) * 3),
    "ImageNet mean and std": (IMAGENET_MEAN, IMAGENET_STD),
}
_EVERYWHERE: Final = "it looks the same everywhere, so where the bars are makes no difference to it"
_BEARS_IT: Final = "stretching pictures of usual shapes makes no difference to it"
_COLOURLESS: Final = "the colour of the bars makes no difference to it"
PLACEMENTS: Final[tuple[Placement, ...]] = ("center", "top_left", "stretch")


class Runs(Protocol):
    """What ``verify_run.Trial`` does, and a test may do in its place."""

    def found(self, model: ModelSpec, picture: Picture, confidence: float) -> Found:
        """See ``Trial``."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to feed the model: what differs from the description, in words, and its scores.

    ``scores`` and ``found``: by view.
    """

    what: str
    model: ModelSpec
    whole: float
    strips: float
    scores: tuple[float, ...] = ()
    found: tuple[Found, ...] = ()

    @property
    def score(self) -> float:
        """Over all views."""
        return self.whole + self.strips


@dataclass(frozen=True, slots=True)
class Verdict:
    """``faults``: what another way does clearly better. ``notes``: what could not be told, or isn't usual.

    ``ways``: all that were tried, the described one first. ``best``: the description with the faults mended.
    """

    faults: tuple[str, ...]
    notes: tuple[str, ...]
    ways: tuple[Way, ...]
    best: ModelSpec


def scaling_name(model: ModelSpec) -> str:
    """What ``SCALINGS`` calls the model's mean and std, or the numbers."""
    for name, (mean, std) in SCALINGS.items():
        ordered = (mean, std) if model.channels == "rgb" else (mean[::-1], std[::-1])
        if np.allclose((model.mean, model.std), ordered, rtol=0.01, atol=0.5):
            return name
    return f"mean {model.mean}, std {model.std}"


def with_scaling(model: ModelSpec, name: str) -> ModelSpec:
    """The model fed with that scaling, its numbers in the model's channel order."""
    mean, std = SCALINGS[name]
    if model.channels == "bgr":
        mean, std = (mean[2], mean[1], mean[0]), (std[2], std[1], std[0])
    return dataclasses.replace(model, mean=mean, std=std)


def with_other_channels(model: ModelSpec) -> ModelSpec:
    """The model fed with red and blue exchanged; each colour keeps its mean and std."""
    other = dataclasses.replace(model, mean=model.mean[::-1], std=model.std[::-1])
    return dataclasses.replace(other, channels="bgr" if model.channels == "rgb" else "rgb")


def other_ways(model: ModelSpec) -> dict[str, ModelSpec]:
    """The model fed otherwise, by what is other: ``channels bgr``, ``scaling 0..1``, ``placement center`` …"""
    swapped = with_other_channels(model)
    ways = {f"channels {swapped.channels}": swapped}
    if model.input_dtype != "uint8":
        has = scaling_name(model)
        ways |= {f"scaling {name}": with_scaling(model, name) for name in SCALINGS if name != has}
    ways |= {f"placement {p}": dataclasses.replace(model, placement=p) for p in PLACEMENTS if p != model.placement}
    return ways


class Judge:
    """Tries the ways and says which does clearly better than what is described."""

    def __init__(
        self,
        runs: Runs,
        views: Sequence[View],
        chart: Sequence[Picture],
        usual: InputGuess,
        *,
        progress: Callable[[str], None] = lambda _what: None,
        more: Callable[[], Sequence[Picture]] = tuple,
        shapes: Callable[[], Sequence[Part]] = tuple,
    ) -> None:
        self._runs = runs
        self._views = views
        self._chart = chart
        self._usual = usual
        self._progress = progress
        self._more = more  # pictures for what the views can't tell
        self._shapes = cache(shapes)
        self._in_shapes = cache(self._found_in_shapes)
        self._ways: list[Way] = []
        self._faults: list[str] = []
        self._notes: list[str] = []
        self._refused = ""

    def judge(self, model: ModelSpec) -> Verdict:
        """The verdict on a description."""
        now = self._way("as described", model)
        if self._refused:
            self._notes.append(f"as described, its outputs make no sense: {self._refused}")
        if model.input_dtype != "uint8":  # such a file scales by itself, and takes pixels as they are
            now = self._scaling(now)
        if now.score > 0:
            now = self._pad_value(self._placement(self._channels(now)))
        else:
            self._notes.append(
                "no way of feeding it finds anything on these pictures: give pictures with large objects that the "
                "model knows, or look at its layout and labels"
            )
        return Verdict(tuple(self._faults), tuple(self._notes), tuple(self._ways), now.model)

    def _way(self, what: str, model: ModelSpec) -> Way:
        self._progress(what)
        whole = strips = 0.0
        scores, objects = [], []
        for view in self._views:
            pair = [self._runs.found(model, each, WEAK) for each in (view.pixels, view.mirrored)]
            if not self._ways:  # of the description; that other ways make nonsense of it tells nothing
                self._refused = self._refused or pair[0].fault
            score = pair_score(pair[0], pair[1], view.pixels.shape[1])
            whole, strips = (whole, strips + score) if view.strip else (whole + score, strips)
            scores.append(score)
            objects.append(pair[0])
        way = Way(what, model, whole, strips, tuple(scores), tuple(objects))
        self._ways.append(way)
        return way

    def _blame(self, key: str, wants: str, has: str, scores: tuple[float, float]) -> None:
        self._faults.append(
            f"{key}: this model looks like it wants {wants}, not {has}: sum of confirmed scores {scores[0]:.2f} "
            f"against {scores[1]:.2f}"
        )

    def _scaling(self, now: Way) -> Way:
        has = scaling_name(now.model)
        others = [self._way(f"scaling {name}", with_scaling(now.model, name)) for name in SCALINGS if name != has]
        best = max(others, key=lambda way: way.score)
        if better(best.score, now.score, MARGIN):
            wants = best.what.removeprefix("scaling ")
            self._blame("scaling", wants, has, (best.score, now.score))
            return best
        return now

    def _placement(self, now: Way) -> Way:
        has, usual = now.model.placement, self._usual.placement
        others = {
            name: self._way(f"placement {name}", dataclasses.replace(now.model, placement=name))
            for name in PLACEMENTS
            if name != has
        }
        if has == "stretch":
            kept = others[usual] if usual != "stretch" else others["center"]
            by_whole = better(kept.whole, now.whole, WIDE_MARGIN)
            if by_whole or (usual != "stretch" and better(kept.strips, now.strips, MARGIN)):
                scores = (kept.whole, now.whole) if by_whole else (kept.strips, now.strips)
                wants = f"pictures that keep their shape (placement {kept.model.placement})"
                self._blame("padding", wants, "stretched ones", scores)
                return kept
        elif self._wants_stretching(others["stretch"], now):
            stretched = others["stretch"]
            self._blame("padding", "stretched pictures", has, (stretched.whole, now.whole))
            return stretched
        if has != "stretch":
            other = others["top_left" if has == "center" else "center"]
            if better(other.score, now.score, WIDE_MARGIN):  # a shift alone moves some scores by a seventh
                self._blame("padding", f"placement {other.model.placement}", has, (other.score, now.score))
                return other
        if has == usual:
            return now
        why = _BEARS_IT if "stretch" in (has, usual) else _EVERYWHERE
        return self._same_objects(now, others[usual], f"placement: {usual}", has, why)

    def _pad_value(self, now: Way) -> Way:
        has, usual = now.model.pad_value, self._usual.pad_value
        if has == usual or now.model.placement == "stretch":
            return now
        other = self._way(f"pad_value {usual}", dataclasses.replace(now.model, pad_value=usual))
        if better(other.score, now.score, MARGIN):
            self._blame("padding", f"bars of {usual}", f"of {has}", (other.score, now.score))
            return other
        return self._same_objects(now, other, f"pad_value: {usual}", str(has), _COLOURLESS)

    def _same_objects(self, now: Way, other: Way, usual: str, has: str, why: str) -> Way:
        """Two ways that find the same objects, what is described and what is usual: by their scores, or equivalent."""
        sources = [part.source for part in self._shapes()]
        shift = shift_of(self._in_shapes(now.model), self._in_shapes(other.model), sources)
        if shift.gains:
            self._faults.append(
                f"padding: this model looks like it wants {usual}, not {has}: the same objects score {shift} more"
            )
            return other
        said = f"padding: {self._usual.why}, so `{usual}` is usual, not {has}; "
        if shift.may_gain:
            self._notes.append(
                f"{said}this model looks like it does better with the usual one, gain {shift}, which is "
                f"not yet sure of other pictures; give more of different scenes, {ENOUGH} at least"
            )
        elif shift.loses:
            self._notes.append(f"{said}but for this model the described one does better: the usual one scores {shift}")
        elif shift.equal:
            self._notes.append(
                f"{said}for this model the two are equivalent, and nothing is wrong: {why}: by the usual one the same "
                f"objects score {shift}"
            )
        else:
            told = f"; the same objects score {shift} by the usual one" if shift.pictures > 1 else ""
            self._notes.append(
                f"{said}both fit, which of them can't be told on these pictures ({other.score:.2f} against "
                f"{now.score:.2f}) and matters as little as this: {apart(now.found, other.found)}{told}"
            )
        return now

    def _found_in_shapes(self, model: ModelSpec) -> list[tuple[Found, ...]]:
        found = []
        for number, part in enumerate(self._shapes()):
            self._progress(f"shapes, picture {number + 1} of {len(self._shapes())}")
            views = part.pixels, np.ascontiguousarray(part.pixels[:, ::-1])
            found.append(tuple(self._runs.found(model, each, FAINT) for each in views))
        return found

    def _wants_stretching(self, stretched: Way, now: Way) -> bool:
        if self._usual.placement == "stretch":
            return better(stretched.whole, now.whole, MARGIN)
        return better(stretched.whole, now.whole, WIDE_MARGIN) and better(stretched.score, now.score, MARGIN)

    def _channels(self, now: Way) -> Way:
        has, wants = now.model.channels.upper(), "BGR" if now.model.channels == "rgb" else "RGB"
        other = self._way(f"channels {wants.lower()}", with_other_channels(now.model))
        told = f"photographs {other.score:.2f} as {wants} against {now.score:.2f} as {has}"
        if CHART_LABEL in now.model.labels:
            mine, theirs = self._oranges(now.model), self._oranges(other.model)
            told += f", drawn oranges {theirs:.2f} against {mine:.2f}"
            if theirs - mine >= CHART_SURE:
                self._faults.append(f"channels: this model looks like it wants {wants}, not {has}: {told}")
                return other
            if mine - theirs >= CHART_SURE:
                return now
        elif better(other.score, now.score, MARGIN):
            self._faults.append(f"channels: this model looks like it wants {wants}, not {has}: {told}")
            return other
        elif better(now.score, other.score, MARGIN):
            return now
        seen = self._seen_both_ways(now, other)
        told += (
            f", over {seen.pictures} pictures in all {seen.second:.2f} against {seen.first:.2f}, which is "
            f"{abs(seen.errors):.1f} standard errors of the difference"
        )
        if seen.sure and seen.errors > 0:
            self._faults.append(f"channels: this model looks like it wants {wants}, not {has}: {told}")
            return other
        if seen.sure:
            return now
        usual = self._usual.channels.upper()
        if self._usual.known and usual == has:
            return now  # by the file's own word, and nothing speaks against it
        if self._usual.known:
            self._faults.append(
                f"channels: {self._usual.why}, and so it wants {wants}, not {has}; nothing on these pictures speaks "
                f"against it ({told})"
            )
            return other
        advice = "" if usual == has else f"; {self._usual.why}, so `channels: {usual.lower()}` is usual"
        self._notes.append(f"channels: their order can't be told on these pictures ({told}){advice}")
        return now

    def _seen_both_ways(self, now: Way, other: Way) -> Evidence:
        """On the views, and on more pictures."""
        scores: list[list[float]] = [list(now.scores), list(other.scores)]
        pictures = self._more()
        for number, picture in enumerate(pictures):
            self._progress(f"colours, picture {number + 1} of {len(pictures)}")
            mirrored = np.ascontiguousarray(picture[:, ::-1])
            for way, of in zip((now, other), scores, strict=True):
                pair = [self._runs.found(way.model, each, WEAK) for each in (picture, mirrored)]
                of.append(pair_score(pair[0], pair[1], picture.shape[1]))
        return evidence(*scores)

    def _oranges(self, model: ModelSpec) -> float:
        """The mean score of the best orange on each picture of the chart."""
        number = model.labels.index(CHART_LABEL)
        best = []
        for picture in self._chart:
            found = self._runs.found(model, picture, WEAK)
            best.append(max(found.scores[found.class_ids == number], default=0.0))
        return float(np.mean(best)) if best else 0.0
