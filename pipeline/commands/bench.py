"""Owns ``campipe bench``: its options, what it prints and writes. What is measured is ``pipeline.bench``'s."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.commands.options import Group, Subparsers, add_settings, number, output_file, setting, whole_number

if TYPE_CHECKING:
    from pipeline.bench.workload import Workload

DEVICE: Final = "canned:0"
CLIP: Final = "asset:street.mp4"
UNTOLD: Final = {"command", "action", "smoke", "json", "picture", "settings", "options", "traceback"}


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "bench",
        description="Measure campipe on this machine: how near it comes to what its parts can do alone (saturate), "
        "how many paced streams it carries at which latency (density), and what each further camera costs (scale). The "
        "default device is made up: it takes the "
        "times published for an Atlas 300V Pro running YOLOv5s 640 INT8 and no CPU.",
        epilog="Measure on a machine that does nothing else; what is printed begins with what others use of it.\n\n"
        "Examples:\n  campipe bench saturate --memory --picture device.svg\n"
        "  campipe bench saturate --device cpu --cameras 4\n"
        "  campipe bench density --json density.json --picture latency.svg\n  campipe bench scale --steps 1,16,64",
    )
    actions = parser.add_subparsers(dest="action", metavar="saturate|density|scale", required=True)
    saturating = actions.add_parser(
        "saturate",
        help="recordings without pacing, against decode, device and post-processing alone",
        description="Play recordings as fast as possible and hold the rate against two ceilings, measured right before "
        "with the same parts: the slowest part alone, and what the cores could do if nothing but the parts took CPU.",
    )
    saturating.add_argument("--cameras", type=whole_number(1, 1000), default=16, help="how many (default: 16)")
    saturating.add_argument(
        "--memory",
        action="store_true",
        help="decode the clip's beginning once and play that from memory (source.preload): all but decoding",
    )
    _add_common(saturating)
    searching = actions.add_parser(
        "density",
        help="paced streams, raised until one misses its rate; latency at 50, 80 and 100 %% of what passes",
        description="Play paced streams, newest frame first as with cameras, and find how many keep their rate; then "
        "measure latency, cost and drops at 50, 80 and 100 % of that, and beside a dead and a flapping camera.",
    )
    searching.add_argument("--fps", type=whole_number(1, 240), default=25, help="rate of each stream (default: 25)")
    searching.add_argument("--rtsp", action="store_true", help="from a real RTSP server (needs a checkout), not files")
    searching.add_argument("--first", type=whole_number(1, 1000), help="try so many first (default: a guess)")
    searching.add_argument("--most", type=whole_number(1, 1000), default=128, help="try no more (default: 128)")
    searching.add_argument("--trials", type=whole_number(1, 50), default=8, help="tries at most (default: 8)")
    searching.add_argument("--no-faults", action="store_true", help="leave out the runs with broken cameras")
    searching.add_argument(
        "--memory", action="store_true", help="paced files, played from memory (source.preload): all but decoding"
    )
    _add_common(searching)
    scaling = actions.add_parser(
        "scale",
        help="cost from one camera to many that send little; start-up; memory against what check forecasts",
        description="Play so many paced streams of a second stream's size and rate, step by step, each run in a Python "
        "of its own: CPU, memory, threads and descriptors per camera, the time until all have been seen, and "
        "memory held against the forecast of campipe check.",
    )
    scaling.add_argument(
        "--steps", type=whole_numbers(1, 1000), default="1,8,16,32,64", help="default: 1,8,16,32,64 cameras"
    )
    scaling.add_argument("--fps", type=whole_number(1, 60), default=1, help="rate of each camera (default: 1)")
    scaling.add_argument(
        "--size",
        type=picture_size,
        default="640x360",
        help="WIDTHxHEIGHT that the clip's pictures are encoded in, or clip for the clip as it is (default: 640x360)",
    )
    scaling.add_argument("--rtsp", action="store_true", help="from a real RTSP server (needs a checkout), not files")
    _add_common(scaling)
    scaling.set_defaults(runs=1, seconds=8.0, picture=None, memory=False)


def whole_numbers(least: int, most: int) -> Callable[[str], str]:
    """For argparse: a list like 1,8,64; given back as it is written."""
    one = whole_number(least, most)

    def parse(text: str) -> str:
        return ",".join(str(one(word.strip())) for word in text.split(","))

    return parse


def picture_size(text: str) -> str:
    """For argparse: WIDTHxHEIGHT, even numbers, or ``clip``."""
    width, _, height = text.partition("x")
    fits = (
        width.isdecimal()
        and height.isdecimal()
        and all(16 <= int(n) <= 8192 and int(n) % 2 == 0 for n in (width, height))
    )
    if text != "clip" and not fits:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; give two even numbers like 640x360, or clip")
    return text


def _add_common(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is measured")
    what.add_argument("--clip", default=CLIP, metavar="FILE", help=f"the recording (default: {CLIP})")
    what.add_argument("--device", default=DEVICE, metavar="DEVICE", help=f"the device (default: {DEVICE})")
    what.add_argument(
        "--option",
        dest="options",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=setting,
        help="an option of the device, such as service_ms_by_batch=1:5.2,4:12.8,8:23.5; may be given several times",
    )
    what.add_argument(
        "--model", metavar="MODEL", help="a name or a description (default: YOLOv5 640 raw, with device cpu coco-ssd)"
    )
    add_settings(what)
    _add_measuring(parser.add_argument_group("how it is measured"))
    output = parser.add_argument_group("what is kept")
    output.add_argument("--json", type=output_file, metavar="FILE", help="write every figure to FILE")
    if parser.prog.endswith("scale"):
        return  # its table is all there is to see
    output.add_argument("--picture", type=output_file, metavar="FILE", help="write a picture (SVG) to FILE")


def _add_measuring(group: Group) -> None:
    group.add_argument("--runs", type=whole_number(1, 99), default=3, help="medians are of so many (default: 3)")
    group.add_argument(
        "--seconds",
        type=number(0.5, 3600),
        default=4.0,
        help="of each run that are measured, in four windows; one more before and after is left out (default: 4)",
    )
    group.add_argument("--smoke", action="store_true", help="only show that it works, in a few seconds")


def run(args: argparse.Namespace) -> int:
    """Measure, print, write."""
    from pipeline.bench.machine import describe
    from pipeline.bench.workload import checksum
    from pipeline.observe import logs

    if args.smoke:
        _shorten(args)
    machine = describe(0.1) if args.smoke else describe()
    command = command_line(args)
    undo = logs.configure("text", "error")
    try:
        with tempfile.TemporaryDirectory(prefix="campipe-bench-") as folder:
            load = _workload(args, Path(folder))
            say(machine.text())
            clip = _clip(args.clip)
            sum_ = checksum(clip)
            say(f"clip {args.clip}, SHA-256 {sum_}; device {args.device} {_told(load.options)}".rstrip())
            measure = {"saturate": _saturate, "density": _density, "scale": _scale}[args.action]
            table, result, picture = measure(args, load)
    finally:
        undo()
    say(f"\n{table}\n\n{command}")
    if args.json:
        about = {"command": command, "machine": machine, "clip": {"name": args.clip, "sha256": sum_}}
        _write_json(Path(args.json), {**about, "device": args.device, "options": load.options, args.action: result})
    if args.picture:
        Path(args.picture).write_text(picture, encoding="utf-8")
    return 0


def _shorten(args: argparse.Namespace) -> None:
    args.runs, args.seconds = 1, min(args.seconds, 0.8)
    if args.action == "saturate":
        args.cameras = min(args.cameras, 2)
    elif args.action == "scale":
        args.steps, args.fps = "1,2", max(args.fps, 5)
    else:
        args.first, args.most, args.trials = 1, 1, 1


def _saturate(args: argparse.Namespace, load: Workload) -> tuple[str, object, str]:
    from pipeline.bench import picture, tables
    from pipeline.bench.saturate import saturate

    found = saturate(load, args.cameras, runs=args.runs, seconds=args.seconds, say=say)
    title = f"{found.typical.outcome.rate:.0f} frames/s of {args.cameras} cameras on {args.device}"
    drawn = picture.document([picture.timeline(found.typical.outcome.timeline)], title)
    return tables.saturation(found), found, drawn


def _density(args: argparse.Namespace, load: Workload) -> tuple[str, object, str]:
    from pipeline.bench import picture, tables
    from pipeline.bench.density import density
    from pipeline.bench.streams import RtspStreams, Streams
    from pipeline.bench.workload import size_of

    streams = RtspStreams(load, args.fps, size_of(load.clip)) if args.rtsp else Streams(load, args.fps)
    with streams:
        found = density(
            load,
            streams,
            first=args.first,
            most=args.most,
            trials=args.trials,
            runs=args.runs,
            seconds=args.seconds,
            faults=not args.no_faults,
            say=say,
        )
    points = {trial.streams: trial.outcome for trial in found.trials if trial.passed}
    points |= {level.streams: level.typical for level in found.levels}
    parts = [picture.latency(sorted(points.items()), 1000 / args.fps)]
    if found.levels:
        parts.append(picture.timeline(found.levels[-1].typical.timeline))
    return tables.density(found), found, picture.document(parts, f"{found.passed} streams of {args.fps} frames/s")


def _scale(args: argparse.Namespace, load: Workload) -> tuple[str, object, str]:
    from pipeline.bench import tables
    from pipeline.bench.scale import scale
    from pipeline.bench.streams import RtspStreams, Streams
    from pipeline.bench.workload import size_of

    streams = RtspStreams(load, args.fps, size_of(load.clip)) if args.rtsp else Streams(load, args.fps)
    with streams:
        counts = sorted({int(word) for word in args.steps.split(",")})
        found = scale(load, streams, counts, runs=args.runs, seconds=args.seconds, say=say)
    return tables.scale(found), found, ""


def _workload(args: argparse.Namespace, folder: Path) -> Workload:
    from pipeline.bench.workload import Workload, options_of, retime, shrink

    clip = _clip(args.clip)
    if args.action == "scale" and args.size != "clip":
        width, height = map(int, args.size.split("x"))
        clip = shrink(clip, (width, height), args.fps, folder)
    elif args.action in {"density", "scale"}:
        clip = retime(clip, Fraction(args.fps), folder)
    options = options_of(args.device, dict(text.split("=", 1) for text in args.options))
    return Workload(clip, args.device, options, args.model, tuple(args.settings), args.memory)


def _clip(name: str) -> Path:
    from pipeline.config.sources import locate
    from pipeline.yaml import Place
    from stages.errors import UserError

    path, problem = locate(name, Place(""))
    if problem:
        raise UserError(f"--clip: {name}: {problem}")
    return Path(path)


def _told(options: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in options.items())


def command_line(args: argparse.Namespace) -> str:
    """The command that measures the same again, every value named, so that other defaults change nothing."""
    words = ["campipe", "bench", args.action]
    for key, value in sorted(vars(args).items()):
        option = f"--{key.replace('_', '-')}"
        if key in UNTOLD or value is None or value is False:
            continue
        words += [option] if value is True else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    for text in args.options:
        words += ["--option", text]
    for text in args.settings:
        words += ["--set", text]
    return shlex.join(words)


def _write_json(path: Path, result: dict[str, object]) -> None:
    import msgspec

    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def say(text: str) -> None:
    """Print at once: a measurement takes minutes."""
    print(text, file=sys.stdout, flush=True)  # noqa: T201 - it is the command's answer
