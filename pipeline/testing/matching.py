"""Owns the pairing of two lists of objects and how their differences read. Pure. Does not own frames or files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.testing.details import details
from stages.messages import DetectedObject

SAME_PLACE_IOU = 0.5  # an object of another class that overlaps this much is the same thing, taken for something else
SIDES = ("x1", "y1", "x2", "y2")


def differences(
    was: Sequence[DetectedObject], now: Sequence[DetectedObject], box_tolerance_px: float, score_tolerance: float
) -> list[str]:
    """Sentences on what differs, in the order of ``was``, then what is new. Within tolerance is no difference."""
    pairs, missing, extra = pair(
        was, now, lambda a, b: a.class_id == b.class_id and a.label == b.label, least_iou=0.0, near_px=box_tolerance_px
    )
    found: list[str] = []
    for i, j in pairs:
        said = _difference(was[i], now[j], box_tolerance_px, score_tolerance)
        if said:
            found.append(f"{_name(was[i])}: {said}")
    renamed, _, _ = pair(
        [was[i] for i in missing], [now[j] for j in extra], lambda _a, _b: True, least_iou=SAME_PLACE_IOU, near_px=-1.0
    )
    for a, b in renamed:
        found.append(f"{_name(was[missing[a]])}: is now {_what(now[extra[b]])}")
    gone = {missing[a] for a, _ in renamed}
    new = {extra[b] for _, b in renamed}
    found += [f"{_name(was[i])}: missing" for i in missing if i not in gone]
    found += [f"{_name(now[j])}: extra" for j in extra if j not in new]
    return found


def pair(
    was: Sequence[DetectedObject],
    now: Sequence[DetectedObject],
    may_pair: Callable[[DetectedObject, DetectedObject], bool],
    *,
    least_iou: float,
    near_px: float,
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Pairs of indices one to one, largest overlap first (if equal: nearest, then first), and who is left on each side.

    Two objects can be a pair when they overlap by more than ``least_iou``, or no side is further off than ``near_px``
    (boxes of a pixel need not overlap at all to be the same).
    """
    candidates = [
        (-iou(a.box, b.box), _distance(a.box, b.box), i, j)
        for i, a in enumerate(was)
        for j, b in enumerate(now)
        if may_pair(a, b)
    ]
    taken_was: set[int] = set()
    taken_now: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for overlap, distance, i, j in sorted(candidates):
        fits = -overlap > least_iou or distance <= near_px
        if fits and i not in taken_was and j not in taken_now:
            taken_was.add(i)
            taken_now.add(j)
            pairs.append((i, j))
    missing = [i for i in range(len(was)) if i not in taken_was]
    extra = [j for j in range(len(now)) if j not in taken_now]
    return sorted(pairs), missing, extra


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes [x1, y1, x2, y2]; 0 when neither has an area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, width) * max(0.0, height)
    whole = _area(a) + _area(b) - shared
    return shared / whole if whole > 0 else 0.0


def _area(box: Sequence[float]) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def _distance(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def _difference(was: DetectedObject, now: DetectedObject, box_tolerance_px: float, score_tolerance: float) -> str:
    said: list[str] = []
    offsets = [b - a for a, b in zip(was.box, now.box, strict=True)]
    worst = max(range(4), key=lambda side: abs(offsets[side]))
    # The comparisons are written so that a NaN counts as a difference.
    if not abs(offsets[worst]) <= box_tolerance_px or any(offset != offset for offset in offsets):  # noqa: PLR0124
        said.append(f"box off by {abs(offsets[worst]):.2f} px ({SIDES[worst]} {offsets[worst]:+.2f}), is {_box(now)}")
    change = now.score - was.score
    if not abs(change) <= score_tolerance:
        said.append(f"score off by {abs(change):.4f} ({was.score:.4f} to {now.score:.4f})")
    return "; ".join([*said, *details(was, now, box_tolerance_px, score_tolerance)])


def _box(found: DetectedObject) -> str:
    return "[" + ", ".join(f"{side:.1f}" for side in found.box) + "]"


def _what(found: DetectedObject) -> str:
    return f"{found.label} {found.score:.2f}"


def _name(found: DetectedObject) -> str:
    return f"{_what(found)} at {_box(found)}"
