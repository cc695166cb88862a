"""Runs the command as a user does: as a process of its own, or, where its answer is the point, in this one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]
Campipe = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def _leaves_nothing(no_leaks: None) -> None: ...


@pytest.fixture(scope="session")
def campipe_in() -> Campipe:
    """``campipe_in(folder, *arguments)``: in that folder, with no terminal, in English, 100 s at most."""

    def run(folder: Path, *arguments: object, env: dict[str, str] | None = None) -> object:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **(env or {})}
        return subprocess.run(
            [sys.executable, "-P", "-m", "pipeline", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=100,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
        )

    return run  # type: ignore[return-value]


@pytest.fixture
def campipe(tmp_path: Path, campipe_in: Campipe) -> Campipe:
    """``campipe(*arguments)`` in an empty folder."""
    return functools.partial(campipe_in, tmp_path)


@pytest.fixture
def campipe_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Campipe:
    """The same in this process, which has everything imported already: for what is refused before it runs.

    What its workers print is captured too; an exception that a user would see as a traceback fails the test.
    """

    def run(*arguments: object, env: dict[str, str] | None = None) -> object:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            capfd.readouterr()
            status = main([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    return run  # type: ignore[return-value]
