"""Owns the refusal of outputs that would destroy something: inputs, each other, files that are not campipe's.

Does not own the outputs themselves: opens nothing for writing but a trial file in the quarantine folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from pipeline.config.site import Site
    from pipeline.plan import RunPlan

CAMERA: Final = "{camera}"
SHOWN: Final = 200  # characters of a path in a message
Identity: TypeAlias = str | tuple[int, int]


@dataclass(slots=True)
class Inputs:
    """The files that a run reads, besides those that its plan names, as they become known: path and what it is."""

    files: list[tuple[Path, str]] = field(default_factory=list)

    def add(self, path: str | Path, what: str) -> None:
        """Add one; ``what`` as in ``it is …``."""
        self.files.append((Path(path), what))

    def add_site(self, site: Site) -> None:
        """Add every file that the site was read from: its own, those of its cameras and models, lists of labels."""
        steps = [("cameras", index) for index in range(len(site.cameras))]
        places = [site.origin(*step) for step in steps]
        for name in site.models:
            places += [site.origin("models", name), site.origin("models", name, "labels", 0)]
        read = {place.folder / Path(place.label).name for place in places if place is not None and place.line}
        for path in sorted(read):
            self.add(path, "a file that the site is read from")


@dataclass(frozen=True, slots=True)
class Refusals:
    """What is wrong with the outputs; ``of_report``: the report must not be written, not even to tell of this."""

    problems: list[str]
    of_report: bool


def judge_outputs(inputs: Inputs, plan: RunPlan | None, report: str | None) -> Refusals:
    """Compare all outputs with all inputs and with each other; without ``plan``, the report with ``inputs`` alone."""
    taken: dict[Identity, str] = {}
    for path, what in [*inputs.files, *(_planned(plan) if plan is not None else ())]:
        for identity in identities(path):
            taken.setdefault(identity, what)
    problems: list[str] = []
    of_report = False
    # The report comes last, so that it is the one to be blamed, and spared, where a sink writes to the same file.
    outputs = list(_written(plan)) if plan is not None else []
    if report is not None:
        outputs.append((Path(report), f"--report {report[:SHOWN]}", False))
    for path, name, foreign_matters in outputs:
        if _is_special(path):
            continue  # nothing is overwritten in a pipe or device, and several may share it
        found = identities(path)
        what = next((taken[identity] for identity in found if identity in taken), None)
        if what is not None:
            problems.append(f"{name}: it is {what}, and would be overwritten; name another file")
            of_report = of_report or name.startswith("--report ")
        elif foreign_matters and (problem := foreign(path)):
            problems.append(f"{name}: {problem}")
        for identity in found:
            taken.setdefault(identity, f"where {name} is written too")
    if plan is not None and plan.limits.quarantine and (problem := quarantine_problem(Path(plan.limits.quarantine))):
        problems.append(f"limits.quarantine: {plan.limits.quarantine[:SHOWN]}: {problem}")
    return Refusals(list(dict.fromkeys(problems)), of_report)


def _planned(plan: RunPlan) -> Iterator[tuple[Path, str]]:
    for camera in plan.cameras:
        if "://" not in camera.url:
            yield Path(camera.url), f"the recording of camera {camera.name}"
    for model in plan.models:
        yield Path(model.path), f"the file of model {model.name}"


def _written(plan: RunPlan) -> Iterator[tuple[Path, str, bool]]:
    """Path, name for messages, whether what is there now would be lost (a rotated file is renamed instead)."""
    for jsonl in plan.jsonl:
        cameras: Iterable[str] = [camera.name for camera in plan.cameras] if CAMERA in jsonl.path else [""]
        for camera in cameras:
            path = jsonl.path.replace(CAMERA, camera)
            yield Path(path), f"jsonl {path[:SHOWN]}", jsonl.rotate_bytes is None


def identities(path: Path) -> list[Identity]:
    """What makes two names the same file: the path behind all links, device and inode; nothing if no file can be."""
    found: list[Identity] = []
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        found.append(os.path.realpath(path))
        status = path.stat()
        found.append((status.st_dev, status.st_ino))
    return found


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def foreign(path: Path) -> str | None:
    """Why the file at ``path`` must not be replaced: it has content, and none that campipe has written."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
            return None
        with path.open("rb") as file:
            if file.read(1) == b"{":  # all that campipe writes is JSON objects
                return None
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return None if not path.is_file() else "it is there, and what it holds can't be read; name another file"
    return "a file of that name is there, and campipe has not written it; choose another name, or remove the file"


def quarantine_problem(folder: Path) -> str | None:
    """Why frames can't be kept in ``folder``; tried, not asked, and what was made for it is removed again."""
    made: list[Path] = []
    try:
        missing: list[Path] = []
        path = folder
        while not os.path.lexists(path) and path != path.parent:
            missing.insert(0, path)
            path = path.parent
        for each in missing:
            each.mkdir()
            made.append(each)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except (OSError, ValueError) as error:
        return f"nothing can be written there ({getattr(error, 'strerror', None) or error}); name another folder"
    finally:
        for each in reversed(made):
            with contextlib.suppress(OSError):
                each.rmdir()
