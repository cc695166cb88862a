"""Owns the way from YAML files to a Site: all mistakes of all files told at once. Plans and starts nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.camera import DEFAULT_MODEL, CameraConfig
from pipeline.config.check import check
from pipeline.config.describe import load_models
from pipeline.config.fields import check_name
from pipeline.config.model import ModelConfig
from pipeline.config.overrides import Override, parse_overrides, put_in_named, put_in_site
from pipeline.config.problems import Problems, suggestion
from pipeline.config.secrets import fill_source
from pipeline.config.settle import settle
from pipeline.config.site import Site, SiteSettings
from pipeline.config.sources import NOT_UTF8, absolute, display_path, file_problem, is_camera, is_utf8, locate
from pipeline.yaml import Node, Place, Step, read_yaml
from stages.errors import UserError

CAMERA_SUFFIXES = (".yaml", ".yml")
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
    node = _camera_in_file(Path(camera), str(camera), 0, problems)
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


@dataclass(slots=True)
class _Camera:
    """A camera on its way: its node, what its keys are called in messages, and its name (good or not)."""

    node: Node
    prefix: str
    name: str
    source_usable: bool = False


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
    cameras = _cameras(root, problems, may_be_empty=may_be_empty)
    names = [camera.name for camera in cameras]
    for index, change in put_in_named("camera", overrides, names, problems, may_miss=may_miss):
        cameras[index].node = change(cameras[index].node)
    _check_names(cameras, problems)
    for camera in cameras:
        key = f"{camera.prefix}.source" if camera.prefix else "source"
        camera.node, camera.source_usable = fill_source(camera.node, key, env, problems)
    _check_own_models(problems)
    wanted = [*(_model_of(camera) for camera in cameras), *_kept_ready(root, alone=not cameras)]
    models, model_nodes = load_models(root, wanted, overrides, problems)
    own = _without(root, *_ELSEWHERE)
    settings = check(SiteSettings, own, problems, elsewhere=_ELSEWHERE)
    if settings is not None:
        settings = settle(settings, root, problems)
    checked = [_check_camera(camera, models, problems) for camera in cameras]
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


# --- cameras ----------------------------------------------------------------------------------------------------------


def _cameras(root: Node, problems: Problems, *, may_be_empty: bool = False) -> list[_Camera]:
    node = root.get("cameras")
    if node is None or node.blank:
        problems.add(root.place, "cameras", "is missing; write the folder of the cameras' files, or a list of cameras")
        return []
    if isinstance(node.value, str):
        return _cameras_in_folder(node, node.value, problems, may_be_empty=may_be_empty)
    if not isinstance(node.value, tuple):
        remedy = "write '- ' before each camera of a list, or the folder of the cameras' files"
        problems.add_node(node, "cameras", f"should be a list or a folder; {remedy}")
        return []
    if not node.value:
        problems.add(node.place, "cameras", "is an empty list; write at least one camera")
    cameras: list[_Camera] = []
    for index, each in enumerate(node.value):
        prefix = f"cameras[{index}]"
        if not isinstance(each.value, Mapping):
            remedy = "write 'name: …' and 'source: …' lines, or 'cameras: FOLDER' for files"
            problems.add_node(each, prefix, f"should be a map of keys; {remedy}")
        else:
            name = each.get("name")
            cameras.append(_Camera(each, prefix, name.value if name and isinstance(name.value, str) else ""))
    return cameras


def _cameras_in_folder(node: Node, text: str, problems: Problems, *, may_be_empty: bool) -> list[_Camera]:
    folder = absolute(text, node.place.folder)
    label = display_path(node.place, text)
    try:
        if not folder.is_dir():
            where = "" if Path(text).is_absolute() else " (paths count from the file that states them)"
            missing = f"no such folder; check the path{where}"
            problem = "is a file; name the folder that it lies in" if folder.exists() else missing
            problems.add_node(node, "cameras", problem)
            return []
        paths = sorted(each for each in folder.iterdir() if each.suffix in CAMERA_SUFFIXES and each.name[0] != ".")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        problems.add_node(node, "cameras", f"can't be read ({reason}); check the path and its permissions")
        return []
    if not paths and not may_be_empty:
        remedy = "put one file per camera there, such as gate-1.yaml"
        problems.add_node(node, "cameras", f"is a folder without cameras: no file ends in .yaml or .yml; {remedy}")
    cameras: list[_Camera] = []
    for path in paths:
        problems.expect_in(str(Path(label) / path.name))
        camera = _camera_in_file(path, str(Path(label) / path.name), len(cameras), problems)
        if camera is None:
            continue
        stated = camera.get("name")
        cameras.append(_Camera(camera, "", stated.value if stated and isinstance(stated.value, str) else ""))
    return cameras


def _camera_in_file(path: Path, label: str, number: int, problems: Problems) -> Node | None:
    """What a camera's own file says, its name included; None when it says nothing that can be used."""
    camera, faults = read_yaml(path, label)
    problems.add_faults(faults)
    if camera is None:
        return None
    if camera.blank or not isinstance(camera.value, Mapping):
        empty = "is empty" if camera.blank else "should hold 'key: value' lines"
        problems.add(camera.place, "", f"{empty}; a camera's file needs at least 'source: …'")
        return None
    stated = camera.get("name")
    if stated is None or stated.blank:
        name = path.stem
        if not _is_name(name):
            problem = "is what the file is called, but no name that topics can carry; write 'name: …' into it"
            problems.add(camera.place, "name", problem, name)
            name = f"unnamed-{number}"
        camera = camera.put(("name",), Node(name, camera.place))
    return camera


def _kept_ready(root: Node, *, alone: bool) -> list[tuple[Node | None, str, str]]:
    """Models that are loaded for cameras that may join; ``alone``: when there is no camera, the default one is too."""
    listed = root.get("control", "models")
    found: list[tuple[Node | None, str, str]] = []
    if listed is not None and isinstance(listed.value, tuple):
        for index, each in enumerate(listed.value):
            if isinstance(each.value, str) and _is_name(each.value):
                found.append((each, f"control.models[{index}]", each.value))
    if alone and not found and root.get("models") is None:
        found.append((None, "cameras", DEFAULT_MODEL))
    return found


def _check_names(cameras: Sequence[_Camera], problems: Problems) -> None:
    """Every camera has a name of its own. Whether it is fit to be one, ``check`` says."""
    seen: dict[str, Place] = {}
    for camera in cameras:
        name = camera.node.get("name")
        if name is None or name.blank:
            problems.add(camera.node.place, f"{camera.prefix}.name", "is missing; write a name, such as gate-1")
            continue
        if not isinstance(name.value, str):
            continue
        camera.name = name.value
        if name.value in seen:
            key = f"{camera.prefix}.name" if camera.prefix else "name"
            problems.add_node(name, key, f"is the name of the camera at {seen[name.value]} too; change one of them")
        else:
            seen[name.value] = name.place


def _model_of(camera: _Camera) -> tuple[Node | None, str, str]:
    """Where the camera's model is stated (None: it is the default), the key, and the model's name (empty: no text)."""
    node = camera.node.get("model")
    key = f"{camera.prefix}.model" if camera.prefix else "model"
    if node is None or node.blank:
        return None, key, DEFAULT_MODEL
    return node, key, node.value if isinstance(node.value, str) and _is_name(node.value) else ""


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except ValueError:
        return False
    return True


def _check_camera(camera: _Camera, models: Mapping[str, ModelConfig], problems: Problems) -> CameraConfig | None:
    config = check(CameraConfig, camera.node, problems, camera.prefix)
    located = None
    url = camera.node.get("source", "url")
    if camera.source_usable and url is not None and isinstance(url.value, str) and url.value:
        located, problem = locate(url.value, url.place)
        if problem:
            problems.add_node(url, f"{camera.prefix}.source.url" if camera.prefix else "source.url", problem)
    model = models.get(_model_of(camera)[2])
    if model is not None:
        _check_classes(camera, model, problems)
    tls_ca = _tls_ca(camera, problems)
    policy = camera.node.get("live", "policy")
    if located is not None and is_camera(located) and policy is not None and policy.value == "lossless":
        problem = "a camera does not wait, whatever is done here; write auto or newest"
        problems.add_node(policy, f"{camera.prefix}.live.policy" if camera.prefix else "live.policy", problem)
    if config is None or located is None or url is None:
        return None
    if tls_ca is not None:
        config = config.model_copy(update={"source": config.source.model_copy(update={"tls_ca": tls_ca})})
    shown = url.shown if is_camera(located) or (url.shown is not None and "${" in url.shown) else None
    return config.model_copy(update={"source": config.source.with_url(located, shown)})


def _tls_ca(camera: _Camera, problems: Problems) -> str | None:
    """The file of certificates as an absolute path; None if there is none."""
    node = camera.node.get("source", "tls_ca")
    if node is None or not isinstance(node.value, str) or not node.value:
        return None
    path = absolute(node.value, node.place.folder)
    problem = file_problem(path, "PEM file of certificates") if is_utf8(path) else NOT_UTF8
    if problem:
        problems.add_node(node, f"{camera.prefix}.source.tls_ca" if camera.prefix else "source.tls_ca", problem)
    return str(path)


def _check_classes(camera: _Camera, model: ModelConfig, problems: Problems) -> None:
    groups = camera.node.get("nms_groups")
    lists = {"classes": camera.node.get("classes")}
    if groups is not None and isinstance(groups.value, tuple):
        lists |= {f"nms_groups[{index}]": each for index, each in enumerate(groups.value)}
    for name, listed in lists.items():
        if listed is not None and isinstance(listed.value, tuple):
            _check_labels(f"{camera.prefix}.{name}" if camera.prefix else name, listed.value, model, problems)


def _check_labels(name: str, classes: tuple[Node, ...], model: ModelConfig, problems: Problems) -> None:
    for index, each in enumerate(classes):
        key = f"{name}[{index}]"
        if isinstance(each.value, str) and each.value and each.value not in model.labels:
            problems.add_node(each, key, f"is not a label of the model; {suggestion(each.value, model.labels, '')}")
        elif type(each.value) is int and each.value >= len(model.labels):
            problem = f"is not a class of the model; write a label, or a number from 0 to {len(model.labels) - 1}"
            problems.add_node(each, key, problem)
