"""Runs the command as a user does, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Campipe = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def campipe(tmp_path: Path) -> Campipe:
    """``campipe(*arguments)`` in an empty folder; no terminal, English, 100 s at most."""

    def run(*arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> object:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **(env or {})}
        return subprocess.run(
            [sys.executable, "-P", "-m", "pipeline", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=100,
            env=environment,
            cwd=cwd or tmp_path,
            stdin=subprocess.DEVNULL,
        )

    return run  # type: ignore[return-value]
