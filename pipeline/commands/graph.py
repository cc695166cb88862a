"""Owns ``campipe graph``: prints the graph of a site. Does not own the graph; starts nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pipeline.commands.options import Subparsers, add_settings, named

if TYPE_CHECKING:
    from pipeline.config import Resolved


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "graph",
        description="Print the graph of a site: nodes and how many workers each has, channels between them and what "
        "happens when one is full. Nothing is started or opened.",
        epilog="Example:\n  campipe graph site.yaml",
    )
    parser.add_argument("site", metavar="SITE", type=named("a site file"), help="the site's YAML file")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from pipeline.config import load_site, resolve
    from pipeline.graph import build
    from pipeline.planning import make_plan

    resolved = resolve(load_site(args.site, args.settings))
    print(printable_lines(build(make_plan(resolved), control_of(resolved)).render()))  # noqa: T201 - what it is for
    return 0


def control_of(resolved: Resolved) -> str:
    """How the cameras of a site can be changed while it runs; empty: not at all."""
    control = resolved.control
    if control is None:
        return ""
    where = f"`campipe ctl --socket {control.socket}`" if control.socket else "`campipe ctl`"
    return f"{where}, and their files as they change" if control.watch else where


def printable_lines(text: str) -> str:
    """The text with what a terminal must not be given shown as escapes."""
    from pipeline.observe.logs import printable

    return "\n".join(map(printable, text.splitlines()))
