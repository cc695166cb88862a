"""Raw outputs of two models compared part by part, and what the likely cause of a difference is said to be."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipeline.models.verify_against import Agreement, agreement, cause, differences, distance, parts_of
from pipeline.models.verify_run import Found
from stages.model import TensorSpec
from stages.postprocess.detect_facts import FileFacts, OutputFacts


def model_with(layout, labels, *shapes, size=64):
    outputs = tuple(OutputFacts(f"o{i}", shape, "float32") for i, shape in enumerate(shapes))
    return FileFacts(size, size, "float32", outputs).spec(layout, labels)


@pytest.mark.parametrize(
    ("layout", "shapes", "scales", "groups"),
    [
        ("yolov5", [(252, 8)], 3, {"boxes", "objectness", "classes"}),
        ("yolox", [(84, 8)], 3, {"boxes", "objectness", "classes"}),
        ("yolov8", [(7, 84)], 3, {"boxes", "classes"}),
        ("yolov8", [(84, 7)], 3, {"boxes", "classes"}),
        ("yolov8_pose", [(84, 13)], 3, {"boxes", "classes", "others"}),
        ("ssd", [(50, 7)], 1, {"boxes", "classes"}),
        ("end2end", [(30, 6)], 1, {"boxes", "scores", "class numbers"}),
        ("yolonas", [(84, 4), (84, 3)], 3, {"boxes", "classes"}),
        ("yolov5_raw", [(24, 8, 8), (24, 4, 4), (24, 2, 2)], 3, {"boxes", "objectness", "classes"}),
        ("yolov5_raw", [(3, 8, 8, 8), (3, 4, 4, 8)], 2, {"boxes", "objectness", "classes"}),
        ("yolov5_raw", [(3, 8, 4, 4)], 1, {"boxes", "objectness", "classes"}),
    ],
)
def test_the_parts_of_a_layout_cover_each_number_once(layout, shapes, scales, groups):
    model = model_with(layout, 3, *shapes)
    seen_scales, seen_groups = set(), set()
    for tensor in model.outputs:
        count = np.zeros(tensor.shape, int)
        for scale, group, place in parts_of(model, tensor):
            count[place] += 1
            seen_scales.add(scale)
            seen_groups.add(group)
        assert (count == 1).all()
    assert len(seen_scales) == scales
    assert seen_groups == groups


def test_a_difference_shows_in_its_part_alone():
    model = model_with("yolov8", 3, (7, 84))
    first = np.ones((7, 84))
    second = first.copy()
    second[5, 70] = 3  # a class score at stride 16: cells 64 to 79
    found = differences(model, [[first]], [[second]])
    changed = [d for d in found if d.most]
    assert [(d.scale, d.group, d.most) for d in changed] == [("stride 16", "classes", 2.0)]
    assert changed[0].mean == pytest.approx(2 / (3 * 16))
    assert distance(found) > 0


SAME = Agreement(10, 0, 0, 0.01)
APART = Agreement(1, 9, 9, 0.0)


@pytest.mark.parametrize(
    ("base", "tried", "agreed", "says"),
    [
        (0.0, {}, SAME, "are the same"),
        (0.8, {"channels bgr": 0.01, "scaling 0..255": 0.9}, APART, "channel order"),
        (0.8, {"channels bgr": 0.7, "scaling 0..255": 0.02}, APART, "normalisation"),
        (0.8, {"channels bgr": 0.7, "placement stretch": 0.02}, APART, "padding"),
        (0.1, {"channels bgr": 0.5}, SAME, "precision"),
        (0.8, {"channels bgr": 0.7}, APART, "not the feeding"),
    ],
)
def test_the_cause_is_the_way_of_feeding_that_explains_the_difference(base, tried, agreed, says):
    assert says in cause(base, tried, agreed, ("float32", "float16"))


def test_objects_are_matched_once_by_class_and_place():
    boxes = np.array([[0, 0, 10, 10], [50, 50, 60, 60]], np.float32)
    first = Found(boxes, np.array([0.9, 0.8], np.float32), np.array([0, 1], np.int32))
    second = Found(boxes[[0, 0]], np.array([0.7, 0.6], np.float32), np.array([0, 0], np.int32))
    found = agreement([first], [second])
    assert (found.both, found.first_only, found.second_only) == (1, 1, 1)
    assert found.score_shift == pytest.approx(-0.2)
    assert dataclasses.astuple(agreement([], [])) == (0, 0, 0, 0.0)


def test_every_output_has_parts_even_of_layouts_without_grids():
    assert [group for _, group, _ in parts_of(model_with("classify", 9, (9,)), TensorSpec("o", (9,), "float32"))] == [
        "all"
    ]


def test_codes_are_compared_as_what_they_stand_for():
    floats = model_with("yolov8", 3, (7, 84))
    codes = dataclasses.replace(floats, outputs=(TensorSpec("o0", (7, 84), "uint8", 0.5, 10),))
    first = np.full((7, 84), 2.5, np.float32)
    same = differences(floats, [[first]], [[np.full((7, 84), 15, np.uint8)]], codes)
    assert distance(same) == 0
    other = differences(floats, [[first]], [[np.full((7, 84), 16, np.uint8)]], codes)
    assert {(d.mean, d.most) for d in other} == {(0.5, 0.5)}
