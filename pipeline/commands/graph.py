"""Owns ``campipe graph``: prints the graph of a site. Does not own the graph; starts nothing."""

from __future__ import annotations

import argparse

from pipeline.commands.options import Subparsers, add_settings, named


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

    plan = make_plan(resolve(load_site(args.site, args.settings)))
    print(build(plan).render())  # noqa: T201 - it is what the command is for
    return 0
