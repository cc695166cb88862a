"""Owns the parser class and the options that several commands share. Does not own any command.

Imported by ``campipe --help``: nothing heavy may be imported here.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

from stages.errors import UserError

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Group: TypeAlias = "argparse._ArgumentGroup | argparse.ArgumentParser"

DEFAULT_PUBLISH: Final = "tcp://127.0.0.1:5600"
MAX_HELP_COLUMNS: Final = 100  # longer lines are hard to read, however wide the terminal


def help_columns() -> int:
    """Width of help texts on this terminal."""
    text = os.environ.get("COLUMNS", "")
    try:
        columns = int(text) if text.isdecimal() else os.get_terminal_size(sys.__stdout__.fileno()).columns  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):  # no terminal, closed, not there at all
        columns = 80
    return max(40, min(MAX_HELP_COLUMNS, columns))


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs to the terminal, and leaves indented lines (examples) as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=help_columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for paragraph in textwrap.dedent(text).strip().split("\n\n"):
            if any(line.startswith("  ") for line in paragraph.splitlines()):
                lines.append(textwrap.indent(paragraph, indent))
            else:
                lines.append(
                    textwrap.fill(" ".join(paragraph.split()), width, initial_indent=indent, subsequent_indent=indent)
                )
        return "\n\n".join(lines)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UserError, takes no abbreviations, and wraps its help to the terminal."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)  # an abbreviation would change its meaning with the next new option
        kwargs.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Refuse: exit status 2 is given by ``cli``, in the form of all refusals."""
        raise UserError(f"{message} (`{self.prog} --help` lists what there is)")


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """For ``type=``: a whole number from ``least`` to ``most``."""
    bounds = f"a whole number from {least} to {most}" if most is not None else f"a whole number, {least} or more"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
        return value

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    """For ``type=``: a number from ``least`` to ``most``."""
    bounds = f"a number from {least:g} to {most:g}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {bounds}") from None
        if not least <= value <= most:  # also refuses nan
            raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
        return value

    return parse


def named(what: str) -> Callable[[str], str]:
    """For ``type=``: text that is not empty, as an unset variable of the shell's would leave it."""

    def parse(text: str) -> str:
        if not text:
            raise argparse.ArgumentTypeError(f"'' names nothing; name {what}")
        return text

    return parse


def output_file(text: str) -> str:
    """For ``type=``: the path of a file to write."""
    if text == "-":
        raise argparse.ArgumentTypeError("'-' has no meaning here; write /dev/stdout for the standard output")
    return named("a file")(text)


def setting(text: str) -> str:
    """For ``type=``: ``KEY=VALUE``; whether the key exists is for the configuration to say."""
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE, such as camera.gate-1.confidence=0.4")
    return text


def add_settings(parser: Group) -> None:
    """``--set``."""
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=setting,
        help="change one value of the configuration, such as camera.gate-1.confidence=0.4; may be given several times",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Options of commands that run an engine."""
    output = parser.add_argument_group("what is shown and kept")
    output.add_argument(
        "--report",
        metavar="FILE",
        type=output_file,
        help="write what became of every frame to FILE as JSON, also after a failure",
    )
    output.add_argument(
        "--view",
        choices=("auto", "table", "lines", "none"),
        default="auto",
        help="progress as a live table, as log lines, or not at all (auto: a table on a terminal, else lines)",
    )
    output.add_argument(
        "--every",
        dest="every_s",
        metavar="SECONDS",
        type=number(0.1, 86_400),
        default=5.0,
        help="with lines: how often, from 0.1 (default: 5)",
    )
    add_logging(output)
    parser.add_argument_group("for debugging").add_argument(
        "--in-process",
        action="store_true",
        help="run the whole graph in this process: same results, slower, every breakpoint works",
    )


def add_logging(group: Group) -> None:
    """``--log-format`` and ``--log-level``."""
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="form of log lines on stderr (default: text)"
    )
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least weight of a log line (default: info)",
    )
