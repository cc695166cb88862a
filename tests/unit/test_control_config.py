"""What a site may say of its control, sites without cameras, and the file of one camera that joins."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import cameras_folder, load_joining, load_site, resolve
from stages.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, media_dir: Path) -> Path:
    (tmp_path / "cameras").mkdir()
    (tmp_path / "site.yaml").write_text("cameras: cameras\n")
    (tmp_path / "guest.yaml").write_text(f"source: {media_dir / 'street.mp4'}\n")
    return tmp_path


def test_control_is_on_unless_it_is_off_and_its_socket_lies_beside_the_file_that_states_it(folder: Path) -> None:
    site = folder / "site.yaml"
    (folder / "cameras" / "a.yaml").write_text((folder / "guest.yaml").read_text())
    control = load_site(site).control
    assert control is not None
    assert (control.watch, control.socket, control.models) == (True, None, ())
    site.write_text("cameras: cameras\ncontrol: {socket: here/ctl, watch: false}\n")
    control = load_site(site).control
    assert control is not None
    assert (control.watch, control.socket) == (False, str(folder / "here" / "ctl"))
    for off in ("off", "false"):
        site.write_text(f"cameras: cameras\ncontrol: {off}\n")
        assert load_site(site).control is None


def test_models_for_cameras_that_may_come_are_loaded_and_must_be_known(folder: Path) -> None:
    site = folder / "site.yaml"
    site.write_text("cameras: cameras\ncontrol: {models: [coco-ssd]}\n")
    assert [m.name for m in resolve(load_site(site, may_be_empty=True)).models] == ["coco-ssd"]
    site.write_text("cameras: cameras\ncontrol: {models: [nothing-known]}\n")
    with pytest.raises(UserError, match=r"control\.models\[0\].*not a known model"):
        load_site(site, may_be_empty=True)


def test_a_folder_without_cameras_is_refused_unless_cameras_may_come(folder: Path) -> None:
    with pytest.raises(UserError, match="without cameras"):
        load_site(folder / "site.yaml")
    site = load_site(folder / "site.yaml", may_be_empty=True)
    assert site.cameras == ()
    resolved = resolve(site)
    assert resolved.cameras == ()
    assert len(resolved.models) == 1, "one that cameras without a model of their own use"


def test_one_cameras_file_is_read_as_if_it_were_the_only_one(folder: Path) -> None:
    (folder / "cameras" / "broken.yaml").write_text("source: [")
    site = load_joining(folder / "site.yaml", folder / "guest.yaml", ["camera.gone.confidence=0.3"])
    assert [camera.name for camera in site.cameras] == ["guest"]
    (folder / "guest.yaml").write_text("source: nothing.mp4\nconfidence: 9\n")
    with pytest.raises(UserError) as refused:
        load_joining(folder / "site.yaml", folder / "guest.yaml")
    assert len(refused.value.problems) == 2
    with pytest.raises(UserError, match=r"missing\.yaml"):
        load_joining(folder / "site.yaml", folder / "missing.yaml")


def test_an_override_for_a_camera_that_has_left_is_no_mistake_later_on(folder: Path) -> None:
    (folder / "cameras" / "a.yaml").write_text((folder / "guest.yaml").read_text())
    override = ["camera.b.confidence=0.3"]
    with pytest.raises(UserError, match="there is no camera 'b'"):
        load_site(folder / "site.yaml", override)
    assert load_site(folder / "site.yaml", override, may_miss=True).cameras[0].name == "a"


def test_where_the_cameras_files_lie(folder: Path) -> None:
    site = folder / "site.yaml"
    assert cameras_folder(site) == folder / "cameras"
    assert cameras_folder(site, [f"cameras={folder}"]) == folder
    site.write_text("cameras: [{name: a, source: x.mp4}]\n")
    assert cameras_folder(site) is None
    assert cameras_folder(folder / "missing.yaml") is None
