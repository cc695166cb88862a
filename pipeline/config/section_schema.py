"""Owns the JSON Schema of a section, the same whichever version of pydantic made it. Does not own what is published."""

from __future__ import annotations

from functools import cache
from typing import Any

from pipeline.config.fields import Section


@cache
def section_schema(section: type[Section]) -> dict[str, Any]:
    """The JSON Schema of ``section``; not to be changed."""
    schema: dict[str, Any] = _tidy(section.model_json_schema())
    return schema


def _tidy(schema: Any) -> Any:
    """Without titles made from names, defaults that say nothing, and wrappers that some versions add."""
    if isinstance(schema, list):
        return [_tidy(each) for each in schema]
    if isinstance(schema, float) and schema.is_integer():
        return int(schema)
    if not isinstance(schema, dict):
        return schema
    tidy = {key: _tidy(value) for key, value in schema.items()}
    if isinstance(schema.get("title"), str):
        del tidy["title"]
    if "default" in tidy and tidy["default"] in (None, ""):
        del tidy["default"]
    if len(tidy.get("allOf", ())) == 1:
        tidy |= {**tidy.pop("allOf")[0], **tidy}
    if "const" in tidy or ("enum" in tidy and all(isinstance(each, str) for each in tidy["enum"])):
        tidy.pop("type", None)  # said by the values
    return tidy
