"""Owns the way from YAML files to a Site: all mistakes of all files told at once. Plans and starts nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.camera import DEFAULT_MODEL
from pipeline.config.cameras import camera_in_file, cameras_of, check_camera, check_names, model_of
from pipeline.config.check import check
from pipeline.config.describe import load_models
from pipeline.config.fields import is_name
from pipeline.config.overrides import Override, parse_overrides, put_in_named, put_in_site
from pipeline.config.problems import Problems
from pipeline.config.secrets import fill_source
from pipeline.config.settle import settle
from pipeline.config.site import Site, SiteSettings
from pipeline.config.sources import NOT_UTF8, absolute, is_utf8
from pipeline.yaml import Node, Place, Step, read_yaml
from stages.errors import UserError

_ELSEWHERE = ("cameras", "models")  # keys of a site that are checked apart, because they lead to files of their own


def load_site(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    may_be_empty: bool = False,
    may_miss: bool = False,
) -> Site:
    """Read a site file, its cameras and its models.

    ``overrides`` are texts ``KEY=VALUE`` (see ``overrides``); ``env`` fills ``${NAME}`` in, by default the process's.
    ``may_be_empty``: a watched folder without cameras is no mistake, for they may come; ``may_miss``: nor is an
    override for a camera that has left. Raises UserError with one line for each mistake in any of the files, missing
    and unusable recordings among them.
    """
    problems = Problems()
    root, parsed = _read_site(path, overrides, problems)
    environ = os.environ if env is None else env
    return build_site(root, parsed, problems, environ, may_be_empty=may_be_empty, may_miss=may_miss)


def load_joining(
    path: str | Path, camera: str | Path, overrides: Sequence[str] = (), *, env: Mapping[str, str] | None = None
) -> Site:
    """The site of ``path`` with the one camera whose file is ``camera``, as if that were the only one."""
    problems = Problems()
    root, parsed = _read_site(path, overrides, problems)
    problems.expect_in(str(camera))
    node = camera_in_file(Path(camera), str(camera), 0, problems)
    problems.raise_if_any()
    assert node is not None
    root = root.put(("cameras",), Node((node,), node.place))
    inside = [each for each in parsed if each.steps != ["cameras"]]
    return build_site(root, inside, problems, os.environ if env is None else env, may_miss=True)


def cameras_folder(path: str | Path, overrides: Sequence[str] = ()) -> Path | None:
    """Where the files of a site's cameras lie; None when they are in the site's own file, or when it can't be read."""
    root, _ = read_yaml(Path(path), str(path))
    if root is None:
        return None
    ignored = Problems()
    node = put_in_site(root, parse_overrides(overrides, ignored), ignored).get("cameras")
    if node is None or not isinstance(node.value, str):
        return None
    return absolute(node.value, node.place.folder)


def _read_site(path: str | Path, overrides: Sequence[str], problems: Problems) -> tuple[Node, list[Override]]:
    """The site's file as nodes, and the overrides; raises UserError when it is no site's file at all."""
    if not is_utf8(Path(path).absolute()):
        raise UserError(f"the site's file {path} {NOT_UTF8}")
    problems.expect_in(str(path))
    root, faults = read_yaml(Path(path), str(path))
    problems.add_faults(faults)
    parsed = parse_overrides(overrides, problems)
    if root is not None and not isinstance(root.value, Mapping):
        empty = "is empty" if root.blank else "should hold 'key: value' lines"
        problems.add(root.place, "", f"{empty}; a site file needs at least 'cameras: FOLDER'")
        root = None
    if root is None or not isinstance(root.value, Mapping):
        problems.raise_if_any()
        raise AssertionError("a site that can't be read has a problem")
    if "source" in root.value and "cameras" not in root.value:
        remedy = "name the site file, whose 'cameras: FOLDER' leads to this one"
        problems.add(root.place, "", f"is the file of a camera, not of a site; {remedy}")
        problems.raise_if_any()
    return root, parsed


def build_site(
    root: Node,
    overrides: Sequence[Override],
    problems: Problems,
    env: Mapping[str, str],
    *,
    may_be_empty: bool = False,
    may_miss: bool = False,
) -> Site:
    """The Site that ``root`` describes; UserError with everything that is wrong with it. See ``load_site``."""
    root = put_in_site(root, overrides, problems)
    cameras = cameras_of(root, problems, may_be_empty=may_be_empty)
    names = [camera.name for camera in cameras]
    for index, change in put_in_named("camera", overrides, names, problems, may_miss=may_miss):
        cameras[index].node = change(cameras[index].node)
    check_names(cameras, problems)
    for camera in cameras:
        key = camera.key("source")
        camera.node, camera.source_usable = fill_source(camera.node, key, env, problems)
    _check_own_models(problems)
    wanted = [*(model_of(camera) for camera in cameras), *_kept_ready(root, alone=not cameras)]
    models, model_nodes = load_models(root, wanted, overrides, problems)
    own = _without(root, *_ELSEWHERE)
    settings = check(SiteSettings, own, problems, elsewhere=_ELSEWHERE)
    if settings is not None:
        settings = settle(settings, root, problems)
    checked = [check_camera(camera, models, problems) for camera in cameras]
    problems.raise_if_any()
    sections: dict[str, Any] = {name: getattr(settings, name) for name in SiteSettings.model_fields}
    site = Site.model_validate({**sections, "models": models, "cameras": checked})
    origins: dict[tuple[Step, ...], Place] = {}
    _note_origins(own, (), origins)
    for name, node in model_nodes.items():
        _note_origins(node, ("models", name), origins)
    for index, camera in enumerate(cameras):
        _note_origins(camera.node, ("cameras", index), origins)
    return site.with_origins(origins)


def _check_own_models(problems: Problems) -> None:
    """Refuse a bad folder of the user's own models before models are looked for: none would be known, and each told."""
    from pipeline.models import store

    try:
        store.own_folder()
    except UserError as error:
        for problem in error.problems:
            problems.add(Place(""), "", problem)
        problems.raise_if_any()


def _without(node: Node, *keys: str) -> Node:
    entries = node.value if isinstance(node.value, Mapping) else {}
    return Node({key: value for key, value in entries.items() if key not in keys}, node.place)


def _note_origins(node: Node, path: tuple[Step, ...], origins: dict[tuple[Step, ...], Place]) -> None:
    origins[path] = node.place
    if isinstance(node.value, Mapping):
        for key, value in node.value.items():
            if not value.blank:
                _note_origins(value, (*path, key), origins)
    elif isinstance(node.value, tuple):
        for index, value in enumerate(node.value):
            _note_origins(value, (*path, index), origins)


def _kept_ready(root: Node, *, alone: bool) -> list[tuple[Node | None, str, str]]:
    """Models that are loaded for cameras that may join; ``alone``: when there is no camera, the default one is too."""
    listed = root.get("control", "models")
    found: list[tuple[Node | None, str, str]] = []
    if listed is not None and isinstance(listed.value, tuple):
        for index, each in enumerate(listed.value):
            if isinstance(each.value, str) and is_name(each.value):
                found.append((each, f"control.models[{index}]", each.value))
    if alone and not found and root.get("models") is None:
        found.append((None, "cameras", DEFAULT_MODEL))
    return found
