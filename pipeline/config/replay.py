"""Owns the Site of ``campipe replay``: recordings named on the command line, no YAML. Judged like any by ``load``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.load import build_site
from pipeline.config.overrides import parse_overrides
from pipeline.config.problems import Problems
from pipeline.config.secrets import escape_variables
from pipeline.config.site import Site
from pipeline.config.sources import ASSET, NOT_UTF8, is_utf8, locate
from pipeline.yaml import Node, Place, Scalar
from stages.errors import UserError

MAX_NAME_CHARACTERS = 64


def replay_site(
    clips: Sequence[str | Path],
    model: str | None = None,
    device: str | None = None,
    copies: int = 1,
    *,
    jsonl: str | Path | None = None,
    merged: bool | None = None,
    publish: str | None = None,
    executors: int | None = None,
    nms_workers: int | None = None,
    max_batch: int | None = None,
    max_frames: int | None = None,
    overrides: Sequence[str] = (),
) -> Site:
    """A site that plays each of ``clips`` ``copies`` times: no frame lost, as fast as possible.

    Cameras are called after their clips (``street``, ``street-2`` …). ``model`` is a name or the path of a description.
    Nothing is published unless ``publish`` is an address. None leaves a value at the site's default. ``overrides`` are
    texts ``KEY=VALUE`` as ``--set`` takes them. ``jsonl`` without ``{camera}`` is one file in an order that is the same
    each time, unless ``merged`` says otherwise. Raises UserError with all clips that can't be played, and all else.
    """
    problems = Problems()
    place = Place("")
    if not clips:
        raise UserError("no clip is named; name at least one video file")
    if not 1 <= copies <= 1000:
        raise UserError(f"copies: {copies}: is out of bounds; write a whole number from 1 to 1000")
    for clip in clips:
        _, problem = locate(str(clip), place)
        if problem:
            problems.add(place, "", problem, str(clip))
    if jsonl is not None and not is_utf8(Path(jsonl)):
        problems.add(place, "jsonl", NOT_UTF8, str(jsonl))
    if model is not None and not is_utf8(Path(model)):
        problems.add(place, "model", NOT_UTF8, model)
    elif model is not None and "/" in model and not model.lower().endswith((".yaml", ".yml", ".onnx")):
        problems.add(place, "model", "is no description; a description's path ends in .yaml or .yml", model)
    names = unique_names([clip_name(str(clip)) for clip in clips for _ in range(copies)])
    repeated = [str(clip) for clip in clips for _ in range(copies)]

    def node(value: Scalar | dict[str, Node] | tuple[Node, ...]) -> Node:
        return Node(value, place)

    def some(**values: Node | None) -> dict[str, Node]:
        return {key: value for key, value in values.items() if value is not None}

    def scalar(value: Scalar) -> Node | None:
        return node(value) if value is not None else None

    model_name, models = _model(model, place)
    cameras = [
        node(
            some(
                name=node(name),
                source=node(some(url=node(escape_variables(clip)), max_frames=scalar(max_frames))),
                model=scalar(model_name),
            )
        )
        for name, clip in zip(names, repeated, strict=True)
    ]
    one_file = "{camera}" not in str(jsonl) if merged is None else merged
    sink = node({"path": node(str(jsonl)), "merged": node(one_file)}) if jsonl is not None else None
    root = node(
        some(
            cameras=node(tuple(cameras)),
            models=node(models) if models else None,
            devices=node(some(device=scalar(device), executors=scalar(executors))),
            batch=node(some(max_batch=scalar(max_batch))),
            nms=node(some(workers=scalar(nms_workers))),
            publish=node({"bind": node(publish)}) if publish is not None else node("off"),
            sinks=node((node({"jsonl": sink}),)) if sink is not None else None,
        )
    )
    parsed = parse_overrides(overrides, problems)
    problems.raise_if_any()  # so that a clip is not told again as a camera's source
    return build_site(root, parsed, problems, os.environ)


def _model(model: str | None, place: Place) -> tuple[str | None, dict[str, Node]]:
    """The name that cameras use, and the description that it stands for if it is one of the user's own."""
    if model is None or not ("/" in model or model.endswith((".yaml", ".yml", ".onnx"))):
        return model, {}
    name = clip_name(model)
    return name, {name: Node(model, place)}


def clip_name(path: str) -> str:
    """A camera's name after a file: its stem, with what topics can't carry as ``-``."""
    stem = Path(path.removeprefix(ASSET)).stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-").lstrip(".-")
    return name[:MAX_NAME_CHARACTERS].rstrip("-") or "clip"


def unique_names(names: Sequence[str]) -> list[str]:
    """``names`` with ``-2``, ``-3`` … behind those that came before, none of them longer than a name may be."""
    taken: set[str] = set()
    unique = []
    counts: dict[str, int] = {}
    for name in names:
        candidate = name
        while candidate in taken:
            counts[name] = counts.get(name, 1) + 1
            suffix = f"-{counts[name]}"
            candidate = name[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
        taken.add(candidate)
        unique.append(candidate)
    return unique
