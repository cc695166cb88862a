"""Owns ``campipe check``: what is tried of a site (``preflight``), printed and judged. Starts no run."""

from __future__ import annotations

import argparse

from pipeline.commands.options import Subparsers, add_settings, named
from stages.errors import UserError


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "check",
        description="Try a site before it is run: fill in its secrets, open every source and every model, see whether "
        "every sink could be opened, and say what each camera will use of shared memory and processes, how much memory "
        "the run will take, and whether this machine has that. Cameras are connected to, many at a time, and each must "
        "send a picture within 20 s. Every problem is told, not the first one alone. Exit status 0: it can be run; 2: "
        "it can't.",
        epilog="Examples:\n  campipe check site.yaml\n  campipe check site.yaml --set batch.max_batch=4",
    )
    parser.add_argument("site", metavar="SITE", type=named("a site file"), help="the site's YAML file")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Try everything, print what was found, raise UserError with every problem."""
    from pipeline.commands.held import bytes_held_by_run
    from pipeline.commands.outputs import Inputs, judge_outputs
    from pipeline.config import load_site, resolve
    from pipeline.observe import logs
    from pipeline.planning import draft_plan, needs, over_limits
    from pipeline.preflight.memory_forecast import forecast
    from pipeline.preflight.summary import render, too_little, too_little_memory
    from pipeline.preflight.trial import try_all, try_sinks
    from pipeline.transport.memory import available_bytes

    site = load_site(args.site, args.settings)
    inputs = Inputs()
    inputs.add(args.site, "the site's file")
    inputs.add_site(site)
    undo = logs.configure("text", "warning")  # what the plan does otherwise than described
    try:
        plan = draft_plan(resolve(site))
    finally:
        undo()
    runs = runs_now(args.site)
    sources, devices, problems = try_all(plan, runs=runs)
    sinks, bad_sinks, occupied = try_sinks(plan)
    problems += bad_sinks if runs else bad_sinks + occupied
    problems += judge_outputs(inputs, plan, None).problems
    expected = forecast(plan, sources, {name: found.own_bytes for name, found in devices.items()})
    # what the run holds now is free for the one that would take its place
    held_bytes = bytes_held_by_run(args.site) if runs else 0
    need = needs(plan, held_bytes or 0)
    lines = [*render(plan, need, sources, devices, expected, judged=held_bytes is not None), *sinks]
    print("\n".join(lines), flush=True)  # noqa: T201 - it is what the command is for
    problems += over_limits(plan, need, runs=runs)
    if held_bytes is None:
        print("what its run holds now can't be told, so whether the memory is enough is not judged")  # noqa: T201
    elif not need.fits:
        problems.append(too_little(need))
    elif expected.all_bytes > (there := available_bytes() + held_bytes):
        problems.append(too_little_memory(expected, there))
    if problems:
        raise UserError.of(problems)
    fits = "" if held_bytes is None else ", and it fits"
    verdict = "runs now, and has what is occupied" if runs and occupied else "can be run"
    print(f"all sources and models work{fits}: this site {verdict}")  # noqa: T201
    return 0


def runs_now(site: str) -> bool:
    """Whether a run of this very site's file can be asked; what is occupied is its own then."""
    from pipeline.control.client import find_socket

    try:
        find_socket(site)
    except UserError as error:
        return "runs fit" in error.problems[0]
    return True
