"""Owns the pytest plugin: ``--campipe-update`` and the fixtures. Imports nothing of campipe until a fixture is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pipeline.testing.golden import Results
    from pipeline.testing.replaying import Replayed

WRITTEN = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("campipe").addoption(
        "--campipe-update",
        action="store_true",
        help="write golden files of assert_matches_golden anew instead of comparing with them",
    )


@pytest.fixture(scope="session")
def replay() -> Callable[..., Replayed]:
    """``pipeline.testing.replay``: recordings through the graph, in this process."""
    from pipeline.testing.replaying import replay as function

    return function


@pytest.fixture
def assert_matches_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``pipeline.testing.assert_matches_golden``; a relative path is relative to the test's file.

    With ``--campipe-update`` the file is written and the test goes on.
    """
    config = request.config

    def check(results: Results, path: str | Path, box_tolerance_px: float = 1.0, score_tolerance: float = 0.02) -> None:
        __tracebackhide__ = True
        from pipeline.testing.golden import assert_matches_golden as function

        golden = request.path.parent / path
        update = bool(config.getoption("--campipe-update"))
        function(results, golden, box_tolerance_px, score_tolerance, update=update)
        if update:
            config.stash.setdefault(WRITTEN, []).append(str(golden))

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which golden files were written: they want to be looked at before they are committed."""
    for path in terminalreporter.config.stash.get(WRITTEN, []):
        terminalreporter.write_line(f"campipe: golden file written: {path}")
