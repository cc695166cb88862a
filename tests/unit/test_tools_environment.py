"""The program that tools/demo and tools/test have their virtual environment prepared by; nothing is fetched."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

ENVIRONMENT = Path(__file__).resolve().parents[2] / "tools" / "environment"
MODULES = ("debian", "report", "venv_state", "installer")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The program's modules, imported as it does itself: from its own folder."""
    monkeypatch.syspath_prepend(str(ENVIRONMENT))
    yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "check out"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("[project]\n")
    return folder


class Setup:
    """An installer whose pip only leaves traces, for a checkout in a temporary folder."""

    def __init__(self, program: SimpleNamespace, checkout: Path) -> None:
        self.program, self.checkout, self.venv = program, checkout, checkout / ".venv"
        self.steps: list[str] = []
        self.trouble: dict[str, str] = {}  # of an import, by module
        self.fails_in: BaseException | None = None

    def state(self, *extras: str, insist: bool = False):
        return self.program.venv_state.VenvState(self.checkout, self.venv, extras, insist=insist)

    def prepare(self, *extras: str, insist: bool = False) -> list[str]:
        setup = self

        class Tracing(self.program.installer.Installer):
            def _make(self) -> None:
                setup.steps.append("make")
                super()._make()

            def _provide_pip(self) -> None:
                pass

            def _pip(self, *arguments: str, **_options: object) -> int:
                setup.steps.append(" ".join(arguments[-2:]))
                if setup.fails_in:
                    raise setup.fails_in
                package = (
                    "opencv_python_headless-5.0.dist-info" if "headless" in arguments[-1] else "numpy-2.0.dist-info"
                )
                for name in (package, "opencv_python-5.0.dist-info"):
                    (next(self.venv.glob("lib/python*/site-packages")) / name).mkdir(exist_ok=True)
                (self.venv / "bin" / "campipe").touch()
                return 0

            def _import_error(self, modules: str) -> str | None:
                headless = any("headless" in name for name in self.state.distributions())
                return None if headless else setup.trouble.get(modules)

        self.steps.clear()
        Tracing(self.state(*extras, insist=insist)).prepare()
        return list(self.steps)


@pytest.fixture
def setup(program: SimpleNamespace, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr(program.installer, "loads", lambda _library: False)
    monkeypatch.setattr(program.debian, "can_install", lambda: False)
    return Setup(program, checkout)


# --- what is done, and when nothing is -------------------------------------------------------------------------------


def test_second_start_does_nothing(setup: Setup) -> None:
    assert setup.prepare() == ["make", "-e ."]
    assert setup.prepare() == []


def test_second_start_is_quick(setup: Setup) -> None:
    setup.prepare("test")
    command = [
        sys.executable,
        "-I",
        ENVIRONMENT,
        "--checkout",
        setup.checkout,
        "--venv",
        setup.venv,
        "--extras",
        "test",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)  # CPU time: the machine may be busy with something else
    run = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 2


def test_extras_are_added_and_stay(setup: Setup) -> None:
    setup.prepare()
    assert setup.prepare("test") == ["-e .[test]"]
    assert setup.prepare("dev", "test") == ["-e .[dev,test]"]
    assert setup.prepare() == setup.prepare("test") == setup.prepare("dev") == []


def test_changed_requirements_are_installed_into_the_same_environment(setup: Setup) -> None:
    setup.prepare("test")
    (setup.checkout / "pyproject.toml").write_text("[project]\ndependencies = []\n")
    assert setup.prepare() == ["-e ."]
    assert setup.prepare("test") == ["-e .[test]"]


def test_package_removed_by_hand_comes_back(setup: Setup) -> None:
    setup.prepare()
    shutil.rmtree(next(setup.venv.glob("lib/*/site-packages/numpy-*")))
    assert setup.prepare() == ["-e ."]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupted_installation_begins_anew(setup: Setup, stop: BaseException, capsys) -> None:
    setup.fails_in = stop
    with pytest.raises(type(stop)):
        setup.prepare()
    setup.fails_in = None
    assert setup.prepare() == ["make", "-e ."]
    assert "an earlier installation was cut short" in capsys.readouterr().err


def test_failed_pip_leaves_the_environment_for_the_next_start(setup: Setup) -> None:
    setup.fails_in = setup.program.report.Refused("no network")
    with pytest.raises(setup.program.report.Refused):
        setup.prepare()
    setup.fails_in = None
    assert setup.prepare() == ["-e ."]


def half_made(venv: Path) -> None:
    (venv / "bin").mkdir(parents=True)
    (venv / "lib").mkdir()


def moved(venv: Path) -> None:
    old = venv.parent.with_name("old")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", old], check=True)
    record = {"state": "ready", "place": [str(old.parent), str(old)], "installed": {}}
    (old / "campipe-environment.json").write_text(json.dumps(record))
    old.rename(venv)


def dangling(venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/usr/bin/python2.0")


def other_version(venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    next(venv.glob("lib/python*")).rename(venv / "lib" / "python3.2")


def broken_record(venv: Path) -> None:
    venv.mkdir()
    (venv / "campipe-environment.json").write_text("{")


@pytest.mark.parametrize("spoil", [half_made, moved, dangling, other_version, broken_record])
def test_unfit_environment_is_made_anew(setup: Setup, spoil, capsys) -> None:
    spoil(setup.venv)
    assert setup.prepare() == ["make", "-e ."]
    assert "anew: " in capsys.readouterr().err
    assert setup.prepare() == []


def test_environment_of_ones_own_is_used(setup: Setup) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", setup.venv], check=True)
    (setup.venv / "mine").touch()
    assert setup.prepare() == ["-e ."]
    assert (setup.venv / "mine").exists()


def test_python_upgraded_below_the_environment(setup: Setup) -> None:
    setup.prepare()
    record = json.loads((setup.venv / "campipe-environment.json").read_text())
    (setup.venv / "campipe-environment.json").write_text(json.dumps(record | {"abi": "cpython-310"}))
    assert setup.prepare() == ["make", "-e ."]


def test_chosen_python_replaces_another(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.prepare()
    monkeypatch.setattr(sys, "executable", sys._base_executable)
    assert setup.prepare(insist=True) == []
    monkeypatch.setattr(sys, "executable", "/opt/python/bin/python3")
    assert setup.prepare() == []
    assert "CAMPIPE_PYTHON" in setup.state(insist=True).fault()


def test_link_to_a_folder_elsewhere_stays(setup: Setup, tmp_path: Path) -> None:
    (tmp_path / "roomy").mkdir()
    setup.venv.symlink_to(tmp_path / "roomy")
    setup.prepare()
    assert setup.venv.is_symlink()
    assert (tmp_path / "roomy" / "bin" / "campipe").exists()
    assert setup.prepare() == []


# --- what is refused --------------------------------------------------------------------------------------------------


def other_folder(venv: Path) -> None:
    venv.mkdir()
    (venv / "thesis.txt").touch()


@pytest.mark.parametrize(("spoil", "said"), [(Path.touch, "is a file"), (other_folder, "something other than")])
def test_what_is_no_environment_is_left_alone(setup: Setup, spoil, said: str) -> None:
    spoil(setup.venv)
    before = sorted(setup.checkout.rglob("*"))
    with pytest.raises(setup.program.report.Refused, match=said):
        setup.prepare()
    assert sorted(setup.checkout.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("made", [False, True])
def test_place_that_cannot_be_written_to(setup: Setup, made: bool) -> None:
    locked = setup.venv if made else setup.checkout
    locked.mkdir(exist_ok=True)
    locked.chmod(0o555)
    try:
        with pytest.raises(setup.program.report.Refused, match="CAMPIPE_VENV"):
            setup.prepare()
    finally:
        locked.chmod(0o755)


# --- two at once ------------------------------------------------------------------------------------------------------


def test_second_installer_waits_for_the_first(setup: Setup, capsys) -> None:
    first = os.open(setup.checkout, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = threading.Thread(target=setup.prepare, daemon=True)
    second.start()
    told, deadline = "", time.monotonic() + 20
    while "waiting for it" not in told and time.monotonic() < deadline:
        told += capsys.readouterr().err
        time.sleep(0.01)
    assert "another installation is at work here; waiting for it" in told
    assert not setup.venv.exists()
    os.close(first)
    second.join(30)
    assert setup.steps == ["make", "-e ."]


def test_command_left_behind_by_a_kill_keeps_the_lock(program: SimpleNamespace, checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    installer = program.installer.Installer(
        program.venv_state.VenvState(checkout, checkout / ".venv", (), insist=False)
    )
    check = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    inherits = "import os; print([os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')])"
    with installer._alone():
        assert installer._run([sys.executable, "-c", check, str(checkout)]) != 0
        assert installer._run([sys.executable, "-c", inherits]) == 0
        assert str(checkout) in installer._read_log()
    assert installer._run([sys.executable, "-c", check, str(checkout)]) == 0


# --- system libraries -------------------------------------------------------------------------------------------------


def test_missing_libgl_without_root_takes_the_headless_opencv(setup: Setup, capsys) -> None:
    setup.trouble["cv2"] = "ImportError: libGL.so.1: cannot open shared object file"
    assert setup.prepare() == ["make", "-e .", "--force-reinstall opencv-python-headless==5.0"]
    assert "libGL.so.1" in capsys.readouterr().err
    assert setup.prepare() == []


def test_missing_libgl_as_root_installs_it(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.trouble["cv2"] = "ImportError: libGL.so.1: cannot open shared object file"
    installed: list[str] = []

    def install(packages: list[str], _log: Path) -> bool:
        installed.extend(packages)
        if "libglib2.0-0t64" in installed:
            setup.trouble.clear()
        return True

    monkeypatch.setattr(setup.program.debian, "can_install", lambda: True)
    monkeypatch.setattr(setup.program.debian, "is_known", lambda package: package == "libglib2.0-0t64")
    monkeypatch.setattr(setup.program.debian, "install", install)
    assert setup.prepare() == ["make", "-e ."]
    assert installed == ["libgl1", "libxcb1", "libglib2.0-0t64"]


def test_library_lost_since_is_noticed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup.program.installer, "loads", lambda _library: True)
    monkeypatch.setattr(setup.program.venv_state, "loads", lambda _library: True)
    setup.prepare()
    assert setup.prepare() == []
    monkeypatch.setattr(setup.program.venv_state, "loads", lambda library: library != "libGL.so.1")
    assert setup.prepare() == ["-e ."]


def test_wheel_that_cannot_be_imported_is_told(setup: Setup) -> None:
    setup.trouble[setup.program.installer.IMPORTS] = "ImportError: libstdc++.so.6: version `GLIBCXX_3.4.29' not found"
    with pytest.raises(setup.program.report.Refused, match="on this machine: ImportError: libstdc"):
        setup.prepare()


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("NewConnectionError('[Errno -3]')\nERROR: No matching distribution found for x", "registry cannot be reached"),
        ("W: Failed to fetch http://mirror/x  Temporary failure resolving 'mirror'", "registry cannot be reached"),
        ("Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "PIP_CERT"),
        ("Could not find a suitable TLS CA certificate bundle, invalid path: /etc/ssl/certs/x", "ca-certificates"),
        ("ERROR: No matching distribution found for onnxruntime<2,>=1.18", "no ready-built onnxruntime that fits"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("OSError: [Errno 13] Permission denied: '/x'", "/v cannot be written to"),
        ("ERROR: something else", None),
    ],
)  # fmt: skip
def test_failure_of_pip_in_one_sentence(program: SimpleNamespace, log: str, said: str | None) -> None:
    text = program.report.explain_pip(log, "/v", "3.11.2", "x86_64")
    assert text is None if said is None else said in text and "\n" not in text


def test_last_lines_of_a_log(program: SimpleNamespace) -> None:
    log = "\n".join([*map(str, range(50)), "", "[notice] A new release of pip", "x" * 1000])
    lines = program.report.last_lines(log, 3).splitlines()
    assert lines[:2] == ["  | 48", "  | 49"]
    assert len(lines[2]) < 310


def test_settings_of_other_installations_do_not_reach_pip(
    program: SimpleNamespace, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "https://registry.example/simple")
    (checkout / ".venv").mkdir()
    installer = program.installer.Installer(
        program.venv_state.VenvState(checkout, checkout / ".venv", (), insist=False)
    )
    show = "import os; print({key: value for key, value in os.environ.items() if key.startswith('PIP_')})"
    installer._pip(python=sys.executable, program=["-c", show])
    shown = installer._read_log()
    assert "'PIP_INDEX_URL': 'https://registry.example/simple'" in shown
    assert "'PIP_USER': '0'" in shown
    assert "PIP_TARGET" not in shown
