"""Owns what a failed test left open: it is closed then and there, for the next test is innocent of it. Judges nothing.

pytest keeps the frames of a failure until the next test is called. What they hold (sockets, processes, files) was
dropped then, with a ResourceWarning each, and warnings are errors: the next test failed too, and whoever looked for the
cause looked there.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Generator

import pytest

FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes which tests failed, in any phase."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around all else: when it is over, the failure has been told, and nobody needs its frames."""
    done = yield
    if item.stash.get(FAILED, False):
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return done
