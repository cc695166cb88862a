"""Owns the command line: which commands there are, exit status, and how refusals look. Does not own any command.

Exit status: 0 done, 1 failed while running, 2 refused input, 130 interrupted before there was a run to stop. Of the
commands' modules only the one that is asked for is imported, so that ``campipe --help`` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import select
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from pipeline import __version__
from pipeline.commands.options import Parser, help_columns
from pipeline.commands.standard_streams import discard_stdout, open_closed_streams, show_what_can_be_shown
from stages.errors import CampipeError, UserError

DONE: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
OUT_OF_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
TRACEBACK: Final = "--traceback"
ANYWHERE: Final = ("subscribe",)  # commands that read no file


class Command(NamedTuple):
    """One command; ``module`` has ``add_parser(subparsers)`` and ``run(args) -> int``."""

    name: str
    module: str
    group: str
    says: str
    example: str


COMMANDS: Final = (
    Command(
        "demo",
        "pipeline.commands.demo",
        "First steps",
        "two cameras on the clip that comes with campipe",
        "campipe demo",
    ),
    Command(
        "check",
        "pipeline.commands.check",
        "First steps",
        "try every source and model of a site, say what it needs and whether it fits",
        "campipe check site.yaml",
    ),
    Command(
        "run",
        "pipeline.commands.run",
        "Run",
        "run the cameras of a site until they end or you stop it",
        "campipe run site.yaml --set camera.gate-1.confidence=0.4",
    ),
    Command(
        "replay",
        "pipeline.commands.replay",
        "Run",
        "recorded video: every frame, as fast as possible, the same result each time",
        "campipe replay clip.mp4 --jsonl out.jsonl",
    ),
    Command(
        "ctl",
        "pipeline.commands.ctl",
        "Run",
        "change the cameras of a running site: add, remove, pause, resume, reload, status",
        "campipe ctl pause gate-1",
    ),
    Command(
        "subscribe",
        "pipeline.commands.subscribe",
        "Look",
        "show the detections that a running campipe publishes",
        "campipe subscribe tcp://127.0.0.1:5600 --camera gate-1",
    ),
    Command(
        "graph",
        "pipeline.commands.graph",
        "Look",
        "print the graph of a site: nodes, channels, workers",
        "campipe graph site.yaml",
    ),
    Command(
        "bench",
        "pipeline.commands.bench",
        "Measure",
        "how near to its ceiling it runs here, how many streams it carries, how late frames are",
        "campipe bench saturate --memory",
    ),
    Command(
        "models",
        "pipeline.commands.models",
        "Models",
        "list and fetch models; describe, try and quantise your own",
        "campipe models list",
    ),
)
BY_NAME: Final = {command.name: command for command in COMMANDS}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give the exit status; never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    show_what_can_be_shown()
    try:
        status = _dispatch([argument for argument in arguments if argument != TRACEBACK])
        sys.stdout.flush()
    except UserError as error:
        for problem in error.problems:
            _complain(problem)
        return REFUSED
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError as error:
        if not _reader_gone(sys.stdout):
            return _internal_error(error, arguments)
        discard_stdout()  # whoever read has seen enough (`| head`)
        return DONE
    except OSError as error:
        if error.errno not in OUT_OF_ROOM:
            return _internal_error(error, arguments)
        discard_stdout()
        _complain(f"failed: {error}")
        return FAILED
    except CampipeError as error:
        _complain(f"failed: {error}")
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last place where an error can be told in one line
        return _internal_error(error, arguments)
    return status


def _refuse_without_folder() -> None:
    """Most paths count from the current folder; without one, what fails first would be told instead."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the folder that this was started in exists no longer; change to one that does") from None


def _dispatch(arguments: list[str]) -> int:
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    if named == "help":
        arguments = [argument for argument in arguments if argument != "help"] + ["--help"]
        named = next((argument for argument in arguments if not argument.startswith("-")), None)
    if named is not None and named not in BY_NAME:
        raise UserError(f"there is no command {named!r}{_did_you_mean(named, BY_NAME)} `campipe --help` lists them")
    parser = Parser(prog="campipe", usage="campipe COMMAND …", add_help=False)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    if named is None:
        chosen, unknown = parser.parse_known_args(arguments)
        if unknown:
            raise UserError(_unknown_option(unknown[0], ("--version", "--help"), "campipe"))
        if chosen.version:
            print(f"campipe {__version__}")  # noqa: T201 - it is what the command is for
            return DONE
        print(help_text(), file=sys.stdout if chosen.help else sys.stderr)
        return DONE if chosen.help else REFUSED
    module = importlib.import_module(BY_NAME[named].module)
    subparsers = parser.add_subparsers(prog="campipe", dest="command", metavar="COMMAND")
    module.add_parser(subparsers)
    command_parser: argparse.ArgumentParser = subparsers.choices[named]
    try:
        args, unknown = parser.parse_known_args(arguments)
    except SystemExit as leaving:  # --help of the command
        return leaving.code if isinstance(leaving.code, int) else DONE
    if unknown:
        options = [option for action in command_parser._actions for option in action.option_strings]
        raise UserError(_unknown_option(unknown[0], options, f"campipe {named}"))
    if named not in ANYWHERE:
        _refuse_without_folder()
    status = module.run(args)
    return int(status)


def _unknown_option(given: str, known: Sequence[str], prog: str) -> str:
    name = given.partition("=")[0]
    return f"{prog} has no use for {given!r}{_did_you_mean(name, known)} `{prog} --help` lists what it takes"


def _did_you_mean(word: str, known: Sequence[str] | dict[str, Command]) -> str:
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ";"


def help_text() -> str:
    """What ``campipe --help`` prints: the commands by group, each with an example, wrapped to the terminal."""
    columns = help_columns()
    lines = [
        "usage: campipe COMMAND …",
        "",
        *textwrap.wrap(
            "Multi-camera video analytics: recordings and cameras in, detections out, on ZeroMQ and in files.", columns
        ),
    ]
    name_cells = max(len(command.name) for command in COMMANDS) + 4
    group = ""
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            lines += ["", f"{group}:"]
        says = textwrap.wrap(command.says, columns - name_cells) or [""]
        lines.append(f"  {command.name:<{name_cells - 2}}{says[0]}")
        lines += [" " * name_cells + line for line in (*says[1:], f"$ {command.example}")]
    lines += [
        "",
        *textwrap.wrap("`campipe COMMAND --help` tells all of one command, `campipe --version` the version.", columns),
        "",
        *textwrap.wrap(
            "Exit status: 0 done, 1 failed while running or stopped too early (see each command's help), 2 refused "
            "input (each problem on a line of its own).",
            columns,
        ),
    ]
    return "\n".join(lines)


def _complain(problem: str) -> None:
    """One problem, one line on stderr, whatever is in it."""
    from pipeline.observe.logs import printable, redact

    with contextlib.suppress(OSError, ValueError):
        print(f"campipe: {printable(redact(problem))}", file=sys.stderr, flush=True)  # noqa: T201


def _reader_gone(stream: TextIO) -> bool:
    """Whether ``stream`` is a pipe that nobody reads any more: an error of that kind from elsewhere is none of its."""
    try:
        poller = select.poll()
        poller.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poller.poll(0))
    except (OSError, ValueError):
        return False


def _lacking(error: Exception) -> str | None:
    """What the machine has not got, and the remedy, where an error means nothing but that."""
    if isinstance(error, MemoryError):
        return "no memory is left; free some, or raise the limit (ulimit -v, or a container's)"
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return (
            "no further thread may be started; raise the limit (ulimit -u, TasksMax= of systemd, --pids-limit of a "
            "container), or end other programs of this user"
        )
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        return "there is no folder for temporary files; let TMPDIR name one that can be written and has space"
    return None


def _internal_error(error: Exception, arguments: Sequence[str]) -> int:
    import tempfile
    import traceback

    from pipeline.observe.logs import redact

    if TRACEBACK not in arguments and (lacking := _lacking(error)):
        _complain(f"failed: {lacking}")
        return FAILED
    trace = redact("".join(traceback.format_exception(error)))
    what = f"internal error: {type(error).__name__}: {error}"
    if TRACEBACK in arguments:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(trace)
        _complain(f"{what} (please report it with the traceback above)")
        return FAILED
    try:
        with tempfile.NamedTemporaryFile("w", prefix="campipe-", suffix=".txt", delete=False, encoding="utf-8") as file:
            file.write(trace)
        _complain(f"{what} (please report; traceback in {file.name}, or with --traceback)")
    except OSError:
        _complain(f"{what} (please report; --traceback shows the traceback)")
    return FAILED
