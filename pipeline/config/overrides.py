"""Owns ``--set KEY=VALUE``: parsing it and putting the value where it belongs. Does not judge values: ``check`` does.

Keys are those of the site file. ``camera.NAME.KEY`` reaches into a camera and ``models.NAME.KEY`` into a model wherever
their files lie. A value is YAML; an empty one takes back what the file states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.problems import Problems, show_key, suggestion
from pipeline.config.site import Site
from pipeline.yaml import Node, Place, Step, parse_yaml

CAMERA = ("camera", "cameras")
LISTS = ("devices", "sinks")
SHORT_FORMS = {"source": "url", "jsonl": "path"}  # where text stands for a map with this one key


@dataclass(frozen=True, slots=True)
class Override:
    """One ``--set``: the key as it was written, and the value with the option as its place."""

    key: str
    value: Node

    @property
    def steps(self) -> list[str]:
        """The key cut at its dots."""
        return self.key.split(".")

    @property
    def reaches_into(self) -> str | None:
        """``camera`` or ``models`` if this is about one of those, which may have a file of its own."""
        steps = self.steps
        if len(steps) > 1 and steps[0] in CAMERA:
            return "camera"
        return "models" if len(steps) > 2 and steps[0] == "models" else None


def parse_overrides(texts: Sequence[str], problems: Problems) -> list[Override]:
    """The overrides in ``texts``; what can't be one is noted in ``problems``."""
    overrides: list[Override] = []
    folder = Path.cwd()
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            example = "write KEY=VALUE, such as camera.gate-1.confidence=0.4"
            problems.add(Place("--set", None, folder), key, f"is not of the form KEY=VALUE; {example}")
            continue
        head = key.split(".")[0]
        known = [*Site.model_fields, CAMERA[0]]
        if head not in known:
            problems.add(Place(f"--set {key}", None, folder), key, f"unknown key; {suggestion(head, known, '')}")
            continue
        node, faults = parse_yaml(value, Place(f"--set {key}", None, folder))
        problems.add_faults(faults)
        if node is not None and not faults:
            overrides.append(Override(key, node))
    return overrides


def put_in_site(root: Node, overrides: Sequence[Override], problems: Problems) -> Node:
    """``root``, a site, with all overrides that stay inside the site's own file."""
    for name in LISTS:
        single = root.get(name)
        if single is not None and isinstance(single.value, dict):
            root = root.put((name,), Node((single,), single.place))
    for override in overrides:
        if override.reaches_into is None:
            root = _put(root, override, override.steps, problems)
    return root


def put_in_named(
    kind: str, overrides: Sequence[Override], names: Sequence[str], problems: Problems, *, may_miss: bool = False
) -> list[tuple[int, Callable[[Node], Node]]]:
    """What the overrides about cameras (or models) change: the index among ``names``, and the change itself.

    ``may_miss``: what they name may have left since they were given.
    """
    changes: list[tuple[int, Callable[[Node], Node]]] = []
    for override in overrides:
        if override.reaches_into != kind:
            continue
        rest = override.key.partition(".")[2]
        # names hold dots too, so the longest that fits is meant
        fitting = [name for name in names if rest == name or rest.startswith(f"{name}.")]
        if not fitting and may_miss:
            continue
        if not fitting:
            remedy = suggestion(rest.split(".")[0], list(dict.fromkeys(names)), "there is none at all")
            what = "camera" if kind == "camera" else "model"
            problem = f"there is no {what} '{show_key(rest.split('.')[0])}'; {remedy}"
            problems.add(override.value.place, override.key, problem)
            continue
        name = max(fitting, key=len)
        inner = rest[len(name) + 1 :]
        steps = inner.split(".") if inner else []

        def change(node: Node, override: Override = override, steps: list[str] = steps) -> Node:
            return _put(node, override, steps, problems)

        changes += [(index, change) for index, each in enumerate(names) if each == name]
    return changes


def _put(root: Node, override: Override, steps: Sequence[str], problems: Problems) -> Node:
    """``root`` with the value at ``steps``; lists are entered by index, short forms are made long on the way."""
    path: list[Step] = []
    for number, step in enumerate(steps):
        node = root.get(*path)
        if isinstance(node.value, tuple) if node is not None else path and path[-1] in LISTS:
            count = len(node.value) if node is not None and isinstance(node.value, tuple) else 0
            if step.isdecimal() and len(step) < 7 and int(step) <= count:
                path.append(int(step))
                continue
            if count > 1 or path[-1:] not in [[each] for each in LISTS]:
                key = ".".join(map(str, path))
                problem = f"'{key}' is a list of {count}; write {key}.0 to {key}.{max(count - 1, 0)}"
                problems.add(override.value.place, override.key, problem)
                return root
            path.append(0)  # `devices.executors` will do as long as there is one device
        path.append(step)
        inner = root.get(*path)
        if step in SHORT_FORMS and number + 1 < len(steps) and inner is not None and isinstance(inner.value, str):
            root = root.put(path, Node({SHORT_FORMS[step]: inner}, inner.place))
    return root.put(path, override.value)
