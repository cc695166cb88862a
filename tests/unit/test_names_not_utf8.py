"""Names that are not UTF-8, on the command line: refused in a sentence, not met by an encoder further in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.control import client

ODD = os.fsdecode(b"caf\xe9")
SITE = "cameras: [{name: a, source: 'asset:street.mp4'}]\n"


@pytest.mark.parametrize("command", ["run", "check", "graph"])
def test_a_site_in_a_folder_that_is_not_utf8_is_refused_and_no_internal_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    (folder / "site.yaml").write_text(SITE)
    assert main([command, str(folder / "site.yaml")]) == 2
    told = capsys.readouterr().err
    assert "that is not UTF-8; rename it, or make a link to it" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", f"{ODD}.yaml"],
        ["add", f"/{ODD}/a.yaml"],
        ["pause", ODD],
        ["resume", ODD],
        ["remove", ODD],
        ["--site", f"{ODD}.yaml", "status"],
    ],
)
def test_ctl_refuses_a_name_that_is_not_utf8(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", *(["--socket", "/nowhere"] if "--site" not in arguments else []), *arguments]) == 2
    told = capsys.readouterr().err
    assert "not UTF-8" in told
    assert len(told.splitlines()) == 1


def test_a_run_whose_link_leads_into_a_folder_that_is_not_utf8_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy of the refusal: the site runs under the link's name, and is known by what it leads to."""
    folder, link, run = tmp_path / ODD, tmp_path / "link", tmp_path / "run"
    folder.mkdir()
    run.mkdir()
    link.symlink_to(folder)
    desk_writes = os.fsencode(f"{(link / 'site.yaml').resolve()}\n/run/control\n")
    (run / "site").write_bytes(desk_writes)
    monkeypatch.setattr(client, "run_folders", lambda _more: ([run], []))
    assert client.find_socket(str(link / "site.yaml")) == Path("/run/control")


def test_subscribe_refuses_a_camera_that_is_not_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscribe", "tcp://127.0.0.1:1", "--camera", ODD]) == 2
    assert "is not UTF-8, which no camera is" in capsys.readouterr().err


def test_fetch_from_an_address_that_is_empty_is_not_fetch_from_the_usual_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "fetch", "yolox-nano", "--url", ""]) == 2
    assert "'' names nothing; name an address" in capsys.readouterr().err
