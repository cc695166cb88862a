"""Owns ``campipe models inspect``: what a file is, in words, and a description of it ready for use. Opens no file.

What is printed is YAML as a whole: everything told of the file stands in comments, so that the output can be saved as
it is and given to ``campipe replay --model``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import textwrap
from pathlib import Path
from typing import Final

from pipeline.config.labels import COCO
from pipeline.config.replay import clip_name
from pipeline.models.inspect_file import Looked, absolute, facts_of
from pipeline.models.inspect_input import InputGuess, Triple, input_of
from pipeline.yaml import read_text
from stages.accelerators.onnx_session import TensorFacts
from stages.errors import UserError
from stages.model import CODE_TYPES
from stages.postprocess.detect import Candidate, Guess, Undecided, detect
from stages.postprocess.detect_facts import MOST_LABELS
from stages.postprocess.detect_rules import RULES, head_options
from stages.postprocess.registry import LAYOUTS, head_for

WIDTH: Final = 100  # characters of a comment line
SHOWN_KEYS: Final = (
    "author",
    "description",
    "version",
    "date",
    "license",
    "task",
    "stride",
    "imgsz",
    "end2end",
    "layout",
)
LONGEST_VALUE: Final = 80  # characters of a metadata value that are shown
MOST_AGAINST: Final = 2  # reasons told per candidate
FARTHEST: Final = 3  # folders up from a description to its file, from where on the path stays absolute


def inspect(
    name: str,
    *,
    layout: str | None = None,
    labels: str | None = None,
    size: tuple[int, int] | None = None,
    folder: Path | None = None,
) -> str:
    """The text to print. ``layout`` overrules the guess; ``labels``: ``coco``, a file with one a line, or their number.

    ``folder``: that the text will lie in, from which its path of the file counts; None: unknown, the path is absolute.

    Raises UserError when the file can't be used or its layout can't be told.
    """
    path = absolute(name)
    given = labels_given(labels) if labels is not None else None
    looked = facts_of(path, size)
    known = len(given) if given is not None else None
    if layout is not None:
        guess = _stated(looked, layout, given or looked.facts.labels)
    else:
        found = detect(looked.facts, known)
        if isinstance(found, Undecided):
            raise UserError.of(refusal(path, found, looked))
        guess = found
    if not guess.classes:
        raise UserError(
            f"{path}: its layout is {guess.layout}, but nothing in the file says how many classes it has; give the "
            "labels (`--labels`)"
        )
    named, whence = _labels(looked, guess, given)
    return "\n".join([*_report(looked, guess, whence), "", *_description(looked, guess, named, folder)])


def refusal(path: str, found: Undecided, looked: Looked) -> list[str]:
    """Why there is no guess: the candidates, what speaks against each, what decides."""
    shapes = ", ".join(_shown((*t.shape,)) for t in looked.facts.outputs)
    possible = [c for c in found.candidates if not c.against]
    what = "is ambiguous" if found.ambiguous and len(possible) > 1 else "can't be told"
    sentences = [f"{path}: the layout of its outputs ({shapes} per frame) {what}; {found.remedy}"]
    sentences += [
        f"output {t.name} is {t.dtype} and the file tells no scale for it, so its numbers mean nothing: list it under "
        "`outputs` in a description, with its `scale` and `zero_point`, or export the model with float outputs"
        for t in looked.facts.outputs
        if t.dtype in CODE_TYPES and t.scale is None
    ]
    sentences += [_candidate(each) for each in found.candidates]
    return sentences


def _candidate(each: Candidate) -> str:
    classes = f" with {each.classes} classes" if each.classes else ""
    says = f"candidate {each.layout}{classes}: {'; '.join(each.why)}"
    return says + (f"; but {'; '.join(each.against[:MOST_AGAINST])}" if each.against else "; nothing speaks against it")


def labels_given(text: str) -> tuple[str, ...]:
    """The labels of ``--labels``: ``coco``, a number of classes, or a file with one label a line."""
    if text == "coco":
        return COCO
    if text.isdecimal():
        if not 1 <= int(text[:12]) <= MOST_LABELS:
            raise UserError(f"--labels {text}: give 1 to {MOST_LABELS} classes")
        return placeholders(int(text))
    path = Path(text)
    with contextlib.suppress(RuntimeError):  # no such user: then it's a file called so
        path = path.expanduser()
    content, fault = read_text(path, text)
    if content is None:
        told = fault.text if fault is not None else "can't be read"
        raise UserError(f"--labels {text}: {told} (or give `coco`, or the number of classes)")
    labels = tuple(line.strip() for line in content.rstrip().split("\n"))
    if not all(labels):
        raise UserError(f"--labels {text}: line {labels.index('') + 1} is empty; labels count by lines")
    return labels


def placeholders(count: int) -> tuple[str, ...]:
    """Names for classes whose names nobody told."""
    return tuple(f"class {number}" for number in range(count))


def _stated(looked: Looked, layout: str, labels: tuple[str, ...]) -> Guess:
    """The layout that the user says, if it can be read from these outputs."""
    if layout not in LAYOUTS:
        raise UserError(f"--layout {layout}: is not a layout; give one of {', '.join(LAYOUTS)}")
    count = len(labels) or _classes_of(looked, layout)
    if not count:
        raise UserError(f"--layout {layout}: the number of classes can't be told; give the labels too (`--labels`)")
    head_for(looked.facts.spec(layout, count, head_options(looked.facts, layout)))
    return Guess(layout, count, (f"it was stated (--layout {layout}), and the shapes do not contradict it",))


def _classes_of(looked: Looked, layout: str) -> int:
    claims = (claim for rule in RULES for claim in rule.claims(looked.facts))
    return next((claim.classes for claim in claims if claim.layout == layout), 0)


def _labels(looked: Looked, guess: Guess, given: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
    if given is not None:
        return given, "as given"
    if looked.facts.labels:
        return looked.facts.labels, "from the file's metadata"
    if guess.classes == len(COCO):
        return COCO, "assumed: 80 classes are COCO's in most models; check that"
    return placeholders(guess.classes), "the file names none: replace these, in the model's order"


def labels_of(looked: Looked, classes: int) -> tuple[str, ...]:
    """The labels that a file has by its metadata, or that are taken for its."""
    return _labels(looked, Guess("", classes, ()), None)[0]


def _report(looked: Looked, guess: Guess, labels: str) -> list[str]:
    facts = looked.facts
    settings = input_of(facts, guess.layout)
    batch = "any number of frames" if looked.batch is None else f"{looked.batch} frame(s) at a time"
    if looked.claims_any:
        batch += ": the file claims any number, but fails with two"
    lines = [
        f"file     {looked.path}",
        *(f"input    {_tensor(t)}" for t in looked.inputs),
        *(f"output   {_tensor(t)}{_measured(t, looked)}{_coded(t, looked)}" for t in looked.declared),
        f"batch    {batch}",
    ]
    lines += [f"metadata {text}" for text in _metadata(looked)] or ["metadata none"]
    lines += ["", f"layout   {guess.layout}, {guess.classes} classes, because"]
    lines += [f"         - {reason}" for reason in guess.why]
    state = "known" if settings.known else "assumed"
    lines += ["", f"labels   {labels}", f"input    {state}: {settings.why}"]
    if looked.size_assumed:
        size = f"{facts.width}x{facts.height}"
        lines.append(f"size     assumed: the file takes any; {size} is the usual one (--size gives another)")
    lines += ["", "`campipe models verify` tries it on a picture, with other channel orders, scalings and paddings."]
    return [wrapped for line in lines for wrapped in _comment(line)]


def _comment(line: str) -> list[str]:
    text = "".join(c if c.isprintable() else "?" for c in line)
    if not text:
        return ["#"]
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="#            ",
        break_long_words=False,
        drop_whitespace=True,
    )


def _metadata(looked: Looked) -> list[str]:
    metadata = looked.facts.metadata
    stated = {key: " ".join(metadata.get(key, "").split()) for key in SHOWN_KEYS}
    lines = [f"{key}: {textwrap.shorten(value, LONGEST_VALUE)}" for key, value in stated.items() if value]
    if looked.facts.labels:
        first = ", ".join(looked.facts.labels[:3])
        lines.append(f"names: {len(looked.facts.labels)} ({first}{', …' if len(looked.facts.labels) > 3 else ''})")
    elif metadata.get("names"):
        lines.append("names: can't be read")
    others = sorted(key[:40] for key in metadata if key not in (*SHOWN_KEYS, "names"))
    return lines + ([f"and {', '.join(others[:12])}{', …' if len(others) > 12 else ''}"] if others else [])


def _tensor(tensor: TensorFacts) -> str:
    return f"{tensor.name} {_shown(tensor.shape)} {tensor.dtype}"


def _measured(tensor: TensorFacts, looked: Looked) -> str:
    found = next((t for t in looked.facts.outputs if t.name == tensor.name), None)
    return f" (measured: {_shown(found.shape)} per frame)" if found is not None and None in tensor.shape[1:] else ""


def _coded(tensor: TensorFacts, looked: Looked) -> str:
    found = next((t for t in looked.facts.outputs if t.name == tensor.name), None)
    if found is None or found.dtype not in CODE_TYPES:
        return ""
    if found.scale is None:
        return " (no scale is known: the file does not end in a QuantizeLinear)"
    return f" (stands for (number - {found.zero_point}) * {found.scale:.9g})"


def _shown(shape: tuple[int | None, ...]) -> str:
    return "x".join("?" if n is None else str(n) for n in shape) or "a single number"


def _seen_from(path: str, folder: Path | None) -> str:
    """The path as a description in ``folder`` names it: absolute when it is unknown, or far away."""
    if folder is None:
        return path
    found = os.path.relpath(path, folder)
    return path if found.startswith("../" * FARTHEST) else found


def _description(looked: Looked, guess: Guess, labels: tuple[str, ...], folder: Path | None) -> list[str]:
    """The model's YAML, each key of which stands as a description may have it."""
    facts, path = looked.facts, Path(looked.path)
    settings = input_of(facts, guess.layout)
    state = "" if settings.known else " # assumed"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    lines = [
        f"name: {_quoted(clip_name(looked.path))}",
        f"file: {_quoted(_seen_from(looked.path, folder))}",
        f"sha256: {_quoted(digest)}",
        f"size_bytes: {path.stat().st_size}",
    ]
    if licence := " ".join(facts.metadata.get("license", "").split())[:200]:
        lines.append(f"licence: {_quoted(licence)}")
    lines += [
        "input:",
        f"  width: {facts.width}" + (" # assumed" if looked.size_assumed else ""),
        f"  height: {facts.height}" + (" # assumed" if looked.size_assumed else ""),
        f"  channels: {settings.channels}{state}",
        f"  layout: {'nchw' if looked.planes_first else 'nhwc'}",
        f"  dtype: {facts.input_dtype}",
        f"  mean: {_triple(settings.mean)}{state}",
        f"  std: {_triple(settings.std)}{state}",
        f"  pad_value: {settings.pad_value}{state}",
        f"  placement: {settings.placement}{state}",
        f"layout: {guess.layout}",
    ]
    options = head_options(facts, guess.layout)
    stated = {
        each.name: getattr(options, each.name)
        for each in dataclasses.fields(options)
        if getattr(options, each.name) != each.default
    }
    lines += ["head:", *(f"  {key}: {value}" for key, value in stated.items())] if stated else []
    lines += ["labels: coco"] if labels == COCO else ["labels:", *(f"  - {_quoted(label)}" for label in labels)]
    lines.append("outputs:")
    for tensor in facts.outputs:
        lines += [
            f"  - name: {_quoted(tensor.name)}",
            f"    shape: [{', '.join(map(str, tensor.shape))}]",
            f"    dtype: {tensor.dtype}",
        ]
        if tensor.scale is not None:
            lines += [f"    scale: {tensor.scale:.9g}", f"    zero_point: {tensor.zero_point}"]
    lines.append(f"batch: {'dynamic' if looked.batch is None else looked.batch}")
    return lines


def _triple(values: Triple) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:g}"
    return f"[{', '.join(f'{value:g}' for value in values)}]"


def _quoted(text: str) -> str:
    """As a JSON string, which YAML 1.2 reads as it is."""
    return json.dumps(text, ensure_ascii=False)


__all__ = ["InputGuess", "inspect", "labels_given", "labels_of", "placeholders", "refusal"]
