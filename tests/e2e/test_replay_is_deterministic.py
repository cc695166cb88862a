"""The same recording gives the same bytes, whatever the number of workers, the batch, the company or the timing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FRAMES = 100


def lines_of(path: Path, camera: str) -> bytes:
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if json.loads(line)["camera"] == camera]
    assert [json.loads(line)["seq"] for line in lines] == list(range(FRAMES))
    return b"".join(lines)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Filled by the first run of this module."""
    return {}


@pytest.mark.parametrize(
    ("name", "arguments", "clips"),
    [
        ("one of each", ["--executors", "1", "--nms-workers", "1", "--batch", "1"], 1),
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
    reference: dict[str, bytes],
    campipe: Callable[..., Any],
    media_dir: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.jsonl"
    done = campipe("replay", *[media_dir / "street.mp4"] * clips, "--jsonl", out, *arguments)
    assert done.returncode == 0, done.stderr
    found = lines_of(out, "street")
    assert reference.setdefault("bytes", found) == found, f"{name} differs from the first run"
    if clips == 2:
        other = lines_of(out, "street-2").replace(b'"camera":"street-2"', b'"camera":"street"')
        assert other == found
        assert reference.setdefault("merged", out.read_bytes()) == out.read_bytes()


def test_two_cameras_in_one_file_come_in_the_same_order_each_time(
    reference: dict[str, bytes], campipe: Callable[..., Any], media_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    done = campipe("replay", *[media_dir / "street.mp4"] * 2, "--jsonl", out, "--executors", "1")
    assert done.returncode == 0, done.stderr
    assert reference.setdefault("merged", out.read_bytes()) == out.read_bytes()


def test_a_camera_beside_one_that_sees_something_else_finds_the_same(
    reference: dict[str, bytes], campipe: Callable[..., Any], media_dir: Path, tmp_path: Path
) -> None:
    """Two cameras with the same pictures would hide frames that are mixed up between them."""
    out = tmp_path / "out.jsonl"
    done = campipe(
        "replay",
        *[media_dir / "street.mp4"] * 2,
        *("--set", "camera.street-2.roi=[0, 0.3, 0.6, 1]", "--jsonl", out, "--executors", "3", "--batch", "4"),
    )
    assert done.returncode == 0, done.stderr
    found = lines_of(out, "street")
    assert reference.setdefault("bytes", found) == found
    other = lines_of(out, "street-2").replace(b'"camera":"street-2"', b'"camera":"street"')
    same = sum(a == b for a, b in zip(other.splitlines(), found.splitlines(), strict=True))
    assert same < FRAMES // 10
