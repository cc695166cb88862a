"""Owns ``campipe run``: the cameras of a site, until they end or are stopped. Does not own configuration or engine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pipeline.commands.options import Subparsers, add_engine, add_settings, named

if TYPE_CHECKING:
    from pipeline.plan import RunPlan


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "run",
        description="Run the cameras of a site until all recordings have ended or you stop it. Ctrl-C or SIGTERM "
        "(or closing the terminal, unless started with nohup) finishes the frames in flight and delivers what was "
        "found; a second one leaves at once.",
        epilog="Exit status: 0 all recordings have ended, or a stop has delivered all that was decoded; 1 failed, or a "
        "stop came before the first frame or left decoded frames behind; 2 refused input.\n\nExamples:\n"
        "  campipe run site.yaml\n"
        "  campipe run site.yaml --set camera.gate-1.confidence=0.4 --report run.json\n"
        "  campipe run site.yaml --log-format json 2>> campipe.log",
    )
    parser.add_argument("site", metavar="SITE", type=named("a site file"), help="the site's YAML file")
    add_settings(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    """Run it."""
    from pipeline.commands.drive import run_to_end
    from pipeline.commands.outputs import Inputs

    inputs = Inputs()
    inputs.add(args.site, "the site's file")

    def make() -> RunPlan:
        from pipeline.config import load_site, resolve
        from pipeline.planning import make_plan

        site = load_site(args.site, args.settings)
        inputs.add_site(site)
        return make_plan(resolve(site), in_process=args.in_process)

    return run_to_end(args, make, inputs=inputs)
