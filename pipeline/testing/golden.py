"""Owns golden files of detections: their form, and how a difference reads. Does not own how detections come about.

A golden file holds one frame a line, cameras in the order of the results, frames in their order, compact JSON without
anything that depends on when it was made, so that a change of it reads well in a diff.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pipeline.testing.matching import differences
from stages.messages import DetectedObject, Detections

if TYPE_CHECKING:
    from pipeline.testing.replaying import Replayed

Results: TypeAlias = "Replayed | Mapping[str, Sequence[Detections]] | Iterable[Detections]"

MOST_SHOWN = 10
UPDATE = "--campipe-update"


class GoldenFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a golden file."""

    camera: str
    epoch: int
    seq: int
    pts_ns: int
    width: int
    height: int
    objects: list[DetectedObject]

    @property
    def key(self) -> tuple[str, int, int]:
        """Identity of the frame."""
        return self.camera, self.epoch, self.seq

    @property
    def name(self) -> str:
        """For people."""
        epoch = f" epoch {self.epoch}" if self.epoch else ""
        return f"{self.camera}{epoch} frame {self.seq} ({self.pts_ns / 1e9:.3f} s)"


def assert_matches_golden(
    results: Results,
    path: str | Path,
    box_tolerance_px: float = 1.0,
    score_tolerance: float = 0.02,
    *,
    update: bool = False,
) -> None:
    """Raise AssertionError when ``results`` differ from the golden file at ``path``; with ``update`` write it instead.

    ``results``: what ``replay`` gives, or detections by camera, or detections. Objects of a frame are paired by class
    and largest overlap; a pair may differ by ``box_tolerance_px`` in each of its four coordinates (of its keypoints,
    corners and its mask's outline too) and by ``score_tolerance`` in its score. Anything else is a difference: an
    object too many or too few, another class, a frame more or less, another timestamp or size of the picture.
    """
    __tracebackhide__ = True
    frames = list(_frames(results))
    path = Path(path)
    if update:
        write_golden(frames, path)
        return
    golden = _read(path)
    found = _compare(golden, frames, box_tolerance_px, score_tolerance)
    if not found:
        return
    shown = [f"  {line}" for line in found[:MOST_SHOWN]]
    if len(found) > MOST_SHOWN:
        shown.append(f"  … and {len(found) - MOST_SHOWN} more")
    count = "1 difference" if len(found) == 1 else f"{len(found)} differences"
    tolerance = f"tolerance {box_tolerance_px:g} px, score {score_tolerance:g}"
    remedy = f"If the new results are right, run pytest with {UPDATE} and look at the file's diff."
    raise AssertionError("\n".join([f"{count} from {path} ({tolerance}):", *shown, remedy]))


def write_golden(results: Results | Sequence[GoldenFrame], path: str | Path) -> int:
    """Write the golden file, whole or not at all; gives the number of frames. The folder is created."""
    path = Path(path)
    frames = list(_frames(results))
    _refuse_twice(frames, "the results")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        scratch.write_bytes(b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames))
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return len(frames)


def _frames(results: Results | Sequence[GoldenFrame]) -> Iterator[GoldenFrame]:
    if isinstance(results, str | bytes | Path):
        raise TypeError("the first argument is the results, the second the path of the golden file")
    by_camera: Any = getattr(results, "detections", results)
    listed = [each for some in by_camera.values() for each in some] if isinstance(by_camera, Mapping) else by_camera
    for each in listed:
        if isinstance(each, GoldenFrame):
            yield each
        else:
            yield GoldenFrame(
                camera=each.camera,
                epoch=each.epoch,
                seq=each.seq,
                pts_ns=each.pts_ns,
                width=each.width,
                height=each.height,
                objects=each.objects,
            )


def _read(path: Path) -> list[GoldenFrame]:
    __tracebackhide__ = True  # what is wrong with the file is no matter of this code
    decoder = msgspec.json.Decoder(GoldenFrame, strict=True)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise AssertionError(f"there is no golden file {path} yet; run pytest with {UPDATE} to write it") from None
    except OSError as error:
        raise AssertionError(f"can't read the golden file {path}: {error.strerror}") from None
    frames: list[GoldenFrame] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            frames.append(decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise AssertionError(
                f"{path}:{number} is no frame of a golden file: {error}; mend it, or run pytest with {UPDATE}"
            ) from None
        if len(frames[-1].objects) and any(len(found.box) != 4 for found in frames[-1].objects):
            raise AssertionError(f"{path}:{number} has a box that is not [x1, y1, x2, y2]; run pytest with {UPDATE}")
    _refuse_twice(frames, str(path))
    return frames


def _refuse_twice(frames: Sequence[GoldenFrame], where: str) -> None:
    seen: set[tuple[str, int, int]] = set()
    for frame in frames:
        if frame.key in seen:
            raise AssertionError(f"{where}: {frame.name} is there twice")
        seen.add(frame.key)


def _compare(
    golden: Sequence[GoldenFrame], frames: Sequence[GoldenFrame], box_tolerance_px: float, score_tolerance: float
) -> list[str]:
    _refuse_twice(frames, "the results")
    now = {frame.key: frame for frame in frames}
    then = {frame.key: frame for frame in golden}
    found: list[str] = []
    for frame in golden:
        other = now.get(frame.key)
        if other is None:
            found.append(f"{frame.name}: missing, it had {_count(frame)}")
            continue
        if other.pts_ns != frame.pts_ns:
            found.append(f"{frame.name}: is now at {other.pts_ns / 1e9:.6f} s, was at {frame.pts_ns / 1e9:.6f} s")
        if (other.width, other.height) != (frame.width, frame.height):
            was, now_is = f"{frame.width}x{frame.height}", f"{other.width}x{other.height}"
            found.append(f"{frame.name}: the picture is now {now_is}, was {was}")
        told = differences(frame.objects, other.objects, box_tolerance_px, score_tolerance)
        found += [f"{frame.name}: {difference}" for difference in told]
    found += [f"{frame.name}: extra, it has {_count(frame)}" for frame in frames if frame.key not in then]
    return found


def _count(frame: GoldenFrame) -> str:
    return "1 object" if len(frame.objects) == 1 else f"{len(frame.objects)} objects"
