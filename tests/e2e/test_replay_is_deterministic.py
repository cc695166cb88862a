"""The same recording gives the same bytes, whatever the number of workers, the batch, the company or the timing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FRAMES = 100
SOME = 40  # of a run that is compared; the reference has all
MOST = ["--max-frames", str(SOME)]
ONE_OF_EACH = ["--executors", "1", "--nms-workers", "1", "--batch", "1"]


def lines_of(path: Path, camera: str, frames: int = SOME) -> bytes:
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if json.loads(line)["camera"] == camera]
    assert [json.loads(line)["seq"] for line in lines] == list(range(frames))
    return b"".join(lines)


@pytest.fixture(scope="module")
def reference(campipe_in: Callable[..., Any], media_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The lines of the whole clip, through one worker of each kind."""
    folder = tmp_path_factory.mktemp("reference")
    done = campipe_in(folder, "replay", media_dir / "street.mp4", "--jsonl", "out.jsonl", *ONE_OF_EACH)
    assert done.returncode == 0, done.stderr
    return lines_of(folder / "out.jsonl", "street", FRAMES)


@pytest.fixture(scope="module")
def merged() -> list[bytes]:
    """The whole files of two cameras, of all runs of this module that made one."""
    return []


def assert_begins(reference: bytes, found: bytes) -> None:
    assert reference.splitlines()[:SOME] == found.splitlines()


def assert_like_the_others(merged: list[bytes], out: Path) -> None:
    merged.append(out.read_bytes())
    assert merged[0] == merged[-1]


@pytest.mark.parametrize(
    ("name", "arguments", "clips"),
    [
        ("three executors", ["--executors", "3", "--nms-workers", "1"], 1),
        ("three nms workers, batch 8", ["--executors", "1", "--nms-workers", "3", "--batch", "8"], 1),
        ("three of each, batch 8, beside another", ["--executors", "3", "--nms-workers", "3", "--batch", "8"], 2),
        ("in one process", ["--in-process"], 1),
    ],
)
def test_byte_identical(
    name: str,
    arguments: list[str],
    clips: int,
    reference: bytes,
    merged: list[bytes],
    campipe: Callable[..., Any],
    media_dir: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.jsonl"
    done = campipe("replay", *[media_dir / "street.mp4"] * clips, "--jsonl", out, *MOST, *arguments)
    assert done.returncode == 0, done.stderr
    found = lines_of(out, "street")
    assert_begins(reference, found)
    if clips == 2:
        other = lines_of(out, "street-2").replace(b'"camera":"street-2"', b'"camera":"street"')
        assert other == found
        assert_like_the_others(merged, out)


def test_two_cameras_in_one_file_come_in_the_same_order_each_time(
    merged: list[bytes], campipe: Callable[..., Any], media_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    done = campipe("replay", *[media_dir / "street.mp4"] * 2, "--jsonl", out, *MOST, "--executors", "1")
    assert done.returncode == 0, done.stderr
    assert_like_the_others(merged, out)


def test_a_camera_beside_one_that_sees_something_else_finds_the_same(
    reference: bytes, campipe: Callable[..., Any], media_dir: Path, tmp_path: Path
) -> None:
    """Two cameras with the same pictures would hide frames that are mixed up between them."""
    out = tmp_path / "out.jsonl"
    done = campipe(
        "replay",
        *[media_dir / "street.mp4"] * 2,
        *("--set", "camera.street-2.roi=[0, 0.3, 0.6, 1]", "--jsonl", out, "--executors", "3", "--batch", "4", *MOST),
    )
    assert done.returncode == 0, done.stderr
    found = lines_of(out, "street")
    assert_begins(reference, found)
    other = lines_of(out, "street-2").replace(b'"camera":"street-2"', b'"camera":"street"')
    same = sum(a == b for a, b in zip(other.splitlines(), found.splitlines(), strict=True))
    assert same < SOME // 10
