"""``pipeline.testing.replay``: what it asks of the engine (a fake), and once the real one on the clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.testing import assert_matches_golden, replay
from stages.errors import CampipeError, UserError


@pytest.fixture
def clip(media_dir: Path) -> Path:
    path = media_dir / "street.mp4"
    if not path.exists():
        pytest.skip("needs the street clip")
    return path


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Plans that would be run; nothing is."""
    made: list[Any] = []

    class Stop(Exception):
        pass

    def run(plan: Any, sinks: Any) -> Any:
        made.append(plan)
        raise CampipeError("not run")

    monkeypatch.setattr("pipeline.inprocess.run", run)
    return made


def test_each_clip_plays_a_camera_with_the_settings_given(clip: Path, plans: list[Any]) -> None:
    with pytest.raises(CampipeError, match="not run"):
        replay([clip, str(clip)], max_frames=5, confidence=0.6, classes=["person"], roi=(0, 0, 0.5, 1))
    [plan] = plans
    assert [camera.name for camera in plan.cameras] == ["street", "street-2"]
    for camera in plan.cameras:
        assert (camera.confidence, camera.classes, camera.max_frames) == (0.6, (0,), 5)
        assert camera.roi == (0.0, 0.0, 0.5, 1.0)
        assert not camera.live
    assert [device.device for device in plan.devices] == ["cpu"]


def test_overrides_are_more_particular_than_settings(clip: Path, plans: list[Any]) -> None:
    with pytest.raises(CampipeError, match="not run"):
        replay(clip, confidence=0.6, overrides=["camera.street.confidence=0.7"])
    assert plans[0].cameras[0].confidence == 0.7


def test_a_clip_plays_the_part_of_a_sites_camera(clip: Path, plans: list[Any], tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(
        "publish: {bind: 'tcp://127.0.0.1:5600'}\n"
        "cameras:\n"
        "  - name: gate-1\n"
        "    source: {url: 'rtsp://10.0.0.1/x', user: me, password: '${NOT_SET_HERE}'}\n"
        "    confidence: 0.55\n"
        "    live: {policy: newest}\n"
    )
    with pytest.raises(CampipeError, match="not run"):
        replay({"gate-1": clip}, site=tmp_path / "site.yaml", max_frames=3)
    with pytest.raises(CampipeError, match="not run"):
        replay({"gate-1": clip}, site=tmp_path / "site.yaml", device="cpu", iou=0.3)
    for plan, iou in zip(plans, (None, 0.3), strict=True):
        [camera] = plan.cameras
        assert (camera.name, camera.url, camera.confidence) == ("gate-1", str(clip), 0.55)
        assert not camera.live
        assert iou is None or camera.iou == iou


def test_mistakes_are_the_users(clip: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        replay(tmp_path / "nosuch.mp4")
    with pytest.raises(UserError, match="confidense"):
        replay(clip, confidense=0.5)
    with pytest.raises(TypeError, match="need a site"):
        replay({"gate-1": clip})
    with pytest.raises(TypeError, match="which camera each one plays"):
        replay([clip], site=tmp_path / "site.yaml")


def test_the_clip_gives_the_same_people_each_time_and_an_exact_ledger(clip: Path, tmp_path: Path) -> None:
    first = replay(clip, max_frames=4, classes=["person"])
    assert [message.seq for message in first.detections["street"]] == [0, 1, 2, 3]
    assert all(message.objects for message in first.detections["street"])
    assert {found.label for message in first.detections["street"] for found in message.objects} == {"person"}
    assert [status.state for status in first.statuses] == ["started", "ended"]
    assert (first.ledger["street"].decoded, first.ledger["street"].published) == (4, 4)
    assert first.report.exit_status == 0
    assert_matches_golden(first, tmp_path / "golden.jsonl", update=True)
    again = replay([clip], max_frames=4, classes=["person"])
    assert_matches_golden(again, tmp_path / "golden.jsonl", box_tolerance_px=0, score_tolerance=0)
    with pytest.raises(TypeError, match=r"iterate over \.detections"):
        list(again)  # type: ignore[call-overload]
