"""Where ``campipe models verify --out`` writes, and what it must not replace."""

from __future__ import annotations

import os

import cv2
import numpy as np
import pytest

from pipeline.cli import main
from pipeline.models.verify_drawn import draw, targets_of
from pipeline.models.verify_run import Found
from stages.errors import UserError
from stages.postprocess.detect_facts import FileFacts, OutputFacts


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "seen.png"
    cv2.imwrite(str(path), np.full((60, 80, 3), 90, np.uint8))
    return str(path)


@pytest.mark.parametrize("content", [b"name: coco-ssd\n", b"\x08\x07\x12\x05", b"%PDF-1.7"])
def test_a_file_that_is_no_picture_is_not_replaced_by_the_drawn_one(content, picture, tmp_path, capsys):
    precious = tmp_path / "model.jpg"
    precious.write_bytes(content)
    assert main(["models", "verify", "coco-ssd", "--image", picture, "--out", str(precious)]) == 2
    assert "is there and is no picture; name a file that may be replaced" in capsys.readouterr().err
    assert precious.read_bytes() == content


def test_pictures_and_empty_files_may_be_replaced(picture, tmp_path):
    for suffix in (".jpg", ".png", ".bmp", ".webp", ".tiff"):
        old = tmp_path / f"old{suffix}"
        old.touch()
        assert targets_of(str(old), [picture]) == [old]
        cv2.imwrite(str(old), np.zeros((8, 8, 3), np.uint8))
        assert targets_of(str(old), [picture]) == [old]


def test_several_pictures_are_numbered_and_each_is_looked_at(picture, tmp_path):
    out = tmp_path / "found.png"
    assert [path.name for path in targets_of(str(out), [picture] * 2)] == ["found-1.png", "found-2.png"]
    (tmp_path / "found-2.png").write_text("no picture")
    with pytest.raises(UserError, match=r"found-2\.png: is there and is no picture"):
        targets_of(str(out), [picture] * 2)


def test_what_can_not_be_written_is_refused_before_the_model_is_tried(picture, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(UserError, match=r"pipe\.png: is no regular file"):
        targets_of(str(tmp_path / "pipe.png"), [picture])
    with pytest.raises(UserError, match="is no regular file"):
        targets_of(str(tmp_path), [picture])
    with pytest.raises(UserError, match="there is no folder"):
        targets_of(str(tmp_path / "none" / "a.png"), [picture])
    (tmp_path / "link.png").symlink_to(tmp_path / "nowhere" / "a.png")
    with pytest.raises(UserError, match=r"there is no folder .*nowhere;"):
        targets_of(str(tmp_path / "link.png"), [picture])
    with pytest.raises(UserError, match="--out '': is no file name"):
        targets_of("", [picture])
    with pytest.raises(UserError, match="no picture can be written in this format"):
        targets_of(str(tmp_path / "a.odd"), [picture])
    with pytest.raises(UserError, match="no picture can be written in this format"):
        targets_of(str(tmp_path / "a"), [picture])
    with pytest.raises(UserError, match="one of the pictures that were looked at"):
        targets_of(picture, [picture])
    with pytest.raises(UserError, match="--out"):
        targets_of("a\0b.png", [picture])
    with pytest.raises(UserError, match="--out"):
        targets_of("~nobody-of-that-name/a.png", [picture])
    with pytest.raises(UserError, match="--out"):
        targets_of("/", [picture, picture])


def test_a_full_disk_is_told(picture, tmp_path):
    model = FileFacts(64, 64, "float32", (OutputFacts("o", (84, 5), "float32"),)).spec("yolov8", 1)
    nothing = Found(np.empty((0, 4), np.float32), np.empty(0, np.float32), np.empty(0, np.int32))
    target = tmp_path / "full.png"
    target.symlink_to("/dev/full")
    with pytest.raises(UserError, match="the disk is full"):
        draw([picture], [nothing], model, [target])
