"""Every test of this folder leaves nothing behind, and puts its runs' sockets into a folder of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _leaves_nothing(no_leaks: None) -> None: ...
