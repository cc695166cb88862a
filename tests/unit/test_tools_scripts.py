"""The shell side of tools/demo, tools/test and .ci/run, with stand-ins for Python and pytest; nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("tools/demo", "tools/test", "tools/environment.sh", ".ci/run")

# Stands for the Python that environment.sh finds: it says what it is when asked, and "installs" two programs.
FINDER = """#!/bin/sh
case $1 in
    -c) echo "whole $0" ;;
    -I)
        shift 2
        echo "prepare $*" >> "$JOURNAL"
        if [ -n "${PREPARE_STATUS-}" ]; then exit "$PREPARE_STATUS"; fi
        while [ "$1" != --venv ]; do shift; done
        mkdir -p "$2/bin"
        for program in campipe python lint-imports; do cp "$INSIDE" "$2/bin/$program"; done
        ;;
esac
"""

# Stands for what is installed: notes how it was called, and fails where the test says so.
INSIDE = """#!/bin/sh
case "$1 $2" in
    "-c "*usable_cores*) echo "${WORKERS-1}"; exit ;;
    "-c "*) echo "whole $FINDER"; exit ;;
esac
for argument in "$@"; do line="$line <$argument>"; done
echo "${0##*/}$line in $PWD" >> "$JOURNAL"
case "$line" in
    *"<worksteal>"*) exit "${WORKING_STATUS-0}" ;;
    *"<pytest> <-m>"*) exit "${TEST_STATUS-0}" ;;
    *"<ruff> <check>"*) exit "${RUFF_STATUS-0}" ;;
esac
"""


class Checkout:
    """A copy of the scripts in a folder with a blank in its name, and stand-ins for all that they start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "a check out"
        self.journal = folder / "journal"
        self.elsewhere = folder / "else where"
        self.elsewhere.mkdir()
        for script in SCRIPTS:
            (self.root / script).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / script, self.root / script)
        self.finder = self._program("finder", FINDER)
        inside = self._program("inside", INSIDE)
        self.settings = {
            "PATH": os.environ["PATH"],
            "CAMPIPE_PYTHON": str(self.finder),
            "FINDER": str(self.finder),
            "INSIDE": str(inside),
            "JOURNAL": str(self.journal),
        }

    def _program(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(self, *command: str | Path, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=cwd or self.elsewhere,
            env=self.settings | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def calls(self) -> list[str]:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        self.journal.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_parses(script: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    if shell == "dash" and script == ".ci/run":
        pytest.skip("says itself that it is bash")
    run = subprocess.run([shell, "-n", ROOT / script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("script", [script for script in SCRIPTS if not script.endswith(".sh")])
def test_can_be_started(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


# --- which Python -----------------------------------------------------------------------------------------------------


def empty_path(folder: Path, **programs: str) -> str:
    """A PATH with what the scripts need and no Python but those given, by what they say of themselves."""
    folder.mkdir()
    for name in ("sh", "dirname", "readlink", "id", "mktemp", "mkdir", "cp", "cat"):
        (folder / name).symlink_to(shutil.which(name) or "")
    for name, answer in programs.items():
        (folder / name).write_text(f"#!/bin/sh\necho {answer}\n" if answer else "#!/bin/sh\nexit 127\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("programs", "chosen", "said"),
    [
        ({}, None, "3.11 or newer is needed (no python3 is in PATH)"),
        ({"python3": "old 3.9"}, None, "(python3 is Python 3.9)"),
        ({"python3.12": "incomplete ssl", "python3": "old 3.10"}, None, "(python3.12 lacks the module ssl, python3 is"),
        ({"python3.13": ""}, None, "is needed"),  # a shim of a version switcher, with nothing behind it
        ({}, "no-such-python", "CAMPIPE_PYTHON=no-such-python: there is no such program"),
        ({"python3": "old 3.9"}, "python3", "CAMPIPE_PYTHON=python3 cannot be used (python3 is Python 3.9)"),
        ({"ls": "somefile"}, "ls", "CAMPIPE_PYTHON=ls cannot be used (it is no Python)"),
    ],
    ids=["none", "old", "incomplete", "shim", "missing-choice", "old-choice", "not-python"],
)
@pytest.mark.parametrize("script", ["demo", "test"])
def test_refuses_without_a_fit_python(
    checkout: Checkout, tmp_path: Path, script: str, programs: dict[str, str], chosen: str | None, said: str
) -> None:
    settings = {"PATH": empty_path(tmp_path / "bin", **programs), "CAMPIPE_PYTHON": chosen or ""}
    run = checkout.run(checkout.root / "tools" / script, **settings)
    assert (run.returncode, run.stdout) == (2, "")
    assert said in run.stderr
    assert "Traceback" not in run.stderr
    if chosen is None:
        assert "sudo apt-get install python3 python3-venv" in run.stderr


@pytest.mark.parametrize(
    ("programs", "wanted"),
    [
        ({"python3.13": "whole FINDER", "python3": "whole other"}, "FINDER"),
        ({"python3.13": "", "python3.12": "whole FINDER"}, "FINDER"),
        ({"python3.13": "bare other", "python3.11": "whole FINDER"}, "FINDER"),  # one with ensurepip is preferred
        ({"python3.13": "bare FINDER", "python3": "bare other"}, "FINDER"),
    ],
    ids=["newest", "working", "whole", "bare"],
)
def test_takes_the_first_python_that_will_do(
    checkout: Checkout, tmp_path: Path, programs: dict[str, str], wanted: str
) -> None:
    programs = {name: answer.replace(wanted, str(checkout.finder)) for name, answer in programs.items()}
    run = checkout.run(
        checkout.root / "tools" / "demo", PATH=empty_path(tmp_path / "bin", **programs), CAMPIPE_PYTHON=""
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert checkout.calls()[0].startswith("prepare ")


def test_keeps_the_python_that_made_the_environment(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run(checkout.root / "tools" / "demo")
    checkout.calls()
    path = empty_path(tmp_path / "bin", **{"python3.13": "whole /other/python"})
    run = checkout.run(checkout.root / "tools" / "demo", PATH=path, CAMPIPE_PYTHON="")
    assert (run.returncode, run.stderr) == (0, "")
    assert "--insist" not in checkout.calls()[0]


# --- tools/demo -------------------------------------------------------------------------------------------------------


def test_demo_runs_from_any_folder_and_through_a_link(checkout: Checkout) -> None:
    link = checkout.elsewhere / "show"
    link.symlink_to(checkout.root / "tools" / "demo")
    run = checkout.run(link, "--flag", "two words", "")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    prepare, campipe = checkout.calls()
    venv = checkout.root / ".venv"
    assert prepare == f"prepare --checkout {checkout.root} --venv {venv} --extras  --insist"
    assert campipe == f"campipe <demo> <--flag> <two words> <> in {checkout.elsewhere}"


def test_demo_with_an_environment_elsewhere(checkout: Checkout) -> None:
    checkout.run(checkout.root / "tools" / "demo", CAMPIPE_VENV="my env")
    assert f"--venv {checkout.elsewhere}/my env " in checkout.calls()[0]


@pytest.mark.parametrize("script", ["tools/demo", "tools/test", ".ci/run"])
def test_failed_preparation_ends_it(checkout: Checkout, script: str) -> None:
    run = checkout.run(checkout.root / script, PREPARE_STATUS="2")
    assert run.returncode == 2
    assert len(checkout.calls()) == 1


def test_pythonpath_of_others_does_not_leak_in(checkout: Checkout) -> None:
    program = checkout.folder / "inside"
    program.write_text('#!/bin/sh\necho "PYTHONPATH=${PYTHONPATH-unset} telemetry=$ORT_DISABLE_TELEMETRY"\n')
    run = checkout.run(checkout.root / "tools" / "demo", PYTHONPATH="/opt/ros/python")
    assert run.stdout == "PYTHONPATH=unset telemetry=1\n"


# --- tools/test -------------------------------------------------------------------------------------------------------

FAST, ALL, LONG = (f"python <-m> <pytest> <-m> <{marks}>" for marks in ("not slow and not long", "not long", "long"))
WORKING = ["tests/unit", "tests/property", "tests/contract", "tests/ascend", "tests/e2e"]


def halves(marks: str, workers: int = 2, lines: int = 2) -> list[str]:
    shared = "".join(f" <{path}>" for path in WORKING)
    others = "".join(f" <--ignore> <{path}>" for path in WORKING)
    return [
        f"{marks} <-n> <{workers}> <--dist> <worksteal>{shared}",
        f"{marks}{others} <-n> <{lines}> <--dist> <loadfile> <--no-loadscope-reorder>",
    ]


@pytest.mark.parametrize(
    ("arguments", "settings", "status", "runs"),
    [
        ([], {}, 0, [ALL]),
        (["--fast"], {}, 0, [FAST]),
        (["--long"], {}, 0, [LONG]),
        (["--long", "-x"], {}, 0, [f"{LONG} <-x>"]),
        ([], {"TEST_STATUS": "1"}, 1, [ALL]),
        ([], {"TEST_STATUS": "5"}, 5, [ALL]),  # no tests at all is a mistake
        (["-k", "a b", "-x"], {}, 0, ["python <-m> <pytest> <-k> <a b> <-x>"]),
        (["--fast", "-x"], {"TEST_STATUS": "3"}, 3, [f"{FAST} <-x>"]),
        ([], {"WORKERS": "2"}, 0, halves(ALL)),
        ([], {"WORKERS": "32"}, 0, halves(ALL, 32, 4)),
        (["--fast"], {"WORKERS": "2"}, 0, halves(FAST)),
        (["--fast", "-x"], {"WORKERS": "2"}, 0, [f"{FAST} <-x>"]),
        (["-x"], {"WORKERS": "2"}, 0, ["python <-m> <pytest> <-x>"]),
        ([], {"WORKERS": "2", "WORKING_STATUS": "1", "TEST_STATUS": "3"}, 1, halves(ALL)),
        ([], {"WORKERS": "2", "WORKING_STATUS": "2"}, 2, halves(ALL)[:1]),  # Ctrl-C
        ([], {"WORKERS": "2", "WORKING_STATUS": "5"}, 5, halves(ALL)),
        ([], {"WORKERS": "2", "TEST_STATUS": "1"}, 1, halves(ALL)),
    ],
)
def test_test_runs_those_that_work_then_those_that_wait(
    checkout: Checkout, arguments: list[str], settings: dict[str, str], status: int, runs: list[str]
) -> None:
    run = checkout.run(checkout.root / "tools" / "test", *arguments, **settings)
    assert run.returncode == status
    prepare, *calls = checkout.calls()
    assert "--extras test" in prepare
    assert calls == [f"{call} in {checkout.root}" for call in runs]
    assert run.stderr.count("campipe: pytest ") == len(runs)


def test_test_without_xdist_says_so_where_there_are_cores_to_share(checkout: Checkout) -> None:
    run = checkout.run(checkout.root / "tools" / "test", WORKERS="none")
    assert run.returncode == 2
    assert ".venv lacks pytest-xdist" in run.stderr
    assert len(checkout.calls()) == 1
    assert checkout.run(checkout.root / "tools" / "test", "-x", WORKERS="none").returncode == 0


def test_test_understands_paths_of_the_callers_folder(checkout: Checkout) -> None:
    unit = checkout.root / "tests" / "unit"
    unit.mkdir(parents=True)
    (unit / "test_a.py").touch()
    checkout.run(
        "../tools/test", "unit/test_a.py::test_b[x y]", "tests/unit", "-k", "unit", cwd=checkout.root / "tests"
    )
    assert f"<{unit}/test_a.py::test_b[x y]> <tests/unit> <-k>" in checkout.calls()[1]


def test_test_help_installs_nothing(checkout: Checkout) -> None:
    run = checkout.run(checkout.root / "tools" / "test", "--help")
    assert run.returncode == 0
    assert "--fast" in run.stdout
    assert checkout.calls() == []


# --- .ci/run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ruff_status", [0, 1])
def test_ci_runs_every_step_and_tells_each_ones_time(checkout: Checkout, ruff_status: int) -> None:
    run = checkout.run("bash", checkout.root / ".ci" / "run", RUFF_STATUS=str(ruff_status), CI="true")
    assert run.returncode == ruff_status
    calls = checkout.calls()
    assert "--extras dev,test" in calls[0]
    for wanted in ("<ruff> <check>", "<ruff> <format> <--check>", "<mypy>", "lint-imports", "vendor_door", ALL):
        assert any(wanted in call for call in calls), wanted
    steps = re.findall(r"^ +\d+ s  (\S+) +(passed|FAILED)", run.stdout, re.MULTILINE)
    assert [name for name, _ in steps] == [
        "install",
        "lint",
        "format",
        "types",
        "imports",
        "vendor-door",
        "schemas",
        "tests",
    ]
    assert [name for name, outcome in steps if outcome == "FAILED"] == ["lint"] * ruff_status


def test_ci_fails_with_the_tests(checkout: Checkout) -> None:
    run = checkout.run("bash", checkout.root / ".ci" / "run", TEST_STATUS="1")
    assert run.returncode == 1
