"""Owns the rules of detection: for each layout the shapes it has, and what speaks for and against it. Decides nothing.

To add a layout, add a function that gives its claims and one ``Rule`` in ``RULES`` (those of tasks other than plain
boxes are in ``detect_tasks``). A layout that the registry does not have may have a rule too: its files are then refused
by name, and not taken for another's.

``A`` is the number of anchors, ``C`` of classes. "Cells" are those of the grids of strides 8, 16, 32 (and 64, which the
larger P6 models add): 8400 for 640x640.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from stages.model import HeadOptions
from stages.postprocess.detect_claims import (
    COCO_CLASSES,
    SCORE_SLACK,
    Claim,
    Rule,
    coco,
    grid_of_three,
    grid_text,
    in_pixels,
    scores_follow,
    single,
)
from stages.postprocess.detect_facts import STRIDES_P6, FileFacts, OutputFacts, literal
from stages.postprocess.detect_tasks import CLASSIFY, TASK_RULES, YOLOV8_POSE

ROWS_WITH_OBJECTNESS: Final = "rows with objectness"
MOST_FINISHED: Final = 1000  # rows of an output of finished boxes; exporters give 100 or 300
FEWEST_QUERIES: Final = 50  # DETR has 100, RT-DETR 300
LOG_SIZE: Final = 12.0  # greatest log of a box's size over its stride that makes sense: exp(12) strides
YOLOV8_ROWS: Final = "yolov8_rows"  # names of the registry
YOLOV5_RAW: Final = "yolov5_raw"
DFL_BINS: Final = (8, 17)  # of NanoDet and PicoDet: reg_max + 1


def _yolov5(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 2)
    if found is None or found.shape[1] < 6:
        return
    anchors, columns = found.shape
    values = found.values.get(1)
    of_three, grid = grid_of_three(facts, anchors), grid_text(facts, anchors)
    if not (of_three or grid):
        return
    claim = Claim("yolov5", columns - 5, [f"rows of {columns}: box, objectness, {columns - 5} classes"])
    claim.reading = ROWS_WITH_OBJECTNESS
    if of_three:
        claim.proof.append(of_three)
    else:
        claim.why.append(f"{grid} (YOLOX or YOLOv6, decoded in the file)")
        if columns - 5 == COCO_CLASSES:
            claim.why.append("it makes 80 classes, as many as COCO has")
        if values is None or values.flat(0, 4):
            pass
        elif max(values.high[:2]) > max(facts.width, facts.height) / 4:
            coco(claim)
    in_pixels(claim, facts, values)
    scores_follow(claim, values, 4)
    yield claim


def _yolov6(facts: FileFacts) -> Iterator[Claim]:
    """Only claimed when its objectness was 1 everywhere; read as ``yolov5`` it gives the same."""
    found = single(facts, 2)
    if found is None or found.shape[1] < 6 or not (grid := grid_text(facts, found.shape[0])):
        return
    values = found.values.get(1)
    if values is None or (values.low[4], values.high[4]) != (1.0, 1.0):
        return
    classes = found.shape[1] - 5
    claim = Claim("yolov6", classes, [f"rows of {classes + 5}: box, objectness, {classes} classes", grid])
    claim.proof.append("in a trial run its objectness was 1 in every row, as YOLOv6 writes it")
    claim.reading = ROWS_WITH_OBJECTNESS
    in_pixels(claim, facts, values)
    scores_follow(claim, values, 4)
    yield claim


def _yolox(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 2)
    if found is None or found.shape[1] < 6 or found.shape[0] != facts.cells():
        return
    anchors, columns = found.shape
    values = found.values.get(1)
    claim = Claim("yolox", columns - 5, [f"rows of {columns}: box, objectness, {columns - 5} classes"])
    claim.why.append(grid_text(facts, anchors))
    if values is not None and not values.flat(0, 4):
        highest = max(values.high[:4])
        if highest > max(LOG_SIZE, facts.width / 16):
            claim.against.append(f"in a trial run its boxes reached {highest:.4g}: they are decoded in the file")
        elif min(values.low[:4]) < 0:
            claim.proof.append(
                f"in a trial run its box numbers ran from {min(values.low[:4]):.3g} to {highest:.3g}: offsets in a "
                "cell and logarithms of sizes"
            )
    scores_follow(claim, values, 4)
    yield claim


def _yolov8(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 2)
    if found is None or found.shape[0] < 5 or not (grid := grid_text(facts, found.shape[1])):
        return
    channels = found.shape[0]
    values = found.values.get(0)
    claim = Claim("yolov8", channels - 4, [f"{channels} channels first: box, {channels - 4} classes", grid])
    in_pixels(claim, facts, values)
    scores_follow(claim, values, 4)
    yield coco(claim)
    if channels - 5 == COCO_CLASSES:  # nobody exports it by default; but 81 classes are rarer still
        claim = Claim("yolov5 channels first", channels - 5, [f"{channels} channels: box, objectness, 80 classes"])
        claim.reading = "yolov5 channels first"
        scores_follow(claim, values, 4)
        yield claim


def _ssd(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 2)
    if found is None or found.shape[1] < 5:
        return
    anchors, columns = found.shape
    said = facts.metadata.get("layout") == "ssd"
    if not said and (anchors <= MOST_FINISHED or grid_text(facts, anchors) or grid_of_three(facts, anchors)):
        return
    yield from _rows_without_objectness(
        facts, "ssd", columns, f"{anchors} rows are more than finished boxes, and the cells of no YOLO grid", said
    )


def _yolov8_rows(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 2)
    if found is None or found.shape[1] < 5 or not (grid := grid_text(facts, found.shape[0])):
        return
    yield from _rows_without_objectness(facts, YOLOV8_ROWS, found.shape[1], grid, False)


def _rows_without_objectness(facts: FileFacts, layout: str, columns: int, why: str, said: bool) -> Iterator[Claim]:
    claim = Claim(layout, columns - 4, [f"rows of {columns}: box, {columns - 4} classes", why])
    if said:
        claim.proof.append(f"the file's metadata says `layout: {layout}`")
    values = facts.outputs[0].values.get(1)
    in_pixels(claim, facts, values)
    scores_follow(claim, values, 4)
    yield coco(claim)


def _end2end(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 2)
    if found is None or found.shape[1] != 6 or found.shape[0] > MOST_FINISHED:
        return
    values = found.values.get(1)
    claim = Claim("end2end", 0, [f"{found.shape[0]} rows of 6: two corners, score, class"])
    if facts.suppressed:
        claim.proof.append("the file's metadata says that it gives each object once")
    elif facts.suppressed is False:
        claim.against.append("the file's metadata says that it does not suppress by itself")
    if values is not None and not values.flat(5):
        if not values.whole[5] or values.low[5] < 0:
            claim.against.append("in a trial run what would be classes were no whole numbers")
        elif values.high[5] >= 1:
            claim.proof.append(f"in a trial run its last column held whole numbers up to {values.high[5]:.0f}: classes")
    if values is not None and not values.within(-SCORE_SLACK, 1 + SCORE_SLACK, 4, 5):
        claim.against.append("in a trial run what would be scores left 0..1")
    yield claim


def _rtdetr(facts: FileFacts) -> Iterator[Claim]:
    found = single(facts, 2)
    if found is None or found.shape[1] < 5 or not FEWEST_QUERIES <= found.shape[0] <= MOST_FINISHED:
        return
    queries, columns = found.shape
    if grid_text(facts, columns):  # channels first
        return
    values = found.values.get(1)
    claim = Claim(
        "rtdetr", columns - 4, [f"{queries} rows of {columns}: box in shares of the input, {columns - 4} classes"]
    )
    if values is not None and not values.flat(0, 4):
        if values.within(-0.5, 1.5, 0, 4):
            claim.proof.append("in a trial run its boxes stayed in 0..1: shares of the input")
        else:
            claim.against.append(f"in a trial run its boxes reached {max(values.high[:4]):.4g}: they are no shares")
    if values is not None and not values.flat(4) and all(values.whole[4:]):
        claim.against.append("in a trial run what would be scores were whole numbers")
    yield coco(claim)


def _raw_maps(facts: FileFacts) -> Iterator[Claim]:
    shapes = [t.shape for t in facts.outputs]
    if len(shapes) not in (3, 4) or not all(t.floats for t in facts.outputs):
        return
    wanted = {(facts.height // stride, facts.width // stride) for stride in STRIDES_P6[: len(shapes)]}
    ways = [
        [(shape[1:], shape[0] // 3) for shape in shapes if len(shape) == 3 and shape[0] % 3 == 0],
        [(shape[2:], shape[1]) for shape in shapes if len(shape) == 4 and shape[0] == 3],
        [(shape[1:3], shape[3]) for shape in shapes if len(shape) == 4 and shape[0] == 3],
    ]
    for way in ways:
        columns = {numbers for _, numbers in way}
        if len(way) != len(shapes) or {size for size, _ in way} != wanted or len(columns) != 1 or min(columns) < 6:
            continue
        numbers = columns.pop()
        claim = Claim(YOLOV5_RAW, numbers - 5, [f"{len(shapes)} maps of 3 x {numbers}: box, objectness, classes"])
        claim.proof.append("one map for each of the strides 8, 16, 32" + (", 64" if len(shapes) == 4 else ""))
        claim.why.append("anchors are taken to be YOLOv5's; the file does not say whether it has others (YOLOv7 has)")
        yield claim


def _two_outputs(facts: FileFacts) -> Iterator[Claim]:
    """Boxes and scores in outputs of their own: YOLO-NAS on the cells of its grid, RT-DETR by query."""
    if len(facts.outputs) != 2 or any(len(t.shape) != 2 for t in facts.outputs):
        return
    boxes = [t for t in facts.outputs if t.shape[1] == 4]
    scores = [t for t in facts.outputs if t.shape[1] != 4] or facts.outputs[1:]
    if not boxes or boxes[0].shape[0] != scores[0].shape[0]:
        return
    anchors, classes = scores[0].shape
    values = boxes[0].values.get(1)
    if grid := grid_text(facts, anchors):
        claim = Claim("yolonas", classes, [f"two outputs: {anchors} boxes and {classes} scores of each", grid])
        in_pixels(claim, facts, values)
        scores_follow(claim, scores[0].values.get(1), 0)
        yield coco(claim)
    elif anchors <= MOST_FINISHED:
        yield coco(Claim("rtdetr", classes, [f"two outputs: {anchors} boxes and {classes} scores of each"]))


def _distances(facts: FileFacts) -> Iterator[Claim]:
    """NanoDet: class scores, then a distribution for each side of the box."""
    found = single(facts, 2)
    if found is None or found.shape[0] not in (facts.cells(), facts.cells(STRIDES_P6)):
        return
    for bins in DFL_BINS:
        classes = found.shape[1] - 4 * bins
        if classes < 1:
            continue
        claim = Claim(
            "nanodet", classes, [f"rows of {found.shape[1]}: {classes} classes, 4 x {bins} bins of distances"]
        )
        values = found.values.get(1)
        if values is not None and not values.flat():
            if values.within(-SCORE_SLACK, 1 + SCORE_SLACK, classes):
                claim.against.append("in a trial run what would be logits of distances stayed in 0..1")
            elif not values.within(-SCORE_SLACK, 1 + SCORE_SLACK, 0, classes):
                claim.against.append("in a trial run what would be its scores left 0..1")
            else:
                claim.proof.append("in a trial run its first columns were in 0..1, those of distances were not")
        yield coco(claim)


def _distances_by_stride(facts: FileFacts) -> Iterator[Claim]:
    """PicoDet: for each stride an output of scores and one of distributions."""
    strides = len(facts.outputs) // 2
    if strides not in (3, 4) or len(facts.outputs) % 2 or any(len(t.shape) != 2 for t in facts.outputs):
        return
    cells = sorted(facts.cells((stride,)) for stride in STRIDES_P6[:strides])
    for bins in DFL_BINS:
        boxes = [t.shape[0] for t in facts.outputs if t.shape[1] == 4 * bins]
        others = {t.shape[1] for t in facts.outputs if t.shape[1] != 4 * bins}
        if sorted(boxes) == cells and len(others) == 1:
            classes = others.pop()
            why = [f"{strides} outputs of {classes} scores and {strides} of 4 x {bins} bins of distances"]
            yield coco(Claim("picodet", classes, why, [f"one pair for each of {strides} strides"]))


RULES: Final = (
    Rule("yolov6", "(A, 5 + C), A one per cell, decoded, objectness 1", _yolov6),
    Rule("yolov5", "(A, 5 + C), A three per cell, or one per cell and decoded", _yolov5),
    Rule("yolox", "(A, 5 + C), A one per cell, not decoded", _yolox),
    Rule("yolov8", "(4 + C, A), A one per cell", _yolov8),
    Rule(YOLOV8_ROWS, "(A, 4 + C), A one per cell", _yolov8_rows),
    Rule("ssd", "(A, 4 + C), A no grid of YOLO's", _ssd),
    Rule("end2end", "(N, 6), N small, last column whole numbers", _end2end),
    Rule("rtdetr", "(N, 4 + C) or (N, 4) and (N, C), N small, boxes in shares of the input", _rtdetr),
    Rule(YOLOV5_RAW, "maps (3 x (5 + C), h, w) or (3, h, w, 5 + C) per stride", _raw_maps),
    Rule("yolonas", "(A, 4) and (A, C)", _two_outputs),
    Rule("nanodet", "(A, C + 4 x bins), A one per cell", _distances),
    Rule("picodet", "(a, C) and (a, 4 x bins) for each stride", _distances_by_stride),
    *TASK_RULES,
)
"""Every layout that can be told, in the order that candidates are listed."""


def head_options(facts: FileFacts, layout: str) -> HeadOptions:
    """What the layout can't see in the shapes, but a trial run or the metadata shows."""
    if layout == YOLOV8_POSE:
        shape = literal(facts.metadata.get("kpt_shape", ""))
        if isinstance(shape, (list, tuple)) and len(shape) == 2 and shape[1] == 2:
            return HeadOptions(keypoint_values=2)
    elif layout == CLASSIFY:
        if not _all_within(facts.outputs[:1]):
            return HeadOptions(scores="logits")
    elif layout == YOLOV5_RAW:
        if all(t.values for t in facts.outputs) and _all_within(facts.outputs):
            return HeadOptions(scores="probabilities")
    elif layout == "rtdetr" and len(facts.outputs) == 2:
        scores = [t for t in facts.outputs if t.shape[1:] != (4,)] or facts.outputs[1:]
        if scores[0].values:
            return HeadOptions(scores="probabilities" if _all_within(scores[:1]) else "logits")
    return HeadOptions()


def _all_within(outputs: Sequence[OutputFacts]) -> bool:
    return all(values.within(-SCORE_SLACK, 1 + SCORE_SLACK) for t in outputs for values in list(t.values.values())[:1])
