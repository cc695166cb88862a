"""``campipe models verify``: the right description passes, each wrong one is told by its fault."""

from __future__ import annotations

import dataclasses
import itertools
import re

import cv2
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipeline import assets
from pipeline.cli import main
from pipeline.models.inspect_input import InputGuess, input_of
from pipeline.models.verify import compare, model_of
from pipeline.models.verify_equal import shift_of, shift_over
from pipeline.models.verify_run import Found, Trial
from pipeline.models.verify_scores import apart, evidence, pair_score
from pipeline.models.verify_variants import (
    PLACEMENTS,
    Judge,
    scaling_name,
    with_other_channels,
    with_scaling,
)
from pipeline.models.verify_views import Part, colour_chart, read_picture, read_pictures, shapes_of, views_of
from stages.postprocess.detect_facts import FileFacts, OutputFacts

BUS = "images/bus.jpg"
FAST = ["coco-ssd", "yolox_nano"]  # the others are larger and take some 10 s for each fault
SLOW = ["yolov5n_concat_fp16", "yolov8n_int8", "yolo26n_end2end_int8"]


class Remembering:
    """A trial that runs each way of feeding each picture once: the verdicts on many descriptions try the same ways."""

    def __init__(self, trial):
        self.trial = trial
        self.known = {}

    def found(self, model, picture, confidence):
        key = (repr(model), picture.shape, picture.tobytes(), confidence)
        if key not in self.known:
            self.known[key] = self.trial.found(model, picture, confidence)
        return self.known[key]


@pytest.fixture(scope="module")
def tried(request, shared_dir):
    """(trial, the right description, what is usual, views, colour chart) of a model on the bus."""
    name = request.param
    picture = shared_dir / BUS
    path = shared_dir / "models" / f"{name}.onnx" if name != "coco-ssd" else assets.models_folder() / "coco-ssd.onnx"
    if not (path.is_file() and picture.is_file()):
        pytest.skip(f"needs models/{path.name} and {BUS} in the data folder")
    model, looked = model_of(str(path), str(picture))
    trial = Trial(model)
    trial.open()
    usual = input_of(looked.facts, model.layout)
    return Remembering(trial), model, usual, views_of("bus", read_picture(str(picture))), colour_chart()


def street():
    return read_pictures(str(assets.street_clip()), 10)


def shapes():
    return [Part("street", part) for picture in street()[::2] for part in shapes_of(picture)]


def verdict(tried, model, *, with_shapes=False):
    trial, _, usual, views, chart = tried
    return Judge(trial, views, chart, usual, more=street, shapes=shapes if with_shapes else tuple).judge(model)


def told(found, key):
    return [fault for fault in found.faults if fault.startswith(key)]


@pytest.mark.parametrize("tried", FAST, indirect=True)
class TestRealModels:
    def test_the_right_description_is_not_accused(self, tried):
        assert verdict(tried, tried[1]).faults == ()

    def test_a_wrong_channel_order_is_named(self, tried):
        found = verdict(tried, with_other_channels(tried[1]))
        assert len(found.faults) == 1
        assert f"wants {tried[1].channels.upper()}" in told(found, "channels")[0]
        assert found.best.channels == tried[1].channels

    @pytest.mark.parametrize("scaling", ["0..1", "-1..1", "ImageNet mean and std"])
    def test_a_wrong_scaling_is_named(self, tried, scaling):
        found = verdict(tried, with_scaling(tried[1], scaling))
        assert len(found.faults) == 1
        assert f"wants {scaling_name(tried[1])}, not {scaling}" in told(found, "scaling")[0]
        assert (found.best.mean, found.best.std) == (tried[1].mean, tried[1].std)

    @pytest.mark.parametrize("placement", PLACEMENTS)
    def test_a_wrong_padding_is_named(self, tried, placement):
        right = tried[1].placement
        found = verdict(tried, dataclasses.replace(tried[1], placement=placement))
        named = [*told(found, "padding"), *(note for note in found.notes if note.startswith("padding"))]
        assert bool(named) == (placement != right)
        assert len(found.faults) == len(told(found, "padding"))
        if placement == "stretch" != right:
            assert found.best.placement == right

    def test_two_faults_at_once_are_both_named(self, tried):
        wrong = with_scaling(with_other_channels(tried[1]), "0..1")
        found = verdict(tried, wrong)
        assert told(found, "scaling")
        assert told(found, "channels")
        assert found.best == tried[1]


@pytest.mark.long  # minutes per model
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tried", SLOW, indirect=True)
class TestLargeModels:
    def test_right_descriptions_pass_and_wrong_ones_are_named(self, tried):
        right = tried[1]
        assert verdict(tried, right).faults == ()
        assert told(verdict(tried, with_scaling(right, "0..255")), "scaling")
        stretched = verdict(tried, dataclasses.replace(right, placement="stretch"))
        assert told(stretched, "padding")
        assert stretched.best.placement == "center"
        for change in ({"placement": "top_left"}, {"pad_value": 127}):  # these models look the same everywhere
            found = verdict(tried, dataclasses.replace(right, **change), with_shapes=True)
            assert found.faults == ()
            assert any("the two are equivalent, and nothing is wrong" in note for note in found.notes)
        swapped = verdict(tried, with_other_channels(right))
        # YOLO26n takes blue balls for oranges as readily as oranges: then the file's word for its exporter decides
        assert told(swapped, "channels")
        assert swapped.best.channels == right.channels


def test_verify_prints_a_verdict_draws_the_boxes_and_gives_the_exit_status(shared_dir, tmp_path, capsys):
    picture = shared_dir / BUS
    if not picture.is_file():
        pytest.skip(f"needs {BUS} in the data folder")
    drawn = tmp_path / "drawn.png"
    assert main(["models", "verify", "coco-ssd", "--image", str(picture), "--out", str(drawn)]) == 0
    printed = capsys.readouterr().out
    assert "1 bus" in printed
    assert "ok: no other" in printed
    before, after = cv2.imread(str(picture)), cv2.imread(str(drawn))
    assert before.shape == after.shape
    assert (before != after).any()


def with_change(tmp_path, change):
    """The default model's description with something else in it."""
    text = (assets.models_folder() / "coco-ssd.yaml").read_text()
    other = tmp_path / "other.yaml"
    other.write_text(text.replace("file: coco", f"file: {assets.models_folder()}/coco").replace(*change))
    return str(other)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (("channels: rgb", "channels: bgr"), "channel order"),
        (("std: 1", "std: 255"), "normalisation"),
        (("placement: stretch", "placement: center"), "padding"),
    ],
)
def test_the_same_file_fed_in_another_way_is_told_apart(shared_dir, tmp_path, change, cause):
    if not (shared_dir / BUS).is_file():
        pytest.skip(f"needs {BUS} in the data folder")
    picture = str(shared_dir / BUS)
    first, _ = model_of("coco-ssd", picture)
    second, _ = model_of(with_change(tmp_path, change), picture, like=first)
    assert cause in compare(first, second, [picture]).cause


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "fault", "remedy"),
    [
        (("channels: bgr", "channels: rgb"), "FAULT: channels: this model looks like it wants BGR", "`channels: bgr`"),
        (("std: 1", "std: 255"), "FAULT: scaling: this model looks like it wants 0..255", "`std: 1`"),
        (("placement: top_left", "placement: stretch"), "FAULT: padding: ", "`placement: top_left`"),
    ],
)
def test_what_is_wrong_in_a_description_is_named_with_its_remedy(change, fault, remedy, shared_dir, tmp_path, capsys):
    picture, file = shared_dir / BUS, shared_dir / "models" / "yolox_nano.onnx"
    if not (picture.is_file() and file.is_file()):
        pytest.skip(f"needs models/{file.name} and {BUS} in the data folder")
    text = (assets.models_folder() / "yolox-nano.yaml").read_text().replace("file: yolox_nano.onnx", f"file: {file}")
    text = "\n".join(line for line in text.split("\n") if not line.startswith(("sha256", "size_bytes")))
    assert change[0] in text
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace(*change))
    assert main(["models", "verify", str(wrong), "--image", str(picture)]) == 1
    printed = capsys.readouterr().out
    assert fault in printed
    assert remedy in printed.split("remedy: ")[1]


def test_a_comparison_is_printed_below_the_verdict(shared_dir, tmp_path, capsys):
    picture = shared_dir / BUS
    if not picture.is_file():
        pytest.skip(f"needs {BUS} in the data folder")
    other = with_change(tmp_path, ("channels: rgb", "channels: bgr"))
    assert main(["models", "verify", "coco-ssd", "--image", str(picture), "--against", other]) == 0
    printed = capsys.readouterr().out
    assert printed.index("ok: no other") < printed.index("likely cause: channel order")


def test_pictures_that_cannot_be_read_are_refused(tmp_path, capsys):
    bad = tmp_path / "bad.jpg"
    bad.write_text("no picture")
    assert main(["models", "verify", "coco-ssd", "--image", str(bad)]) == 2
    assert "bad.jpg" in capsys.readouterr().err


class Scripted:
    """Finds what a function of the description says, whatever the picture."""

    def __init__(self, scores):
        self.scores = scores

    def found(self, model, picture, confidence):
        scores = np.array(self.scores(model), np.float32)
        middle = picture.shape[1] / 2  # a box that is its own mirror image
        boxes = np.array([[middle - 5, 0, middle + 5, 10]] * len(scores), np.float32).reshape(-1, 4)
        return Found(boxes, scores, np.zeros(len(scores), np.int32))


@pytest.fixture
def model():
    facts = FileFacts(64, 64, "float32", (OutputFacts("o", (84, 5), "float32"),))
    return dataclasses.replace(facts.spec("yolov8", 1), std=(255.0,) * 3)


USUAL = InputGuess("rgb", (0.0,) * 3, (255.0,) * 3, "center", 114, False, "it is so")


def judged(model, scores):
    views = views_of("p", np.zeros((200, 300, 3), np.uint8))
    return Judge(Scripted(scores), views, [], USUAL).judge(model)


def test_without_oranges_among_its_labels_photographs_decide_the_channels_by_a_margin(model):
    clear = judged(model, lambda m: [0.9, 0.8] if m.channels == "bgr" else [0.7])
    assert told(clear, "channels")
    close = judged(model, lambda m: [0.82] if m.channels == "bgr" else [0.8])
    assert close.faults == ()
    assert any("can't be told" in note for note in close.notes)


def test_nothing_found_in_any_way_is_said_and_accuses_nobody(model):
    found = judged(model, lambda m: [])
    assert found.faults == ()
    assert "finds anything" in found.notes[-1]


def test_objects_that_have_no_mirror_image_count_against_a_way():
    left = Found(np.array([[0, 0, 10, 10]], np.float32), np.array([0.9], np.float32), np.zeros(1, np.int32))
    same_side = pair_score(left, left, 100)
    opposite = Found(np.array([[90, 0, 100, 10]], np.float32), left.scores, left.class_ids)
    assert same_side == 0
    assert pair_score(left, opposite, 100) == pytest.approx(0.9)


@pytest.fixture(scope="module")
def bus(shared_dir):
    picture = shared_dir / BUS
    if not picture.is_file():
        pytest.skip(f"needs {BUS} in the data folder")
    return str(picture)


def sees_only_below(path, rows):
    """The default model, for which the first ``rows`` of its input are always grey: made for centred pictures."""
    model = onnx.load(str(assets.models_folder() / "coco-ssd.onnx"))
    name = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = ["seen" if each == name else each for each in node.input]
    mask = np.ones((1, 1, 300, 1), np.float32)
    mask[:, :, :rows] = 0
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    model.graph.initializer.append(numpy_helper.from_array((1 - mask) * 114, "grey"))
    model.graph.node.insert(0, helper.make_node("Add", ["masked", "grey"], ["seen"]))
    model.graph.node.insert(0, helper.make_node("Mul", [name, "mask"], ["masked"]))
    onnx.save(model, str(path))
    return path


def test_a_model_that_does_not_look_the_same_everywhere_shows_which_placement_it_wants(bus, tmp_path):
    """The wide strip lies in rows 82 to 218 when it is centred, from 0 on at the top left, where half is not seen."""
    path = sees_only_below(tmp_path / "masked.onnx", 75)
    model, _ = model_of(str(path), bus)
    model = dataclasses.replace(model, mean=(0.0,) * 3, std=(1.0,) * 3, placement="top_left")
    trial = Trial(model)
    trial.open()
    wide = [view for view in views_of("bus", read_picture(bus)) if view.name.endswith("wide strip")]
    usual = dataclasses.replace(USUAL, placement="center")
    found = Judge(trial, wide, colour_chart(), usual).judge(model)
    assert "wants placement center, not top_left" in told(found, "padding")[0]
    assert found.best.placement == "center"
    assert Judge(trial, wide, colour_chart(), usual).judge(found.best).faults == ()


def test_two_placements_that_fit_are_told_as_such_with_figures(bus):
    model, _ = model_of(str(assets.models_folder() / "coco-ssd.onnx"), bus)
    model = dataclasses.replace(model, placement="top_left")
    trial = Trial(model)
    trial.open()
    usual = dataclasses.replace(USUAL, placement="center", mean=(0.0,) * 3, std=(1.0,) * 3)
    found = Judge(trial, views_of("bus", read_picture(bus))[:1], colour_chart(), usual).judge(model)
    assert found.faults == ()
    (note,) = [each for each in found.notes if each.startswith("padding")]
    assert "both fit, which of them can't be told" in note
    objects, alone, share = re.search(r"(\d+) objects are found either way, (\d+) .* apart by ([\d.]+)%", note).groups()
    assert int(objects) > 4 * int(alone)
    assert float(share) < 10


def test_an_unusual_colour_of_the_bars_is_judged_too(model):
    dark = dataclasses.replace(model, pad_value=0)
    clear = judged(dark, lambda m: [0.9, 0.8] if m.pad_value == 114 else [0.7])
    assert "wants bars of 114, not of 0" in told(clear, "padding")[0]
    assert clear.best.pad_value == 114
    close = judged(dark, lambda m: [0.8])
    assert close.faults == ()
    assert any("`pad_value: 114` is usual" in note for note in close.notes)


def unlike(scores, sources=6):
    """Judges a description, where objects score what a function of the description says, in pictures of all shapes."""

    class Seen(Scripted):
        def found(self, model, picture, confidence):
            self.scores = lambda m: [scores(m) + 0.01 * (picture.shape[1] % 5)]
            return super().found(model, picture, confidence)

    views = views_of("p", np.zeros((200, 300, 3), np.uint8))
    parts = [Part(str(n), part) for n in range(sources) for part in shapes_of(np.zeros((400, 300, 3), np.uint8))]
    return lambda model: Judge(Seen(None), views, [], USUAL, shapes=lambda: parts).judge(model)


PADDINGS = [("placement", "top_left", "center"), ("pad_value", 0, 114)]


@pytest.mark.parametrize(("key", "wrong", "usual"), PADDINGS)
def test_a_wrong_padding_that_costs_little_but_surely_is_named_by_its_scores(model, key, wrong, usual):
    judge = unlike(lambda m: 0.5 if getattr(m, key) == wrong else 0.52)
    found = judge(dataclasses.replace(model, **{key: wrong}))
    assert f"looks like it wants {key}: {usual}, not {wrong}: the same objects score +0.02" in told(found, "padding")[0]
    assert getattr(found.best, key) == usual
    assert judge(found.best).faults == ()


@pytest.mark.parametrize(("key", "wrong", "usual"), PADDINGS)
def test_a_padding_that_makes_no_difference_to_the_model_is_said_to_be_equivalent(model, key, wrong, usual):
    found = unlike(lambda _m: 0.5)(dataclasses.replace(model, **{key: wrong}))
    assert found.faults == ()
    (note,) = [each for each in found.notes if each.startswith("padding")]
    assert (
        f"`{key}: {usual}` is usual, not {wrong}; for this model the two are equivalent, and nothing is wrong" in note
    )
    assert "+0.0000 ± 0.0000 over 114 pictures of unlike shapes from 6 sources" in note


@pytest.mark.parametrize(("sources", "gain", "fault"), [(2, 0.013, False), (2, 0.03, True), (6, 0.013, True)])
def test_a_padding_that_costs_a_little_on_parts_of_few_pictures_is_a_note_and_no_fault(model, sources, gain, fault):
    judge = unlike(lambda m: 0.5 if m.pad_value == 0 else 0.5 + gain, sources)
    found = judge(dataclasses.replace(model, pad_value=0))
    assert bool(told(found, "padding")) == fault
    looks = [note for note in found.notes if "looks like it does better with the usual one, gain +0.0130" in note]
    assert bool(looks) != fault
    assert found.best.pad_value == (114 if fault else 0)


def test_what_is_not_sure_over_many_sources_stays_visible():
    scatter = np.random.default_rng(3).normal(0, 1, 8)
    gaps = 0.013 + 0.010 * (scatter - scatter.mean()) / scatter.std(ddof=1)
    seen = shift_over(np.repeat(gaps, 7).tolist(), np.repeat(range(8), 7).tolist())
    assert (seen.sources, round(seen.mean / seen.error, 1)) == (8, 3.7)
    assert (seen.gains, seen.may_gain, seen.loses) == (False, True, False)
    other_way = shift_over(np.repeat(-gaps, 7).tolist(), np.repeat(range(8), 7).tolist())
    assert (other_way.may_gain, other_way.loses) == (False, True)


@pytest.mark.parametrize("alike", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("sizes", [(19, 35), (57,), (19, 19, 19, 35), (7,) * 5 + (35,), (7,) * 12])
def test_parts_of_a_few_scenes_are_not_taken_for_independent_pictures(alike, sizes):
    """Differences of 0 on the mean, with each scene's own share: taken for independent, up to 12 % were faults."""
    random = np.random.default_rng(1)
    sources = [number for number, size in enumerate(sizes) for _ in range(size)]
    trials = 1000
    own = random.normal(0, alike**0.5, (trials, len(sizes)))[:, sources]
    gaps = 0.1 * (own + random.normal(0, (1 - alike) ** 0.5, own.shape))
    faults = sum(shift_over(each.tolist(), sources).gains for each in gaps)
    assert faults <= 4  # of one in a thousand


def test_a_padding_that_does_better_than_the_usual_one_is_no_fault(model):
    found = unlike(lambda m: 0.5 if m.pad_value == 0 else 0.48)(dataclasses.replace(model, pad_value=0))
    assert found.faults == ()
    assert any("the described one does better: the usual one scores -0.02" in note for note in found.notes)


def test_scores_that_scatter_tell_no_padding():
    def found(*scores):
        boxes = np.array([[0, 0, 10, 10], [50, 0, 60, 10]], np.float32)[: len(scores)]
        return [Found(boxes, np.array(scores, np.float32), np.zeros(len(scores), np.int32))]

    def shift(first, second):
        return shift_of(first, second, [number % 8 for number in range(len(first))])

    scatter = np.random.default_rng(1).normal(0, 0.1, 40)
    seen = shift([found(0.5)] * 40, [found(0.5 + each) for each in scatter])
    assert (seen.gains, seen.loses, seen.equal) == (False, False, False)
    weak_both_ways = shift([found(0.5, 0.2)], [found(0.6, 0.1)])
    assert weak_both_ways.mean == pytest.approx(0.1)
    assert not shift([found(0.5)] * 19, [found(0.6)] * 19).gains, "too few"
    assert shift([found(0.5)] * 20, [found(0.6)] * 20).gains
    assert shift([found()] * 20, [found(0.6)] * 20).pictures == 0
    assert shift([found(0.5)] * 20, [found(0.504)] * 20).equal


def test_parts_of_a_picture_are_of_unlike_shapes_and_reach_its_borders():
    picture = np.arange(180 * 240 * 3, dtype=np.uint32).astype(np.uint8).reshape(180, 240, 3)
    parts = shapes_of(picture)
    assert len(parts) == 1 + 6 * 3
    assert {part.shape[1] > part.shape[0] for part in parts} == {True, False}
    assert any((part[0, 0] == picture[0, 0]).all() for part in parts[1:])
    assert any((part[-1, -1] == picture[-1, -1]).all() for part in parts[1:])
    assert len(shapes_of(picture, places=1)) == 7
    assert shapes_of(np.zeros((20, 20, 3), np.uint8))[1:] == []


def coloured(rgb, bgr):
    """Finds one object whose score depends on the order of channels and on the picture."""

    class Coloured(Scripted):
        def found(self, model, picture, confidence):
            number = int(picture[0, 0, 0])
            self.scores = lambda m: [(rgb if m.channels == "rgb" else bgr)(number)]
            return super().found(model, picture, confidence)

    pictures = [np.full((200, 300, 3), n, np.uint8) for n in range(1, 13)]
    return Coloured(None), pictures


def test_many_pictures_that_agree_tell_the_channels_where_a_few_could_not(model):
    runs, pictures = coloured(lambda n: 0.6 + n % 3 * 0.1, lambda n: 0.64 + n % 3 * 0.1 + n % 2 * 0.01)
    few = Judge(runs, views_of("p", pictures[0]), [], USUAL).judge(model)
    assert few.faults == ()
    (note,) = [each for each in few.notes if each.startswith("channels")]
    assert "over 3 pictures" in note
    many = Judge(runs, views_of("p", pictures[0]), [], USUAL, more=lambda: pictures).judge(model)
    assert "wants BGR, not RGB" in told(many, "channels")[0]
    assert "over 15 pictures in all" in told(many, "channels")[0]
    right = Judge(runs, views_of("p", pictures[0]), [], USUAL, more=lambda: pictures).judge(with_other_channels(model))
    assert right.faults == ()
    assert not any(note.startswith("channels") for note in right.notes)


def test_many_pictures_that_disagree_leave_the_channels_undecided(model):
    runs, pictures = coloured(lambda n: 0.6, lambda n: 0.65 if n % 2 else 0.56)
    found = Judge(runs, views_of("p", pictures[0]), [], USUAL, more=lambda: pictures).judge(model)
    assert found.faults == ()
    assert any("can't be told" in note and "standard errors" in note for note in found.notes)


@pytest.mark.parametrize("known", [True, False])
def test_pictures_that_tell_no_channel_order_leave_it_to_what_the_file_says_of_its_exporter(model, known):
    runs, pictures = coloured(lambda n: 0.6, lambda n: 0.65 if n % 2 else 0.56)
    usual = dataclasses.replace(USUAL, known=known)
    judge = Judge(runs, views_of("p", pictures[0]), [], usual, more=lambda: pictures)
    found = judge.judge(with_other_channels(model))
    assert bool(told(found, "channels: it is so, and so it wants RGB, not BGR")) == known
    assert found.best == (model if known else with_other_channels(model))
    right = Judge(runs, views_of("p", pictures[0]), [], usual, more=lambda: pictures).judge(model)
    assert right.faults == ()
    assert bool(right.notes) != known


def test_evidence_leaves_out_pictures_on_which_nothing_is_found():
    found = evidence([0, 0.5, 0.6, 0], [0, 0.7, 0.8, 0])
    assert (found.pictures, found.first, found.second) == (2, pytest.approx(1.1), pytest.approx(1.5))
    assert not found.sure
    assert evidence([], []).pictures == 0
    assert evidence([1.0], [2.0]).errors == 0
    scattered = np.random.default_rng(0).normal(0, 1, (2, 50)) + 10
    assert abs(evidence(*scattered).errors) < 3
    assert evidence(scattered[0], scattered[1] + 2).sure


def test_objects_of_two_ways_are_matched_by_class_and_place():
    def found(*rows):
        rows = np.array(rows, np.float32).reshape(-1, 6)
        return Found(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int32))

    first = found((0, 0, 10, 10, 0.9, 0), (20, 0, 30, 10, 0.8, 1), (50, 0, 60, 10, 0.1, 0))
    second = found((1, 0, 11, 10, 0.8, 0), (20, 0, 30, 10, 0.8, 2))
    text = apart([first], [second])
    assert text.startswith("1 objects are found either way, 2 one way alone; their boxes are apart by 10.0% ")
    assert text.endswith("their scores by -0.100")
    assert apart([found()], [found()]) == "no object is found either way, 0 one way alone"


def test_pictures_of_a_clip_are_spread_over_it(media_dir):
    clip = str(media_dir / "street.mp4")
    assert len(read_pictures(clip, 1)) == 1
    found = read_pictures(clip, 5)
    assert len(found) == 5
    assert (found[0] == read_picture(clip)).all()
    assert all((a != b).any() for a, b in itertools.pairwise(found))
