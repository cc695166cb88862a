"""Owns ``campipe models``: lists, fetches and finds models. Where they lie is ``store``'s, the download ``fetch``'s."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.commands.options import Subparsers, named
from pipeline.models import fetch, quantize, store
from pipeline.models.known import KnownModel
from stages.errors import UserError

PLAIN_STEP = 4  # without a terminal: one line per quarter


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "models",
        description="List the models that can be named in a site, and fetch the files of those that campipe knows but "
        "does not carry. For a model of your own: write its description (inspect), try it on a picture (verify), make "
        "it faster on CPUs (quantize).",
        epilog="Models of your own: put NAME.yaml and its ONNX file into a folder and let the environment variable "
        "CAMPIPE_MODELS name that folder. A description there wins over one of the same name that comes with campipe."
        "\n\nExamples:\n  campipe models list\n  campipe models fetch yolox-nano"
        "\n  campipe models inspect mine.onnx > mine.yaml"
        "\n  campipe models verify mine.yaml --image street.jpg --out found.jpg"
        "\n  campipe models quantize coco-ssd --clip asset:street.mp4",
    )
    actions = parser.add_subparsers(dest="action", metavar="list|fetch|path|inspect|verify|quantize", required=True)
    actions.add_parser("list", help="name, licence and input size of each model, and where it is")
    fetching = actions.add_parser("fetch", help="get the file of a known model once, into the user's cache")
    fetching.add_argument("name", metavar="NAME", help="a model that `campipe models list` shows as not fetched")
    fetching.add_argument(
        "--url", type=named("an address"), help="get it from this mirror instead; the content must be the same"
    )
    finding = actions.add_parser("path", help="print the path of a model's file, checked")
    finding.add_argument("name", metavar="NAME", help="a model that `campipe models list` shows, or its YAML file")
    quantize.add_action(actions)
    _add_inspect(actions)
    _add_verify(actions)


def run(args: argparse.Namespace) -> int:
    """List, fetch or find; UserError for what can't be done."""
    if args.action == "list":
        _print(render_list())
    elif args.action == "fetch":
        _fetch(args.name, args.url)
    elif args.action == "quantize":
        return quantize.run(args)
    elif args.action == "inspect":
        from pipeline.models.inspect import inspect

        _print(inspect(args.file, layout=args.layout, labels=args.labels, size=args.size, folder=_folder_written_to()))
    elif args.action == "verify":
        from pipeline.models.verify import verify

        text, status = verify(args.name, args.images, args.out, args.against)
        _print(text)
        return status
    else:
        _print(find(args.name))
    return 0


def _add_inspect(actions: Subparsers) -> None:
    parser = actions.add_parser(
        "inspect",
        help="what an ONNX file takes and gives, the layout of its outputs and why, and a description ready for use",
        description="Look into an ONNX file: inputs, outputs, metadata, the layout of its outputs and why it is that "
        "one. What is printed is the model's description as a whole, with what was found out in its comments. Exit "
        "status 2 when the layout can't be told: the candidates are named, and what decides between them.",
        epilog="Examples:\n  campipe models inspect best.onnx > best.yaml\n"
        "  campipe replay clip.mp4 --model ./best.yaml",
    )
    parser.add_argument("file", metavar="FILE", help="an ONNX file")
    parser.add_argument("--layout", metavar="LAYOUT", help="the layout of its outputs, where it can't be told")
    parser.add_argument(
        "--labels",
        metavar="LABELS",
        help="the classes: `coco`, how many there are, or a text file with one name a line",
    )
    parser.add_argument(
        "--size", metavar="WxH", type=picture_size, help="size of the input in pixels, where the file leaves it open"
    )


def _add_verify(actions: Subparsers) -> None:
    parser = actions.add_parser(
        "verify",
        help="try a model on pictures: what it finds, and whether it would find more if it were fed in another way",
        description="Try a model on pictures, through the same code as a run, and feed it in other ways too: other "
        "orders of channels, scalings and paddings. Exit status 1 when one of them does clearly better, or nothing is "
        "found at all.",
        epilog="Examples:\n  campipe models verify ./best.yaml --image street.jpg --out found.jpg\n"
        "  campipe models verify float.yaml --image street.jpg --against int8.onnx",
    )
    parser.add_argument("name", metavar="MODEL", help="a description's path or name, or a bare ONNX file")
    parser.add_argument(
        "--image",
        dest="images",
        metavar="I",
        action="append",
        required=True,
        help="a picture, or a clip, whose first frame is taken (and others, to tell the order of colours); may be "
        "given several times",
    )
    parser.add_argument("--out", metavar="PICTURE", help="write the picture with the boxes that were found")
    parser.add_argument(
        "--against", metavar="MODEL2", help="compare the raw outputs with those of this model: description or ONNX file"
    )


def picture_size(text: str) -> tuple[int, int]:
    """For ``type=``: width and height in pixels, ``640x384``."""
    width, _, height = text.lower().partition("x")
    if not all(part.isdecimal() and 16 <= int(part) <= 8192 for part in (width, height)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 640x384, each side from 16 to 8192 pixels")
    return int(width), int(height)


def render_list() -> str:
    """The table of ``campipe models list``."""
    rows = [("NAME", "LICENCE", "INPUT", "FILE")]
    for description in store.descriptions().values():
        summary = store.summarise(description)
        size = "x".join(map(str, summary.input_px)) if summary.input_px else "?"
        rows.append((summary.name, summary.licence or "?", size, _where(summary)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows)


def find(name: str) -> str:
    """The path of the file of model ``name``, its content checked; UserError if it is missing or wrong."""
    summary = _summary(name)
    path = store.find_file(summary.file, summary.description.parent)
    store.verify(path, summary.sha256, summary.size_bytes)
    return str(path)


def _where(summary: store.Summary) -> str:
    if summary.problem:
        return f"unreadable: {summary.problem}"
    try:
        path = store.find_file(summary.file, summary.description.parent)
    except UserError:
        if store.fetchable(summary):
            return f"not fetched (campipe models fetch {summary.name})"
        return f"missing: {summary.file}"
    wrong = store.check(path, summary.sha256, summary.size_bytes)
    return f"{path} ({wrong})" if wrong else str(path)


def _fetch(name: str, url: str | None) -> None:
    summary = _summary(name)
    model = store.fetchable(summary)
    if model is None:
        try:
            _print(find(name))  # there already: it comes with campipe, or the user placed it
        except UserError as error:
            raise UserError(
                f"model {name!r} can't be fetched: {summary.description} states no `origin` that is an address, with "
                f"`sha256` and `size_bytes`, and its file is not there",
                *error.problems,
            ) from None
        return
    with _progress(model) as progress:
        path = fetch.fetch(model, store.models_cache(), url=url, progress=progress, say=_say)
    _print(str(path))


def _summary(name: str) -> store.Summary:
    summary = store.summarise(store.find_description(name))
    if summary.problem:
        raise UserError(f"model {name!r}: {summary.problem}")
    return summary


@contextlib.contextmanager
def _progress(model: KnownModel) -> Iterator[fetch.Progress]:
    """A bar on a terminal, else a line per quarter; on stderr, because stdout is for the path."""
    if not sys.stderr.isatty():
        quarter = -1

        def line(done: int, size: int) -> None:
            nonlocal quarter
            if done * PLAIN_STEP // size != quarter:
                quarter = done * PLAIN_STEP // size
                _say(f"{model.name}: {done / 1e6:.1f} of {size / 1e6:.1f} MB")

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(model.name, total=model.size_bytes)
        yield lambda done, _size: bar.update(task, completed=done)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- what the command shows


def _folder_written_to() -> Path | None:
    """The folder of the file that stdout goes to; None when it is no file."""
    try:
        place = Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()
    except (OSError, ValueError):  # no stdout, a captured one, or no /proc
        return None
    return place.parent if place.is_file() else None


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 -- what the command is for
