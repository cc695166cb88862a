"""``campipe bench`` for a few seconds with real processes: what it prints and writes is whole and makes sense."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pipeline.bench.outcome import KINDS, STAGES
from pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def told(tmp_path: Path, *words: str) -> tuple[str, dict[str, Any]]:
    outputs = ["--json", str(tmp_path / "out.json")]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "bench", *words, "--smoke", *outputs, "--traceback"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads((tmp_path / "out.json").read_text())
    assert done.stdout.rstrip().endswith(result["command"])
    assert len(result["clip"]["sha256"]) == 64
    assert result["clip"]["sha256"] in done.stdout
    assert {"cpu", "cores", "versions"} <= set(result["machine"])
    return done.stdout, result


def bench(tmp_path: Path, *words: str) -> tuple[str, dict[str, Any], ET.Element]:
    text, result = told(tmp_path, *words, "--picture", str(tmp_path / "out.svg"))
    return text, result, ET.parse(tmp_path / "out.svg").getroot()


def check_outcome(outcome: dict[str, Any]) -> None:
    assert set(outcome["cpu_ms"]) == set(KINDS)
    assert all(0 < ms < 200 for ms in outcome["cpu_ms"].values())
    assert all(0 <= outcome[share] <= 1 for share in ("idle", "hidden", "occupancy", "full"))
    assert all(mib > 1 for mib in outcome["private_mib"].values())
    assert outcome["batches"] > 0
    assert outcome["objects"] > 5
    assert outcome["dropped"].keys() <= {"superseded", "too_old", "no_slot"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_saturate(tmp_path: Path) -> None:
    text, result, picture = bench(tmp_path, "saturate", "--memory")
    (run,) = result["saturate"]["runs"]
    check_outcome(run["outcome"])
    assert [part["name"] for part in run["parts"]] == ["decode", "device", "post"]
    assert all(part["rate"] > 5 and part["cpu_ms"] > 0 for part in run["parts"])
    assert 0 < run["ceiling"]["of_parts"] <= 470  # the device's own 17.2 ms for 8 frames
    assert 5 < run["outcome"]["rate"] <= 470
    assert len(run["outcome"]["rates"]) == 2
    assert "ceiling of the cores" in text
    assert "--memory" in result["command"]
    colours = {rectangle.get("fill") for rectangle in picture.iter(f"{SVG}rect")}
    assert {"#4c78a8", "#54a24b", "#e45756"} <= colours


@pytest.mark.long
def test_density(tmp_path: Path) -> None:
    text, result, picture = bench(tmp_path, "density", "--fps", "10", "--seconds", "1.5")
    found = result["density"]
    (trial,) = found["trials"]
    check_outcome(trial["outcome"])
    assert 5 < trial["worst"] < 15
    assert "clip asset:street.mp4" in text
    if found["passed"]:  # a machine that is too busy for one stream has no more to show
        assert [level["share"] for level in found["levels"]] == [0.5, 0.8, 1.0]
        for outcome in [each for level in (*found["levels"], found["faulty"]) for each in level["outcomes"]]:
            check_outcome(outcome)
            age = outcome["age"]
            assert 0 < age["p50"] <= age["p95"] <= age["p99"] <= age["most"] < 60_000
            assert set(outcome["stages"]) == set(STAGES)
            assert sum(stage["p50"] for stage in outcome["stages"].values()) < 3 * age["p50"] + 20
        assert [*found["faulty"]["outcomes"][0]["rates"]] == ["camera-001"]
        assert list(picture.iter(f"{SVG}polyline"))


@pytest.mark.long
def test_scale(tmp_path: Path) -> None:
    text, result = told(tmp_path, "scale")
    steps = {int(count): runs[0] for count, runs in result["scale"]["steps"].items()}
    assert list(steps) == [1, 2]
    for count, step in steps.items():
        assert {kind: held["processes"] for kind, held in step["held"].items()} == {
            **dict.fromkeys(("engine", "forkserver", "tracker", "executor", "nms"), 1),
            "decode": count,
        }
        assert 0 < step["start_cpu_s"] < 20
        assert step["start_s"] < 60
        assert len(step["outcome"]["rates"]) == count
        own = sum(held["own_bytes"] for held in step["held"].values())
        assert own == pytest.approx(sum(step["forecast"]["kinds"].values()), rel=0.25)  # 0.1 where it was measured
        assert step["rings_bytes"] == step["touched_bytes"] == step["forecast"]["shared_bytes"]
    assert "shared, % of the forecast" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["saturate", "--clip", "none.mp4"], "--clip"),
        (["saturate", "--device", "canned:x"], "canned"),
        (["density", "--option", "servise_ms=1"], "did you mean service_ms"),
    ],
)
def test_refusals_name_the_option(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.splitlines()) == 1
