"""Owns turning a node into a section, and what pydantic refuses into lines with place, key, value and remedy.

What a message says of the values that a key takes comes from the JSON Schema of the section, so that messages, schema
and check can't drift apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipeline.config.fields import Section
from pipeline.config.problems import Problems, did_you_mean, key_text, show, suggestion
from pipeline.config.section_schema import section_schema
from pipeline.yaml import Node, Step, core_scalar

S = TypeVar("S", bound=Section)


def check(
    section: type[S], node: Node, problems: Problems, prefix: str = "", *, elsewhere: Sequence[str] = ()
) -> S | None:
    """The section that ``node`` describes; None, with every mistake noted, if it does not.

    ``prefix`` is what messages call the section; keys ``elsewhere`` belong beside the section's own and are known too.
    """
    if not isinstance(node.value, Mapping) and not node.blank:
        if prefix:
            problem = f"should be a map of keys, not {_kind(node.value)}; write 'key: value' lines"
            problems.add_node(node, prefix, problem)
        else:
            problems.add(node.place, "", f"should be 'key: value' lines, not {_kind(node.value)}; write those")
        return None
    try:
        return section.model_validate(node.plain() or {})
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
    # outside of `except`, so that what is raised later has no context that holds values
    for each in errors:
        if each["type"] == "too_short" and any(_is_inside(other["loc"], each["loc"]) for other in errors):
            continue  # entries that are refused count as missing too
        path = each["loc"]
        at = node.nearest(path)
        known = [*(elsewhere if len(path) == 1 else ()), *_keys(section, path[:-1])]
        if told := _problem(each, at, _schema_at(section, path), known):
            key = _join(prefix, key_text(path))
            if each["type"] in ("extra_forbidden", "missing"):
                problems.add(at.place, key, told)
            else:
                problems.add_node(at, key, told)
    return None


def _is_inside(path: tuple[Step, ...], outer: tuple[Step, ...]) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _problem(error: ErrorDetails, node: Node, schema: Mapping[str, Any], known: Sequence[str]) -> str | None:
    """What is wrong and the remedy; None if another problem says it. ``known``: the keys of the map around."""
    kind, word, context = error["type"], str(error["loc"][-1]) if error["loc"] else "", error.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"unknown key; {suggestion(word, known, 'remove it')}"
    if kind == "missing":
        # a key beside it that is almost this one is unknown, with this one as its remedy
        beside = node.value if isinstance(node.value, Mapping) else {}
        if any(did_you_mean(each, [word]) for each in beside if each not in known):
            return None
        return f"is missing; write {expected(schema)}"
    if text := context.get("text") or context.get("error"):
        return str(text)
    if kind.endswith("_type") or kind in _NOT_OF_A_KIND:
        return _type_problem(node.value, schema)
    return f"is out of bounds; write {expected(schema)}"


_NOT_OF_A_KIND = ("int_from_float", "literal_error", "described")


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix and key and not key.startswith("[") else prefix + key


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, (int, float)):
        return "a number"
    return "nothing" if value is None else show(value)


def _type_problem(value: Any, schema: Mapping[str, Any]) -> str:
    takes = {option.get("type", "const") for option in _options(schema)}
    wanted = expected(schema)
    if isinstance(value, str):
        unquoted = core_scalar(value)
        if isinstance(unquoted, (int, float)) and not isinstance(unquoted, bool) and takes & {"integer", "number"}:
            return f"should be {wanted}, not text; remove the quotes"
        words = [str(word) for option in _options(schema) for word in _words(option)]
        if words:
            likely = did_you_mean(value, words)
            return f"is not known here; did you mean '{likely}'?" if likely else f"is not known here; write {wanted}"
        if takes == {"boolean"}:
            meant = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
            return f"should be {wanted}, not text; write {meant.get(value.lower(), wanted)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and takes & {"integer", "number"}:
        if isinstance(value, float) and "number" not in takes and value.is_integer():
            return f"should be {wanted}; write it without a decimal point"
        return f"is out of bounds; write {wanted}"
    if isinstance(value, (bool, int, float)) and "string" in takes:
        return f"should be {wanted}, not {_kind(value)}; put it in quotes"
    if isinstance(value, Mapping) and "string" in takes:
        return f"should be {wanted}, not {_kind(value)}; put text that starts with {{ in quotes"
    if value is None:
        return f"should be {wanted}; write one, or remove the line"
    remedy = "write 'key: value' lines" if "object" in takes else f"write {wanted}"
    return f"should be {wanted}, not {_kind(value)}; {remedy}"


# --- what a key takes, in words ---------------------------------------------------------------------------------------


def expected(schema: Mapping[str, Any]) -> str:
    """What a JSON Schema accepts, in words: ``auto or a whole number from 1 to 64``."""
    options = [_one(option) for option in _options(schema) if option.get("type") != "null"]
    options = [text for text in dict.fromkeys(options) if text]
    return " or ".join(options) if options else "a value"


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "anyOf" in schema:
        return [option for part in schema["anyOf"] for option in _options(part)]
    return [schema]


def _words(schema: Mapping[str, Any]) -> Sequence[Any]:
    return schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []


def _one(schema: Mapping[str, Any]) -> str:
    if words := _words(schema):
        listed = [show(word) if not isinstance(word, str) else word for word in words]
        return f"one of {', '.join(listed)}" if len(listed) > 1 else listed[0]
    kind = schema.get("type")
    if kind == "integer":
        return "a whole number" + _range(schema, "minimum", "maximum")
    if kind == "number":
        return "a number" + _range(schema, "minimum", "maximum")
    if kind == "string":
        return "text" + _range(schema, "minLength", "maxLength", "characters")
    if kind == "array":
        return "a list" + _range(schema, "minItems", "maxItems", "entries")
    return {"boolean": "true or false", "object": "a map of keys"}.get(str(kind), "")


def _range(schema: Mapping[str, Any], least: str, most: str, unit: str = "") -> str:
    low, high, above = schema.get(least), schema.get(most), schema.get("exclusiveMinimum")
    tail = f" {unit}" if unit else ""
    if above is not None:
        return f" above {_number(above)}" + (f" and at most {_number(high)}" if high is not None else "")
    if low is not None and low == high:
        return f" of {_number(low)}{tail}"
    if low is not None and high is not None:
        return f" {'of' if unit else 'from'} {_number(low)} to {_number(high)}{tail}"
    if low == 1 and unit:
        return " that is not empty"
    if low is not None:
        return f" of at least {_number(low)}{tail}"
    return f" of at most {_number(high)}{tail}" if high is not None else ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind ``$ref``, with the options of ``anyOf`` resolved as well."""
    if "$ref" in schema:
        return _resolved(root["$defs"][str(schema["$ref"]).rsplit("/", 1)[-1]], root)
    if "anyOf" in schema:
        return {**schema, "anyOf": [_resolved(option, root) for option in schema["anyOf"]]}
    return schema


def _schema_at(section: type[Section], path: Sequence[Step]) -> Mapping[str, Any]:
    """The JSON Schema of the key at ``path``; empty if there is none."""
    root = section_schema(section)
    schema: Mapping[str, Any] = root
    for step in path:
        for option in _options(_resolved(schema, root)):
            if isinstance(step, int):
                inner = option.get("items")
            else:
                inner = option.get("properties", {}).get(step) or option.get("additionalProperties")
            if inner:
                schema = inner
                break
        else:
            return {}
    return _resolved(schema, root)


def _keys(section: type[Section], path: Sequence[Step]) -> list[str]:
    """The keys known in the map at ``path``."""
    return [key for option in _options(_schema_at(section, path)) for key in option.get("properties", {})]
