"""The guess of an output layout: every shape that is known, what decides between two, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.postprocess.detect import Guess, Undecided, detect
from stages.postprocess.detect_facts import AxisValues, FileFacts, OutputFacts, names_of
from stages.postprocess.detect_rules import RULES, head_options
from stages.postprocess.registry import LAYOUTS


def facts(*shapes, size=640, metadata=None, values=None):
    outputs = tuple(
        OutputFacts(f"output{i}", shape, "float32", values or {} if i == 0 else {}) for i, shape in enumerate(shapes)
    )
    return FileFacts(size, size, "float32", outputs, metadata or {})


def columns(boxes, others, axis=1, whole=False):
    """Values of a trial run along the channel axis: the range of the box columns, and of those behind them."""
    lows, highs = zip(*[boxes] * 4, *others, strict=True)
    return {axis: AxisValues(lows, highs, (False,) * (len(lows) - 1) + (whole,))}


NAMES_80 = str({number: f"label {number}" for number in range(80)})

TOLD = [
    ("yolov5", 80, facts((25200, 85))),
    ("yolov5", 3, facts((25200, 8))),
    ("yolov5", 80, facts((102000, 85), size=1280)),  # P6
    ("yolov5", 80, facts((8400, 85), values=columns((0.0, 640.0), [(0.0, 1.0)] * 81))),  # YOLOX, decoded in the file
    ("yolox", 80, facts((3549, 85), size=416, values=columns((-2.0, 3.0), [(0.0, 1.0)] * 81))),
    ("yolov8", 80, facts((84, 8400))),
    ("yolov8", 2, facts((6, 8400))),
    ("yolov8", 1, facts((5, 8400))),
    ("yolov8", 601, facts((605, 8400))),
    ("yolov8", 80, facts((84, 2100), size=320)),
    ("yolov8", 80, facts((84, 8400), metadata={"names": NAMES_80, "task": "detect", "end2end": "False"})),
    ("ssd", 80, facts((1917, 84), size=300)),
    ("ssd", 20, facts((8732, 24), size=300)),
    ("end2end", 80, facts((300, 6), metadata={"names": NAMES_80, "end2end": "True"})),
    ("end2end", 80, facts((300, 6), metadata={"names": NAMES_80, "args": "{'nms': True}"})),
    ("yolov5_raw", 80, facts((255, 80, 80), (255, 40, 40), (255, 20, 20))),
    ("yolov5_raw", 80, facts((255, 20, 20), (255, 40, 40), (255, 80, 80))),
    ("yolov5_raw", 2, facts((3, 80, 80, 7), (3, 40, 40, 7), (3, 20, 20, 7))),
    ("yolov5_raw", 2, facts((3, 7, 80, 80), (3, 7, 40, 40), (3, 7, 20, 20))),
    ("yolov6", 3, facts((8400, 8), values=columns((0.0, 640.0), [(1.0, 1.0), *[(0.0, 0.9)] * 3]))),
    ("yolonas", 80, facts((8400, 4), (8400, 80))),
    ("yolonas", 3, facts((8400, 3), (8400, 4))),
    ("rtdetr", 80, facts((300, 84))),
    ("rtdetr", 2, facts((300, 6), values=columns((0.0, 0.9), [(0.0, 0.3)] * 2))),
    ("nanodet", 80, facts((2125, 112), size=320)),
    ("nanodet", 80, facts((3598, 112), size=416)),
    ("picodet", 80, facts(*[(n * n, 80) for n in (40, 20, 10, 5)], *[(n * n, 32) for n in (40, 20, 10, 5)], size=320)),
    ("yolov8_seg", 80, facts((116, 8400), (32, 160, 160))),
    ("yolov8_pose", 1, facts((56, 8400), metadata={"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"})),
    ("yolov8_pose", 1, facts((25, 8400), metadata={"task": "pose", "names": "{0: 'hand'}", "kpt_shape": "[10, 2]"})),
    ("yolov8_obb", 15, facts((20, 8400), metadata={"task": "obb"})),
    ("yolov8_seg", 80, facts((8400, 116), (32, 160, 160))),
    ("yolov8_pose", 1, facts((8400, 56), metadata={"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"})),
    ("yolov8_obb", 15, facts((8400, 20), metadata={"task": "obb"})),
    ("classify", 1000, facts((1000,))),
    ("classify", 10, facts((10,), metadata={"task": "classify"})),
    ("end2end", 0, facts((300, 6), values=columns((-2.0, 640.0), [(0.0, 0.9), (0.0, 16.0)], whole=True))),
]


@pytest.mark.parametrize(("layout", "classes", "known"), TOLD)
def test_a_known_shape_is_named_with_its_classes_and_reasons(layout, classes, known):
    found = detect(known)
    assert isinstance(found, Guess), found
    assert (found.layout, found.classes) == (layout, classes)
    assert found.why


AMBIGUOUS = [
    # 81 classes, or objectness and 80
    (facts((85, 8400)), {"yolov8", "yolov5 channels first"}),
    # objectness and one class, or two classes
    (facts((8400, 6)), {"yolov5", "yolox", "yolov8_rows"}),
    # finished boxes, or shares of the input and two classes
    (facts((300, 6)), {"end2end", "rtdetr"}),
    # decoded in the file or not, and no run that shows it
    (facts((8400, 85)), {"yolov5", "yolox"}),
    # as many cells as channels: either axis may be either
    (facts((84, 84), size=64), {"yolov8", "yolov8_rows"}),
]


@pytest.mark.parametrize(("known", "layouts"), AMBIGUOUS)
def test_an_ambiguous_shape_is_refused_with_its_candidates(known, layouts):
    found = detect(known)
    assert isinstance(found, Undecided), found
    assert found.ambiguous
    assert layouts <= {each.layout for each in found.candidates if not each.against}
    assert "--layout" in found.remedy


def test_the_number_of_labels_decides_where_the_shape_does_not():
    assert detect(facts((85, 8400)), 81) == detect(facts((85, 8400)), 81)
    found = detect(facts((85, 8400)), 81)
    assert isinstance(found, Guess)
    assert found.layout == "yolov8"
    assert "81 classes" in " ".join(found.why)


@pytest.mark.parametrize(
    ("known", "labels"),
    [
        (facts((7, 11)), None),
        (facts((25200, 85)), 3),  # contradicted by the labels
        (facts((84, 8400), metadata={"names": "{0: 'a', 1: 'b'}"}), None),
        (facts((84, 8400), metadata={"task": "unheard-of"}), None),
        (facts((25200, 85), values=columns((0.0, 640.0), [(-7.0, 4.0)] * 81)), None),  # logits
        (facts((8400, 84), values=columns((0.0, 0.9), [(-9.0, 4.0)] * 80)), None),
        (facts(), None),
        (facts((5,), (6,)), None),
        (facts((25200, 85), (25200, 85)), None),
    ],
)
def test_what_contradicts_every_layout_is_refused_with_the_reason(known, labels):
    found = detect(known, labels)
    assert isinstance(found, Undecided), found
    assert not found.ambiguous
    assert all(each.against for each in found.candidates)
    assert found.remedy


def test_labels_that_are_given_go_before_those_in_the_file():
    found = detect(facts((84, 8400), metadata={"names": "{0: 'a'}"}), 80)
    assert isinstance(found, Guess)


@given(
    st.lists(st.lists(st.integers(1, 9000), min_size=0, max_size=4).map(tuple), max_size=4),
    st.sampled_from([32, 64, 300, 416, 640]),
    st.one_of(st.none(), st.integers(1, 90)),
    st.dictionaries(st.sampled_from(["names", "task", "end2end", "args", "layout", "kpt_shape"]), st.text(max_size=40)),
)
def test_any_shape_and_metadata_give_an_answer_that_the_head_accepts(shapes, size, labels, metadata):
    known = facts(*shapes, size=size, metadata=metadata)
    found = detect(known, labels)
    if isinstance(found, Guess):
        model = known.spec(found.layout, found.classes or 1, head_options(known, found.layout))
        LAYOUTS[found.layout](model).check(model)
        assert labels is None or found.classes == labels
    else:
        assert found.remedy


def test_each_layout_that_can_be_read_has_a_rule():
    assert set(LAYOUTS) <= {rule.layout for rule in RULES}


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{0: 'person', 1: 'traffic light'}", ("person", "traffic light")),
        ("['a', 'b']", ("a", "b")),
        ('{"0": "a"}', ()),
        ("{0: 'a', 2: 'c'}", ()),
        ("{1: 'a', 0: 'b'}", ("b", "a")),
        ("{0: ''}", ()),
        ("{0: 'a\\nb'}", ("a b",)),
        ("__import__('os').system('true')", ()),
        ("(" * 5000, ()),
        ("{0: " + "'x'" * 400_000 + "}", ()),
        ("", ()),
        ("{", ()),
    ],
)
def test_names_in_metadata_are_read_as_literals_or_not_at_all(text, labels):
    assert names_of(text) == labels
