"""What tools say that can't import what they need: a command that differs from the one that has just failed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def venv_needed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("venv_needed", ROOT / "tools" / "venv_needed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("made", "inside", "wanted"),
    [
        (False, False, "Use:  {venv}/bin/python tools/soak --times 1  (tools/test makes that environment)"),
        (True, False, "Use:  {venv}/bin/python tools/soak --times 1"),
        (True, True, "Install the extra test first:  {venv}/bin/python -m pip install -e '/checkout[test]'"),
    ],
)
def test_the_remedy_is_not_the_command_that_failed(
    venv_needed: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: bool,
    inside: bool,
    wanted: str,
) -> None:
    venv = tmp_path / "venv"
    monkeypatch.setenv("CAMPIPE_VENV", str(venv))
    if made:
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").touch()
    if inside:
        monkeypatch.setattr(sys, "prefix", str(venv))
    told = venv_needed.remedy(Path("/checkout"), ["tools/soak", "--times", "1"])
    assert told == wanted.format(venv=venv)
