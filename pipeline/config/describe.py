"""Owns reading descriptions of models for a site: from its own keys, from files, or those that come with campipe.

Does not know where descriptions lie (``pipeline.models.store``) and opens no model file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pipeline.config import labels
from pipeline.config.check import check
from pipeline.config.fields import check_name
from pipeline.config.model import ModelConfig
from pipeline.config.overrides import Override, put_in_named
from pipeline.config.problems import HIDDEN, Problems, show_key, suggestion
from pipeline.config.sources import absolute, display_path, file_problem
from pipeline.yaml import Fault, Node, Place, read_text, read_yaml
from stages.errors import UserError

NEEDED: Final = ("file", "input", "layout", "labels")  # keys of every description
LEAST_NEEDED: Final = 3  # of them, for a file to count as one that was meant to be a description
MOST_KEYS: Final = 8  # of another file that are told

Wanted = tuple[Node | None, str, str]
"""A camera's wish for a model: the node that states it (None: the default), its key, the model's name."""


def load_models(
    root: Node, wanted: Sequence[Wanted], overrides: Sequence[Override], problems: Problems
) -> tuple[dict[str, ModelConfig], dict[str, Node]]:
    """All models that the site lists, and those that cameras use besides; and the nodes that they were made from."""
    found: dict[str, tuple[Node, str]] = {}  # name -> node, and what messages call it
    listed = _listed(root, problems)
    for name, node in listed.items():
        if described := _described(node, f"models.{name}", problems):
            found[name] = described
    known = _known(problems)
    for stated, key, name in wanted:
        if name in listed or not name:
            continue
        if name in known:
            if name not in found and (read := _read(known[name], str(known[name]), problems)):
                found[name] = read, ""
        else:
            place = stated.place if stated is not None else root.place
            problem = f"is not a known model; {suggestion(name, [*listed, *known], 'list it under models of the site')}"
            problems.add(place, key, problem, name)
    names = list(found)
    for index, change in put_in_named("models", overrides, [*names, *(set(listed) - set(names))], problems):
        if index < len(names):
            node, prefix = found[names[index]]
            found[names[index]] = change(node), prefix
    models: dict[str, ModelConfig] = {}
    nodes: dict[str, Node] = {}
    for name, (node, prefix) in found.items():
        nodes[name] = _with_labels(node, f"{prefix}.labels" if prefix else "labels", problems)
        model = check(ModelConfig, nodes[name], problems, prefix)
        if model is not None:
            file = node.get("file") or node
            models[name] = model.in_folder(file.place.folder)
    return models, nodes


def _listed(root: Node, problems: Problems) -> dict[str, Node]:
    node = root.get("models")
    if node is None or node.blank:
        return {}
    if not isinstance(node.value, Mapping):
        problems.add_node(node, "models", "should be a map; write 'NAME: path of its description' lines")
        return {}
    for name, each in node.value.items():
        try:
            check_name(name)
        except ValueError as error:
            problems.add(each.place, f"models.{name}", str(error))
    return dict(node.value)


def _known(problems: Problems) -> dict[str, Path]:
    from pipeline.models import store

    try:
        return store.descriptions()
    except UserError as error:
        _pass_on(error, Place("", None), "", problems)
        return {}


def _pass_on(error: UserError, place: Place, key: str, problems: Problems) -> None:
    for problem in error.problems:
        problems.add(place, key, problem)


def _described(node: Node, key: str, problems: Problems) -> tuple[Node, str] | None:
    """The description that ``node`` is or leads to, and what messages call it."""
    if isinstance(node.value, Mapping):
        return node, key
    if not isinstance(node.value, str) or not node.value:
        remedy = "write the path of its description, its keys, or the name of a model that comes with campipe"
        problems.add_node(node, key, f"does not describe a model; {remedy}")
        return None
    from pipeline.models import store

    text = node.value
    if not text.lower().endswith(".onnx") and ("/" in text or text.endswith((".yaml", ".yml"))):
        path, label = absolute(text, node.place.folder), display_path(node.place, text)
        problem = file_problem(path, "model's description", " (paths count from the file that states them)")
        if problem:
            problems.add_node(node, key, problem)
            return None
    else:
        try:
            path = store.find_description(text)
        except UserError as error:
            _pass_on(error, node.place, key, problems)
            return None
        label = str(path)
    read = _read(path, label, problems)
    return (read, "") if read is not None else None


def _read(path: Path, label: str, problems: Problems) -> Node | None:
    node, faults = read_yaml(path, label)
    problems.add_faults(faults)
    if node is None:
        return None
    keys = [str(key) for key in node.value] if isinstance(node.value, Mapping) else []
    if sum(key in keys for key in NEEDED) < LEAST_NEEDED:
        # some other file: what it holds is nobody's business, and may be a secret
        has = f" (its keys are {', '.join(map(show_key, keys[:MOST_KEYS]))}{' …' if len(keys) > MOST_KEYS else ''})"
        remedy = "write 'file: …', 'input: …', 'layout: …', 'labels: …'"
        problems.add(node.place, "", f"does not describe a model{has if keys else ''}; {remedy}")
        return None
    return node


def _with_labels(node: Node, key: str, problems: Problems) -> Node:
    """``node`` with its labels written out: ``coco`` or a text file with one name a line stands for a list."""
    stated = node.get("labels")
    if stated is None or not isinstance(stated.value, str):
        return node
    text = stated.value
    if text in labels.KNOWN:
        names = [Node(label, stated.place) for label in labels.KNOWN[text]]
        return node.put(("labels",), Node(tuple(names), stated.place))
    path = absolute(text, stated.place.folder)
    problem = file_problem(path, "text file with one label a line")
    if problem:
        if "/" not in text and "." not in text:
            problem = f"is not a list of labels that campipe knows; {suggestion(text, list(labels.KNOWN), '')}"
        problems.add_node(stated, key, problem)
        return _unlabelled(node, stated)
    lines, fault = read_text(path, display_path(stated.place, text))
    if lines is None:
        problems.add_faults([fault] if fault else [])
        return _unlabelled(node, stated)
    place = Place(display_path(stated.place, text), None, path.parent)
    numbered = enumerate(lines.rstrip().split("\n"), 1)
    # not shown: the file may be another than was meant
    names = [Node(line.strip(), Place(place.label, number, place.folder), shown=HIDDEN) for number, line in numbered]
    empty = next((name for name in names if name.value == ""), None)
    if empty is not None:
        remedy = "labels count by lines, so write one on each"
        problems.add_faults([Fault(empty.place, f"is an empty line; {remedy}")])
        return _unlabelled(node, stated)
    return node.put(("labels",), Node(tuple(names), stated.place))


def _unlabelled(node: Node, stated: Node) -> Node:
    """Labels that pass, so that the mistake just noted is not told twice."""
    return node.put(("labels",), Node((Node("?", stated.place),), stated.place))
