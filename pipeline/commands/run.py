"""Owns ``campipe run``: the cameras of a site, until they end or are stopped. Does not own configuration or engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.commands.options import Subparsers, add_engine, add_settings, named

if TYPE_CHECKING:
    from pipeline.config import Resolved, Site
    from pipeline.control.desk import ControlDesk
    from pipeline.control.watcher import Fingerprint
    from pipeline.plan import RunPlan

WATCH_EVERY_S: Final = 1.0


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "run",
        description="Run the cameras of a site until all recordings have ended or you stop it; live cameras have no "
        "end. Changes of the site's files are taken as they happen, and `campipe ctl` changes cameras by hand. Ctrl-C "
        "or SIGTERM "
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

    desk: ControlDesk | None = None

    def make() -> RunPlan:
        nonlocal desk
        from pipeline.config import load_site, resolve
        from pipeline.planning import make_plan

        known = look(args.site, args.settings)  # before reading: what is edited from now on is a change
        site = load_site(args.site, args.settings, may_be_empty=not args.in_process)
        resolved = resolve(site)
        if site.control is not None and not args.in_process:
            desk = make_desk(args.site, args.settings, site, resolved, known)
        elif not site.cameras:
            load_site(args.site, args.settings)  # tells what is missing
        inputs.add_site(site)
        return make_plan(resolved, in_process=args.in_process)

    return run_to_end(args, make, inputs=inputs, desk=lambda: desk)


def look(path: str, settings: list[str]) -> Fingerprint:
    """How the site's files look now, from outside."""
    from pipeline.config import cameras_folder
    from pipeline.control.watcher import fingerprint

    return fingerprint(Path(path).absolute(), cameras_folder(path, settings))


def make_desk(
    path: str, settings: list[str], site: Site, resolved: Resolved, known: Fingerprint | None = None
) -> ControlDesk:
    """What changes the cameras of the site while it runs. ``known``: how its files looked before they were read."""
    from pipeline.config import cameras_folder, load_joining, load_site, resolve
    from pipeline.control.desk import ControlDesk
    from pipeline.control.watcher import Watcher

    control = site.control
    assert control is not None
    where = Path(path).absolute()  # not what its links lead to now: releases and ConfigMaps are changed by links
    watcher = Watcher(
        where,
        lambda: cameras_folder(path, settings),
        lambda: resolve(load_site(path, settings, may_be_empty=True, may_miss=True)),
        lambda camera: resolve(load_joining(path, camera, settings)),
        every_s=WATCH_EVERY_S if control.watch else 0,
        known=known,
    )
    return ControlDesk(where, resolved, watcher, Path(control.socket) if control.socket else None)
