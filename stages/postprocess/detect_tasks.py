"""Owns the rules of detection for tasks other than plain boxes: masks, keypoints, oriented boxes, whole frames.

See ``detect_rules``, which has all others. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stages.postprocess.detect_claims import Claim, Rule, grid_text, single
from stages.postprocess.detect_facts import FileFacts, literal

YOLOV8_SEG: Final = "yolov8_seg"  # names of the registry
YOLOV8_POSE: Final = "yolov8_pose"
YOLOV8_OBB: Final = "yolov8_obb"
CLASSIFY: Final = "classify"
SIDES: Final = ("channels", "numbers in a row")  # in words, of axis 0 and 1


def _numbers_side(facts: FileFacts, shape: Sequence[int]) -> int | None:
    """Which axis of two holds the numbers of an anchor, the other being the cells of a grid; None if neither."""
    return next((side for side in (0, 1) if grid_text(facts, shape[1 - side])), None)


def _masks(facts: FileFacts) -> Iterator[Claim]:
    if len(facts.outputs) != 2:
        return
    prototypes = next((t for t in facts.outputs if len(t.shape) == 3), None)
    rows = next((t for t in facts.outputs if len(t.shape) == 2), None)
    if prototypes is None or rows is None or (side := _numbers_side(facts, rows.shape)) is None:
        return
    grid = grid_text(facts, rows.shape[1 - side])
    classes = rows.shape[side] - 4 - prototypes.shape[0]
    if classes < 1:
        return
    why = [
        f"{rows.shape[side]} {SIDES[side]}: box, {classes} classes, {prototypes.shape[0]} coefficients of masks",
        grid,
    ]
    claim = Claim(YOLOV8_SEG, classes, why, task="segment")
    claim.proof.append("a second output has as many prototypes of masks")
    yield claim


def _of_task(task: str, layout: str, extra: Callable[[FileFacts, int], int]) -> Callable[[FileFacts], Iterator[Claim]]:
    """A head with ``extra`` numbers behind its classes, channels first or rows; only when the file states the task."""

    def claims(facts: FileFacts) -> Iterator[Claim]:
        found = single(facts, 2)
        if facts.task != task or found is None or (side := _numbers_side(facts, found.shape)) is None:
            return
        grid = grid_text(facts, found.shape[1 - side])
        more = extra(facts, found.shape[side])
        classes = found.shape[side] - 4 - more
        if classes >= 1:
            why = [f"{found.shape[side]} {SIDES[side]}: box, {classes} classes, {more} of the {task}", grid]
            yield Claim(layout, classes, why, [f"the file's metadata says that its task is {task}"], task=task)

    return claims


def _key_points(facts: FileFacts, channels: int) -> int:
    shape = literal(facts.metadata.get("kpt_shape", ""))
    if isinstance(shape, (list, tuple)) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape):
        return int(shape[0] * shape[1])
    return channels - 4 - (len(facts.labels) or 1)


def _classification(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 1)
    if found is not None and found.shape[0] >= 2:
        claim = Claim(CLASSIFY, found.shape[0], [f"one score for each of {found.shape[0]} classes"], task="classify")
        claim.proof.append("no box anywhere")
        if not facts.task:
            claim.task = ""
        yield claim


TASK_RULES: Final = (
    Rule(YOLOV8_SEG, "(4 + C + M, A) or (A, 4 + C + M), and (M, h, w)", _masks),
    Rule(YOLOV8_POSE, "(4 + C + K, A) or (A, 4 + C + K), task pose", _of_task("pose", YOLOV8_POSE, _key_points)),
    Rule(
        YOLOV8_OBB,
        "(4 + C + 1, A) or (A, 4 + C + 1), task obb",
        _of_task("obb", YOLOV8_OBB, lambda _facts, _channels: 1),
    ),
    Rule(CLASSIFY, "(C)", _classification),
)
"""In the order that candidates are listed."""
