"""Owns the cameras of a site on their way from YAML to their sections: where they are found, names, what they lead to.

Does not own their keys (``camera``), secrets or overrides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.camera import DEFAULT_MODEL, CameraConfig
from pipeline.config.check import check
from pipeline.config.fields import is_name
from pipeline.config.model import ModelConfig
from pipeline.config.problems import Problems, suggestion
from pipeline.config.sources import NOT_UTF8, absolute, display_path, file_problem, is_camera, is_utf8, locate
from pipeline.yaml import Node, Place, read_yaml

CAMERA_SUFFIXES = (".yaml", ".yml")


@dataclass(slots=True)
class CameraNode:
    """A camera on its way: its node, what its keys are called in messages, and its name (good or not)."""

    node: Node
    prefix: str
    name: str
    source_usable: bool = False

    def key(self, key: str) -> str:
        """What messages call this key of the camera."""
        return f"{self.prefix}.{key}" if self.prefix else key


def cameras_of(root: Node, problems: Problems, *, may_be_empty: bool = False) -> list[CameraNode]:
    """The cameras that a site lists, or whose files lie in the folder that it names."""
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
    cameras: list[CameraNode] = []
    for index, each in enumerate(node.value):
        prefix = f"cameras[{index}]"
        if not isinstance(each.value, Mapping):
            remedy = "write 'name: …' and 'source: …' lines, or 'cameras: FOLDER' for files"
            problems.add_node(each, prefix, f"should be a map of keys; {remedy}")
        else:
            name = each.get("name")
            cameras.append(CameraNode(each, prefix, name.value if name and isinstance(name.value, str) else ""))
    return cameras


def _cameras_in_folder(node: Node, text: str, problems: Problems, *, may_be_empty: bool) -> list[CameraNode]:
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
    cameras: list[CameraNode] = []
    for path in paths:
        problems.expect_in(str(Path(label) / path.name))
        camera = camera_in_file(path, str(Path(label) / path.name), len(cameras), problems)
        if camera is None:
            continue
        stated = camera.get("name")
        cameras.append(CameraNode(camera, "", stated.value if stated and isinstance(stated.value, str) else ""))
    return cameras


def camera_in_file(path: Path, label: str, number: int, problems: Problems) -> Node | None:
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
        if not is_name(name):
            problem = "is what the file is called, but no name that topics can carry; write 'name: …' into it"
            problems.add(camera.place, "name", problem, name)
            name = f"unnamed-{number}"
        camera = camera.put(("name",), Node(name, camera.place))
    return camera


def check_names(cameras: Sequence[CameraNode], problems: Problems) -> None:
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
            key = camera.key("name")
            problems.add_node(name, key, f"is the name of the camera at {seen[name.value]} too; change one of them")
        else:
            seen[name.value] = name.place


def model_of(camera: CameraNode) -> tuple[Node | None, str, str]:
    """Where the camera's model is stated (None: it is the default), the key, and the model's name (empty: no text)."""
    node = camera.node.get("model")
    key = camera.key("model")
    if node is None or node.blank:
        return None, key, DEFAULT_MODEL
    return node, key, node.value if isinstance(node.value, str) and is_name(node.value) else ""


def check_camera(camera: CameraNode, models: Mapping[str, ModelConfig], problems: Problems) -> CameraConfig | None:
    """The camera's section with the place of its source; None when it can't be used, and ``problems`` say why."""
    config = check(CameraConfig, camera.node, problems, camera.prefix)
    located = None
    url = camera.node.get("source", "url")
    if camera.source_usable and url is not None and isinstance(url.value, str) and url.value:
        located, problem = locate(url.value, url.place)
        if problem:
            problems.add_node(url, camera.key("source.url"), problem)
    model = models.get(model_of(camera)[2])
    if model is not None:
        _check_classes(camera, model, problems)
    tls_ca = _tls_ca(camera, problems)
    policy = camera.node.get("live", "policy")
    if located is not None and is_camera(located) and policy is not None and policy.value == "lossless":
        problem = "a camera does not wait, whatever is done here; write auto or newest"
        problems.add_node(policy, camera.key("live.policy"), problem)
    if config is None or located is None or url is None:
        return None
    if tls_ca is not None:
        config = config.model_copy(update={"source": config.source.model_copy(update={"tls_ca": tls_ca})})
    shown = url.shown if is_camera(located) or (url.shown is not None and "${" in url.shown) else None
    return config.model_copy(update={"source": config.source.with_url(located, shown)})


def _tls_ca(camera: CameraNode, problems: Problems) -> str | None:
    """The file of certificates as an absolute path; None if there is none."""
    node = camera.node.get("source", "tls_ca")
    if node is None or not isinstance(node.value, str) or not node.value:
        return None
    path = absolute(node.value, node.place.folder)
    problem = file_problem(path, "PEM file of certificates") if is_utf8(path) else NOT_UTF8
    if problem:
        problems.add_node(node, camera.key("source.tls_ca"), problem)
    return str(path)


def _check_classes(camera: CameraNode, model: ModelConfig, problems: Problems) -> None:
    groups = camera.node.get("nms_groups")
    lists = {"classes": camera.node.get("classes")}
    if groups is not None and isinstance(groups.value, tuple):
        lists |= {f"nms_groups[{index}]": each for index, each in enumerate(groups.value)}
    for name, listed in lists.items():
        if listed is not None and isinstance(listed.value, tuple):
            _check_labels(camera.key(name), listed.value, model, problems)


def _check_labels(name: str, classes: tuple[Node, ...], model: ModelConfig, problems: Problems) -> None:
    for index, each in enumerate(classes):
        key = f"{name}[{index}]"
        if isinstance(each.value, str) and each.value and each.value not in model.labels:
            problems.add_node(each, key, f"is not a label of the model; {suggestion(each.value, model.labels, '')}")
        elif type(each.value) is int and each.value >= len(model.labels):
            problem = f"is not a class of the model; write a label, or a number from 0 to {len(model.labels) - 1}"
            problems.add_node(each, key, problem)
