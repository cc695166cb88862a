"""A site whose file is reached by links that are changed: releases (current -> v2), a ConfigMap's ..data."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from pipeline.commands import run
from pipeline.config import load_site, resolve
from pipeline.control import client
from stages.errors import UserError

SITE = "cameras: [{{name: {name}, source: {clip}}}]\ncontrol: {{watch: true}}\n"


def release(folder: Path, name: str, clip: Path) -> None:
    """Make a version of the site, and let the link lead to it as kubelet does: by a rename."""
    (folder / name).mkdir()
    (folder / name / "site.yaml").write_text(SITE.format(name=name, clip=clip))
    (folder / "new").symlink_to(name)
    (folder / "new").rename(folder / "..data")


@pytest.fixture
def site(tmp_path: Path, media_dir: Path) -> Path:
    release(tmp_path, "v1", media_dir / "street.mp4")
    (tmp_path / "site.yaml").symlink_to("..data/site.yaml")
    return tmp_path / "site.yaml"


def test_every_switch_of_a_link_is_seen_not_the_first_alone(
    site: Path, media_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "WATCH_EVERY_S", 0.01)
    read = load_site(str(site), [])
    watcher = run.make_desk(str(site), [], read, resolve(read), run.look(str(site), []))._watcher
    watcher.open()
    try:
        for old, new in (("v1", "v2"), ("v2", "v3")):
            release(site.parent, new, media_dir / "street.mp4")
            shutil.rmtree(site.parent / old)
            deadline = time.monotonic() + 30
            while not (told := watcher.told()) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert [camera.name for each in told if each.content for camera in each.content.cameras] == [new]
    finally:
        watcher.close()


def test_the_run_of_a_site_is_found_by_the_link_it_was_started_with_after_a_switch(
    site: Path, media_dir: Path, tmp_path: Path
) -> None:
    started_with = Path(site).absolute()
    other = tmp_path / "v1" / "site.yaml"
    assert client._is_same(started_with, site)
    assert client._is_same(started_with, other)
    release(tmp_path, "v2", media_dir / "street.mp4")
    assert client._is_same(started_with, site)
    assert not client._is_same(started_with, other)
    (tmp_path / "loop").symlink_to("loop")
    assert not client._is_same(started_with, tmp_path / "loop")
    with pytest.raises(UserError, match=r"no campipe .* runs the site"):
        client.find_socket(str(tmp_path / "loop"))
