"""The stage around heads and NMS: slots, generations, geometry, cuts, and frames that fail alone."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from made.specs import model_spec

from stages.camera import CameraSpec
from stages.errors import UserError
from stages.frames import HeapRing
from stages.letterbox import geometry
from stages.messages import PostItem, PostTask
from stages.model import TensorSpec, output_slot_bytes, output_views
from stages.postprocess import stage as stage_module
from stages.postprocess.stage import Postprocess

MAX_BATCH = 4
ANCHORS, CLASSES = 8, 3


def model_of(name="m", layout="ssd", placement="stretch", shape=(ANCHORS, 4 + CLASSES), labels=CLASSES):
    return model_spec(
        name=name,
        width=100,
        height=100,
        placement=placement,
        layout=layout,
        labels=tuple(f"c{i}" for i in range(labels)),
        outputs=(TensorSpec("out", shape, "float32"),),
    )


def camera_of(name="gate-1", **changes):
    return CameraSpec(name, "/clip.mp4", changes.pop("model", "m"), **changes)


class Bench:
    """A stage with one model, one ring, and rows to put into its slot."""

    def __init__(self, *cameras, model=None):
        self.model = model or model_of()
        self.ring = HeapRing("outputs/m", 2, output_slot_bytes(self.model, MAX_BATCH))
        ticks = itertools.count(100, 10)
        self.stage = Postprocess(
            [self.model], cameras or [camera_of()], {"m": self.ring}, {"m": MAX_BATCH}, lambda: next(ticks)
        )
        self.stage.open()
        self.generation = 0

    def write(self, *frames):
        """Rows per frame, each ``x1 y1 x2 y2 score class``, into slot 0."""
        (view,) = output_views(self.model, self.ring.begin_write(0), MAX_BATCH, MAX_BATCH)
        view[:] = 0
        for out, rows in zip(view, frames, strict=False):
            for anchor, (x1, y1, x2, y2, score, class_id) in enumerate(rows):
                if self.model.layout == "end2end":
                    out[anchor] = x1, y1, x2, y2, score, class_id
                else:
                    out[anchor, :4] = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
                    out[anchor, 4 + class_id] = score
        self.generation = self.ring.end_write(0)

    def post(self, *items, **changes):
        task = {"task_id": 7, "model": "m", "output_slot": 0, "generation": self.generation, **changes}
        (done,) = self.stage.step(PostTask(items=list(items) or [PostItem(0, "gate-1", 100, 100)], **task))
        assert done.task_id == 7
        return done


def boxes_of(objects):
    return np.frombuffer(objects.boxes, "<f4").reshape(-1, 4).tolist()


def scores_of(objects):
    return np.frombuffer(objects.scores, "<f4").astype(float).round(4).tolist()


def classes_of(objects):
    return np.frombuffer(objects.class_ids, "<i4").tolist()


def test_objects_come_best_first_without_their_duplicates_and_with_the_times_of_the_clock():
    bench = Bench()
    bench.write(
        [(10, 10, 20, 20, 0.5, 1), (50, 50, 90, 90, 0.9, 2), (51, 50, 91, 90, 0.8, 2), (10, 10, 20, 20, 0.4, 0)]
    )
    done = bench.post()
    (objects,) = done.objects
    assert boxes_of(objects) == [[50, 50, 90, 90], [10, 10, 20, 20]]
    assert scores_of(objects) == [0.9, 0.5]
    assert classes_of(objects) == [2, 1]  # 0.4 is not above the camera's 0.4
    assert (objects.index, objects.cut_before, objects.cut_after, done.failed) == (0, 0, 0, [])
    assert (done.started_at_ns, done.finished_at_ns) == (100, 110)


def test_each_row_goes_to_its_camera_with_that_cameras_settings():
    strict = camera_of("strict", confidence=0.7)
    only_2 = camera_of("only-2", classes=(2,))
    agnostic = camera_of("agnostic", class_agnostic=True)
    loose = camera_of("loose", iou=0.9)
    bench = Bench(strict, only_2, agnostic, loose)
    rows = [(10, 10, 50, 50, 0.8, 1), (10, 12, 50, 50, 0.7, 2), (10, 10, 50, 45, 0.6, 1)]
    bench.write(rows, rows, rows, rows)
    items = [PostItem(i, name, 100, 100) for i, name in ((3, "loose"), (0, "strict"), (2, "agnostic"), (1, "only-2"))]
    done = bench.post(*items)
    assert [o.index for o in done.objects] == [3, 0, 2, 1]
    assert [scores_of(o) for o in done.objects] == [[0.8, 0.7, 0.6], [0.8], [0.8], [0.7]]


@pytest.mark.parametrize("placement", ["stretch", "center", "top_left"])
@pytest.mark.parametrize("roi", [None, (0.25, 0.5, 1.0, 1.0)])
def test_boxes_come_back_to_where_they_are_in_the_source_picture(placement, roi):
    bench = Bench(camera_of(roi=roi), model=model_of(placement=placement))
    there = [300.0, 220.0, 420.0, 300.0]
    lies = geometry(640, 360, 100, 100, placement, roi)
    (x1, y1), (x2, y2) = lies.forward(np.array([there[:2], there[2:]]))
    bench.write([(x1, y1, x2, y2, 0.9, 0)])
    (objects,) = bench.post(PostItem(0, "gate-1", 640, 360)).objects
    np.testing.assert_allclose(boxes_of(objects), [there], atol=1e-3)


def test_a_camera_that_changes_its_size_gets_the_boxes_of_the_new_size():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    for width in (200, 400, 200):
        (objects,) = bench.post(PostItem(0, "gate-1", width, 100)).objects
        assert boxes_of(objects) == [[width / 10, 10, width / 5, 20]]


def test_boxes_are_clipped_to_the_picture_and_those_outside_of_it_dropped_before_the_cut():
    # 200x100 in 100x100: the picture lies at y 25..75
    bench = Bench(camera_of(max_objects=2), model=model_of(placement="center"))
    bench.write(
        [
            (10, 0, 20, 25, 0.99, 0),  # in the border above
            (-30, 20, 10, 80, 0.9, 0),
            (40, 30, 50, 40, 0.8, 0),
            (60, 30, 70, 40, 0.7, 0),
        ]
    )
    (objects,) = bench.post(PostItem(0, "gate-1", 200, 100)).objects
    assert boxes_of(objects) == [[0, 0, 20, 100], [80, 10, 100, 30]]
    assert objects.cut_after == 1


def test_what_top_k_and_max_objects_cut_is_counted(monkeypatch):
    monkeypatch.setattr(stage_module, "TOP_K", 5)
    bench = Bench(camera_of(max_objects=3))
    bench.write([(10 * i, 0, 10 * i + 5, 5, 0.5 + i / 100, 0) for i in range(8)])
    (objects,) = bench.post().objects
    assert scores_of(objects) == [0.57, 0.56, 0.55]
    assert (objects.cut_before, objects.cut_after) == (3, 2)


def test_a_float16_sigmoid_just_above_1_is_published_as_1():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 1.007, 0)])
    assert scores_of(bench.post().objects[0]) == [1.0]


def test_scores_that_are_no_probabilities_fail_the_frame_instead_of_giving_wrong_objects():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 37.5, 0)], [(10, 10, 20, 20, 0.9, 0)])
    done = bench.post(PostItem(0, "gate-1", 100, 100), PostItem(1, "gate-1", 100, 100))
    assert [(f.index, f.cause) for f in done.failed] == [(0, "post_failed")]
    assert "37.5 is no probability" in done.failed[0].detail
    assert [o.index for o in done.objects] == [1]


def test_end_to_end_boxes_are_sorted_but_never_suppressed():
    bench = Bench(model=model_of(layout="end2end", shape=(ANCHORS, 6)))
    bench.write([(10, 10, 50, 50, 0.6, 1), (10, 10, 50, 50, 0.8, 1), (10, 10, 50, 50, 0.6, 2)])
    (objects,) = bench.post().objects
    assert (scores_of(objects), classes_of(objects)) == ([0.8, 0.6, 0.6], [1, 1, 2])


def test_a_slot_rewritten_before_the_task_fails_all_its_frames_as_stale():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    old = bench.generation
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    done = bench.post(PostItem(0, "gate-1", 100, 100), PostItem(2, "gate-1", 100, 100), generation=old)
    assert done.objects == []
    assert [(f.index, f.cause) for f in done.failed] == [(0, "stale"), (2, "stale")]


# what the new picture holds: an object, numbers that are no probability, a class that makes the head itself refuse
@pytest.mark.parametrize(("score", "class_id"), [(0.9, 0), (37.5, 0), (0.9, 99)])
def test_a_slot_rewritten_while_it_is_read_is_stale_and_not_another_picture(score, class_id, monkeypatch):
    bench = Bench(model=model_of(layout="end2end", shape=(ANCHORS, 6)))
    bench.write([(10, 10, 20, 20, 0.9, 0)], [(10, 10, 20, 20, 0.9, 0)])
    head = bench.stage._heads["m"]
    real, calls = head._pick, itertools.count()

    def rewritten_meanwhile(*arguments):
        if next(calls) == 1:
            task_generation = bench.generation
            bench.write([], [(10, 10, 20, 20, score, class_id)])
            bench.generation = task_generation
        return real(*arguments)

    monkeypatch.setattr(head, "_pick", rewritten_meanwhile)
    done = bench.post(PostItem(0, "gate-1", 100, 100), PostItem(1, "gate-1", 100, 100))
    assert done.objects == []  # frames are read together, and what was read before can't be told from what came after
    assert [(f.index, f.cause) for f in done.failed] == [(0, "stale"), (1, "stale")]


def test_a_head_that_stumbles_over_one_frame_does_not_take_the_others_with_it(monkeypatch):
    bench = Bench()
    odd = [(0, 0, 0, 0, 0, 0)] * 7 + [(2, 0, 4, 0, 0, 0)]
    bench.write(odd, [(10, 10, 20, 20, 0.9, 0)])
    head = bench.stage._heads["m"]
    real = head._pick

    def stumbles(outputs, *arguments):
        if outputs[0][7, 0] == 3:
            raise ZeroDivisionError("odd numbers")
        return real(outputs, *arguments)

    monkeypatch.setattr(head, "_pick", stumbles)
    done = bench.post(PostItem(0, "gate-1", 100, 100), PostItem(1, "gate-1", 100, 100))
    assert [(f.index, f.cause, f.detail) for f in done.failed] == [(0, "post_failed", "ZeroDivisionError: odd numbers")]
    assert [o.index for o in done.objects] == [1]


@pytest.mark.parametrize(
    ("item", "changes", "words"),
    [
        (PostItem(0, "nobody", 100, 100), {}, "camera 'nobody'"),
        (PostItem(MAX_BATCH, "gate-1", 100, 100), {}, "row 4 of a slot laid out for 4"),
        (PostItem(-1, "gate-1", 100, 100), {}, "row -1"),
        (PostItem(0, "gate-1", 0, 100), {}, "0x100"),
        (PostItem(0, "gate-1", 100, 100), {"model": "other"}, "model 'other'"),
        (PostItem(0, "gate-1", 100, 100), {"output_slot": 9}, "no slot 9"),
    ],
)
def test_references_to_what_is_not_there_fail_the_frame(item, changes, words):
    bench = Bench()
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    done = bench.post(item, **changes)
    assert (done.objects, [f.cause for f in done.failed]) == ([], ["post_failed"])
    assert words in done.failed[0].detail


def test_cameras_come_change_and_go_while_it_runs():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    item = PostItem(0, "gate-2", 200, 100)
    assert bench.post(item).failed
    bench.stage.add_camera(camera_of("gate-2"))
    assert boxes_of(bench.post(item).objects[0]) == [[20, 10, 40, 20]]
    bench.stage.add_camera(camera_of("gate-2", roi=(0.5, 0, 1, 1)))
    assert boxes_of(bench.post(item).objects[0]) == [[110, 10, 120, 20]]
    bench.stage.remove_camera("gate-2")
    bench.stage.remove_camera("gate-2")
    assert bench.post(item).failed


def test_everything_that_can_not_be_right_is_told_at_once_when_it_opens():
    cameras = [camera_of("a", confidence=1.5, iou=-0.1, max_objects=0, classes=(0, 3)), camera_of("b", model="gone")]
    stage = Postprocess([model_of(layout="sdd")], cameras, {}, {}, lambda: 0)
    with pytest.raises(UserError) as caught:
        stage.open()
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 6
    for words in ("did you mean ssd", "confidence is 1.5", "iou is -0.1", "max_objects is 0", "class 3", "'gone'"):
        assert words in text
    stage.close()
    with pytest.raises(UserError, match="confidence is nan"):
        Bench().stage.add_camera(camera_of("c", confidence=float("nan")))


def test_it_closes_twice_and_then_fails_what_still_comes():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    assert bench.stage.flush() == []
    bench.stage.close()
    bench.stage.close()
    assert "isn't open" in bench.post().failed[0].detail


def test_the_slot_is_left_as_it_was_and_nothing_of_it_is_held():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    before = bytes(bench.ring.read(0, bench.generation))
    bench.post()
    assert bytes(bench.ring.read(0, bench.generation)) == before
    bench.ring._memory[0].extend(b"x")  # BufferError if a view were still alive


def test_a_ring_that_is_too_small_for_its_model_fails_the_frames_and_not_the_worker():
    bench = Bench()
    bench.write([(10, 10, 20, 20, 0.9, 0)])
    bench.stage._max_batch["m"] = 400
    assert [f.cause for f in bench.post().failed] == ["post_failed"]
    bench.stage._max_batch.clear()
    assert [f.cause for f in bench.post().failed] == ["post_failed"]


def test_a_frame_full_of_candidates_takes_its_own_time_and_not_that_of_the_quiet_ones_beside_it():
    shape, rows = (25200, 4 + CLASSES), 4
    model = model_of(shape=shape)
    ring = HeapRing("outputs/m", 1, output_slot_bytes(model, rows))
    (view,) = output_views(model, ring.begin_write(0), rows, rows)
    rng = np.random.default_rng(0)
    view[:] = 0
    view[1, :, :4] = rng.uniform(5, 95, (shape[0], 4))
    view[1, :, 4:] = rng.uniform(0.5, 1, (shape[0], CLASSES))
    view[:, 7] = 50, 50, 10, 10, 0.9, 0, 0
    generation = ring.end_write(0)
    stage = Postprocess([model], [camera_of()], {"m": ring}, {"m": rows}, lambda: 0)
    stage.open()
    items = [PostItem(row, "gate-1", 100, 100) for row in range(rows)]
    start = time.thread_time()
    (done,) = stage.step(PostTask(1, "m", 0, generation, items))
    assert time.thread_time() - start < 2  # 25 ms
    assert [objects.cut_before for objects in done.objects] == [0, 25200 - 1000, 0, 0]
    assert [len(scores_of(objects)) for objects in done.objects if not objects.cut_before] == [1, 1, 1]
    assert done.objects == [
        objects for item in items for objects in stage.step(PostTask(1, "m", 0, generation, [item]))[0].objects
    ]
