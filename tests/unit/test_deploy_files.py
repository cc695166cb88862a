"""The examples for systemd and containers: accepted by their own linters where those are, and by what campipe knows."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.commands.options import Parser
from pipeline.commands.run import add_parser
from pipeline.config import Site, load_site
from pipeline.control.client import UNIT_PREFIX

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "configs/deploy/campipe@.service"
CONTAINERFILE = ROOT / "configs/deploy/Containerfile"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "campipe"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "campipe@.service"
    copy.write_text(UNIT.read_text().replace("/opt/campipe/bin/campipe", str(program)))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in result.stderr.splitlines() if "campipe@" in line]
    assert complaints == []


def test_hadolint_takes_the_containerfile() -> None:
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed")
    result = subprocess.run([linter, str(CONTAINERFILE)], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def commands_of_both() -> list[list[str]]:
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    started = unit["Service"]["ExecStart"].replace("%i", "yard").replace("%t", "/run").split()[1:]
    found = re.search(r"^CMD \[(.*)\]$", CONTAINERFILE.read_text(), re.MULTILINE)
    assert found
    return [started, [part.strip().strip('"') for part in found[1].split(",")]]


@pytest.mark.parametrize("command", commands_of_both(), ids=["unit", "container"])
def test_their_command_lines_are_campipe_s(command: list[str]) -> None:
    parser = Parser(prog="campipe")
    add_parser(parser.add_subparsers(dest="command"))
    assert parser.parse_args(command).site.endswith("site.yaml")


def test_the_unit_gives_more_time_to_stop_than_campipe_takes() -> None:
    from pipeline.plan import Limits

    stop_s = int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)[1])  # type: ignore[index]
    assert stop_s * 1000 > Limits().stop_ms + 5_000


def site_of(command: list[str], folder: Path) -> Site:
    """What a site that says nothing of it becomes when it is run so."""
    parser = Parser(prog="campipe")
    add_parser(parser.add_subparsers(dest="command"))
    path = folder / "site.yaml"
    path.write_text("cameras: [{name: gate, source: {url: 'rtsp://127.0.0.1:9/gate'}}]\n")
    return load_site(path, parser.parse_args(command).settings)


def test_the_unit_s_socket_lies_where_ctl_and_root_look_for_it(tmp_path: Path) -> None:
    control = site_of(commands_of_both()[0], tmp_path).control
    assert control is not None
    assert control.socket == "/run/campipe-yard/control"
    assert "RuntimeDirectory=campipe-%i\n" in UNIT.read_text()
    assert Path(control.socket).parent.name.startswith(UNIT_PREFIX)


def test_the_container_s_health_check_asks_where_campipe_listens(tmp_path: Path) -> None:
    asked = re.search(r"urlopen\('http://([^/]+)/livez'", CONTAINERFILE.read_text())
    assert asked
    assert site_of(commands_of_both()[1], tmp_path).observe.listen == asked[1]
