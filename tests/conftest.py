"""Fixtures for all tests: where the data lies, and, for those who ask for it, the leak check."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import searching  # noqa: F401  its profiles
from aftermath import pytest_runtest_makereport, pytest_runtest_protocol
from leaks import no_leaks, run_folder

# fixtures and hooks, for all folders below
__all__ = ["no_leaks", "pytest_runtest_makereport", "pytest_runtest_protocol", "run_folder"]
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before any test imports ONNX Runtime: it reports usage unless told not to
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started with "&" by a shell without job control, as CI may be:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start would inherit it, and not hear Ctrl-C
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started with nohup: what tests start would hear it as little
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def media_dir() -> Path:
    """The clips that are part of the checkout."""
    return ROOT / "tests" / "media"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Models, pictures and recordings that are never part of the checkout; skips without them."""
    folder = Path(os.environ.get("CAMPIPE_SHARED", ROOT.parent / "shared"))
    if not (folder / "models").is_dir():
        pytest.skip(f"needs the data folder {folder.name} beside the checkout, or CAMPIPE_SHARED naming it")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests first; otherwise the order of pytest-randomly, which has shuffled them by now."""
    long_ones = {item.path for item in items if any(item.get_closest_marker(mark) for mark in ("early", "slow"))}
    items.sort(key=lambda item: item.path not in long_ones)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    """A test that plays a full disk by limiting the size of files must not limit the report of pytest itself."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        return (yield)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
