"""Every kind of odd recording through the real replay path: sizes, counts as an independent decoder has them, endings.

The counts come from ffprobe where it is installed, else from FFmpeg's command (imageio-ffmpeg has one too), else from a
plain PyAV loop. The small recordings are made on the spot; real ones lie in the shared folder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import av.logging
import pytest
from media.odd.odd_inputs import OddInputs
from zoo.counting import Counter, counter
from zoo.specimens import DAMAGED, REFUSED, WHOLE, Specimen

from pipeline.config import replay_site, resolve
from pipeline.inprocess import InProcessEngine
from pipeline.plan import DevicePlan
from pipeline.planning import make_plan
from pipeline.report import CameraReport
from stages.errors import UserError
from stages.messages import Detections
from stages.sinks.collect import CollectSink

REAL = ("vtest.avi", "bikes.mp4", "car-detection.mp4", "one-by-one-person-detection.mp4")


class Zoo:
    """Makes specimens in a folder of this session and counts them once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._odd = OddInputs(folder / "odd")
        self.name_of_counter, self._count = counter()
        self._counted: dict[tuple[Path, int], int] = {}

    def path(self, specimen: Specimen) -> Path:
        return specimen.path(self._folder, self._odd)

    def count(self, path: Path, track: int = 0) -> int:
        if (path, track) not in self._counted:
            self._counted[path, track] = self._count(path, track)
        return self._counted[path, track]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    before = av.logging.get_level()
    av.logging.set_level(av.logging.PANIC)  # the encoders have much to say of pictures of one pixel
    yield Zoo(tmp_path_factory.mktemp("zoo"))
    av.logging.set_level(before)


class Played:
    """One recording through decode, letterbox, batches, a device, post-processing and a sink, in this process."""

    def __init__(self, path: Path, track: int = 0) -> None:
        site = replay_site([path], overrides=["publish=off"])
        plan = make_plan(resolve(site), in_process=True)
        cameras = tuple(dataclasses.replace(camera, track=track) for camera in plan.cameras)
        sink = CollectSink()
        device = DevicePlan("canned:0", 1, 1, 2, {"objects": "1"})
        report = InProcessEngine(dataclasses.replace(plan, cameras=cameras, devices=(device,)), [sink]).run()
        self.report: CameraReport
        (self.report,) = report.cameras.values()
        self.frames = [message for message in sink.messages if isinstance(message, Detections)]
        self.sizes = tuple(dict.fromkeys((frame.width, frame.height) for frame in self.frames))

    def assert_sound(self) -> None:
        """What holds for every recording, whatever is wrong with it."""
        assert self.report.exact
        assert self.report.ledger.in_flight == 0
        assert [frame.seq for frame in self.frames] == list(range(len(self.frames)))
        assert all(a.pts_ns < b.pts_ns for a, b in pairwise(self.frames)), "time goes on"
        assert all(frame.pts_ns >= 0 for frame in self.frames)
        for frame in self.frames:
            for found in frame.objects:
                x1, y1, x2, y2 = found.box
                assert 0 <= x1 <= x2 <= frame.width
                assert 0 <= y1 <= y2 <= frame.height


def marked(specimens: list[Specimen]) -> list[object]:
    long = pytest.mark.long
    return [pytest.param(s, id=s.name, marks=[long] if s.slow else []) for s in specimens]


@pytest.mark.parametrize("specimen", marked([*WHOLE, *DAMAGED]))
def test_odd_recordings_play_as_an_independent_decoder_shows_them(zoo: Zoo, specimen: Specimen) -> None:
    path = zoo.path(specimen)
    played = Played(path, specimen.track)
    played.assert_sound()
    assert (played.sizes, played.report.cause) == (specimen.sizes, specimen.ending)
    if specimen.disputed:
        assert played.frames
    else:
        assert len(played.frames) == played.report.ledger.decoded == zoo.count(path, specimen.track), (
            zoo.name_of_counter
        )
    if not specimen.damaged:
        assert played.report.decode_errors == 0
        assert not any(frame.corrupt for frame in played.frames)


@pytest.mark.parametrize("specimen", marked(REFUSED))
def test_what_is_no_recording_is_refused_in_one_sentence(zoo: Zoo, specimen: Specimen) -> None:
    path = zoo.path(specimen)
    with pytest.raises(UserError) as refused:
        Played(path)
    (sentence,) = refused.value.problems
    assert specimen.refused in sentence
    assert str(path) in sentence
    assert ";" in sentence, "a remedy follows"
    assert "Errno" not in sentence


SAMPLE = ("rotated90.mp4", "vfr.mp4", "hevc_10bit.mp4", "res_change.h264", "odd_321x241_vp9.webm", "ffv1_1x1.mkv")


@pytest.mark.early
def test_the_command_plays_a_sample_of_them(campipe, zoo: Zoo, tmp_path: Path) -> None:
    """With real processes, shared memory and the default model."""
    paths = [zoo.path(s) for s in WHOLE if s.name in SAMPLE]
    assert len(paths) == len(SAMPLE)
    ran = campipe("replay", *paths, "--jsonl", "{camera}.jsonl", "--report", "r.json")
    assert ran.returncode == 0, ran.stderr
    cameras = json.loads((tmp_path / "r.json").read_text())["cameras"]
    assert [cameras[path.stem]["ledger"]["published"] for path in paths] == [zoo.count(path) for path in paths]
    for specimen, path in zip((s for s in WHOLE if s.name in SAMPLE), paths, strict=True):
        lines = map(json.loads, (tmp_path / f"{path.stem}.jsonl").read_text().splitlines())
        assert tuple(dict.fromkeys((line["width"], line["height"]) for line in lines)) == specimen.sizes


def test_the_command_plays_broken_ones_to_their_end_and_says_so(campipe, zoo: Zoo, tmp_path: Path) -> None:
    chosen = [s for s in DAMAGED if s.name in ("trunc_faststart.mp4", "corrupt_heavy.mp4", "trunc_60.ts")]
    ran = campipe("replay", *map(zoo.path, chosen), "--device", "canned:0", "--report", "r.json")
    assert "Traceback" not in ran.stderr
    cameras = json.loads((tmp_path / "r.json").read_text())["cameras"]
    for specimen in chosen:
        camera = cameras[Path(specimen.name).stem]
        assert (camera["cause"], camera["exact"]) == (specimen.ending, True)
        assert camera["ledger"]["published"] == zoo.count(zoo.path(specimen))
    assert "the file stops after" in ran.stdout + ran.stderr


def test_the_command_tells_every_refused_recording_and_plays_none(campipe, zoo: Zoo) -> None:
    refused = [specimen for specimen in REFUSED if specimen.name != "empty.mp4"]  # seen before anything is opened
    ran = campipe("replay", *map(zoo.path, refused), "--device", "canned:0")
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    for specimen in refused:
        (line,) = (line for line in ran.stderr.splitlines() if f"/{specimen.name}" in line)
        assert specimen.refused in line


@pytest.mark.long
@pytest.mark.parametrize("name", REAL)
def test_real_recordings_play_whole(zoo: Zoo, shared_dir: Path, name: str) -> None:
    played = Played(shared_dir / "video" / name)
    played.assert_sound()
    assert played.report.cause == "ended"
    assert len(played.frames) == zoo.count(shared_dir / "video" / name)


def test_the_ways_of_counting_agree(zoo: Zoo) -> None:
    """So that what is expected does not depend on what a machine has installed."""
    from zoo.counting import by_pyav

    count: Counter = zoo.count
    for specimen in WHOLE[:20]:
        path = zoo.path(specimen)
        assert count(path, specimen.track) == by_pyav(path, specimen.track), specimen.name
