"""A test that fails with something open fails alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SUFFERING = """
import socket

def test_fails_with_a_socket_open():
    one, two = socket.socketpair()
    assert not one

def test_fails_in_a_cycle():
    held = [socket.socket()]
    held.append(held)
    raise OSError("while it is open")

def test_is_innocent():
    pass
"""


def test_what_a_failed_test_left_open_fails_no_other(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUFFERING)
    (tmp_path / "conftest.py").write_text("from aftermath import *\n")
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-rA"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert "ResourceWarning" not in done.stdout + done.stderr
