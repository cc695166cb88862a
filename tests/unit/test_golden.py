"""Golden files: what is a difference, how it reads, and how the file is written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.testing import assert_matches_golden, write_golden
from pipeline.testing.details import details
from pipeline.testing.matching import differences, iou, pair
from stages.messages import DetectedObject, Detections, Mask

LABELS = ["person", "car", "dog"]


def found(x: float, y: float, size: float = 50.0, class_id: int = 0, score: float = 0.9) -> DetectedObject:
    return DetectedObject(
        box=[float(side) for side in (x, y, x + size, y + size)], score=score, class_id=class_id, label=LABELS[class_id]
    )


def frame(seq: int, *objects: DetectedObject, camera: str = "gate", epoch: int = 0, **other: Any) -> Detections:
    values: dict[str, Any] = {
        "pts_ns": seq * 100_000_000,
        "captured_ns": 5,
        "clock": "file",
        "width": 640,
        "height": 480,
        "model": "m",
    }
    return Detections(camera=camera, epoch=epoch, seq=seq, objects=list(objects), **(values | other))


def told(was: list[Detections], now: list[Detections], path: Path, **tolerances: float) -> str:
    write_golden(was, path)
    try:
        assert_matches_golden(now, path, **tolerances)
    except AssertionError as error:
        return str(error)
    return ""


def test_the_same_results_match_whatever_else_the_message_says(tmp_path: Path) -> None:
    was = [frame(0, found(1, 2), found(100, 2)), frame(1)]
    now = [frame(0, found(1, 2), found(100, 2), captured_ns=77, clock="rtcp"), frame(1)]
    assert told(was, now, tmp_path / "g.jsonl") == ""


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ([frame(0, found(1.9, 0))], ""),
        ([frame(0, found(2.5, 0))], "person 0.90 at [0.0, 0.0, 50.0, 50.0]: box off by 2.50 px (x1 +2.50)"),
        ([frame(0, found(0, 0, score=0.93))], "score off by 0.0300 (0.9000 to 0.9300)"),
        ([frame(0, found(0, 0, score=0.915))], ""),
        ([frame(0)], "gate frame 0 (0.000 s): person 0.90 at [0.0, 0.0, 50.0, 50.0]: missing"),
        ([frame(0, found(0, 0), found(300, 0, class_id=1))], "car 0.90 at [300.0, 0.0, 350.0, 50.0]: extra"),
        ([frame(0, found(1, 0, class_id=2))], "is now dog 0.90"),
        ([], "gate frame 0 (0.000 s): missing, it had 1 object"),
        ([frame(0, found(0, 0)), frame(1)], "gate frame 1 (0.100 s): extra, it has 0 objects"),
        ([frame(0, found(0, 0), pts_ns=40_000_000)], "is now at 0.040000 s, was at 0.000000 s"),
        ([frame(0, found(0, 0), width=320)], "the picture is now 320x480, was 640x480"),
        ([frame(0, found(0, 0), epoch=2)], "gate epoch 2 frame 0 (0.000 s): extra"),
        ([frame(0, found(float("nan"), 0))], "missing"),
    ],
)
def test_differences_read_well(tmp_path: Path, now: list[Detections], says: str) -> None:
    said = told([frame(0, found(0, 0))], now, tmp_path / "g.jsonl", box_tolerance_px=2.0)
    assert says in said
    assert bool(said) is bool(says)
    if said:
        assert "--campipe-update" in said
        assert "tolerance 2 px, score 0.02" in said


def test_at_most_ten_differences_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    was = [frame(seq, found(0, 0)) for seq in range(40)]
    said = told(was, [frame(seq) for seq in range(40)], tmp_path / "g.jsonl")
    lines = said.splitlines()
    assert lines[0].startswith("40 differences from ")
    assert lines[10].endswith("missing")
    assert lines[11] == "  … and 30 more"
    assert len(lines) == 13


def test_a_missing_golden_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"there is no golden file .*g\.jsonl yet; run pytest with --campipe-update"
    ):
        assert_matches_golden([frame(0)], tmp_path / "g.jsonl")


@pytest.mark.parametrize(
    "content",
    [
        "nonsense",
        '{"camera":"a"}',
        '{"camera":"a","epoch":0,"seq":0,"pts_ns":0,"width":1,"height":1,"objects":[1]}',
        "[]",
    ],
)
def test_a_damaged_golden_file_names_the_line(tmp_path: Path, content: str) -> None:
    write_golden([frame(0)], tmp_path / "g.jsonl")
    with (tmp_path / "g.jsonl").open("a") as file:
        file.write(content + "\n")
    with pytest.raises(AssertionError, match=r"g\.jsonl:2 is no frame of a golden file"):
        assert_matches_golden([frame(0)], tmp_path / "g.jsonl")


def test_a_box_without_four_sides_and_a_folder_are_told(tmp_path: Path) -> None:
    broken = DetectedObject(box=[1.0, 2.0], score=0.5, class_id=0, label="person")
    write_golden([frame(0, broken)], tmp_path / "g.jsonl")
    with pytest.raises(AssertionError, match="a box that is not"):
        assert_matches_golden([frame(0)], tmp_path / "g.jsonl")
    with pytest.raises(AssertionError, match="can't read the golden file"):
        assert_matches_golden([frame(0)], tmp_path)


def test_a_frame_that_is_there_twice_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"gate frame 3 .* is there twice"):
        write_golden([frame(3), frame(3)], tmp_path / "g.jsonl")


def test_the_file_is_compact_deterministic_and_in_order(tmp_path: Path) -> None:
    results = {"b": [frame(0, found(1, 2), camera="b")], "a": [frame(0, camera="a"), frame(1, camera="a")]}
    path = tmp_path / "new" / "g.jsonl"
    assert_matches_golden(results, path, update=True)
    first = path.read_bytes()
    assert_matches_golden(results, path)
    assert_matches_golden(results, path, update=True)
    assert path.read_bytes() == first
    lines = [json.loads(line) for line in first.splitlines()]
    assert [(line["camera"], line["seq"]) for line in lines] == [("b", 0), ("a", 0), ("a", 1)]
    assert first.splitlines()[0] == (
        b'{"camera":"b","epoch":0,"seq":0,"pts_ns":0,"width":640,"height":480,'
        b'"objects":[{"box":[1.0,2.0,51.0,52.0],"score":0.9,"class_id":0,"label":"person"}]}'
    )
    assert list(path.parent.iterdir()) == [path]


def test_the_arguments_in_the_wrong_order_are_told(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the first argument is the results"):
        assert_matches_golden(str(tmp_path), [frame(0)])  # type: ignore[arg-type]


def test_two_near_objects_of_a_class_are_paired_with_the_nearest(tmp_path: Path) -> None:
    was = [found(0, 0, score=0.9), found(20, 0, score=0.5)]
    now = [found(20.4, 0, score=0.5), found(0.4, 0, score=0.9)]
    assert differences(was, now, 1.0, 0.02) == []


def test_objects_too_small_to_overlap_are_still_the_same() -> None:
    assert differences([found(10, 10, size=0.5)], [found(10.8, 10, size=0.5)], 1.0, 0.02) == []
    assert differences([found(10, 10, size=0.0)], [found(10, 10, size=0.0)], 1.0, 0.02) == []
    assert len(differences([found(10, 10, size=0.5)], [found(13, 10, size=0.5)], 1.0, 0.02)) == 2


COORDINATES = st.floats(0, 500)
OBJECTS = st.builds(found, COORDINATES, COORDINATES, st.floats(1, 80), st.integers(0, 2), st.floats(0, 1))


@given(st.lists(OBJECTS, max_size=6), st.randoms())
def test_any_order_of_the_same_objects_is_no_difference(objects: list[DetectedObject], random: Any) -> None:
    shuffled = objects[:]
    random.shuffle(shuffled)
    if len({tuple(each.box) for each in objects}) == len(objects):
        assert differences(objects, shuffled, 0.0, 0.0) == []


@given(st.lists(OBJECTS, max_size=6), st.lists(OBJECTS, max_size=6))
def test_each_object_is_in_one_pair_or_left_over(was: list[DetectedObject], now: list[DetectedObject]) -> None:
    pairs, missing, extra = pair(was, now, lambda a, b: a.class_id == b.class_id, least_iou=0.0, near_px=1.0)
    assert sorted([i for i, _ in pairs] + missing) == list(range(len(was)))
    assert sorted([j for _, j in pairs] + extra) == list(range(len(now)))
    assert all(was[i].class_id == now[j].class_id for i, j in pairs)


def naive_iou(a: list[float], b: list[float], steps: int = 60) -> float:
    """By counting the points of a grid over both."""
    left, top = min(a[0], b[0]), min(a[1], b[1])
    width, height = max(a[2], b[2]) - left, max(a[3], b[3]) - top
    shared = either = 0
    for i in range(steps):
        for j in range(steps):
            x, y = left + (i + 0.5) * width / steps, top + (j + 0.5) * height / steps
            in_a = a[0] <= x <= a[2] and a[1] <= y <= a[3]
            in_b = b[0] <= x <= b[2] and b[1] <= y <= b[3]
            shared += in_a and in_b
            either += in_a or in_b
    return shared / either


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0, 0, 10, 10], [0, 0, 10, 10]),
        ([0, 0, 10, 10], [5, 0, 15, 10]),
        ([0, 0, 10, 10], [2, 2, 6, 6]),
        ([0, 0, 10, 10], [10, 0, 20, 10]),
        ([0, 0, 10, 10], [30, 30, 40, 40]),
    ],
)
def test_overlap_against_counting_points(a: list[float], b: list[float]) -> None:
    assert iou(a, b) == pytest.approx(naive_iou(a, b), abs=0.03)


def detailed(**fields: Any) -> DetectedObject:
    return DetectedObject(box=[0.0, 0.0, 20.0, 20.0], score=0.9, class_id=0, label="person", **fields)


def square(x: int, y: int, size: int, hole: int = 0) -> Mask:
    """All of a square but the first pixels."""
    return Mask(x=x, y=y, width=size, height=size, counts=[hole, size * size - hole])


CORNERS = [[0.0, 0.0], [20.0, 0.0], [20.0, 20.0], [0.0, 20.0]]


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ({"keypoints": [[1, 2, 0.9], [3, 4, 0.8]]}, {"keypoints": [[1.9, 2, 0.9], [3, 4, 0.81]]}, ""),
        (
            {"keypoints": [[1, 2, 0.9], [3, 4, 0.8]]},
            {"keypoints": [[1, 2, 0.9], [3, 5.5, 0.8]]},
            "keypoint 1 off by 1.50 px",
        ),
        ({"keypoints": [[1, 2, 0.9]]}, {"keypoints": [[1, 2, 0.5]]}, "score of keypoint 0 off by 0.4000"),
        ({"keypoints": [[1, 2, 0.9]]}, {"keypoints": [[math.nan, 2, 0.9]]}, "keypoint 0 off by inf px"),
        ({"keypoints": [[1, 2, 0.9]]}, {"keypoints": [[1, 2, 0.9]] * 2}, "has 2 keypoints, had 1"),
        ({"keypoints": [[1, 2, 0.9]]}, {}, "has no keypoints now, had 1"),
        ({}, {"keypoints": [[1, 2, 0.9]]}, "has keypoints now, had none"),
        ({"corners": CORNERS}, {"corners": [[0.5, 0.5], *CORNERS[1:]]}, ""),
        ({"corners": CORNERS}, {"corners": [*CORNERS[1:], CORNERS[0]]}, "corner 0 off by 20.00 px"),
        ({"mask": square(0, 0, 20)}, {"mask": square(0, 0, 20)}, ""),
        ({"mask": square(0, 0, 20)}, {"mask": square(1, 0, 20)}, ""),
        ({"mask": square(0, 0, 20)}, {"mask": square(2, 0, 20)}, "mask off by 40 pixels that are further than 1 px"),
        ({"mask": square(0, 0, 20)}, {"mask": square(0, 0, 20, hole=200)}, "(overlap 0.500)"),
        ({"mask": square(0, 0, 20)}, {}, "has no mask now, had one"),
        ({"mask": square(0, 0, 20)}, {"mask": square(900_000, 0, 20)}, "is far from where it was"),
        (
            {"mask": square(0, 0, 20)},
            {"mask": Mask(x=0, y=0, width=20, height=20, counts=[5])},
            "counts do not fill its rectangle",
        ),
    ],
)
def test_keypoints_corners_and_masks_are_compared_too(
    was: dict[str, Any], now: dict[str, Any], says: str, tmp_path: Path
) -> None:
    text = told([frame(0, detailed(**was))], [frame(0, detailed(**now))], tmp_path / "g.jsonl")
    assert says in text if says else text == ""


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_mask_is_off_where_no_pixel_of_the_other_is_near(seed: int) -> None:
    rng = np.random.default_rng(seed)
    masks, sets = [], []
    for _ in range(2):
        x, y, width, height = (int(v) for v in rng.integers(1, 6, 4))
        counts = np.diff([0, *sorted(rng.integers(0, width * height + 1, 3)), width * height]).tolist()
        masks.append(Mask(x=x, y=y, width=width, height=height, counts=counts))
        flat = [i % 2 == 1 for i, count in enumerate(counts) for _ in range(count)]
        sets.append({(x + i // height, y + i % height) for i, inside in enumerate(flat) if inside})
    tolerance = int(rng.integers(0, 3))

    def lonely(one: set[tuple[int, int]], other: set[tuple[int, int]]) -> int:
        return sum(all(max(abs(x - u), abs(y - v)) > tolerance for u, v in other) for x, y in one)

    off = lonely(*sets) + lonely(*sets[::-1])
    (said,) = details(detailed(mask=masks[0]), detailed(mask=masks[1]), tolerance, 0) or [""]
    assert said.startswith(f"mask off by {off} pixels" if off else "")
    assert bool(said) == bool(off)
