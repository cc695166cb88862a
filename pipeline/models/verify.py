"""Owns ``campipe models verify``: tries a model on pictures and says what fits. Does not own views, ways or scores."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.assets import street_clip
from pipeline.models import verify_against as against
from pipeline.models.inspect import labels_of, refusal
from pipeline.models.inspect_file import Looked, absolute, facts_of
from pipeline.models.inspect_input import InputGuess, input_of
from pipeline.models.verify_drawn import draw, targets_of
from pipeline.models.verify_run import Found, Trial
from pipeline.models.verify_variants import Judge, Verdict, other_ways, scaling_name
from pipeline.models.verify_views import Part, Picture, colour_chart, read_picture, read_pictures, shapes_of, views_of
from pipeline.runtime.isolated import call_in_process
from stages.errors import UserError
from stages.model import ModelSpec
from stages.postprocess.detect import Undecided, detect
from stages.postprocess.detect_rules import head_options
from stages.postprocess.registry import head_for

SPAWN: Final = multiprocessing.get_context("spawn")
TIMEOUT_S: Final = 900.0
MOST_FRAMES: Final = 10  # of a clip, to tell the order of colours
MANY_PARTS: Final = 3  # up to so many pictures, many parts of each are looked at, to tell paddings ...
MOST_CUT: Final = 12  # ... else few of each, of so many at most
MOST_NAMED: Final = 8  # classes named in the line of what was found


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of the pictures: objects by picture, as described, and the verdict."""

    found: tuple[Found, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of two models."""

    parts: tuple[against.Difference, ...]
    agreed: against.Agreement
    cause: str


def verify(name: str, images: Sequence[str], out: str | None, other: str | None) -> tuple[str, int]:
    """The text to print and the exit status: 1 when another way of feeding the model does clearly better.

    Raises UserError when something can't be read or run, or contradicts its description.
    """
    paths = [absolute(image) for image in images]
    targets = targets_of(out, paths) if out is not None else []
    model, looked = model_of(name, paths[0])
    second = model_of(other, paths[0], like=model)[0] if other is not None else None
    if second is not None and (problem := _incomparable(model, second)):
        raise UserError(problem)
    usual = input_of(looked.facts, model.layout)
    tried = call_in_process(SPAWN, TIMEOUT_S, try_on, model, paths, usual)
    lines = [f"{name}: layout {model.layout}, {model.channels}, scaling {scaling_name(model)}, {model.placement}"]
    lines += [f"  {Path(p).name}: {_objects(f, model)}" for p, f in zip(images, tried.found, strict=True)]
    if out is not None:
        draw(paths, tried.found, model, targets)
        lines += [f"  drawn: {path}" for path in targets]
    lines += [
        "",
        "sums of the scores that a picture's mirror image confirms; strips are long cut-outs of the pictures:",
    ]
    lines += [*_table(tried.verdict), ""]
    lines += [f"note: {note}" for note in tried.verdict.notes]
    lines += [f"FAULT: {fault}" for fault in tried.verdict.faults]
    if tried.verdict.faults:
        lines += ["remedy: in the description's `input`, " + ", ".join(_changes(model, tried.verdict.best))]
    blind = not any(way.score for way in tried.verdict.ways)
    if not tried.verdict.faults and not blind:
        lines.append("ok: no other channel order, scaling or padding does clearly better")
    if second is not None and other is not None:
        compared = call_in_process(SPAWN, TIMEOUT_S, compare, model, second, paths)
        lines += ["", *_comparison(name, other, compared)]
    return "\n".join(lines), 1 if tried.verdict.faults or blind else 0


def model_of(name: str, image: str, like: ModelSpec | None = None) -> tuple[ModelSpec, Looked]:
    """The model of a description or of a bare file (guessed, or fed ``like`` another), and its file's facts."""
    if not name.lower().endswith(".onnx"):
        from pipeline.config import replay_site, resolve
        from pipeline.planning import draft_plan

        (model,) = draft_plan(resolve(replay_site([image], name))).models
        return model, facts_of(model.path, (model.width, model.height))
    path = absolute(name)
    looked = facts_of(path, (like.width, like.height) if like is not None else None)
    facts = looked.facts
    if like is not None and (facts.width, facts.height) != (like.width, like.height):
        raise UserError(
            f"{path}: its input is {facts.width}x{facts.height}, the other's {like.width}x{like.height}; raw outputs "
            "can only be compared for inputs of the same size"
        )
    base = like if like is not None else _guessed(path, looked)
    if facts.input_dtype not in ("float32", "float16", "uint8"):
        raise UserError(f"{path}: its input is {facts.input_dtype}; campipe feeds float32, float16 and uint8")
    model = dataclasses.replace(
        base,
        name=Path(path).stem,
        path=path,
        sha256="",
        outputs=facts.spec(base.layout, 1).outputs,
        input_dtype=facts.input_dtype,  # type: ignore[arg-type]  # looked at above
        input_layout="nchw" if looked.planes_first else "nhwc",
        fixed_batch=looked.batch,
    )
    if like is None or [t.shape for t in model.outputs] == [t.shape for t in like.outputs]:
        head_for(model)
    return model, looked


def _guessed(path: str, looked: Looked) -> ModelSpec:
    """What ``inspect`` would describe."""
    facts = looked.facts
    found = detect(facts)
    if isinstance(found, Undecided):
        raise UserError.of(refusal(path, found, looked))
    settings = input_of(facts, found.layout)
    labels = labels_of(looked, found.classes)
    return dataclasses.replace(
        facts.spec(found.layout, len(labels), head_options(facts, found.layout)),
        labels=labels,
        channels=settings.channels,
        mean=settings.mean,
        std=settings.std,
        placement=settings.placement,
        pad_value=settings.pad_value,
    )


def try_on(model: ModelSpec, paths: Sequence[str], usual: InputGuess) -> Tried:
    """Runs in a process of its own."""
    trial = Trial(model)
    trial.open()
    pictures = [read_picture(path) for path in paths]
    found = tuple(trial.found(model, picture, model.confidence) for picture in pictures)
    views = [view for path, picture in zip(paths, pictures, strict=True) for view in views_of(path, picture)]

    def street() -> list[Picture]:
        return read_pictures(str(street_clip()), MOST_FRAMES)

    def more() -> list[Picture]:
        return [picture for path in paths for picture in read_pictures(path, MOST_FRAMES)[1:]] + street()

    def shapes() -> list[Part]:
        given = {os.path.realpath(path): picture for path, picture in zip(paths, pictures, strict=True)}
        places = 3 if len(given) <= MANY_PARTS else 1
        parts = [
            Part(source, part)
            for source, picture in list(given.items())[:MOST_CUT]
            for part in shapes_of(picture, places)
        ]
        clip = os.path.realpath(street_clip())
        return parts + [Part(clip, part) for picture in street()[::2] for part in shapes_of(picture, places=1)]

    judge = Judge(trial, views, colour_chart(), usual, progress=_progress, more=more, shapes=shapes)
    return Tried(found, judge.judge(model))


def compare(first: ModelSpec, second: ModelSpec, paths: Sequence[str]) -> Compared:
    """Runs in a process of its own."""
    trials = [Trial(first), Trial(second)]
    for trial in trials:
        trial.open()
    pictures = [read_picture(path) for path in paths]
    mine = [trials[0].raw(first, picture) for picture in pictures]

    def parts_with(model: ModelSpec) -> list[against.Difference]:
        return against.differences(first, mine, [trials[1].raw(model, picture) for picture in pictures], second)

    parts = parts_with(second)
    base = against.distance(parts)
    tried = {}
    if base > against.NOTHING:
        for what, model in other_ways(second).items():
            _progress(what)
            tried[what] = against.distance(parts_with(model))
    found = [
        [trial.found(model, picture, model.confidence) for picture in pictures]
        for trial, model in zip(trials, (first, second), strict=True)
    ]
    agreed = against.agreement(*found)
    return Compared(tuple(parts), agreed, against.cause(base, tried, agreed, (first.input_dtype, second.input_dtype)))


def _incomparable(first: ModelSpec, second: ModelSpec) -> str:
    shapes = [[t.shape for t in model.outputs] for model in (first, second)]
    if shapes[0] != shapes[1]:
        return (
            f"model {second.name}: its outputs are {shapes[1]}, the other's {shapes[0]}; raw outputs can only be "
            "compared for models of the same layout, input size and classes"
        )
    return ""


def _objects(found: Found, model: ModelSpec) -> str:
    if found.fault:
        return f"nothing: {found.fault}"
    counts = Counter(model.labels[int(class_id)] for class_id in found.class_ids)
    named = ", ".join(f"{count} {label}" for label, count in counts.most_common(MOST_NAMED))
    return (named or "nothing found") + (", …" if len(counts) > MOST_NAMED else "")


def _table(verdict: Verdict) -> list[str]:
    from pipeline.observe.summary import align

    rows = [("fed", "whole pictures", "strips")]
    rows += [(way.what, f"{way.whole:.2f}", f"{way.strips:.2f}") for way in verdict.ways]
    return align(rows)


def _changes(model: ModelSpec, best: ModelSpec) -> list[str]:
    changes = []
    if best.channels != model.channels:
        changes.append(f"`channels: {best.channels}`")
    if (best.mean, best.std) != (model.mean, model.std):
        changes += [f"`mean: {_numbers(best.mean)}`", f"`std: {_numbers(best.std)}`"]
    if best.placement != model.placement:
        changes.append(f"`placement: {best.placement}`")
    if best.pad_value != model.pad_value:
        changes.append(f"`pad_value: {best.pad_value}`")
    return [f"set {change}" for change in changes]


def _numbers(values: tuple[float, float, float]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else f"[{', '.join(f'{v:g}' for v in values)}]"


def _comparison(name: str, other: str, compared: Compared) -> list[str]:
    from pipeline.observe.summary import align

    rows = [("output", "scale", "part", "mean |difference|", "greatest", "mean |number|")]
    rows += [(d.tensor, d.scale, d.group, f"{d.mean:.4g}", f"{d.most:.4g}", f"{d.size:.4g}") for d in compared.parts]
    agreed = compared.agreed
    return [
        f"raw outputs of {name} and {other}:",
        *align(rows, left=(0, 1, 2)),
        (
            f"objects: {agreed.both} found by both, {agreed.first_only} by the first alone, {agreed.second_only} by "
            f"the second alone, scores of the second {agreed.score_shift:+.3f}"
        ),
        f"likely cause: {compared.cause}",
    ]


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[Ktrying: {what}", end="", file=sys.stderr, flush=True)  # noqa: T201 -- progress on a terminal
