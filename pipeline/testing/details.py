"""Owns the comparison of what only some models tell of an object: keypoints, corners, masks. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stages.messages import DetectedObject, Mask

Points = Sequence[Sequence[float]]
LONGEST_EDGE_PX = 100_000  # of a mask's rectangle: a file may say anything


def details(was: DetectedObject, now: DetectedObject, tolerance_px: float, score_tolerance: float) -> list[str]:
    """Sentences on what differs; points may be off by the tolerance of boxes, their scores by that of scores.

    So may the outline of a mask: a pixel that only one has must lie so near to one that the other has.
    """
    said = [
        *_keypoints(was.keypoints, now.keypoints, tolerance_px, score_tolerance),
        *_points("corner", was.corners, now.corners, tolerance_px),
        *_mask(was.mask, now.mask, tolerance_px),
    ]
    return [sentence for sentence in said if sentence]


def _keypoints(was: Points | None, now: Points | None, tolerance_px: float, score_tolerance: float) -> list[str]:
    said = _points("keypoint", was, now, tolerance_px)
    if was is None or now is None or len(was) != len(now):
        return said
    scores = [(a[2], b[2]) for a, b in zip(was, now, strict=True) if len(a) > 2 and len(b) > 2]
    worst = max(scores, key=lambda pair: _gap(*pair), default=None)
    if worst is not None and not _gap(*worst) <= score_tolerance:
        said.append(f"score of keypoint {scores.index(worst)} off by {_gap(*worst):.4f}")
    return said


def _points(what: str, was: Points | None, now: Points | None, tolerance_px: float) -> list[str]:
    if was is None and now is None:
        return []
    if was is None or now is None:
        return [f"has {what}s now, had none" if was is None else f"has no {what}s now, had {len(was)}"]
    if len(was) != len(now):
        return [f"has {len(now)} {what}s, had {len(was)}"]
    gaps = [
        max((_gap(x, y) for x, y in zip(a[:2], b[:2], strict=False)), default=0) for a, b in zip(was, now, strict=True)
    ]
    worst = max(range(len(gaps)), key=lambda i: gaps[i], default=None)
    if worst is None or gaps[worst] <= tolerance_px:
        return []
    return [f"{what} {worst} off by {gaps[worst]:.2f} px"]


def _gap(a: float, b: float) -> float:
    """Distance of two numbers; infinite when one is none."""
    gap = abs(a - b)
    return math.inf if math.isnan(gap) else gap


def _mask(was: Mask | None, now: Mask | None, tolerance_px: float) -> list[str]:
    if was == now:
        return []
    if was is None or now is None:
        return ["has a mask now, had none" if was is None else "has no mask now, had one"]
    if not (_whole(was) and _whole(now)):
        return ["its mask's counts do not fill its rectangle"]
    left, top = min(was.x, now.x), min(was.y, now.y)
    right = max(was.x + was.width, now.x + now.width)
    bottom = max(was.y + was.height, now.y + now.height)
    if max(right - left, bottom - top) > LONGEST_EDGE_PX:
        return ["its mask is far from where it was"]
    a, b = (_pixels(mask, left, top, right - left, bottom - top) for mask in (was, now))
    reach = math.floor(tolerance_px)
    off = (a & ~_grown(b, reach)) | (b & ~_grown(a, reach))
    count = int(np.count_nonzero(off))
    if not count:
        return []
    shared, both = int(np.count_nonzero(a & b)), int(np.count_nonzero(a | b))
    share = f"{shared / both:.3f}" if both else "0"
    return [f"mask off by {count} pixels that are further than {reach} px from the other (overlap {share})"]


def _whole(mask: Mask) -> bool:
    return min(mask.counts, default=0) >= 0 and sum(mask.counts) == mask.width * mask.height


def _pixels(mask: Mask, left: int, top: int, width: int, height: int) -> NDArray[np.bool_]:
    """The mask in a rectangle that holds its own."""
    inside = np.arange(len(mask.counts)) % 2 == 1
    own = np.repeat(inside, mask.counts).reshape(mask.width, mask.height).T
    found = np.zeros((height, width), np.bool_)
    found[mask.y - top : mask.y - top + mask.height, mask.x - left : mask.x - left + mask.width] = own
    return found


def _grown(mask: NDArray[np.bool_], reach: int) -> NDArray[np.bool_]:
    """The mask and all pixels within a square of ``reach`` around one of it."""
    found = mask.copy()
    for _ in range(reach):
        for axis in (0, 1):
            grown = found.copy()
            ahead, behind = [slice(None)] * 2, [slice(None)] * 2
            ahead[axis], behind[axis] = slice(1, None), slice(None, -1)
            grown[tuple(ahead)] |= found[tuple(behind)]
            grown[tuple(behind)] |= found[tuple(ahead)]
            found = grown
    return found
