"""Owns ``campipe models quantize``: from a float model and clips to an INT8 model that was judged first, and its YAML.

Does not own the frames (``quantize_frames``), the graph (``quantize_graph``) or the judgement (``quantize_compare``).
Nothing is written before the model was accepted, and the description last: it never names a file that is not whole.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.commands.options import whole_number
from pipeline.models import store
from stages.errors import UserError

if TYPE_CHECKING:
    from pipeline.models.quantize_compare import Agreement, Speed
    from pipeline.models.quantize_frames import Pictures
    from stages.camera import CameraSpec
    from stages.model import ModelSpec

SUFFIX = "-int8"
MOST_FRAMES = 2000
MOST_CLIPS_NAMED = 20

Stage = Callable[[str], Callable[[int, int], None]]
"""Announces a part of the work; what it gives is called with how much is done, of how much."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is quantised, and where the frames come from."""

    description: Path
    model: ModelSpec
    cameras: tuple[CameraSpec, ...]


def add_action(actions: Any) -> None:
    """Describe the action to the parser of ``campipe models``."""
    parser = actions.add_parser(
        "quantize",
        help="make an INT8 model for CPUs, calibrated with recorded video and compared with the float model",
        description="Make an INT8 model of a float one: smaller, and faster on most CPUs. Its ranges are taken from "
        "frames of your recordings; other frames of them show what it finds against the float model, and how fast it "
        "is. Only a model that finds the same is written, with its description. Detection heads and what is done to "
        "pixels stay in float.",
        epilog="Example:\n  campipe models quantize coco-ssd --clip street.mp4 --clip gate.mp4 --out models",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a name that `campipe models list` shows, its YAML file, or an ONNX file with its YAML beside it",
    )
    parser.add_argument(
        "--clip",
        metavar="CLIP",
        action="append",
        required=True,
        dest="clips",
        help="a recording of what the model will see, with objects; may be given several times",
    )
    parser.add_argument("--out", metavar="DIR", default=".", help="folder for the two files (default: this one)")
    parser.add_argument(
        "--frames",
        metavar="N",
        type=whole_number(1, MOST_FRAMES),
        default=50,
        help="calibrate with N frames, compare with as many others (default: 50)",
    )
    parser.add_argument("--accept", action="store_true", help="write the model even if it is not good enough")


def run(args: argparse.Namespace) -> int:
    """Quantise, report, judge, write. UserError for what can't be done or is not good enough."""
    with _folder(Path(args.out)) as folder:
        return _quantize(args, folder)


def _quantize(args: argparse.Namespace, folder: Path) -> int:
    from pipeline.models import quantize_compare, quantize_frames, quantize_graph
    from stages.accelerators.cores import usable_cores

    quantize_graph.onnx_package()
    source = find_source(args.model, args.clips)
    model = source.model
    onnx_path, yaml_path = targets(model.name, folder)
    quantize_graph.check_float(model)
    with _stages() as stage, tempfile.TemporaryDirectory(prefix="campipe-quantize-") as scratch:
        pictures = quantize_frames.read_pictures(source.cameras, model, args.frames, stage("reading clips"))
        content = quantize_graph.quantised(
            model, [picture.pixels for picture in pictures.calibration], stage("calibrating")
        )
        candidate = Path(scratch) / onnx_path.name
        candidate.write_bytes(content)
        int8 = quantize_compare.with_file(model, f"{model.name}{SUFFIX}", str(candidate))
        was, now = quantize_compare.find_objects((model, int8), pictures.comparison, usable_cores(), stage("comparing"))
        agreement = quantize_compare.agree(was, now, model.confidence)
        speed = quantize_compare.measure_speed(model, int8, pictures.comparison)
    print(render(source, content, agreement, speed))  # noqa: T201 - it is what the command is for
    refused = quantize_compare.refusals(agreement, speed)
    if refused and not args.accept:
        raise UserError(
            *(f"model {model.name}: INT8 is refused: {why}" for why in refused),
            "nothing was written; keep the float model, give other clips (--clip) or more frames (--frames), or "
            "take it as it is with --accept",
        )
    text = describe(source, onnx_path.name, content, pictures, agreement)
    write(onnx_path, content)
    try:
        write(yaml_path, text.encode())
    except BaseException:
        onnx_path.unlink(missing_ok=True)
        raise
    accepted = "accepted as it is" if refused else "accepted"
    print(f"\n{accepted}; use it with `--model {yaml_path}`, or give it a name under `models` of the site")  # noqa: T201
    return 0


def find_source(name: str, clips: Sequence[str]) -> Source:
    """The model and the clips, checked as for a run. Raises UserError with all that is wrong."""
    from pipeline.config import replay_site, resolve
    from pipeline.planning import draft_plan

    description = find_description(name)
    plan = draft_plan(resolve(replay_site(clips, model=str(description))))
    return Source(description, plan.models[0], plan.cameras)


def find_description(name: str) -> Path:
    """The YAML of the model ``name``; for an ONNX file the one beside it, or the known one that names it."""
    if not name.lower().endswith(".onnx"):
        return store.find_description(name)
    file = Path(name).expanduser().absolute()
    if not file.is_file():
        raise UserError(f"model {name!r}: there is no such file; check the path")
    for suffix in store.SUFFIXES:
        beside = file.with_suffix(suffix)
        if beside.is_file():
            return beside
    for description in store.descriptions().values():
        summary = store.summarise(description)
        with contextlib.suppress(UserError):
            if store.find_file(summary.file, description.parent).samefile(file):
                return description
    raise UserError(
        f"model {name!r} has no description beside it ({file.stem}.yaml), which says how frames are scaled and what "
        f"the outputs mean; `campipe models inspect {name}` writes one"
    )


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """The folder, absolute, made if need be and gone again if nothing came of it. Raises UserError if it is no good."""
    folder = folder.expanduser().absolute()
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UserError(
                f"{folder} can't be written to ({error.strerror}); give another folder with --out"
            ) from error
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            for each in made:
                each.rmdir()
        raise


def targets(name: str, folder: Path) -> tuple[Path, Path]:
    """The two files to be written. Raises UserError when they are there already."""
    onnx_path, yaml_path = folder / f"{name}{SUFFIX}.onnx", folder / f"{name}{SUFFIX}.yaml"
    there = [str(path) for path in (onnx_path, yaml_path) if path.exists() or path.is_symlink()]
    if there:
        raise UserError(*(f"{path} exists; move it away, or give another folder with --out" for path in there))
    return onnx_path, yaml_path


def write(path: Path, content: bytes) -> None:
    """Write a new file, whole or not at all. Raises UserError."""
    try:
        with path.open("xb") as file:
            try:
                file.write(content)
                file.flush()
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise UserError(f"{path} exists; move it away, or give another folder with --out") from None
    except OSError as error:
        raise UserError(
            f"{path} can't be written ({error.strerror}); make room, or give another folder with --out"
        ) from error


# --- what is said -----------------------------------------------------------------------------------------------------


def render(source: Source, content: bytes, agreement: Agreement, speed: Speed) -> str:
    """The report, for people."""
    model = source.model
    before = Path(model.path).stat().st_size
    a, s = agreement, speed
    shift = f"{a.mean_shift:+.3f} on average, {a.mean_absolute_shift:.3f} in size, {a.largest_shift:+.3f} at most"
    ratios = f"{s.ratios[0]:.2f} to {s.ratios[-1]:.2f} over {len(s.ratios)} pairs of runs"
    lines = [
        f"model {model.name}: INT8 against float, on {a.frames} frames that were not calibrated with",
        f"  confident objects    {a.confident} (score {a.clear:.2f} or more)",
        f"  found again          {a.matched} ({a.share:.1%}), boxes overlap by {a.mean_iou:.3f} on average",
        f"  lost                 {_by_label(a.lost)}",
        f"  new                  {_by_label(a.new)}",
        f"  score shift          {shift}",
        f"  speed, one core      {s.float_ms:.1f} to {s.int8_ms:.1f} ms, {s.ratio:.2f} times as fast ({ratios})",
        f"  size                 {before / 1e6:.1f} to {len(content) / 1e6:.1f} MB",
    ]
    return "\n".join(lines)


def _by_label(counts: dict[str, int]) -> str:
    if not counts:
        return "none"
    return f"{sum(counts.values())} ({', '.join(f'{count} {label}' for label, count in counts.items())})"


def describe(source: Source, file: str, content: bytes, pictures: Pictures, agreement: Agreement) -> str:
    """The YAML of the INT8 model: all of the float model's, but for the file. No figure of speed, for they vary."""
    from ruamel.yaml import YAML

    from pipeline.config.labels import KNOWN
    from pipeline.yaml import read_yaml

    model = source.model
    node, _ = read_yaml(source.description)
    stated: dict[str, Any] = node.plain() if node is not None else {}
    float_sum = model.sha256 or hashlib.sha256(Path(model.path).read_bytes()).hexdigest()
    clips = [Path(camera.url).name for camera in source.cameras]
    more = f" and {len(clips) - MOST_CLIPS_NAMED} more" if len(clips) > MOST_CLIPS_NAMED else ""
    labels = stated.get("labels")
    stated |= {
        "name": f"{model.name}{SUFFIX}",
        "file": file,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "origin": (
            f"INT8 of {Path(model.path).name} (sha256 {float_sum}), made by campipe models quantize with "
            f"{len(pictures.calibration)} frames of {', '.join(clips[:MOST_CLIPS_NAMED])}{more} "
            f"(sha256 of the frames {pictures.digest}); on {agreement.frames} other frames it finds "
            f"{agreement.matched} of {agreement.confident} confident objects"
        ),
        "labels": labels if isinstance(labels, str) and labels in KNOWN else list(model.labels),
    }
    if model.fixed_batch is not None:
        stated["batch"] = model.fixed_batch
    out = io.StringIO()
    yaml = YAML(typ="rt")
    yaml.width = 4096  # it would leave blanks at the ends of folded lines
    yaml.allow_unicode = True
    yaml.dump(stated, out)
    return out.getvalue()


@contextlib.contextmanager
def _stages() -> Iterator[Stage]:
    """A bar for each part on a terminal, else one line; on stderr, because stdout is for the report."""
    if not sys.stderr.isatty():

        def line(name: str) -> Callable[[int, int], None]:
            print(f"{name} …", file=sys.stderr, flush=True)  # noqa: T201 - progress
            return lambda _done, _total: None

        yield line
        return

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def bar(name: str) -> Callable[[int, int], None]:
            task = bars.add_task(name, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield bar
