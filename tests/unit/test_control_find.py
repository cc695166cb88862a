"""Which run ``campipe ctl`` talks to: this user's, a systemd unit's, another user's; real folders and locks."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.control import client
from stages.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes what a run makes: a locked folder that tells its site and its socket."""
    (tmp_path / "own").mkdir()
    (tmp_path / "run" / "user").mkdir(parents=True)
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "own"))
    monkeypatch.setattr("pipeline.transport.channel._parents", lambda: [tmp_path / "own"])
    monkeypatch.setattr(client, "UNITS", tmp_path / "run")
    held: list[int] = []

    def run(parent: str, site: str, user: int | None = None, *, alive: bool = True) -> Path:
        number = len(list(tmp_path.rglob("campipe-*-*"))) + 10_000_000
        folder = tmp_path / parent / f"campipe-{number}-abcdefgh"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "site").write_text(f"{site}\n{folder}/control\n")
        if alive:
            held.append(os.open(folder, os.O_RDONLY))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        if user is not None:
            for each in (folder, folder / "site"):
                os.chown(each, user, user)
        return folder / "control"

    yield run
    for descriptor in held:
        os.close(descriptor)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")


def test_the_run_of_a_systemd_unit_is_found(make: Make) -> None:
    socket = make("run/campipe-yard", "/etc/campipe/yard/site.yaml")
    assert client.find_socket(None) == socket
    assert client.find_socket("/etc/campipe/yard/site.yaml") == socket
    with pytest.raises(UserError, match=r"no campipe .*gate/site.yaml \(no such file is seen from here\)"):
        client.find_socket("/etc/campipe/gate/site.yaml")


def test_with_several_units_one_has_to_be_named(make: Make) -> None:
    yard, gate = (make(f"run/campipe-{name}", f"/etc/campipe/{name}/site.yaml") for name in ("yard", "gate"))
    with pytest.raises(UserError, match="2 runs fit") as refused:
        client.find_socket(None)
    assert f"--socket {yard} (/etc/campipe/yard/site.yaml)" in str(refused.value)
    assert client.find_socket("/etc/campipe/gate/site.yaml") == gate


def test_what_is_left_of_a_run_that_has_ended_is_none(make: Make) -> None:
    make("own", "/a.yaml", alive=False)
    make("run/campipe-yard", "/b.yaml", alive=False)
    with pytest.raises(UserError, match="start it with"):
        client.find_socket(None)


@needs_root
def test_root_may_ask_any_run_and_is_told_whose_it_is(make: Make) -> None:
    of_user = make("run/user/65534", "/home/n/site.yaml", NOBODY)
    assert client.find_socket(None) == of_user
    of_unit = make("run/campipe-yard", "/etc/campipe/yard/site.yaml", NOBODY)
    with pytest.raises(UserError, match="of user nobody"):
        client.find_socket(None)
    assert client.find_socket("/etc/campipe/yard/site.yaml") == of_unit


@needs_root
def test_a_stranger_who_claims_to_run_a_site_is_not_asked_in_its_place(make: Make) -> None:
    make("own", "/etc/campipe/yard/site.yaml", NOBODY)
    unit = make("run/campipe-yard", "/etc/campipe/yard/site.yaml", 1)
    assert client.find_socket("/etc/campipe/yard/site.yaml") == unit


@needs_root
def test_a_pipe_in_place_of_a_stranger_s_file_holds_nobody_up(make: Make) -> None:
    site = make("run/user/65534", "/x", NOBODY).with_name("site")
    site.unlink()
    os.mkfifo(site)
    with pytest.raises(UserError, match="no campipe"):
        client.find_socket(None)


AS_NOBODY = """
import os, sys
from pathlib import Path
from pipeline.control import client
from pipeline.transport import channel
from stages.errors import UserError
client.UNITS = Path(sys.argv[1]) / "run"
channel._parents = lambda: [Path(sys.argv[1]) / "own"]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    client.find_socket(None)
except UserError as error:
    print(error)
"""


@needs_root
def test_who_may_ask_none_of_the_runs_is_told_whose_they_are_and_what_to_do(make: Make, tmp_path: Path) -> None:
    unit = make("run/campipe-yard", "/etc/campipe/yard/site.yaml").parent.parent
    unit.chmod(0o700)
    own = make("own", "/home/r/site.yaml").parent
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and "pytest" in str(folder):
            folder.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AS_NOBODY, str(tmp_path)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "no campipe that this user may ask" in said
    assert f"root ({unit})" in said
    assert f"root ({own})" in said
    assert "sudo campipe ctl" in said
