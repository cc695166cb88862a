"""What the bench says: a run's notes to figures, figures to tables and pictures, the command that repeats it."""

from __future__ import annotations

import argparse
import os
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from pipeline.bench import picture, tables
from pipeline.bench.batches import BatchRun
from pipeline.bench.ceiling import Part, ceiling
from pipeline.bench.density import Density, Level, Trial, keeps_rate
from pipeline.bench.machine import Machine, busy_s, cpu_model, describe, others_cores
from pipeline.bench.outcome import KINDS, STAGES, Outcome, evaluate
from pipeline.bench.probe import Edge, Notes, Published
from pipeline.bench.saturate import Saturation, SaturationRun
from pipeline.bench.together import Count, part_of
from pipeline.bench.windows import SECOND_NS, Windows
from pipeline.bench.workload import OBJECTS, SERVICE_PREPARED, options_of
from pipeline.commands.bench import add_parser, command_line
from pipeline.commands.options import Parser
from pipeline.observe.processes import cpu_ns, private_bytes
from stages.camera import CameraSpec
from stages.messages import Trace

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"


def notes(fps: int = 25, age_ms: int = 40, seconds: int = 8, cameras: int = 2) -> Notes:
    """A run in which everything is even: each camera's frame every 1/fps, batches of all of them, 30 ms of compute."""
    told = Notes(first_ns=SECOND_NS)
    step = SECOND_NS // fps
    trace = Trace(
        decode_ms=1.0,
        queue_ms=2.0,
        upload_ms=1.0,
        execute_ms=30.0,
        download_ms=1.0,
        post_ms=1.0,
        reorder_ms=1.0,
        total_ms=37.0,
    )
    for number in range(fps * seconds):
        at = SECOND_NS + number * step
        for camera in range(cameras):
            frame = Published(at, age_ms * MS, (age_ms - 1) * MS, trace, 33 * MS)
            told.published.setdefault(f"camera-{camera}", []).append(frame)
            told.frames += 1
            told.objects += 3
        told.batches.append(BatchRun("executor/x/0", cameras, at, at + MS, at + 31 * MS, at + 32 * MS))
    cpu = {"engine": 0, "decode/a": 0, "decode/b": 0, "executor/x": 0, "nms/0": 0}
    spent = {"engine": 40 * MS, "decode/a": 100 * MS, "decode/b": 300 * MS, "executor/x": 80 * MS, "nms/0": 160 * MS}
    told.edges = [
        Edge(2 * SECOND_NS, cpu, {"camera-0": {"too_old": 2}}),
        Edge(6 * SECOND_NS, spent, {"camera-0": {"too_old": 5}, "camera-1": {"no_slot": 1}}),
    ]
    told.private_bytes = {"engine": 10 << 20, "decode/a": 1 << 20, "decode/b": 2 << 20}
    return told


def outcome(**more: int) -> Outcome:
    return evaluate(notes(**more), Windows.of(4), max_batch=4, parallel=False)


def test_figures_of_an_even_run() -> None:
    found = outcome()
    assert found.rate == pytest.approx(50)
    assert found.rates == {"camera-0": pytest.approx(25, abs=0.01), "camera-1": pytest.approx(25, abs=0.01)}
    assert found.window_rates == (pytest.approx(50),) * 4
    assert found.cpu_ms == {"decode": 2.0, "executor": 0.4, "nms": 0.8, "engine": 0.2}
    assert (found.beyond_decode_ms, found.cores) == (pytest.approx(1.4), pytest.approx(0.17))
    assert (found.idle, found.occupancy, found.full) == (pytest.approx(0.25, abs=0.01), 0.5, 0.0)
    assert (found.age.p50, found.age.most, found.objects) == (40, 40, 3)
    assert {stage: found.stages[stage].p50 for stage in STAGES} == {
        "arrive": 1.0,
        "decode": 1.0,
        "queue": 2.0,
        "upload": 1.0,
        "execute": 30.0,
        "download": 1.0,
        "post": 1.0,
        "reorder": 1.0,
        "publish": 2.0,
    }
    assert (found.added.p50, found.added.p99) == (7, 7)
    assert found.dropped == {"too_old": 3, "no_slot": 1}
    assert found.private_mib == {"decode": 3, "executor": 0, "nms": 0, "engine": 10}
    assert all(run.submitted_ns < SECOND_NS and run.finished_ns > 0 for run in found.timeline)
    assert len(found.timeline) in {25, 26}


def test_cameras_that_do_not_count() -> None:
    found = evaluate(notes(), Windows.of(4), max_batch=4, parallel=False, cameras=["camera-1", "silent"])
    assert found.rates == {"camera-1": pytest.approx(25, abs=0.01), "silent": 0.0}
    assert found.dropped == {"no_slot": 1}
    assert found.cpu_ms["engine"] == 0.2  # what was spent was spent on all frames


@pytest.mark.parametrize(("fps", "passes"), [(25.0, True), (25.19, True), (25.3, False), (5.0, True)])
def test_a_stream_may_miss_its_rate_by_a_fifth_of_a_frame(fps: float, passes: bool) -> None:
    cameras = [CameraSpec(name, "", "") for name in ("camera-0", "camera-1")]
    assert keeps_rate(outcome(), cameras, fps)[0] is passes
    assert keeps_rate(outcome(), [*cameras, CameraSpec("absent", "", "")], fps) == (False, 0.0)


def saturation() -> Saturation:
    parts = (Part("decode", 100, 4), Part("device", 50, 0.5), Part("post", 400, 1))
    return Saturation(2, 4, tuple(SaturationRun(parts, ceiling(list(parts), 2), outcome()) for _ in range(3)))


def density() -> Density:
    trials = (Trial(2, True, 24.9, outcome()), Trial(4, False, 20.0, outcome(fps=20)))
    levels = tuple(Level(share, 2, (outcome(),) * 3) for share in (0.5, 0.8, 1.0))
    return Density(25, 2, 4, False, trials, levels, Level(0.8, 2, (outcome(age_ms=50),)))


def cells(table: str) -> dict[str, list[str]]:
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def test_the_table_of_saturation() -> None:
    told = cells(tables.saturation(saturation()))
    assert told["campipe, frames/s"] == ["50.0"]
    assert told["device alone, frames/s"] == ["50.0; CPU 0.50 ms a frame"]
    assert told["share of the slowest part (device), %"] == ["100.0"]
    assert told["ceiling of the cores, frames/s"] == ["363.6"]
    assert told["CPU that the parts take alone, % of campipe's"] == ["161.8"]  # 5.5 of 3.4 ms
    assert told["CPU ms a frame, all but decode"] == ["1.400"]


def test_the_tables_of_density() -> None:
    text = tables.density(density())
    assert text.startswith("2 streams of 25 frames/s keep their rate within 0.2 frames/s, 4 do not (numbers between")
    told = cells(text)
    assert told["2"][:3] == ["pass", "24.90", "40"]
    assert told["load"] == ["50%: 2 streams", "80%: 2 streams", "100%: 2 streams"]
    assert told["stamp to published, p50, ms"] == ["40.0"] * 3
    assert told["execute"] == ["30.0 / 30.0 / 30.0"] * 3
    assert told["added latency"] == ["7.0 / 7.0 / 7.0"] * 3
    assert "Targets: added latency p50 at 50% at most 5 ms: 7.0, missed; added latency p99 at 50%" in text
    assert "stamp to published p95 at 100% at most 120 ms: 40.0, met." in text
    assert told["p50, ms"] == ["40.0", "50.0"]
    assert all(f"CPU ms a frame, {kind}" in told for kind in KINDS)
    nothing = Density(25, 0, 1, True, (), (), None)
    assert tables.density(nothing).startswith("0 streams of 25 frames/s keep their rate")


def test_results_are_data() -> None:
    for result in (saturation(), density()):
        assert msgspec.json.decode(msgspec.json.encode(result))


def test_pictures_are_svg_within_their_frame() -> None:
    points = [(2, outcome()), (4, outcome(age_ms=400))]
    drawn = picture.document(
        [picture.latency(points, 40), picture.timeline(outcome().timeline)], 'two streams <&> "quoted"'
    )
    root = ET.fromstring(drawn)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert len(list(root.iter(f"{SVG}polyline"))) == 4
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("x")]
    assert len(bars) > 3 * 24
    for bar in bars:
        assert 0 <= float(bar.get("x", -1)) <= float(bar.get("x", -1)) + float(bar.get("width", -1)) <= width
    assert all(0 <= float(each.get("cy", -1)) < height for each in root.iter(f"{SVG}circle"))
    assert picture.latency([], 40) == (0, [])


def parsed(*words: str) -> argparse.Namespace:
    parser = Parser(prog="campipe")
    add_parser(parser.add_subparsers(dest="command"))
    return parser.parse_args(["bench", *words])


def test_the_command_names_every_value_and_leads_to_the_same_again() -> None:
    words = [
        "saturate",
        "--memory",
        "--option",
        "objects=3",
        "--set",
        "nms.workers=2",
        "--json",
        "x.json",
        "--runs",
        "5",
    ]
    told = command_line(parsed(*words))
    assert told == (
        "campipe bench saturate --cameras 16 --clip asset:street.mp4 --device canned:0 --memory --runs 5 --seconds 4 "
        "--option objects=3 --set nms.workers=2"
    )
    again = parsed(*told.split()[2:])
    assert command_line(again) == told
    assert "--rtsp" in command_line(parsed("density", "--rtsp"))
    assert "--first" not in command_line(parsed("density"))


def test_what_made_up_devices_are_told() -> None:
    assert options_of("canned:0", {}) == {"service_ms_by_batch": SERVICE_PREPARED, "objects": str(OBJECTS)}
    assert options_of("canned:0", {"service_ms": "1", "objects": "2"}) == {"service_ms": "1", "objects": "2"}
    assert options_of("ascend-sim:0", {})["compute"] == "canned"
    assert options_of("cpu", {}) == {}


def test_rates_of_processes_add_up_and_their_cpu_time_is_shared() -> None:
    second = SECOND_NS
    found = part_of("decode", [Count(100, second // 2, second), Count(50, second // 4, second // 2)])
    assert (found.rate, found.cpu_ms) == (200, pytest.approx(5.0))
    assert part_of("device", [Count(0, 0, 0)]).rate == 0


def test_the_machine_is_described(tmp_path: Path) -> None:
    found = describe(0.01)
    assert found.cores >= 1
    assert "numpy" in found.versions
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\n")
    assert cpu_model(info) == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "none")
    busy = Machine("CPU", 2, 2, 1 << 30, "Linux", 1.5, {})
    assert "others use 1.50 cores: figures are not to be trusted" in busy.text()
    assert not busy.quiet


def test_what_others_use_is_seen_while_they_do_and_not_a_minute_later(tmp_path: Path) -> None:
    assert round(busy_s("cpu  100 0 50 9000 20 0 5 45 30 0") * os.sysconf("SC_CLK_TCK")) == 200
    assert (busy_s(""), busy_s("intr 1 2 3")) == (0, 0)
    assert others_cores(0.01, tmp_path / "none") == 0
    stat = tmp_path / "stat"
    stat.write_text("cpu  0 0 0 9000 20 0 0 0 0 0\n")

    def others_work() -> None:
        time.sleep(0.02)
        stat.write_text(f"cpu  {os.sysconf('SC_CLK_TCK') // 10} 0 0 9000 20 0 0 0 0 0\n")

    thread = threading.Thread(target=others_work)
    thread.start()
    assert 0.1 < others_cores(0.1, stat) <= 1
    thread.join()
    assert others_cores(0.01, stat) == 0


def test_costs_of_a_process_that_is_gone_are_not_known() -> None:
    before = cpu_ns(os.getpid())
    sum(range(200_000))
    after = cpu_ns(os.getpid())
    assert before is not None
    assert after is not None
    assert before < after <= time.process_time_ns() + SECOND_NS
    assert private_bytes(os.getpid()) > 1 << 20
    assert (cpu_ns(2**22 + 5), private_bytes(2**22 + 5)) == (None, 0)
