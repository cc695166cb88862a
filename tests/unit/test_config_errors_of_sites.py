"""Every kind of mistake in a site, a model or an override: which file and line is named; all are told at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from made.sites import GOOD_CAMERA, Refusal

from pipeline.config import load_site
from stages.errors import UserError

SITE_ERRORS: Sequence[tuple[str, str]] = [
    ("camera: cams", "site.yaml:2: camera: unknown key; did you mean 'cameras'?"),
    (
        "devices: {device: CPU}",
        'site.yaml:2: devices[0].device: "CPU": is not the name of a device; write its kind and number',
    ),
    (
        "devices: {device: gpu}",
        "site.yaml:2: devices[0].device: \"gpu\": device 'gpu' does not exist; did you mean `cpu`?",
    ),
    (
        "devices: {device: 'ascent:0'}",
        "device 'ascent:0' does not exist; did you mean `ascend:0`?",
    ),
    ("publish:\n  bind: ipc://" + "n" * 100, "site.yaml:3: publish.bind: "),
    (
        "devices:\n- executors: 0",
        "site.yaml:3: devices[0].executors: 0: is out of bounds; write auto or a whole number from 1 to 64",
    ),
    (
        "devices:\n- executors: 65",
        "site.yaml:3: devices[0].executors: 65: is out of bounds; write auto or a whole number from 1",
    ),
    (
        "devices:\n- executors: aut",
        "site.yaml:3: devices[0].executors: \"aut\": is not known here; did you mean 'auto'?",
    ),
    ("devices: []", "site.yaml:2: devices: is out of bounds; write a list of 1 to 64 entries"),
    (
        "devices: cpu",
        'site.yaml:2: devices: "cpu": should be a list of 1 to 64 entries or a map of keys, not text; write',
    ),
    ("devices: [cpu]", "site.yaml:2: devices[0]: \"cpu\": should be a map of keys, not text; write 'key: value' lines"),
    (
        "devices:\n- device: cpu\n- device: cpu",
        'site.yaml:4: devices[1].device: "cpu": is the device at site.yaml:3 too; keep one and raise its',
    ),
    (
        "devices: {options: {a: [1]}}",
        "site.yaml:2: devices[0].options.a: should be text of at most 4096 characters, not a list",
    ),
    (
        "batch: {max_batch: 65}",
        "site.yaml:2: batch.max_batch: 65: is out of bounds; write auto or a whole number from 1 to 64",
    ),
    (
        "batch: {max_wait_ms: -1}",
        "site.yaml:2: batch.max_wait_ms: -1: is out of bounds; write a number from 0 to 10000",
    ),
    (
        "nms: {workers: 1.5}",
        "site.yaml:2: nms.workers: 1.5: is out of bounds; write auto or a whole number from 1 to 64",
    ),
    (
        "publish: {bind: localhost:5600}",
        'publish.bind: "localhost:5600": is not an address to publish at: it has no tcp:// or ipc:// in front; write tcp://localhost:5600',
    ),
    (
        "publish: {bind: tcp://h:70000}",
        'publish.bind: "tcp://h:70000": is not an address to publish at: the port must be a number from 0 to 65535',
    ),
    ("publish: of", "site.yaml:2: publish: \"of\": is not known here; did you mean 'off'?"),
    ("publish: {hwm: 0}", "site.yaml:2: publish.hwm: 0: is out of bounds; write a whole number from 1 to 10000000"),
    ("sinks: [{json: x}]", "site.yaml:2: sinks[0].json: unknown key; did you mean 'jsonl'?"),
    ("sinks: [{jsonl: {}}]", "site.yaml:2: sinks[0].jsonl.path: is missing; write text of 1 to 4096 characters"),
    ("sinks: [{jsonl: 'a{b}'}]", 'site.yaml:2: sinks[0].jsonl.path: "a{b}": has braces that are not {camera}'),
    (
        "sinks: [{jsonl: {path: '{camera}', merged: true}}]",
        "sinks[0].jsonl: has 'merged' and a path with {camera}; keep one",
    ),
    ("sinks: [{jsonl: folder}]", 'site.yaml:2: sinks[0].jsonl.path: "folder": is a folder; name a file in it'),
    (
        "sinks:\n- jsonl: a\n- jsonl: ./a",
        'site.yaml:4: sinks[1].jsonl.path: "./a": is written by the sink at site.yaml:3 too',
    ),
    (
        "limits: {shared_memory_mb: 0}",
        "limits.shared_memory_mb: 0: is out of bounds; write auto or a whole number from 1 to 1048576",
    ),
    ("limits: {quarantine: clip.mp4}", 'site.yaml:2: limits.quarantine: "clip.mp4": is a file; name a folder'),
    (
        "limits: {stop_ms: 1e3}",
        "site.yaml:2: limits.stop_ms: 1000.0: should be a whole number from 100 to 3600000; write it without",
    ),
    ("models: [a]", "site.yaml:2: models: should be a map; write 'NAME: path of its description' lines"),
    (
        "models: {m: 5}",
        "site.yaml:2: models.m: 5: does not describe a model; write the path of its description, its keys, or",
    ),
    ("models: {m: none.yaml}", 'site.yaml:2: models.m: "none.yaml": no such file; check the path'),
    ("models: {m: ./folder}", 'site.yaml:2: models.m: "./folder": is a folder; name a model\'s description in it'),
    ("models: {m: coco-sd}", "site.yaml:2: models.m: model 'coco-sd' is not known (did you mean 'coco-ssd'?)"),
    (
        "models: {m: x.onnx}",
        "site.yaml:2: models.m: model 'x.onnx' is a model file; name the YAML that describes it instead",
    ),
    ("models: {a b: coco-ssd}", "site.yaml:2: models.a b: is not a name that topics can carry"),
]


@pytest.mark.parametrize(("text", "expected"), SITE_ERRORS, ids=[text[:40] for text, _ in SITE_ERRORS])
def test_a_mistake_in_a_site_file(refusal: Refusal, text: str, expected: str) -> None:
    problems = refusal({"site.yaml": "cameras: [{name: a, source: clip.mp4}]\n" + text + "\n"})
    assert len(problems) == 1, problems
    assert expected in problems[0]


CAMERAS_ERRORS: Sequence[tuple[dict[str, str | bytes], str]] = [
    ({"site.yaml": ""}, "site.yaml:1: is empty; a site file needs at least 'cameras: FOLDER'"),
    ({"site.yaml": "# nothing\n"}, "site.yaml:1: is empty; a site file needs at least 'cameras: FOLDER'"),
    (
        {"site.yaml": "- a\n"},
        "site.yaml:1: should hold 'key: value' lines; a site file needs at least 'cameras: FOLDER'",
    ),
    ({"site.yaml": "just words\n"}, "site.yaml:1: should hold 'key: value' lines"),
    ({"site.yaml": b"\0\1\2\3"}, "site.yaml:1: is not text but binary data; name a text file"),
    ({"site.yaml": b"a: 1\nb: \xff"}, "site.yaml:2: is not UTF-8; save the file as UTF-8"),
    ({"site.yaml/x": ""}, "site.yaml: is a folder; name a file"),
    ({}, "site.yaml: no such file; check the path"),
    ({"site.yaml": "source: clip.mp4\n"}, "site.yaml:1: is the file of a camera, not of a site; name the site file"),
    ({"site.yaml": "nms: {}\n"}, "site.yaml:1: cameras: is missing; write the folder of the cameras' files, or a list"),
    ({"site.yaml": "nms: {}\ncameras:\n"}, "site.yaml:1: cameras: is missing"),
    ({"site.yaml": "nms: {}\ncameras: []\n"}, "site.yaml:2: cameras: is an empty list; write at least one camera"),
    ({"site.yaml": "cameras: {a: b}\n"}, "site.yaml:1: cameras: should be a list or a folder; write '- ' before each"),
    ({"site.yaml": "cameras: 5\n"}, "site.yaml:1: cameras: 5: should be a list or a folder"),
    ({"site.yaml": "cameras: [clip.mp4]\n"}, 'site.yaml:1: cameras[0]: "clip.mp4": should be a map of keys; write'),
    (
        {"site.yaml": "cameras: [{source: clip.mp4}]\n"},
        "site.yaml:1: cameras[0].name: is missing; write a name, such as",
    ),
    (
        {"site.yaml": "cameras: cams\n"},
        'site.yaml:1: cameras: "cams": no such folder; check the path (paths count from',
    ),
    (
        {"site.yaml": "cameras: clip.mp4\n"},
        'site.yaml:1: cameras: "clip.mp4": is a file; name the folder that it lies in',
    ),
    (
        {"site.yaml": "cameras: folder\n"},
        'site.yaml:1: cameras: "folder": is a folder without cameras: no file ends in',
    ),
    ({"site.yaml": "cameras: c\n", "c/x.txt": "", "c/.y.yaml": ""}, '"c": is a folder without cameras'),
    ({"site.yaml": "cameras: c\n", "c/x.yaml": ""}, "c/x.yaml:1: is empty; a camera's file needs at least 'source: …'"),
    (
        {"site.yaml": "cameras: c\n", "c/x.yml": "[a]"},
        "c/x.yml:1: should hold 'key: value' lines; a camera's file needs",
    ),
    ({"site.yaml": "cameras: c\n", "c/x.yaml/y": ""}, "c/x.yaml: is a folder; name a file"),
    ({"site.yaml": "cameras: c\n", "c/x.yaml": b"\0"}, "c/x.yaml:1: is not text but binary data"),
    (
        {"site.yaml": "cameras: c\n", "c/gate 1.yaml": GOOD_CAMERA},
        'c/gate 1.yaml:1: name: "gate 1": is what the file is called, but no name that topics can carry; write',
    ),
]


@pytest.mark.parametrize(("files", "expected"), CAMERAS_ERRORS)
def test_a_site_without_usable_cameras(refusal: Refusal, files: dict[str, str | bytes], expected: str) -> None:
    problems = refusal(files)
    assert len(problems) == 1, problems
    assert expected in problems[0]


def test_a_pipe_as_site_does_not_hang(here: Path) -> None:
    os.mkfifo(here / "pipe")
    with pytest.raises(UserError, match="pipe: is not a regular file; name a file"):
        load_site("pipe")


MODEL = """\
file: m.onnx
input: {width: 64, height: 64}
layout: ssd
labels: coco
"""

MODEL_ERRORS: Sequence[tuple[str, str]] = [
    (MODEL + "licens: MIT", "m.yaml:5: licens: unknown key; did you mean 'licence'?"),
    (MODEL.replace("ssd", "sdd"), "m.yaml:3: layout: \"sdd\": is not known here; did you mean 'ssd'?"),
    (MODEL.replace("width: 64, ", ""), "m.yaml:2: input.width: is missing; write a whole number from 16 to 8192"),
    (MODEL.replace("width", "widht"), "m.yaml:2: input.widht: unknown key; did you mean 'width'?"),
    (MODEL.replace("file: m.onnx\n", "name: m\n"), "m.yaml:1: file: is missing; write text of 1 to 4096 characters"),
    (
        MODEL.replace("coco", "coca"),
        "m.yaml:4: labels: \"coca\": is not a list of labels that campipe knows; did you mean 'coco'?",
    ),
    (MODEL.replace("coco", "none.txt"), 'm.yaml:4: labels: "none.txt": no such file'),
    (MODEL.replace("coco", "gap.txt"), "gap.txt:2: is an empty line; labels count by lines, so write one on each"),
    (MODEL.replace("coco", "[]"), "m.yaml:4: labels: is out of bounds; write text that is not empty or a list of 1 to"),
    (
        MODEL.replace("coco", "[a, 5]"),
        "m.yaml:4: labels[1]: 5: should be text of 1 to 100 characters, not a number; put it",
    ),
    (MODEL + "sha256: abc", 'm.yaml:5: sha256: "abc": is not a SHA-256 sum; write its 64 hex digits'),
    (MODEL + "batch: 0", "m.yaml:5: batch: 0: is out of bounds; write dynamic or a whole number from 1 to 64"),
    (MODEL + "batch: dynamics", "m.yaml:5: batch: \"dynamics\": is not known here; did you mean 'dynamic'?"),
    (MODEL + "confidence: 2", "m.yaml:5: confidence: 2: is out of bounds; write a number from 0 to 1"),
    (
        MODEL + "outputs:\n- {name: o, shape: [0]}",
        "m.yaml:6: outputs[0].shape[0]: 0: is out of bounds; write a whole number",
    ),
    (
        MODEL + "outputs:\n- {name: o, shape: [1], dtype: f}",
        'm.yaml:6: outputs[0].dtype: "f": is not known here; write one of',
    ),
    (
        MODEL.replace("64}", "64, std: 0}"),
        "m.yaml:2: input.std: 0: should be a number or a list of three, one per channel, each above 0",
    ),
    (
        MODEL.replace("64}", "64, mean: [1, 2]}"),
        "m.yaml:2: input.mean: should be a number or a list of three, one per channel",
    ),
    (
        MODEL.replace("64}", "64, channels: RGB}"),
        "m.yaml:2: input.channels: \"RGB\": is not known here; did you mean 'rgb'?",
    ),
    ("[]", "m.yaml:1: does not describe a model; write 'file: …'"),
    ("", "m.yaml:1: does not describe a model; write 'file: …'"),
    ("a:\n\tb", "m.yaml:2: holds a tab"),
]


@pytest.mark.parametrize(("text", "expected"), MODEL_ERRORS)
def test_a_mistake_in_a_model_description(refusal: Refusal, text: str, expected: str) -> None:
    site = "cameras: [{name: a, source: clip.mp4, model: m}]\nmodels: {m: models/m.yaml}\n"
    problems = refusal({"site.yaml": site, "models/m.yaml": text + "\n", "models/gap.txt": "a\n\nb\n"})
    assert len(problems) == 1, problems
    assert expected in problems[0]
    assert problems[0].startswith("models/")


def test_a_mistake_in_an_inline_model_names_the_site_file(refusal: Refusal) -> None:
    site = "cameras: [{name: a, source: clip.mp4, model: m}]\nmodels:\n  m:\n    file: m.onnx\n    layout: sdd\n"
    assert refusal({"site.yaml": site}) == [
        "site.yaml:3: models.m.input: is missing; write a map of keys",
        "site.yaml:3: models.m.labels: is missing; write text that is not empty or a list of 1 to 100000 entries",
        "site.yaml:5: models.m.layout: \"sdd\": is not known here; did you mean 'ssd'?",
    ]


OVERRIDE_ERRORS: Sequence[tuple[str, str]] = [
    ("camera.a.confidence=1.5", "--set camera.a.confidence: 1.5: is out of bounds; write a number from 0 to 1"),
    ("camera.a.confidense=1", "--set camera.a.confidense: unknown key; did you mean 'confidence'?"),
    ("camera.b.confidence=1", "--set camera.b.confidence: there is no camera 'b'; known are a"),
    ("camra.a.confidence=1", "--set camra.a.confidence: unknown key; did you mean 'camera'?"),
    ("camera=5", "--set camera: unknown key; did you mean 'cameras'?"),
    ("limits.shared_memory=1", "--set limits.shared_memory: unknown key; did you mean 'shared_memory_mb'?"),
    (
        "limits.shared_memory_mb=x",
        '--set limits.shared_memory_mb: "x": is not known here; write auto or a whole number',
    ),
    (
        "limits.stop_ms.x=1",
        "--set limits.stop_ms.x: limits.stop_ms: should be a whole number from 100 to 3600000, not a map",
    ),
    (
        "limits.stop_ms",
        "--set: limits.stop_ms: is not of the form KEY=VALUE; write KEY=VALUE, such as camera.gate-1.conf",
    ),
    ("a..b=1", "--set: a..b: is not of the form KEY=VALUE"),
    ("devices.5.lanes=1", "--set devices.5.lanes: 'devices' is a list of 2; write devices.0 to devices.1"),
    ("devices.lanes=1", "--set devices.lanes: 'devices' is a list of 2; write devices.0 to devices.1"),
    ("camera.a.roi=[0, 0, 1, 2]", "--set camera.a.roi: roi[3]: 2: is not a part of the picture"),
    ("camera.a.source=none.mp4", '--set camera.a.source: source.url: "none.mp4": no such file; check the path'),
    ("camera.a.source.url=none.mp4", '--set camera.a.source.url: "none.mp4": no such file; check the path'),
    ("camera.a.name=[", "--set camera.a.name: a value is missing, or a bracket is not closed"),
    ("models.m.confidence=1", "--set models.m.confidence: there is no model 'm'; known are coco-ssd"),
    (
        "models.coco-ssd.confidence=2",
        "--set models.coco-ssd.confidence: 2: is out of bounds; write a number from 0 to 1",
    ),
    ("camera.a.model=coco-sd", "--set camera.a.model: \"coco-sd\": is not a known model; did you mean 'coco-ssd'?"),
    ("cameras=none", '--set cameras: "none": no such folder; check the path'),
]


@pytest.mark.parametrize(("override", "expected"), OVERRIDE_ERRORS)
def test_a_mistake_in_an_override(refusal: Refusal, override: str, expected: str) -> None:
    site = "cameras: [{name: a, source: clip.mp4}]\ndevices: [{device: cpu}, {device: 'canned:0'}]\n"
    problems = refusal({"site.yaml": site}, override)
    assert len(problems) == 1, problems
    assert problems[0].startswith(expected)


# --- together ---------------------------------------------------------------------------------------------------------


def test_duplicate_names_name_both_places(refusal: Refusal) -> None:
    files: dict[str, str | bytes] = {
        "site.yaml": "cameras: cams\n",
        "cams/a.yaml": GOOD_CAMERA + "name: gate\n",
        "cams/b.yaml": "model: coco-ssd\n" + GOOD_CAMERA + "name: gate\n",
        "cams/gate.yaml": GOOD_CAMERA,
    }
    assert refusal(files) == [
        'cams/b.yaml:3: name: "gate": is the name of the camera at cams/a.yaml:2 too; change one of them',
        'cams/gate.yaml:1: name: "gate": is the name of the camera at cams/a.yaml:2 too; change one of them',
    ]


def test_everything_wrong_in_all_files_is_told_at_once_in_the_order_of_files_and_lines(refusal: Refusal) -> None:
    problems = refusal(
        {
            "site.yaml": "publish: {hwm: 0}\ncameras: cams\nmodels: {m: m.yaml}\nlimitz: {}\n",
            "cams/a.yaml": "source: ../none.mp4\nroi: [0, 0]\nconfidence: 2\n",
            "cams/b.yaml": "\tx\n",
            "cams/c.yaml": "name: a\nsource: ../empty.mp4\nclasses: [persn]\n",
            "m.yaml": MODEL + "batch: 99\n",
        },
        "camera.a.iou=7",
    )
    assert [problem.split(": ")[0] for problem in problems] == [
        "site.yaml:1",
        "site.yaml:4",
        "cams/a.yaml:1",
        "cams/a.yaml:2",
        "cams/a.yaml:3",
        "cams/b.yaml:1",
        "cams/c.yaml:1",
        "cams/c.yaml:2",
        "cams/c.yaml:3",
        "m.yaml:5",
        "--set camera.a.iou",
    ]


def test_one_of_two_duplicate_cameras_can_be_broken_too(refusal: Refusal) -> None:
    site = "cameras:\n- {name: a, source: clip.mp4}\n- {name: a, source: none.mp4, iou: x}\n"
    assert len(refusal({"site.yaml": site})) == 3


def test_very_many_problems_are_counted_not_all_shown(refusal: Refusal) -> None:
    problems = refusal({"site.yaml": "cameras: []\n" + "".join(f"k{n}: 1\n" for n in range(1000))})
    assert len(problems) == 201
    assert problems[-1] == "… and 801 more problems like these"


def test_no_mistake_shows_a_secret(refusal: Refusal) -> None:
    files: dict[str, str | bytes] = {
        "site.yaml": "cameras: cams\n",
        "cams/a.yaml": "source: rtsp://admin:hunter2@cam:port/x\n",
        "cams/b.yaml": "source: rtsp://admin:${PASS}@ca m/x\n",
        "cams/c.yaml": "source: {url: 'ftp://cam/${PASS}?token=hunter2', password: [hunter2], user: {hunter2: 1}}\n",
        "cams/d.yaml": "source: {url: ['rtsp://a:hunter2@b'], passwrd: hunter2}\n",
        "cams/e.yaml": "source: rtsp://admin:hun/ter2@cam\n",
        "cams/f.yaml": "source: rtsp://admin:hunter2@cam\nname: rtsp://admin:hunter2@cam\n",
        "cams/g.yaml": "source: {url: rtsp://admin:hunter2@cam, password: hunter2}\n",
        "cams/h.yaml": "source: {url: rtsp://cam, password: 'hunter2${'}\n",
        "cams/i.yaml": "source: {url: rtsp://cam, password: *hunter2}\n",
        "cams/j.yaml": "source: {url: '${PASS}'}\n",
    }
    problems = refusal(files, "camera.a.source.password=hunter2", env={"PASS": "hunter2"})
    text = "\n".join(problems)
    assert "hunter2" not in text
    assert "ter2" not in text
    assert {line.split(":")[0] for line in problems} >= {f"cams/{name}.yaml" for name in "bcdefghij"}


def test_values_can_not_play_with_the_terminal(refusal: Refusal) -> None:
    [problem] = refusal({"site.yaml": 'cameras: [{name: "a\u202eb\u2028", source: clip.mp4}]\n'})
    assert 'name: "a\\u202eb\\u2028"' in problem


def test_a_file_name_can_not_play_with_the_terminal(here: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_site("no\x1b[2J\n.yaml")
    assert caught.value.problems == ("no\\x1b[2J\\n.yaml: no such file; check the path",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("root:x:0:0:SECRET:/root\ndaemon:x: 1: SECRET\n", "m.yaml:2: "),
        ("NAME=SECRET\nID=SECRET\n", "does not describe a model; write 'file: …'"),
        ("- SECRET\n- b\n", "does not describe a model; write 'file: …'"),
        (
            "host: SECRET\npassword: SECRET\nlayout: SECRET\nfile: [SECRET]\n",
            "does not describe a model (its keys are host, password, layout, file); write",
        ),
        ("".join(f"k{n}: SECRET\n" for n in range(9)), "(its keys are k0, k1, k2, k3, k4, k5, k6, k7 …)"),
    ],
)
def test_a_file_that_describes_no_model_is_not_quoted(content: str, says: str, refusal: Refusal) -> None:
    site = "cameras: [{name: a, source: clip.mp4, model: m}]\nmodels: {m: ../other/m.yaml}\n"
    (problem,) = refusal({"site.yaml": site, "../other/m.yaml": content})
    assert says in problem
    assert "SECRET" not in problem


def test_lines_of_a_labels_file_are_not_quoted(refusal: Refusal) -> None:
    model = "{file: m.onnx, layout: ssd, input: {width: 64, height: 64}, labels: other.txt}"
    site = f"cameras: [{{name: a, source: clip.mp4, model: m}}]\nmodels: {{m: {model}}}\n"
    (problem,) = refusal({"site.yaml": site, "other.txt": "a\n" + "SECRET " * 40 + "\n"})
    assert "other.txt:2: " in problem
    assert "SECRET" not in problem
