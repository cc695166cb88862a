"""The pytest plugin in a pytest of its own, as a user has it: fixtures, option, and a light start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

USERS_TEST = """
from stages.messages import DetectedObject, Detections

def results(score):
    found = DetectedObject(box=[1.0, 2.0, 3.0, 4.0], score=score, class_id=0, label="person")
    values = dict(camera="gate", epoch=0, seq=0, pts_ns=0, captured_ns=0, clock="file", width=8, height=6, model="m")
    return [Detections(objects=[found], **values)]

def test_golden(assert_matches_golden):
    import os
    assert_matches_golden(results(float(os.environ["SCORE"])), "golden/gate.jsonl", score_tolerance=0.05)
"""


def run(folder: Path, *options: str, score: float = 0.5) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # campipe may or may not be installed
        "PYTHONPATH": str(ROOT),
        "SCORE": str(score),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "pipeline.testing.plugin",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_golden_file_is_missing_then_written_then_compared(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_mine.py").write_text(USERS_TEST)
    golden = tmp_path / "tests" / "golden" / "gate.jsonl"

    missing = run(tmp_path)
    assert missing.returncode == 1
    assert "yet; run pytest with --campipe-update to write it" in missing.stdout
    assert "def _read" not in missing.stdout, "the user's line is shown, not campipe's"
    assert not golden.exists()

    written = run(tmp_path, "--campipe-update")
    assert written.returncode == 0, written.stdout
    assert f"campipe: golden file written: {golden}" in written.stdout
    assert golden.exists()

    assert run(tmp_path, score=0.54).returncode == 0
    different = run(tmp_path, score=0.7)
    assert different.returncode == 1
    assert "score off by 0.2000 (0.5000 to 0.7000)" in different.stdout
    assert "golden.py" not in different.stdout, "the traceback ends in the user's test"


def test_the_option_is_explained(tmp_path: Path) -> None:
    assert "--campipe-update" in run(tmp_path, "--help").stdout


def test_the_plugin_costs_a_pytest_start_nothing() -> None:
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import pipeline.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.split() == ["pipeline", "pipeline.testing", "pipeline.testing.plugin"]


def test_the_package_gives_its_names_when_they_are_used() -> None:
    import pipeline.testing

    for name in pipeline.testing.__all__:
        assert getattr(pipeline.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        pipeline.testing.nonsense  # noqa: B018
