"""Owns ``campipe ctl``: changes the cameras of a running site. Does not own what is said (``control.protocol``)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.commands.options import Subparsers, named, number
from stages.errors import UserError

if TYPE_CHECKING:
    from pipeline.control.protocol import Answer, Request

DONE: Final = 0
FAILED: Final = 1
ABOUT_CAMERAS: Final = ("remove", "pause", "resume")


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "ctl",
        description="Change the cameras of a running site, or ask how they are. add FILE takes a camera's file into "
        "the run; remove CAMERA takes a camera out until its file changes; pause and resume (which also starts a "
        "camera anew that has failed or ended); reload reads the site's files now; status. Each is done as a whole or "
        "not at all. Only the user who runs the site may, and root.",
        epilog="Exit status: 0 done, 1 no answer, 2 refused.\n\nExamples:\n"
        "  campipe ctl status\n"
        "  campipe ctl --site site.yaml add cameras/gate-2.yaml\n"
        "  campipe ctl pause gate-1\n"
        "  campipe ctl status --json | jq '.cameras[].state'",
    )
    parser.add_argument("action", choices=("status", "add", "remove", "pause", "resume", "reload"), help="what to do")
    parser.add_argument("subject", metavar="FILE|CAMERA", nargs="?", help="a camera's file to add, or a camera's name")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--site", metavar="SITE", type=named("a site file"), help="the run of this site's file")
    which.add_argument("--socket", metavar="PATH", type=named("a socket"), help="the run that listens at this socket")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        metavar="SECONDS",
        type=number(0.1, 3600),
        default=60.0,
        help="how long to wait for the answer (default: 60)",
    )


def run(args: argparse.Namespace) -> int:
    """Ask, and print what is answered."""
    from pipeline.config.sources import NOT_UTF8, is_utf8
    from pipeline.control.client import ask, find_socket

    if args.site and not is_utf8(Path(args.site).absolute()):
        raise UserError(f"the site's file {args.site} {NOT_UTF8}")
    request = _request(args.action, args.subject)
    path = Path(args.socket) if args.socket else find_socket(args.site)
    answer = ask(path, request, args.timeout_s)
    if not answer.ok:
        if args.json:
            _print(json.dumps({"ok": False, "problems": answer.text}))
        raise UserError.of(answer.text)
    if args.json:
        _print(json.dumps(answer.status if answer.status is not None else {"ok": True, "text": answer.text}))
    else:
        for line in _lines(answer):
            _print(line)
    return DONE


def _request(action: str, subject: str | None) -> Request:
    from pipeline.config.sources import NOT_UTF8, is_utf8
    from pipeline.control.protocol import Request

    if subject and not is_utf8(Path(subject).absolute() if action == "add" else Path(subject)):
        raise UserError(f"{action}: {subject} {NOT_UTF8 if action == 'add' else 'is not UTF-8, which no camera is'}")
    if action == "add":
        if not subject:
            raise UserError("add needs the file of a camera, such as cameras/gate-2.yaml")
        return Request(do="add", file=str(Path(subject).absolute()))
    if action in ABOUT_CAMERAS:
        if not subject:
            raise UserError(f"{action} needs the name of a camera; `campipe ctl status` lists them")
        return Request(do=action, camera=subject)  # type: ignore[arg-type]
    if subject:
        raise UserError(f"{action} takes no {subject!r}; it is about the whole site")
    return Request(do=action)  # type: ignore[arg-type]


def _lines(answer: Answer) -> list[str]:
    if answer.status is None:
        return answer.text
    from pipeline.observe.figures import causes, duration, plural

    status: dict[str, Any] = answer.status
    cameras = status["cameras"]
    widest = max([len(camera["name"]) for camera in cameras], default=0)
    up = duration(status["uptime_s"])
    lines = [f"{status['site']}: up {up}, {plural(len(cameras), 'camera')}"]
    for camera in cameras:
        figures = f"{camera['fps_out']:6.1f} frames/s  {camera['published']} published"
        dropped = causes(camera["dropped"])
        lines.append(
            f"  {camera['name']:<{widest}}  {camera['state']:<12} {figures}"
            + (f", dropped: {dropped}" if dropped else "")
            + (f"  ({camera['detail']})" if camera["detail"] else "")
        )
    lines += [f"not in use: {problem}" for problem in status.get("problems", ())]
    return lines


def _print(text: str) -> None:
    from pipeline.observe.logs import printable

    sys.stdout.write("".join(f"{printable(line)}\n" for line in text.splitlines()))
