"""Owns ``campipe replay``: recordings named on the command line, every frame, as fast as possible. Reads no YAML."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.commands.options import (
    DEFAULT_PUBLISH,
    Subparsers,
    add_engine,
    add_settings,
    named,
    number,
    output_file,
    whole_number,
)
from stages.errors import UserError

if TYPE_CHECKING:
    from pipeline.plan import RunPlan


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "replay",
        description="Run recorded video through the whole graph: every frame, none dropped, as fast as possible. The "
        "same recordings, model and options give the same detections each time, whatever the number of executors, "
        "workers or other recordings. Each recording plays the part of a camera that is called after its file "
        "(street.mp4: street, a second one street-2).",
        epilog="Exit status: 0 every recording was played to its end, 1 failed or stopped before that (what was "
        "decoded is delivered all the same), 2 refused input.\n\nNothing is published unless --publish says where: a "
        "replay beside a running site must not take its port, nor mix into what its subscribers see.\n\nExamples:\n"
        "  campipe replay street.mp4\n"
        "  campipe replay *.mp4 --jsonl found.jsonl --report report.json\n"
        "  campipe replay street.mp4 --copies 4 --executors 2 --batch 8\n"
        f"  campipe replay street.mp4 --publish {DEFAULT_PUBLISH} --wait-subscribers 1",
    )
    parser.add_argument("clips", metavar="CLIP", nargs="+", type=named("a video file"), help="a video file")
    work = parser.add_argument_group("what is run")
    work.add_argument(
        "--copies",
        metavar="N",
        type=whole_number(1, 1000),
        default=1,
        help="play each clip N times side by side, 1 to 1000 (default: 1)",
    )
    work.add_argument(
        "--max-frames", metavar="N", type=whole_number(1), help="stop each clip after N frames (default: no limit)"
    )
    work.add_argument(
        "--model",
        metavar="MODEL",
        type=named("a model"),
        help="a name that `campipe models list` shows, or the path of a description",
    )
    work.add_argument(
        "--confidence",
        metavar="SCORE",
        type=number(0, 1),
        help="leave objects with a lower score out, 0 to 1 (default: what the model's description says)",
    )
    work.add_argument("--device", metavar="DEVICE", type=named("a device"), help="where the model runs (default: cpu)")
    work.add_argument(
        "--executors",
        metavar="N",
        type=whole_number(1, 64),
        help="batches at work at the same time (default: by cores)",
    )
    work.add_argument("--batch", metavar="N", type=whole_number(1, 64), help="at most N frames per batch")
    work.add_argument(
        "--nms-workers", metavar="N", type=whole_number(1, 64), help="processes for post-processing (default: by cores)"
    )
    add_settings(work)
    results = parser.add_argument_group("where detections go")
    results.add_argument(
        "--jsonl",
        metavar="OUT",
        type=output_file,
        help="a file with one JSON object a line, in an order that is the same each time; with {camera} in its name, "
        "one file per camera",
    )
    results.add_argument(
        "--publish",
        metavar="ADDRESS",
        type=named("an address"),
        help=f"publish on ZeroMQ at ADDRESS, such as {DEFAULT_PUBLISH} (default: nowhere)",
    )
    results.add_argument(
        "--wait-subscribers",
        metavar="N",
        type=whole_number(0, 10_000),
        default=0,
        help="with --publish: begin when N subscribers are there, so that they miss nothing (default: 0)",
    )
    add_engine(parser)


def run(args: argparse.Namespace) -> int:
    """Run it."""
    from pipeline.commands.drive import run_to_end
    from pipeline.commands.outputs import Inputs

    if args.wait_subscribers and not args.publish:
        raise UserError(
            f"--wait-subscribers {args.wait_subscribers}: nothing is published; add --publish {DEFAULT_PUBLISH}"
        )

    inputs = Inputs()
    for clip in args.clips:
        inputs.add(clip, "a recording that is played")
    if args.model is not None and args.model.endswith((".yaml", ".yml")):
        inputs.add(args.model, "the model's description")

    def make() -> RunPlan:
        from pipeline.config import replay_site, resolve
        from pipeline.planning import make_plan

        site = replay_site(
            args.clips,
            args.model,
            args.device,
            args.copies,
            jsonl=args.jsonl,
            merged=args.jsonl is not None and "{camera}" not in args.jsonl,
            publish=args.publish,
            executors=args.executors,
            nms_workers=args.nms_workers,
            max_batch=args.batch,
            max_frames=args.max_frames,
            overrides=[*confidence_settings(args.clips, args.copies, args.confidence), *args.settings],
        )
        inputs.add_site(site)
        return make_plan(resolve(site), in_process=args.in_process)

    return run_to_end(args, make, wait_subscribers=args.wait_subscribers, inputs=inputs, whole=True)


def confidence_settings(clips: Sequence[str], copies: int, confidence: float | None) -> list[str]:
    """``--confidence`` as settings of every camera; they come before ``--set``, which is more particular and wins."""
    from pipeline.config.replay import clip_name, unique_names

    if confidence is None:
        return []
    names = unique_names([clip_name(clip) for clip in clips for _ in range(copies)])
    return [f"camera.{name}.confidence={confidence!r}" for name in names]
