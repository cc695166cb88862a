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


class _Stated:
    """Nodes of what the command line states, as if a file did; paths count from the current folder."""

    def __init__(self) -> None:
        self.place = Place("")

    def node(self, value: Scalar | dict[str, Node] | tuple[Node, ...]) -> Node:
        return Node(value, self.place)

    def scalar(self, value: Scalar) -> Node | None:
        return self.node(value) if value is not None else None

    def map(self, **values: Node | None) -> Node:
        """Of the values that there are."""
        return self.node({key: value for key, value in values.items() if value is not None})


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
    if not clips:
        raise UserError("no clip is named; name at least one video file")
    if not 1 <= copies <= 1000:
        raise UserError(f"copies: {copies}: is out of bounds; write a whole number from 1 to 1000")
    problems = Problems()
    stated = _Stated()
    _check_paths(clips, model, jsonl, stated.place, problems)
    model_name, models = _model(model, stated)
    one_file = "{camera}" not in str(jsonl) if merged is None else merged
    sink = (
        stated.node({"path": stated.node(str(jsonl)), "merged": stated.node(one_file)}) if jsonl is not None else None
    )
    root = stated.map(
        cameras=_cameras([str(clip) for clip in clips for _ in range(copies)], model_name, max_frames, stated),
        models=stated.node(models) if models else None,
        devices=stated.map(device=stated.scalar(device), executors=stated.scalar(executors)),
        batch=stated.map(max_batch=stated.scalar(max_batch)),
        nms=stated.map(workers=stated.scalar(nms_workers)),
        publish=stated.node({"bind": stated.node(publish)}) if publish is not None else stated.node("off"),
        sinks=stated.node((stated.node({"jsonl": sink}),)) if sink is not None else None,
    )
    parsed = parse_overrides(overrides, problems)
    problems.raise_if_any()  # so that a clip is not told again as a camera's source
    return build_site(root, parsed, problems, os.environ)


def _check_paths(
    clips: Sequence[str | Path], model: str | None, jsonl: str | Path | None, place: Place, problems: Problems
) -> None:
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


def _cameras(clips: Sequence[str], model: str | None, max_frames: int | None, stated: _Stated) -> Node:
    """A camera for each of ``clips``, called after it."""
    cameras = []
    for name, clip in zip(unique_names([clip_name(clip) for clip in clips]), clips, strict=True):
        source = stated.map(url=stated.node(escape_variables(clip)), max_frames=stated.scalar(max_frames))
        cameras.append(stated.map(name=stated.node(name), source=source, model=stated.scalar(model)))
    return stated.node(tuple(cameras))


def _model(model: str | None, stated: _Stated) -> tuple[str | None, dict[str, Node]]:
    """The name that cameras use, and the description that it stands for if it is one of the user's own."""
    if model is None or not ("/" in model or model.endswith((".yaml", ".yml", ".onnx"))):
        return model, {}
    name = clip_name(model)
    return name, {name: stated.node(model)}


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
