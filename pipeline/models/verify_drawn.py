"""Owns the copies of pictures with the boxes that were found: where they go, what they may replace, how they are drawn.

Does not own what was found. A file of that name is only replaced when it is a picture: ``--out`` given another
argument's value by mistake must not cost a model or its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from pipeline.models.verify_run import Found
from pipeline.models.verify_views import read_picture
from stages.errors import UserError
from stages.model import ModelSpec
from stages.sinks.file_refusal import explain, try_to_write

COLOURS: Final = ((75, 25, 230), (75, 180, 60), (25, 225, 255), (200, 130, 0), (48, 130, 245), (180, 30, 145))  # BGR
# how files of JPEG, PNG, WebP (RIFF), TIFF, BMP, JPEG 2000, GIF and the portable formats start
PICTURES: Final = (
    b"\xff\xd8\xff",
    b"\x89PNG",
    b"RIFF",
    b"II*\x00",
    b"MM\x00*",
    b"BM",
    b"\x00\x00\x00\x0cjP",
    b"GIF8",
    *(b"P%d" % number for number in range(1, 8)),
)


def targets_of(out: str, paths: Sequence[str]) -> list[Path]:
    """Where the pictures go; with several they are numbered. Raises UserError when one can't or must not be written."""
    try:
        if not out:
            raise ValueError(out)
        base = Path(out).expanduser()
        targets = [base if len(paths) == 1 else base.with_stem(f"{base.stem}-{n}") for n in range(1, len(paths) + 1)]
    except (RuntimeError, ValueError):  # nobody of that name has a home; a path without a file name
        raise UserError(f"--out {out!r}: is no file name; name a .jpg or .png") from None
    for target in targets:
        _check(target, paths)
    try:
        writable = cv2.haveImageWriter(f"picture{base.suffix}")
    except cv2.error:
        writable = False
    if not writable:
        raise UserError(f"--out {out}: no picture can be written in this format; name a .jpg or .png")
    return targets


def _check(target: Path, paths: Sequence[str]) -> None:
    try:
        if target.exists():
            if not target.is_file():
                raise UserError(f"--out {target}: is no regular file; name another")
            if any(target.samefile(other) for other in paths if Path(other).exists()):
                raise UserError(f"--out {target}: is one of the pictures that were looked at; name another file")
            with target.open("rb") as file:
                start = file.read(8)
            if start and not start.startswith(PICTURES):
                raise UserError(f"--out {target}: is there and is no picture; name a file that may be replaced")
        try_to_write(target, with_folders=False)
    except OSError as error:
        raise UserError(f"--out {target}: can't be written: {explain(error, target)}") from None
    except ValueError:
        raise UserError(f"--out {target!r}: is no file name; name another file") from None


def draw(paths: Sequence[str], found: Sequence[Found], model: ModelSpec, targets: Sequence[Path]) -> None:
    """Write copies of the pictures with boxes. Raises UserError for what can't be written."""
    for path, objects, target in zip(paths, found, targets, strict=True):
        picture = np.ascontiguousarray(read_picture(path)[:, :, ::-1])
        thick = max(1, round(min(picture.shape[:2]) / 400))
        for box, score, class_id in zip(objects.boxes, objects.scores, objects.class_ids, strict=True):
            x1, y1, x2, y2 = (round(float(v)) for v in box)
            colour = COLOURS[int(class_id) % len(COLOURS)]
            cv2.rectangle(picture, (x1, y1), (x2, y2), colour, thick)
            text = f"{model.labels[int(class_id)]} {score:.2f}"
            cv2.putText(picture, text, (x1, max(y1 - 4, 12)), cv2.FONT_HERSHEY_SIMPLEX, 0.5 * thick, colour, thick)
        try:
            encoded, data = cv2.imencode(target.suffix, picture)
        except cv2.error:
            encoded = False
        if not encoded:
            raise UserError(f"--out {target}: no picture can be written in this format; name a .jpg or .png")
        try:
            target.write_bytes(data.tobytes())
        except OSError as error:
            raise UserError(f"--out {target}: can't be written: {explain(error, target)}") from None
