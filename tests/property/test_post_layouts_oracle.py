"""Raw heads, split outputs, distributions, masks, keypoints and oriented boxes against naive readings of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.specs import model_spec
from oracles import naive_layouts as naive
from searching import examples

from stages.letterbox import geometry
from stages.model import HeadOptions, ModelSpec, TensorSpec
from stages.postprocess.head import DetailedHead
from stages.postprocess.masks import mask_of, runs
from stages.postprocess.nms_rotated import suppress_rotated
from stages.postprocess.registry import head_for

WIDTH, HEIGHT = 64, 32
ODD = {"nan": np.nan, "-nan": -np.nan, "inf": np.inf, "-inf": -np.inf, "zero": 0.0, "-zero": -0.0}

seeds = st.integers(0, 2**32 - 1)
counts = st.sampled_from([1, 2, 3, 12])
shares = st.sampled_from([0, 0, 0.02, 0.2])
confidences = st.sampled_from([0.0, 0.125, 0.3, 0.5, 0.9, 0.9999, 1.0])
filters = st.none() | st.frozensets(st.integers(0, 11), max_size=12)
dtypes = pytest.mark.parametrize("dtype", ["float32", "float16"])
searched = settings(max_examples=examples(60))


def model_of(layout, shapes, dtype, classes, names=(), size=(WIDTH, HEIGHT), **options) -> ModelSpec:
    names = names or [f"out{i}" for i in range(len(shapes))]
    return model_spec(
        width=size[0],
        height=size[1],
        layout=layout,
        labels=tuple(f"c{i}" for i in range(classes)),
        outputs=tuple(TensorSpec(n, s, dtype) for n, s in zip(names, shapes, strict=True)),
        head=HeadOptions(**options),
    )


def spoilt(rng, raw, share, dtype):
    """A share of the numbers replaced by what no number should be, in the output's type, read-only."""
    raw = np.asarray(raw).astype(dtype)
    where = rng.random(raw.shape) < share
    raw[where] = rng.choice(np.array(list(ODD.values()), dtype), int(where.sum()))
    raw.flags.writeable = False
    return raw


def check(found, expected, confidence, tolerance=2e-4):
    """The same candidates in the same order, but for those whose score is the confidence up to rounding."""
    boxes, scores, ids = found.boxes.tolist(), found.scores.tolist(), found.class_ids.tolist()

    def clear(items, score_of):
        return [item for item in items if not 0 < abs(score_of(item) - confidence) < 1e-6]

    got = clear(list(zip(boxes, scores, ids, strict=True)), lambda item: item[1])
    wanted = clear(expected, lambda item: item[4])
    assert [g[2] for g in got] == [w[5] for w in wanted]
    np.testing.assert_allclose([g[1] for g in got], [w[4] for w in wanted], atol=1e-6, rtol=1e-5)
    np.testing.assert_allclose(
        np.array([g[0] for g in got]).reshape(-1, 4),
        np.array([w[:4] for w in wanted]).reshape(-1, 4),
        atol=tolerance,
        rtol=1e-5,
    )


def subset(wanted, class_count):
    return None if wanted is None else tuple(sorted(c for c in wanted if c < class_count))


def scores_like(rng, anchors, classes):
    scores = rng.random((anchors, classes)) ** 2
    return np.round(scores * 8) / 8 if rng.random() < 0.5 else scores


@dtypes
@pytest.mark.parametrize("how", ["255xHxW", "3xHxWx85", "3x85xHxW"])
@searched
@given(seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters, raw=st.booleans())
def test_yolov5_raw_heads(how, dtype, seed, class_count, odd, confidence, wanted, raw):
    rng = np.random.default_rng(seed)
    levels, outputs = {}, []
    for stride in (8, 16, 32):
        shape = (3, HEIGHT // stride, WIDTH // stride, 5 + class_count)
        numbers = np.round(rng.normal(0, 3, shape) * 4) / 4 if raw else rng.random(shape)
        # no box so thin that rounding decides whether it has an area
        numbers[..., 2:4] = np.maximum(numbers[..., 2:4], -3 if raw else 0.1)
        levels[stride] = spoilt(rng, numbers, odd, dtype)
        grid = levels[stride]
        if how != "3xHxWx85":
            grid = np.ascontiguousarray(grid.transpose(0, 3, 1, 2))
        if how == "255xHxW":
            grid = grid.reshape(-1, *grid.shape[2:])
        outputs.append(grid)
    order = rng.permutation(3)
    outputs = [outputs[i] for i in order]
    classes = subset(wanted, class_count)
    scores = "auto" if raw else "probabilities"
    model = model_of("yolov5_raw", [o.shape for o in outputs], dtype, class_count, scores=scores)
    found, cut = head_for(model).candidates(outputs, confidence, classes)
    assert cut == 0
    check(found, naive.yolov5_raw(levels, confidence, classes, raw=raw), confidence)


@dtypes
@searched
@given(seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters, ones=st.booleans())
def test_yolov6(dtype, seed, class_count, odd, confidence, wanted, ones):
    rng = np.random.default_rng(seed)
    anchors = int(rng.integers(1, 60))
    objectness = np.ones((anchors, 1)) if ones else rng.random((anchors, 1))
    raw = np.concatenate((rng.random((anchors, 4)) * 60, objectness, scores_like(rng, anchors, class_count)), 1)
    raw = spoilt(rng, raw, odd, dtype)
    classes = subset(wanted, class_count)
    found, _ = head_for(model_of("yolov6", [raw.shape], dtype, class_count)).candidates([raw], confidence, classes)
    check(found, naive.yolov6(raw, confidence, classes), confidence)


@dtypes
@searched
@given(seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters, swap=st.booleans())
def test_yolonas(dtype, seed, class_count, odd, confidence, wanted, swap):
    rng = np.random.default_rng(seed)
    anchors = int(rng.integers(1, 60))
    boxes = spoilt(rng, np.sort(rng.random((anchors, 2, 2)) * 60, axis=1).reshape(-1, 4), odd, dtype)
    scores = spoilt(rng, scores_like(rng, anchors, class_count), odd, dtype)
    outputs = [scores, boxes] if swap else [boxes, scores]
    classes = subset(wanted, class_count)
    model = model_of("yolonas", [o.shape for o in outputs], dtype, class_count)
    found, _ = head_for(model).candidates(outputs, confidence, classes)
    check(found, naive.separate(boxes, scores, confidence, classes), confidence)


@dtypes
@pytest.mark.parametrize("how", ["one output", "scores", "logits", "logits by option"])
@searched
@given(seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters)
def test_rtdetr(how, dtype, seed, class_count, odd, confidence, wanted):
    rng = np.random.default_rng(seed)
    queries = int(rng.integers(1, 40))
    logits = how.startswith("logits")
    numbers = np.round(rng.normal(0, 3, (queries, class_count)) * 4) / 4
    scores = spoilt(rng, numbers if logits else scores_like(rng, queries, class_count), odd, dtype)
    boxes = spoilt(rng, rng.random((queries, 4)), odd, dtype)
    options = {"scores": "logits"} if how == "logits by option" else {}
    name = {"scores": "scores", "logits": "pred_logits"}.get(how, "out")
    outputs = [np.concatenate((boxes, scores), 1)] if how == "one output" else [scores, boxes]
    names = ["output0"] if how == "one output" else [name, "pred_boxes"]
    classes = subset(wanted, class_count)
    model = model_of("rtdetr", [o.shape for o in outputs], dtype, class_count, names, **options)
    head = head_for(model)
    found, _ = head.candidates(outputs, confidence, classes)
    assert not head.suppresses
    check(found, naive.rtdetr(boxes, scores, WIDTH, HEIGHT, confidence, classes, logits), confidence)


@dtypes
@pytest.mark.parametrize("layout", ["nanodet", "picodet"])
@pytest.mark.parametrize("joined", [True, False])
@searched
@given(seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters, reg_max=st.integers(1, 16))
def test_distributions(joined, layout, dtype, seed, class_count, odd, confidence, wanted, reg_max):
    rng = np.random.default_rng(seed)
    strides = (8, 16, 32, 64) if rng.random() < 0.5 else (8, 16, 32)
    width, height = (int(v) for v in rng.integers(20, 90, 2))  # no multiples of the strides
    per_level = [math.ceil(width / s) * math.ceil(height / s) for s in strides]
    if not joined and len(set(per_level)) < len(per_level):
        return  # two grids of one size can't be told apart
    anchors = sum(per_level)
    scores = spoilt(rng, scores_like(rng, anchors, class_count), odd, dtype)
    bins = spoilt(rng, rng.normal(0, 3, (anchors, 4 * (reg_max + 1))), odd / 10, dtype)
    if joined:
        outputs = [np.concatenate((scores, bins), 1)]
    else:
        ends = np.cumsum(per_level)[:-1]
        outputs = [*np.split(scores, ends), *np.split(bins, ends)]
    classes = subset(wanted, class_count)
    model = model_of(layout, [o.shape for o in outputs], dtype, class_count, size=(width, height), strides=strides)
    found, _ = head_for(model).candidates(outputs, confidence, classes)
    plus = layout == "nanodet"
    offset = 0 if plus else 0.5
    expected = naive.distribution_head(scores, bins, width, height, strides, offset, confidence, classes, clips=plus)
    check(found, expected, confidence, 1e-3)


@dtypes
@pytest.mark.parametrize("rows", [True, False])
@searched
@given(seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters)
def test_yolov8_in_both_orientations(rows, dtype, seed, class_count, odd, confidence, wanted):
    rng = np.random.default_rng(seed)
    anchors = int(rng.integers(20, 60))
    raw = spoilt(
        rng, np.concatenate((rng.random((anchors, 4)) * 60, scores_like(rng, anchors, class_count)), 1), odd, dtype
    )
    output = raw if rows else np.ascontiguousarray(raw.T)
    classes = subset(wanted, class_count)
    expected = [candidate for candidate, _ in naive.with_extra(raw, class_count, confidence, classes)]
    for layout in ("yolov8", "yolov8_rows") if rows else ("yolov8",):
        model = model_of(layout, [output.shape], dtype, class_count)
        found, _ = head_for(model).candidates([output], confidence, classes)
        check(found, expected, confidence)


@dtypes
@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("layout", ["yolov8_seg", "yolov8_pose"])
@searched
@given(
    seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters, top_k=st.sampled_from([3, 999])
)
def test_numbers_besides_the_box_stay_with_it(layout, rows, dtype, seed, class_count, odd, confidence, wanted, top_k):
    rng = np.random.default_rng(seed)
    anchors, extra = int(rng.integers(70, 90)), 32 if layout == "yolov8_seg" else 51
    parts = (rng.random((anchors, 4)) * 60, scores_like(rng, anchors, class_count), rng.normal(0, 1, (anchors, extra)))
    raw = spoilt(rng, np.concatenate(parts, 1), odd / 10, dtype)
    outputs = [raw if rows else np.ascontiguousarray(raw.T)]
    if layout == "yolov8_seg":
        outputs.append(np.zeros((32, HEIGHT // 4, WIDTH // 4), dtype))
    classes = subset(wanted, class_count)
    model = model_of(layout, [o.shape for o in outputs], dtype, class_count)
    found, cut = head_for(model).candidates(outputs, confidence, classes, top_k)
    expected = naive.with_extra(raw, class_count, confidence, classes)
    best = sorted(sorted(range(len(expected)), key=lambda i: (-expected[i][0][4], i))[:top_k])
    assert cut == max(len(expected) - top_k, 0)
    check(found, [expected[i][0] for i in best], -1)
    np.testing.assert_array_equal(found.extra, np.array([expected[i][1] for i in best], np.float32).reshape(-1, extra))


@dtypes
@searched
@given(seed=seeds, class_count=counts, odd=shares, confidence=confidences, wanted=filters)
def test_oriented_boxes(dtype, seed, class_count, odd, confidence, wanted):
    rng = np.random.default_rng(seed)
    anchors = int(rng.integers(20, 60))
    parts = (rng.random((anchors, 4)) * 60, scores_like(rng, anchors, class_count), rng.uniform(-1, 3, (anchors, 1)))
    raw = spoilt(rng, np.concatenate(parts, 1), odd / 4, dtype)
    classes = subset(wanted, class_count)
    output = np.ascontiguousarray(raw.T)
    model = model_of("yolov8_obb", [output.shape], dtype, class_count)
    head = head_for(model)
    found, _ = head.candidates([output], confidence, classes)
    expected, corners = [], []
    for row in raw.astype(np.float64).tolist():
        best = naive.best_of(row[4:-1])
        if best is None or not naive.passes(best[1], best[0], confidence, classes):
            continue
        if not all(math.isfinite(v) for v in (*row[:4], row[-1])) or not (row[2] > 0 and row[3] > 0):
            continue
        points = naive.rotated_corners(*row[:4], row[-1])
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        expected.append((min(xs), min(ys), max(xs), max(ys), best[1], best[0]))
        corners.append(points)
    check(found, expected, confidence)
    assert isinstance(head, DetailedHead)
    lies = geometry(640, 200, WIDTH, HEIGHT, "center")
    details = head.details([output], found, np.arange(len(found)), found.boxes, lies)
    back = [[((x - lies.left) * 640 / lies.width, (y - lies.top) * 200 / lies.height) for x, y in c] for c in corners]
    np.testing.assert_allclose(details.corners, np.array(back).reshape(-1, 4, 2), atol=0.01, rtol=1e-5)


@pytest.mark.parametrize("kind", ["scattered", "clusters", "equal", "identical"])
def test_rotated_suppression_keeps_what_the_definition_keeps(kind):
    rng = np.random.default_rng([1, len(kind)])
    for _ in range(60):
        n = int(rng.integers(0, 24))
        boxes = np.concatenate((rng.random((n, 2)) * 60, rng.random((n, 2)) * 30 + 1, rng.uniform(-4, 4, (n, 1))), 1)
        scores, ids = rng.random(n, np.float32), rng.integers(0, 2, n)
        if kind == "clusters":
            boxes = boxes[np.arange(n) // 4] * rng.normal(1, 0.03, (n, 5))
        elif kind == "equal":
            scores[:] = 0.5
        elif kind == "identical":
            boxes[:] = boxes[:1]
        boxes = boxes.astype(np.float32)
        iou, agnostic = float(rng.choice([0.1, 0.45, 0.7])), bool(rng.integers(2))
        kept = suppress_rotated(boxes, scores, ids, iou, agnostic)
        assert kept.tolist() == naive.suppress_rotated(boxes, scores, np.zeros(n) if agnostic else ids, iou)


def test_rotated_suppression_of_several_blocks():
    rng = np.random.default_rng(2)
    n = 150
    boxes = np.concatenate((rng.random((n, 2)) * 200, rng.random((n, 2)) * 60 + 1, rng.uniform(-4, 4, (n, 1))), 1)
    boxes, scores, ids = boxes.astype(np.float32), rng.random(n, np.float32), rng.integers(0, 3, n)
    assert suppress_rotated(boxes, scores, ids, 0.2, False).tolist() == naive.suppress_rotated(boxes, scores, ids, 0.2)


@dtypes
@pytest.mark.parametrize("placement", ["center", "top_left", "stretch"])
@settings(max_examples=examples(25))
@given(seed=seeds)
def test_masks_pixel_by_pixel(placement, dtype, seed):
    rng = np.random.default_rng(seed)
    source = tuple(int(v) for v in rng.integers(8, 150, 2))
    lies = geometry(*source, WIDTH, HEIGHT, placement, (0.1, 0, 1, 0.8) if rng.random() < 0.5 else None)
    prototypes = rng.normal(0, 1, (4, HEIGHT // 4, WIDTH // 4)).astype(dtype)
    coefficients = rng.normal(0, 1, 4).astype(np.float32)
    corners = np.sort(rng.uniform(-0.2, 1.2, (2, 2)), axis=0) * (WIDTH, HEIGHT)
    box = lies.inverse(corners.reshape(1, 4))[0]

    def to_model(x, y):
        return lies.forward(np.array([[x, y]]))[0]

    mask = mask_of(coefficients, prototypes, box, lies)
    left, top, values = naive.mask_values(coefficients, prototypes, box.tolist(), to_model, (WIDTH, HEIGHT))
    got = naive.decode_runs(mask.counts, mask.width, mask.height)
    assert (mask.x, mask.y, got.shape) == (left, top, values.shape)
    differs = got != (values > 0)
    assert (np.abs(values[differs]) < 1e-4).all()


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_runs_come_back(inside):
    counts = runs(np.array(inside))
    assert naive.decode_runs(counts, len(inside), 1)[0].tolist() == inside
    assert all(count > 0 for count in counts[1:])


@dtypes
def test_keypoints_come_back_to_the_picture_and_are_clipped_to_it(dtype):
    raw = np.zeros((4 + 1 + 6, 30), dtype)
    raw[:, 7] = [30, 16, 20, 10, 0.9, 32, 16, 0.75, -40, 500, 1.004]
    head = head_for(model_of("yolov8_pose", [raw.shape], dtype, 1))
    found, _ = head.candidates([raw], 0.5)
    lies = geometry(640, 320, WIDTH, HEIGHT, "center")
    assert isinstance(head, DetailedHead)
    details = head.details([raw], found, np.array([0]), lies.inverse(found.boxes), lies)
    assert details.keypoints is not None
    np.testing.assert_allclose(details.keypoints[0], [[320, 160, 0.75], [0, 320, 1]], atol=1e-4)


@dtypes
@pytest.mark.parametrize("logits", [True, False])
def test_classes_of_a_whole_frame(dtype, logits):
    values = np.array([0.05, 0.5, 0.1, 0.3, 0.05])
    raw = (np.log(values) + 3 if logits else values).astype(dtype)
    model = model_of("classify", [raw.shape], dtype, 5, scores="logits" if logits else "auto", top=2)
    head = head_for(model)
    found, cut = head.candidates([raw], 0.01)
    assert (found.class_ids.tolist(), cut, head.suppresses) == ([1, 3], 0, False)
    np.testing.assert_allclose(found.scores, [0.5, 0.3], atol=2e-3)
    assert found.boxes.tolist() == [[0, 0, WIDTH, HEIGHT]] * 2
    assert head.candidates([raw], 0.4)[0].class_ids.tolist() == [1]
    assert head.candidates([raw], 0.01, (0, 3))[0].class_ids.tolist() == [0, 3]
    nothing = raw.copy()
    nothing[2] = np.nan
    assert len(head.candidates([nothing], 0.01)[0]) == 0


@pytest.mark.parametrize("layout", ["yolov8", "yolov8_rows", "yolov6", "yolonas", "nanodet", "ssd", "yolov5"])
@pytest.mark.parametrize("classes", [1, 2, 80, 4000])
@dtypes
def test_any_number_of_classes(layout, classes, dtype):
    """One object of the last class among background."""
    anchors = 42 if layout == "nanodet" else 37
    scores = np.full((anchors, classes), 0.01)
    scores[5, -1] = 0.9
    boxes = np.tile([[30.0, 16, 20, 10]], (anchors, 1))
    ones = np.ones((anchors, 1))
    outputs = {
        "yolov8": lambda: [np.concatenate((boxes, scores), 1).T],
        "yolov8_rows": lambda: [np.concatenate((boxes, scores), 1)],
        "ssd": lambda: [np.concatenate((boxes, scores), 1)],
        "yolov6": lambda: [np.concatenate((boxes, ones, scores), 1)],
        "yolov5": lambda: [np.concatenate((boxes, ones, scores), 1)],
        "yolonas": lambda: [np.add(boxes, (0, 0, 20, 10)), scores],
        "nanodet": lambda: [np.concatenate((scores, np.zeros((anchors, 32))), 1)],
    }[layout]()
    outputs = [np.ascontiguousarray(o, dtype) for o in outputs]
    names = ["boxes", "scores"] if len(outputs) == 2 else []
    head = head_for(model_of(layout, [o.shape for o in outputs], dtype, classes, names))
    found, cut = head.candidates(outputs, 0.5)
    assert (found.class_ids.tolist(), cut) == ([classes - 1], 0)
    assert found.scores[0] == pytest.approx(0.9, abs=1e-3)
