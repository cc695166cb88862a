"""The published JSON Schemas: up to date, right about the examples, and every field described and bounded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
from ruamel.yaml import YAML

from pipeline.config import schema
from pipeline.config.fields import Section
from pipeline.config.labels import COCO
from pipeline.config.model import Layout
from stages.messages import DetectedObject, Detections, Heartbeat, LedgerEntry, Status
from stages.postprocess.registry import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "configs" / "schema"
EXAMPLES = sorted(
    [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs").glob("*/*.yaml"), *(ROOT / "configs").glob("*/*/*.yaml")]
)


def test_the_schemas_in_the_checkout_are_up_to_date() -> None:
    assert schema.stale(FOLDER) == [], "run tools/export_schemas"


def test_no_schema_is_left_behind() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.json")) == sorted(schema.schemas())


def test_the_tool_checks_and_writes(tmp_path: Path) -> None:
    tool = [sys.executable, str(ROOT / "tools" / "export_schemas"), "--check"]
    run = subprocess.run(tool, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (run.returncode, run.stdout) == (0, "all schemas are up to date\n"), run.stderr
    assert len(schema.write(tmp_path / "new")) == 6
    (tmp_path / "new" / "site.schema.json").write_text("{}")
    assert schema.stale(tmp_path / "new") == ["site.schema.json"]
    assert schema.write(tmp_path / "new") == ["site.schema.json"]
    assert schema.write(tmp_path / "new") == []


def loaded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(schema.schemas()[name])
    jsonschema.Draft202012Validator.check_schema(document)
    return document


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_name_their_schema_and_keep_to_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    if path.parent.name == "models":
        target = FOLDER / "model.schema.json"
    else:
        assert named, "the first line names the schema, for editors"
        target = (path.parent / named[1]).resolve()
    is_camera = path.parent.name == "cameras" or "camera" in path.name
    kind = "camera" if is_camera else "model" if path.parent.name == "models" else "site"
    assert target == FOLDER / f"{kind}.schema.json"
    jsonschema.validate(YAML(typ="safe", pure=True).load(text.replace("T12:00:00Z", "T")), loaded(target.name))


SHORT_FORMS: list[tuple[str, dict[str, Any], bool]] = [
    ("site", {"cameras": "folder"}, True),
    ("site", {"cameras": [{"name": "a", "source": "x"}], "publish": "off", "devices": {"device": "cpu"}}, True),
    ("site", {"cameras": "c", "publish": False, "sinks": {"jsonl": "x"}, "models": {"m": "m.yaml"}}, True),
    ("site", {"cameras": "c", "devices": [{"executors": "auto"}], "limits": {"shared_memory_mb": 5}}, True),
    ("site", {}, False),
    ("site", {"cameras": "c", "camera": "x"}, False),
    ("site", {"cameras": "c", "devices": [{"executors": 65}]}, False),
    ("site", {"cameras": "c", "devices": []}, False),
    ("site", {"cameras": "c", "models": {"a b": "x"}}, False),
    ("camera", {"source": "x", "classes": ["a", 1], "roi": [0, 0, 1, 1]}, True),
    ("camera", {"source": {"url": "x", "password": "${P}", "track": "auto"}}, True),
    ("camera", {}, False),
    ("camera", {"source": "x", "roi": [0, 0, 640, 1]}, False),
    ("camera", {"source": "x", "roi": [0, 0, 1]}, False),
    ("camera", {"source": "x", "classes": []}, False),
    ("camera", {"source": "x", "confidence": "0.4"}, False),
    ("camera", {"source": "x", "name": "a/b"}, False),
]


@pytest.mark.parametrize(("kind", "tree", "valid"), SHORT_FORMS)
def test_the_schema_accepts_what_loading_accepts(kind: str, tree: dict[str, Any], valid: bool) -> None:
    assert jsonschema.Draft202012Validator(loaded(f"{kind}.schema.json")).is_valid(tree) is valid


def test_messages_keep_to_their_schemas() -> None:
    thing = DetectedObject(box=[1.0, 2.0, 3.0, 4.0], score=0.5, class_id=0, label="person")
    ledger = LedgerEntry(decoded=1, published=1, dropped={}, in_flight=0)
    for name, message in [
        (
            "detections",
            Detections(
                camera="a",
                epoch=0,
                seq=1,
                pts_ns=2,
                captured_ns=3,
                clock="file",
                width=4,
                height=5,
                model="m",
                objects=[thing],
            ),
        ),
        ("status", Status(camera="a", epoch=0, state="ended", cause="ended", detail="", time_ns=1, ledger=ledger)),
        ("heartbeat", Heartbeat(time_ns=1, uptime_ns=2, cameras={"a": "started"}, lost_messages=0)),
    ]:
        document = loaded(f"{name}.schema.json")
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
        jsonschema.validate(plain, document)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {key: value for key, value in plain.items() if key != "time_ns" and key != "seq"}, document
            )


def sections(cls: type[Section]) -> set[type[Section]]:
    return {each for sub in cls.__subclasses__() for each in {sub, *sections(sub)}}


FIELDS = [(cls, name) for cls in sorted(sections(Section), key=lambda cls: cls.__name__) for name in cls.model_fields]


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=lambda value: getattr(value, "__name__", value))
def test_every_field_says_what_it_is_for(cls: type[Section], name: str) -> None:
    field = cls.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    assert cls.__doc__


@pytest.mark.parametrize("kind", ["site", "camera", "model"])
def test_every_number_text_and_list_has_bounds(kind: str) -> None:
    def unbounded(node: Any, path: str) -> list[str]:
        found: list[str] = []
        if isinstance(node, list):
            return [each for index, item in enumerate(node) for each in unbounded(item, f"{path}[{index}]")]
        if not isinstance(node, dict):
            return found
        bounds = {
            "integer": {"minimum", "maximum"},
            "number": {"minimum", "maximum", "exclusiveMinimum"},
        }.get(str(node.get("type")))
        if bounds and not bounds & set(node):
            found.append(path)
        return found + [each for key, value in node.items() for each in unbounded(value, f"{path}.{key}")]

    assert [path for path in unbounded(loaded(f"{kind}.schema.json"), "") if "mean" not in path] == []


def test_layouts_are_those_that_can_be_read() -> None:
    assert set(get_args(Layout)) == set(LAYOUTS)


def test_the_labels_of_coco() -> None:
    assert len(COCO) == len(set(COCO)) == 80
    assert [COCO[n] for n in (0, 2, 5, 11, 39, 62, 79)] == [
        "person",
        "car",
        "bus",
        "stop sign",
        "bottle",
        "tv",
        "toothbrush",
    ]
