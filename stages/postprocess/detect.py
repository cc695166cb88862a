"""Owns the guess of a file's output layout, with its reasons. Does not own the layouts, nor reading files.

Each layout is one ``Rule``: the shape it has and why, and what else speaks for or against it. A rule gives a ``Claim``
when the shapes fit; a claim is *refuted* when something known contradicts it, and *proven* by what only this layout
explains. One claim that is not refuted is the guess; of several, the one that alone is proven. Anything else is
refused, with what would decide: a wrong layout gives wrong boxes without any error.

Whatever is guessed, the layout's own head has accepted the shapes and the number of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stages.errors import UserError
from stages.model import ModelSpec
from stages.postprocess.detect_claims import Claim
from stages.postprocess.detect_facts import FileFacts, OutputFacts
from stages.postprocess.detect_rules import RULES, head_options
from stages.postprocess.quantised import floats_of
from stages.postprocess.registry import LAYOUTS, checked


@dataclass(frozen=True, slots=True)
class Guess:
    """A layout, the number of its classes (0: nothing says it), and the sentences that explain both."""

    layout: str
    classes: int
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that a file may or might have had."""

    layout: str
    classes: int
    why: tuple[str, ...]
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undecided:
    """No layout, or several. ``candidates`` that nothing speaks against come first; ``remedy`` says what decides."""

    candidates: tuple[Candidate, ...]
    remedy: str

    @property
    def ambiguous(self) -> bool:
        """Whether several are possible, rather than none."""
        return any(not each.against for each in self.candidates)


def detect(facts: FileFacts, labels: int | None = None) -> Guess | Undecided:
    """The layout of a file's outputs.

    ``labels``: how many classes there are, if it is known from elsewhere than the file; it goes before what the file's
    metadata says. Pure: the same facts give the same answer.
    """
    known = labels if labels is not None else len(facts.labels) or None
    whose = "the labels given" if labels is not None else "the class names in the file"
    claims = [_judged(claim, facts, known, whose) for rule in RULES for claim in rule.claims(facts)]
    alive = [claim for claim in claims if not claim.against]
    chosen = _choice(alive)
    if chosen is not None and chosen.layout in LAYOUTS:
        why = [*chosen.why, *chosen.proof]
        if known is not None:
            why.append(f"its {chosen.classes} classes are as many as {whose}")
        others = [claim for claim in claims if claim is not chosen]
        why += [f"not {claim.layout}: {claim.against[0]}" for claim in others if claim.against]
        why += [f"rather than {claim.layout}, for which nothing else speaks" for claim in others if not claim.against]
        return Guess(chosen.layout, chosen.classes, tuple(dict.fromkeys(why)))
    ordered = [*alive, *(claim for claim in claims if claim.against)]
    candidates = tuple(Candidate(c.layout, c.classes, (*c.why, *c.proof), tuple(c.against)) for c in ordered)
    return Undecided(candidates, _remedy(alive, candidates))


def _choice(alive: list[Claim]) -> Claim | None:
    proven = [claim for claim in alive if claim.proof]
    best = proven or alive
    readings = {(claim.reading or claim.layout, claim.classes) for claim in best}
    # more than one, and still no doubt: the same numbers read in the same way, whatever it is called
    return best[0] if len(readings) == 1 else None


def _judged(claim: Claim, facts: FileFacts, known: int | None, whose: str) -> Claim:
    """The claim with what all layouts have in common held against it."""
    claim.classes = claim.classes or known or 0
    if known is not None and claim.classes != known:
        claim.against.append(f"that would be {claim.classes} classes, but {whose} are {known}")
    if facts.task and claim.task != facts.task:
        claim.against.append(f"the file says that its task is {facts.task}")
    if claim.layout in LAYOUTS and not claim.against:
        model = facts.spec(claim.layout, claim.classes or 1, head_options(facts, claim.layout))
        try:
            checked(LAYOUTS[claim.layout], model)
        except UserError as error:
            claim.against.append(error.problems[0])
    return claim


def _remedy(alive: list[Claim], candidates: tuple[Candidate, ...]) -> str:
    if not candidates:
        return (
            f"no layout that campipe knows has outputs of this shape (it reads {', '.join(LAYOUTS)}); export the model "
            "in one of these, or state `layout:` in its YAML if it is one all the same"
        )
    if not alive:
        return (
            "every layout of this shape is contradicted; correct what contradicts it (most often the labels), or state "
            "`layout:` in the model's YAML"
        )
    unreadable = [claim.layout for claim in alive if claim.layout not in LAYOUTS]
    if len(unreadable) == len(alive):
        return (
            f"this version of campipe can't read {' or '.join(unreadable)} (it reads {', '.join(LAYOUTS)}); export the "
            "model in one of these"
        )
    alive = [claim for claim in alive if claim.layout in LAYOUTS]
    counts = {claim.classes for claim in alive}
    layouts = " or ".join(f"`layout: {claim.layout}`" for claim in alive)
    by_count = "the labels (`--labels`), for their number decides; or " if len(counts) == len(alive) else ""
    return f"give {by_count}what its exporter's documentation says: {layouts} in the model's YAML (`--layout`)"


def contradictions(model: ModelSpec, outputs: Sequence[NDArray[Any]], metadata: Mapping[str, str]) -> list[str]:
    """Where a file contradicts its description in what no shape shows; each a sentence with its remedy.

    ``outputs``: of a trial run on one frame, without the batch axis, in the order of ``model.outputs``. A layout that
    no rule recognises in these shapes is not doubted: its head has accepted them.
    """
    facts = FileFacts(
        model.width,
        model.height,
        model.input_dtype,
        tuple(OutputFacts.of(t, [floats_of(t, output)]) for t, output in zip(model.outputs, outputs, strict=True)),
        metadata,
    )
    where = f"model {model.name}"
    count = len(facts.labels)
    if count and count != len(model.labels):
        named = ", ".join(facts.labels[:3])
        problem = (
            f"{where}: the file names {count} classes ({named}, …), but its description "
            f"{len(model.labels)}; list the labels of the file's classes, in its order"
        )
        return [problem]
    if model.head.scores != "auto":  # numbers of another kind than the rules expect, and said to be so
        return []
    claims = [claim for rule in RULES for claim in rule.claims(facts) if claim.layout == model.layout]
    if not claims or any(not claim.against for claim in claims):
        return []
    found = detect(facts, len(model.labels))
    remedy = f"set `layout: {found.layout}`" if isinstance(found, Guess) else "give the layout that the model has"
    return [f"{where}: the file contradicts its layout {model.layout}: {claims[0].against[0]}; {remedy}"]
