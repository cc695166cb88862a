"""The long run as a tool: what it says where it can't run, how its checks are told, how it ends when interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.checks import Checks, table

SOAK = Path(__file__).resolve().parents[2] / "tools" / "soak"


def test_without_its_environment_it_says_which_command_to_use() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", SOAK, "--minutes", "1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"python {SOAK} --minutes 1" in done.stderr


def test_checks_are_counted_and_the_failed_ones_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    checks = Checks()
    checks.part("kills", "all of them")
    checks.check("nothing is left", [])
    assert str(checks) == "all 1 checks passed"
    checks.check("frames in order", ["1 after 2", "1 after 2"])
    assert str(checks) == "1 of 2 checks failed:\n  kills: frames in order: 1 after 2"
    assert "FAILED  frames in order" in capsys.readouterr().out


def test_a_table_has_its_names_at_the_left_and_its_figures_at_the_right() -> None:
    assert table(("what", "n"), [("a", "10"), ("longer", "5")]).splitlines() == [
        "  what     n",
        "  a       10",
        "  longer   5",
    ]


def test_interrupted_it_ends_at_once_without_a_traceback_and_leaves_nothing(tmp_path: Path) -> None:
    soak = subprocess.Popen(
        [sys.executable, SOAK, "--parts", "overload", "--keep", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert soak.stdout is not None
    while "===" not in soak.stdout.readline():
        assert soak.poll() is None
    time.sleep(0.1)
    soak.send_signal(signal.SIGINT)
    said, errors = soak.communicate(timeout=60)
    assert soak.returncode == 130, errors
    assert "interrupted" in said
    assert errors == ""
