"""README and docs: links lead somewhere, commands parse, YAML loads, Python imports what exists."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.cli import BY_NAME
from pipeline.commands.options import Parser
from pipeline.config.camera import CameraConfig
from pipeline.config.load import load_site
from pipeline.config.model import ModelConfig
from pipeline.config.site import Site, SiteSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, block) for each fenced block of that language."""
    found = [
        (page, each)
        for page, text in TEXTS.items()
        for each in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    ]
    assert found
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every ``campipe …`` of shell blocks and of text: what follows, without comments, variables and redirections."""
    lines = [(page, line) for page, block in blocks("sh") for line in block.splitlines()]
    lines += [(page, line) for page, text in TEXTS.items() for line in re.findall(r"`(campipe \w[^`]*)`", prose(text))]
    for page, line in lines:
        words = shlex.split(re.sub(r"^([A-Z_]+=\S+ )+", "", line).partition(" > ")[0], comments=True)
        if words and words[0] == "campipe":
            yield page, words[1:]


def prose(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[page]):
        assert "://" not in target, "outside of the checkout nothing is promised"
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


def test_every_page_is_linked_from_the_readme_which_stays_short() -> None:
    readme = TEXTS["README.md"]
    assert all(f"({page})" in readme for page in TEXTS if page != "README.md")
    assert len(readme.splitlines()) <= 280


def test_named_files_exist() -> None:
    for page, text in TEXTS.items():
        for name in re.findall(r"(?<![\w./-])((?:configs|tools|pipeline|stages|tests)/[\w@./-]*\w)", text):
            assert (ROOT / name).exists(), f"{page}: {name}"


def parsers() -> dict[str, argparse.ArgumentParser]:
    subparsers = Parser(prog="campipe").add_subparsers(dest="command")
    for command in BY_NAME.values():
        importlib.import_module(command.module).add_parser(subparsers)
    return dict(subparsers.choices)


def test_commands_parse() -> None:
    known = parsers()
    seen = set()
    for page, words in commands():
        assert words[0] in known, f"{page}: campipe {shlex.join(words)}"
        if len(words) > 1:  # else its name alone: `campipe check` opens the card
            seen.add(words[0])
            _, left = known[words[0]].parse_known_args(words[1:])
            assert not left, f"{page}: {left} of campipe {shlex.join(words)}"
    assert seen >= {"run", "replay", "check", "ctl", "subscribe", "models", "bench"}


def test_programs_compile_and_import_what_exists() -> None:
    for page, block in blocks("python"):
        for node in ast.walk(ast.parse(block, page)):
            if isinstance(node, ast.Import):
                for name in node.names:
                    importlib.import_module(name.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, name.name) for name in node.names), f"{page}: {ast.unparse(node)}"


@pytest.fixture
def site_of(tmp_path: Path, media_dir: Path) -> Any:
    """``site_of(site=…, camera=…, model=…)``: a site of these keys, loaded as `campipe run` would."""

    def load(site: dict[str, Any], camera: dict[str, Any], model: dict[str, Any]) -> Site:
        (tmp_path / "cameras" / "recordings").mkdir(parents=True)
        shutil.copy(media_dir / "street.mp4", tmp_path / "cameras" / "recordings" / "gate.mp4")
        (tmp_path / "mine.onnx").touch()
        (tmp_path / "yolov5s.om").touch()
        least = {"file": "mine.onnx", "input": {"width": 640, "height": 640}, "layout": "yolov8", "labels": "coco"}
        put = YAML(typ="safe").dump
        put(least | model, tmp_path / "mine.yaml")
        put({"source": "recordings/gate.mp4"} | camera, tmp_path / "cameras" / "gate-1.yaml")
        models = {"models": {"mine": "mine.yaml"}} if model else {}
        put({"cameras": "cameras"} | models | site, tmp_path / "site.yaml")
        return load_site(tmp_path / "site.yaml", env={"LOBBY_PASSWORD": "x"})

    return load


@pytest.mark.parametrize(("page", "block"), blocks("yaml"))
def test_configurations_load(page: str, block: str, site_of: Any) -> None:
    site, camera, model = ({}, {}, {})  # type: dict[str, Any], dict[str, Any], dict[str, Any]
    for key, value in YAML(typ="safe").load(block).items():  # a block may have lines of several files
        if key in SiteSettings.model_fields or key == "cameras":
            site[key] = value
        elif key in CameraConfig.model_fields:
            camera[key] = value
        else:
            assert key in ModelConfig.model_fields, f"{page}: no file has a key {key}"
            model[key] = value
    assert [each.name for each in site_of(site, camera, model).cameras] == ["gate-1"]
