"""The command line: help, refusals, exit status, and that it is quick."""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import __version__, cli
from pipeline.cli import COMMANDS, Command, help_text, main
from pipeline.commands import options
from stages.errors import DeviceFailed, UserError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "camera.gate-1.confidence=0.4"
LISTED = "(`campipe run --help` lists what there is)"
ALLOWED = {"models": "ruamel"}  # it reads descriptions, whatever it is asked for
HEAVY = ("numpy", "cv2", "av", "zmq", "pydantic", "ruamel", "onnxruntime", "rich", "msgspec", "multiprocessing")


def campipe(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"} | environ,
    )


def test_version() -> None:
    done = campipe("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"campipe {__version__}\n", "")


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("help",)])
def test_help_names_every_command_with_an_example(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command.name} " in text
        assert f"$ campipe {command.name}" in text


def test_without_a_command_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: campipe COMMAND")


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_help_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = help_text().splitlines()
    assert max(len(line) for line in lines if "$" not in line) <= min(columns, options.MAX_HELP_COLUMNS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_command_has_help_that_fits_and_ends_with_examples(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command.name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: campipe {command.name}")
    assert f"\n  campipe {command.name}" in text
    assert max(map(len, text.splitlines())) <= 80
    assert capsys.readouterr().err == ""


def test_help_imports_nothing_heavy() -> None:
    code = (
        f"import sys; from pipeline.cli import main; main(['--help']); print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_describing_a_command_imports_nothing_heavy(command: Command) -> None:
    code = (
        f"import sys; from pipeline.cli import main; main(['{command.name}', '--help']); "
        f"print([m for m in {HEAVY} if m in sys.modules and m != {ALLOWED.get(command.name)!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_help_is_quick() -> None:
    def cpu_s(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    # CPU time, not time of day, and the best of several: the machine may be busy with something else.
    assert min(cpu_s("-m", "pipeline", "--help") for _ in range(7)) < 0.15


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("rnu", "x"), "there is no command 'rnu'; did you mean 'run'? `campipe --help` lists them"),
        (("replai",), "there is no command 'replai'; did you mean 'replay'? `campipe --help` lists them"),
        (("zzzz",), "there is no command 'zzzz'; `campipe --help` lists them"),
        (("help", "rnu"), "there is no command 'rnu'; did you mean 'run'? `campipe --help` lists them"),
        (
            ("--vesion",),
            "campipe has no use for '--vesion'; did you mean '--version'? `campipe --help` lists what it takes",
        ),
        (
            ("run", "s.yaml", "--rebort", "r"),
            "campipe run has no use for '--rebort'; did you mean '--report'? `campipe run --help` lists what it takes",
        ),
        (
            ("run", "s.yaml", "--rep", "r"),  # an abbreviation is no option
            "campipe run has no use for '--rep'; did you mean '--report'? `campipe run --help` lists what it takes",
        ),
        (("graph", "a", "b"), "campipe graph has no use for 'b'; `campipe graph --help` lists what it takes"),
        (("run",), "the following arguments are required: SITE (`campipe run --help` lists what there is)"),
        (
            ("run", "s.yaml", "--set", "oops"),
            f"argument --set: 'oops' is not of the form KEY=VALUE, such as {EXAMPLE} {LISTED}",
        ),
        (
            ("run", "s.yaml", "--every", "nan"),
            "argument --every: nan is not a number from 0.1 to 86400 (`campipe run --help` lists what there is)",
        ),
    ],
)
def test_refusals_are_one_line_and_exit_2(
    arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"campipe: {problem}\n")


# --- what a command's end leads to ------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Puts a command named ``try`` in the place of all others."""

    def put(act: Callable[[], int]) -> None:
        module = types.ModuleType("campipe_test_command")
        module.add_parser = lambda subparsers: subparsers.add_parser("try")  # type: ignore[attr-defined]
        module.run = lambda _args: act()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.BY_NAME, "try", Command("try", module.__name__, "", "", ""))

    return put


Put = Callable[[Callable[[], int]], None]


def raising(error: BaseException) -> Callable[[], int]:
    def act() -> int:
        raise error

    return act


@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_command_gives_the_exit_status(command: Put, status: int) -> None:
    command(lambda: status)
    assert main(["try"]) == status


def test_every_problem_has_a_line_of_its_own(command: Put, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(UserError("a.yaml:3: confidence: 7", "rtsp://u:geheim@h/: no\n\x1b[31manswer")))
    assert main(["try"]) == 2
    assert capsys.readouterr().err == (
        "campipe: a.yaml:3: confidence: 7\ncampipe: rtsp://***@h/: no\\n\\x1b[31manswer\n"
    )


def test_a_failure_of_ours_is_one_line_and_exit_1(command: Put, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(DeviceFailed("cpu: out of memory")))
    assert main(["try"]) == 1
    assert capsys.readouterr().err == "campipe: failed: cpu: out of memory\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "let TMPDIR name one"),
        (RuntimeError("can't start new thread"), "raise the limit (ulimit -u"),
        (MemoryError(), "no memory is left; free some"),
    ],
)
def test_what_the_machine_lacks_is_no_internal_error(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert main(["check", "site.yaml"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("campipe: failed: ")
    assert words in told
    assert "internal" not in told


def test_an_internal_error_is_one_line_and_its_traceback_is_kept(
    command: Put, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command(raising(KeyError("rtsp://u:geheim@h/")))
    assert main(["try"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    (kept,) = tmp_path.iterdir()
    assert line == (
        f"campipe: internal error: KeyError: 'rtsp://***@h/' (please report; traceback in {kept}, or with --traceback)"
    )
    assert "Traceback (most recent call last)" in kept.read_text()
    assert "geheim" not in kept.read_text()


@pytest.mark.parametrize("arguments", [["try", "--traceback"], ["--traceback", "try"]])
def test_the_traceback_is_shown_when_it_is_asked_for(
    command: Put, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    command(raising(ZeroDivisionError("x")))
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("campipe: internal error: ZeroDivisionError: x (please report it with the traceback above)\n")


def test_an_interrupt_before_there_is_a_run(command: Put, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(KeyboardInterrupt()))
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "campipe: interrupted\n"


def test_a_broken_pipe_from_elsewhere_is_not_kept_quiet(command: Put, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(BrokenPipeError(32, "Broken pipe")))
    assert main(["try"]) == 1
    assert "internal error: BrokenPipeError" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    code = (
        "import sys, types; from pipeline import cli\n"
        "module = types.ModuleType('m'); sys.modules['m'] = module\n"
        "module.add_parser = lambda s: s.add_parser('try')\n"
        "def run(args):\n"
        "    for i in range(100000): print('line', i)\n"
        "    return 5\n"
        "module.run = run\n"
        "cli.BY_NAME['try'] = cli.Command('try', 'm', '', '', '')\n"
        "sys.exit(cli.main(['try']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline() == b"line 0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.wait(30) == 0


def test_a_full_disk_under_stdout_is_told_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    assert (done.returncode, done.stderr) == (1, "campipe: failed: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pipeline import cli\n"
        "cli.main(['--version'])\n"
        f"os.open({str(tmp_path / 'next')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "import subprocess\n"
        "look = 'import os; [os.fstat(n) for n in (0, 1, 2)]'\n"
        "subprocess.run([sys.executable, '-c', look], check=True)\n"
        f"sys.exit([os.readlink(f'/proc/self/fd/{{n}}') for n in (0, 1, 2)].count({str(tmp_path / 'next')!r}))\n"
    )
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0


@pytest.mark.parametrize("command_", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_module_that_describes_itself(command_: Command) -> None:
    module = importlib.import_module(command_.module)
    parser = options.Parser(prog="campipe")
    module.add_parser(parser.add_subparsers())
    assert callable(module.run)


@pytest.mark.parametrize(("text", "ok"), [("1", True), ("0", False), ("65", False), ("x", False), ("1.5", False)])
def test_whole_numbers(text: str, ok: bool) -> None:
    parse = options.whole_number(1, 64)
    if ok:
        assert parse(text) == 1
    else:
        with pytest.raises(argparse.ArgumentTypeError, match="a whole number from 1 to 64"):
            parse(text)
