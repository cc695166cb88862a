"""Only the Ascend backend touches the vendor's module ``acl``; everything else goes through the accelerator's door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOOR = Path("stages/accelerators/ascend")
WATCHED = ("pipeline", "stages", "tools")
VENDOR = "acl"


def is_vendors(name: str | None) -> bool:
    return name is not None and name.split(".")[0] == VENDOR


def vendor_calls(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each way in which a module gets at the vendor's: imports, by name too, and use of the name."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if any(is_vendors(name.name) for name in names):
                yield node.lineno, ast.unparse(node)
            case ast.ImportFrom(module=module, level=0) if is_vendors(module):
                yield node.lineno, ast.unparse(node)
            case ast.Call(args=[ast.Constant(value=str() as name), *_]) if is_vendors(name) and is_import(node.func):
                yield node.lineno, ast.unparse(node)
            case ast.Attribute(value=ast.Name(id="acl")):
                yield node.lineno, ast.unparse(node)


def is_import(function: ast.expr) -> bool:
    return ast.unparse(function).split(".")[-1] in {"import_module", "__import__", "find_spec"}


def watched_files() -> list[Path]:
    found = [path.relative_to(ROOT) for folder in WATCHED for path in (ROOT / folder).rglob("*") if path.is_file()]
    python = [path for path in found if path.suffix == ".py" or (path.suffix == "" and is_python_program(path))]
    return sorted(path for path in python if not path.is_relative_to(DOOR))


def is_python_program(path: Path) -> bool:
    with (ROOT / path).open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first


def test_the_vendor_is_called_behind_its_door_only() -> None:
    files = watched_files()
    assert Path("stages/accelerators/accelerator.py") in files
    calls = [
        f"{path}:{line}: {text}"
        for path in files
        for line, text in vendor_calls((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not calls, f"these belong into {DOOR}:\n" + "\n".join(calls)


@pytest.mark.parametrize(
    "source",
    [
        "import acl",
        "import os, acl.rt",
        "from acl import mdl",
        "from acl.rt import malloc",
        "def load():\n    import acl as vendor",
        "importlib.import_module('acl')",
        "import_module('acl.rt', None)",
        "__import__('acl')",
        "importlib.util.find_spec('acl')",
        "acl.rt.malloc(1)",
    ],
)
def test_ways_in_are_seen(source: str) -> None:
    assert list(vendor_calls(source))


@pytest.mark.parametrize(
    "source",
    [
        "import aclsim",
        "from stages.accelerators import ascend",
        "from . import acl",
        "from .acl import f",
        "'import acl'",
        "self.acl = None",
        "registry.get('acl')",
        "oracle.find_spec",
    ],
)
def test_what_only_looks_alike_is_not(source: str) -> None:
    assert not list(vendor_calls(source))
