"""Owns what follows the candidates, for all frames of a task at once: NMS, back into the pictures, cut, bytes. Pure.

Does not own where candidates come from, nor which frame fails: what is odd in one frame is an error here, and whoever
called gives the frames one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.camera import CameraSpec
from stages.errors import BadItem
from stages.letterbox import Geometry, inverse_of_frames
from stages.messages import Objects
from stages.postprocess.batched import Found
from stages.postprocess.nms import suppress_frames
from stages.postprocess.nms_rotated import suppress_rotated
from stages.postprocess.nms_sweep import best_first, starts_of

HIGHEST_SCORE: Final = 1.05  # float16 sigmoids reach 1.007; what is above this isn't a probability

_FLOAT: Final = np.dtype("<f4")
_INTEGER: Final = np.dtype("<i4")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a task: its row, by which camera's wishes it is judged, and how its picture lies in the input.

    ``groups``: for each class the id to suppress by, None: its own.
    """

    row: int
    camera: CameraSpec
    geometry: Geometry
    groups: NDArray[np.int32] | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of the candidates, frame by frame and best first, ``counts`` of each frame, before ``max_objects``.

    ``places`` (n,) among all candidates; ``boxes`` float32 (n, 4) in source pixels.
    """

    places: NDArray[np.intp]
    boxes: NDArray[np.float32]
    counts: list[int]


def kept_of(found: Found, frames: Sequence[Frame], suppresses: bool, model_name: str) -> Kept:
    """What suppression leaves and the picture shows. Raises BadItem for scores that are no probabilities."""
    candidates = found.candidates
    if not suppresses:
        numbers = None if len(frames) == 1 else np.arange(len(frames)).repeat(found.counts)
        places, counts = best_first(candidates.scores, numbers), found.counts
    elif candidates.rotated is not None:
        places, counts = _of_rotated(found, frames)
    else:
        ids, ious = _suppression_ids(found, frames), [frame.camera.iou for frame in frames]
        places, counts = suppress_frames(candidates.boxes, candidates.scores, ids, found.counts, ious)
    if len(places) and (highest := candidates.scores.max()) > HIGHEST_SCORE:
        raise BadItem(
            "post_failed", f"score {highest:.3g} is no probability; is the layout of model {model_name} right?"
        )
    boxes = inverse_of_frames([frame.geometry for frame in frames], counts, candidates.boxes.take(places, axis=0))
    extended = boxes[:, 2:] > boxes[:, :2]
    if not extended.all():  # nothing is left, after clipping, of a box that lies in the padding
        visible = extended.all(axis=1)
        numbers = np.arange(len(frames)).repeat(counts)
        places, boxes = places.compress(visible), boxes.compress(visible, axis=0)
        counts = np.bincount(numbers.compress(visible), minlength=len(frames)).tolist()
    return Kept(places, boxes, counts)


def packed(found: Found, kept: Kept, frames: Sequence[Frame]) -> list[Objects]:
    """Of each frame its objects, as many as its camera wants."""
    candidates = found.candidates
    boxes = np.ascontiguousarray(kept.boxes, _FLOAT).tobytes()
    scores = np.minimum(candidates.scores.take(kept.places), 1).astype(_FLOAT, copy=False).tobytes()
    class_ids = candidates.class_ids.take(kept.places).astype(_INTEGER, copy=False).tobytes()
    packed_frames, start = [], 0
    for frame, count, cut_before in zip(frames, kept.counts, found.cut, strict=True):
        end = start + min(count, frame.camera.max_objects)
        packed_frames.append(
            Objects(
                frame.row,
                boxes[16 * start : 16 * end],
                scores[4 * start : 4 * end],
                class_ids[4 * start : 4 * end],
                cut_before,
                count - (end - start),
            )
        )
        start += count
    return packed_frames


def _suppression_ids(found: Found, frames: Sequence[Frame]) -> NDArray[Any] | None:
    """For each candidate the id to suppress by; None: all of a frame suppress each other."""
    agnostic = [frame.camera.class_agnostic for frame in frames]
    ids: NDArray[Any] = found.candidates.class_ids
    if all(agnostic):
        return None
    if not any(agnostic) and all(frame.groups is None for frame in frames):
        return ids
    parts = []
    for frame, start, count in zip(frames, starts_of(found.counts), found.counts, strict=False):
        part = ids[start : start + count]
        if frame.camera.class_agnostic:
            part = np.zeros_like(part)
        elif frame.groups is not None:
            part = frame.groups[part]
        parts.append(part)
    return np.concatenate(parts)


def _of_rotated(found: Found, frames: Sequence[Frame]) -> tuple[NDArray[np.intp], list[int]]:
    kept = []
    for frame, start, count in zip(frames, starts_of(found.counts), found.counts, strict=False):
        one = found.of(start, start + count)
        assert one.rotated is not None
        ids = one.class_ids if frame.groups is None else frame.groups[one.class_ids]
        camera = frame.camera
        kept.append(start + suppress_rotated(one.rotated, one.scores, ids, camera.iou, camera.class_agnostic))
    return np.concatenate(kept), [len(each) for each in kept]
