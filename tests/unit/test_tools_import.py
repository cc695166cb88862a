"""Tools that nobody runs for each change: whatever they import is there, and without the environment they say so."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = sorted(
    [path for path in (ROOT / "tools" / "bench").iterdir() if path.is_file() and not path.suffix]
    + [ROOT / "tools" / "soak"]
)
OURS = {"pipeline", "stages", "faults", "oracles"}


def names(tool: Path) -> list[tuple[str, str]]:
    """Of every import of ours in the file, inside functions too: module and name."""
    tree = ast.parse(tool.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", each.name) for node in found for each in node.names]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_what_a_tool_imports_is_there(tool: Path) -> None:
    ours = [(module, name) for module, name in names(tool) if module.partition(".")[0] in OURS]
    assert ours
    for module, name in ours:
        there = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")
        assert there, f"{tool.name}: from {module} import {name}"


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_tool_without_the_environment_says_which_command_to_use(tool: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-I", "-S", tool, "--runs", "1"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert "Traceback" not in run.stderr
    assert "needs campipe's virtual environment (numpy, " in run.stderr
    assert f"\n  {ROOT}/.venv/bin/python {tool} --runs 1\n" in run.stderr
