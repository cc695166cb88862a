"""Owns the JSON Schemas that are published: of the YAML files from their sections, and of messages to subscribers."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec

from pipeline.config.camera import CameraConfig
from pipeline.config.fields import Section
from pipeline.config.model import ModelConfig
from pipeline.config.section_schema import section_schema
from pipeline.config.site import Site
from stages.messages import Detections, External, Heartbeat, Status

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SECTIONS: dict[str, tuple[str, type[Section]]] = {
    "site": ("campipe: a site file", Site),
    "camera": ("campipe: the file of one camera", CameraConfig),
    "model": ("campipe: the description of a model", ModelConfig),
}
MESSAGES: dict[str, tuple[str, type[External]]] = {
    "detections": ("campipe: message on topic detections/CAMERA", Detections),
    "status": ("campipe: message on topic status/CAMERA", Status),
    "heartbeat": ("campipe: message on topic heartbeat", Heartbeat),
}


def schemas() -> dict[str, str]:
    """File name to text of every schema, the same for the same code."""
    texts = {name: _text(title, section_schema(cls)) for name, (title, cls) in SECTIONS.items()}
    texts |= {name: _text(title, _even(msgspec.json.schema(cls))) for name, (title, cls) in MESSAGES.items()}
    return {f"{name}.schema.json": text for name, text in texts.items()}


def stale(folder: Path) -> list[str]:
    """Names of the schema files in ``folder`` that are not what the code says."""
    return [name for name, text in schemas().items() if not _holds(folder / name, text)]


def write(folder: Path) -> list[str]:
    """Write the schemas that are stale; their names."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = schemas()
    names = stale(folder)
    for name in names:
        (folder / name).write_text(texts[name], encoding="utf-8")
    return names


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def _even(schema: Any) -> Any:
    """The schema of a message, the same whichever msgspec made it: indentation of texts, order of choices."""
    if isinstance(schema, list):
        return [_even(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    even = {key: _even(value) for key, value in schema.items()}
    if isinstance(even.get("description"), str):
        even["description"] = inspect.cleandoc(even["description"])
    if "anyOf" in even:
        even["anyOf"].sort(key=lambda option: option.get("type") == "null")
    return even


def _text(title: str, schema: dict[str, Any]) -> str:
    whole = {"$schema": DIALECT, "title": title, **{key: value for key, value in schema.items() if key != "title"}}
    return json.dumps(whole, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
