"""Every kind of mistake in a camera's file: which file and line is named, and what is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made.sites import GOOD_CAMERA, Refusal

from pipeline.config.problems import redact

CAMERA_ERRORS: Sequence[tuple[str, str]] = [
    # unknown keys
    ("confidense: 0.4", "cams/x.yaml:2: confidense: unknown key; did you mean 'confidence'?"),
    ("colour: red", "cams/x.yaml:2: colour: unknown key; known are name, source, sampling, roi, model, confidence"),
    ("live:\n  policy: auto\n  max_age: 3", "cams/x.yaml:4: live.max_age: unknown key; did you mean 'max_age_ms'?"),
    ("\u001b: 1", "cams/x.yaml:2: holds the control character U+001B; remove it"),
    ("k" * 900 + ": 1", "(900 characters): unknown key; known are"),
    ("k" * 5000 + ": 1", "cams/x.yaml:2: a key without a colon; write 'key: value'"),
    # wrong types
    ('confidence: "0.4"', 'x.yaml:2: confidence: "0.4": should be a number from 0 to 1, not text; remove the quotes'),
    (
        "confidence: high",
        'x.yaml:2: confidence: "high": should be a number from 0 to 1, not text; write a number from 0',
    ),
    (
        "confidence: true",
        "x.yaml:2: confidence: true: should be a number from 0 to 1, not true or false; write a number",
    ),
    ("confidence: [1]", "x.yaml:2: confidence: should be a number from 0 to 1, not a list; write a number from 0 to 1"),
    ("confidence: .nan", "x.yaml:2: confidence: nan: is out of bounds; write a number from 0 to 1"),
    ("name: 12", "x.yaml:2: name: 12: should be text, not a number; put it in quotes"),
    ("model: {a: b}", "x.yaml:2: model: should be text, not a map; put text that starts with { in quotes"),
    (
        "max_objects: 5.0",
        "x.yaml:2: max_objects: 5.0: should be a whole number from 1 to 1000; write it without a decimal",
    ),
    ("class_agnostic: yes", 'x.yaml:2: class_agnostic: "yes": should be true or false, not text; write true'),
    ("class_agnostic: off", 'x.yaml:2: class_agnostic: "off": should be true or false, not text; write false'),
    ("sampling: 5", "x.yaml:2: sampling: 5: should be a map of keys, not a number; write 'key: value' lines"),
    ("roi: 0.5", "x.yaml:2: roi: 0.5: should be a list of 4 entries, not a number; write a list of 4 entries"),
    ("roi: [0, 0, 1]", "x.yaml:2: roi: is out of bounds; write a list of 4 entries"),
    (
        "live: {policy: null}",
        "x.yaml:2: live.policy: null: should be one of auto, lossless, newest; write one, or remove",
    ),
    # out of bounds
    ("confidence: 1.5", "x.yaml:2: confidence: 1.5: is out of bounds; write a number from 0 to 1"),
    ("confidence: -.inf", "x.yaml:2: confidence: -inf: is out of bounds; write a number from 0 to 1"),
    ("iou: -1", "x.yaml:2: iou: -1: is out of bounds; write a number from 0 to 1"),
    ("max_objects: 0", "x.yaml:2: max_objects: 0: is out of bounds; write a whole number from 1 to 1000"),
    ("sampling:\n  every: 0", "x.yaml:3: sampling.every: 0: is out of bounds; write a whole number from 1 to 100000"),
    ("classes: []", "x.yaml:2: classes: is out of bounds; write a list that is not empty"),
    (
        "roi:\n  - 0\n  - 0\n  - 640\n  - 1",
        "x.yaml:5: roi[2]: 640: is not a part of the picture; write a number from 0 to 1",
    ),
    ("roi: [0.5, 0, 0.2, 1]", "x.yaml:2: roi: spans no area; write [x1, y1, x2, y2] with x1 < x2 and y1 < y2"),
    ("sampling: {fps: 5, every: 2}", "x.yaml:2: sampling: has both 'fps' and 'every'; keep one of them"),
    # names, models, classes
    ("name: a/b", 'x.yaml:2: name: "a/b": is not a name that topics can carry; use 1 to 64 of the letters a-z A-Z 0-9'),
    ("name: .hidden", 'x.yaml:2: name: ".hidden": is not a name that topics can carry'),
    ("name: 'gate 1'", 'x.yaml:2: name: "gate 1": is not a name that topics can carry'),
    ("name: straße", 'x.yaml:2: name: "straße": is not a name that topics can carry'),
    ("name: ''", 'x.yaml:2: name: "": is not a name that topics can carry'),
    ("name: " + "n" * 65, '(65 characters)": is not a name that topics can carry'),
    ("name: " + "n" * 5000, 'nnn… (5000 characters)": is not a name that topics can carry'),
    ('name: "a\\nb"', 'x.yaml:2: name: "a\\nb": is not a name that topics can carry'),
    ("model: coco-sd", "x.yaml:2: model: \"coco-sd\": is not a known model; did you mean 'coco-ssd'?"),
    ("model: zzz", 'x.yaml:2: model: "zzz": is not a known model; known are coco-ssd'),
    (
        "classes: [person, persn]",
        "x.yaml:2: classes[1]: \"persn\": is not a label of the model; did you mean 'person'?",
    ),
    ("classes:\n- Person", "x.yaml:3: classes[0]: \"Person\": is not a label of the model; did you mean 'person'?"),
    ("classes: [zzzzz]", 'x.yaml:2: classes[0]: "zzzzz": is not a label of the model; known are person, bicycle'),
    ("classes: [80]", "x.yaml:2: classes[0]: 80: is not a class of the model; write a label, or a number from 0 to 79"),
    ("classes: [-1]", "x.yaml:2: classes[0]: -1: is out of bounds"),
    ("classes: [1.5]", "x.yaml:2: classes[0]: 1.5: is out of bounds; write text of 1 to 100 characters or a whole"),
    ("live: {policy: newset}", "x.yaml:2: live.policy: \"newset\": is not known here; did you mean 'newest'?"),
    ("live: {policy: zzz}", 'x.yaml:2: live.policy: "zzz": is not known here; write one of auto, lossless, newest'),
    # YAML
    ("source: a", "x.yaml:2: source: duplicate key, first stated on line 1; remove one of them"),
    ("live:\n\tpolicy: auto", "x.yaml:3: holds a tab; YAML is indented with spaces"),
    (
        "roi: [0, 0",
        "x.yaml:2: a bracket is not closed or a comma is missing; check [ ] and { }, and put a value that holds one in",
    ),
    ("live: &a {policy: *a}", "x.yaml:2: an alias stands for something that it is part of; write the value out"),
]

SOURCE_ERRORS: Sequence[tuple[str, str]] = [
    ("sampling: {}", "cams/x.yaml:1: source: is missing; write text that is not empty or a map of keys"),
    ("source: {}", "x.yaml:1: source.url: is missing; write text of 1 to 4096 characters"),
    (
        "source:\n  url: 5",
        "x.yaml:2: source.url: 5: should be text of 1 to 4096 characters, not a number; put it in quotes",
    ),
    ("source: ''", 'x.yaml:1: source.url: "": is out of bounds; write text of 1 to 4096 characters'),
    ("source: 7", "x.yaml:1: source: 7: should be text that is not empty or a map of keys, not a number; put it in"),
    (
        "source: clip.mp4",
        'x.yaml:1: source.url: "clip.mp4": no such file; check the path (paths count from the file that',
    ),
    ("source: ../clip.mp5", "x.yaml:1: source.url: \"../clip.mp5\": no such file; did you mean 'clip.mp4'?"),
    ("source: ../folder", 'x.yaml:1: source.url: "../folder": is a folder; name a video file in it'),
    (
        "source: ../empty.mp4",
        'x.yaml:1: source.url: "../empty.mp4": is an empty file (0 bytes); name a video file with',
    ),
    ("source: ../clip.mp4/x", 'x.yaml:1: source.url: "../clip.mp4/x": no such file'),
    ("source: " + "n" * 4000, "(4000 characters)\": can't be read (File name too long)"),
    ("source: asset:streets.mp4", "is not a clip that comes with campipe; did you mean 'asset:street.mp4'?"),
    (
        "source: rstp://cam/x",
        "x.yaml:1: source.url: \"rstp://cam/x\": 'rstp://' is not a kind of source; did you mean 'rtsp://'?",
    ),
    ("source: ftp://cam/x", "'ftp://' is not a kind of source; write the path of a file, or rtsp://HOST/PATH"),
    ("source: rtsp:///x", "is not a camera's address; write rtsp://HOST:PORT/PATH"),
    ("source: rtsp://cam:99999/x", "has a port that is not from 1 to 65535"),
    (
        "source:\n  url: rtsp://cam/x\n  pasword: hunter2",
        "x.yaml:3: source.pasword: unknown key; did you mean 'password'?",
    ),
    (
        "source:\n  url: rtsp://cam/x\n  password: 1234",
        "x.yaml:3: source.password: (hidden): should be text, not a number; put it",
    ),
    (
        "source:\n  url: rtsp://cam/x\n  password: ${NOPE}",
        "x.yaml:3: source.password: the environment variable NOPE is not set; set it where campipe is started",
    ),
    (
        "source:\n  url: rtsp://cam/x\n  password: ${NO_PASSWORD}",  # words that look like a password are hidden
        "x.yaml:3: source.password: the environment variable NO_PASSWORD is not set; set it where campipe is started",
    ),
    (
        "source:\n  url: rtsp://cam/x\n  user: ${EMPTY}",
        "x.yaml:3: source.user: the environment variable EMPTY is set but empty",
    ),
    ("source:\n  url: rtsp://cam/${NOPE}", "x.yaml:2: source.url: the environment variable NOPE is not set"),
    (
        "source:\n  url: rtsp://cam/x\n  user: a${",
        "x.yaml:3: source.user: has a ${ that no NAME} follows; write ${NAME}, or $${",
    ),
    (
        "source:\n  url: rtsp://u:p@cam/x\n  user: v",
        "x.yaml:3: source.user: the user is stated in the url too (line 2); keep one",
    ),
    (
        "source: rtsp://u:a/b@cam/x",
        'source.url: "rtsp://***@cam/x": the password holds one of / ? # @; write user and password as',
    ),
    (
        "source: {url: ../clip.mp4, recorded_at: yesterday}",
        'source.recorded_at: "yesterday": is not a point of time; write it like',
    ),
    (
        "source: {url: ../clip.mp4, recorded_at: 2026-05-01T12:00:00}",
        "has no offset from UTC; write it like 2026-05-01T12:00:00Z",
    ),
    ("source: {url: ../clip.mp4, recorded_at: 0001-01-01T00:00:00Z}", "is not between the years 1970 and 2200"),
    (
        "source: {url: ../clip.mp4, track: best}",
        'source.track: "best": is not known here; write auto or a whole number from 0 to 63',
    ),
    (
        "source: {url: ../clip.mp4, track: 64}",
        "source.track: 64: is out of bounds; write auto or a whole number from 0 to 63",
    ),
    (
        "source: {url: ../clip.mp4, track: '1'}",
        'source.track: "1": should be auto or a whole number from 0 to 63, not text; remove',
    ),
    ("source: {url: ../clip.mp4, pace: real}", "source.pace: \"real\": is not known here; did you mean 'realtime'?"),
]


@pytest.mark.parametrize(("text", "expected"), CAMERA_ERRORS, ids=[text[:40] for text, _ in CAMERA_ERRORS])
def test_a_mistake_in_a_camera_file(refusal: Refusal, text: str, expected: str) -> None:
    problems = refusal({"site.yaml": "cameras: cams\n", "cams/x.yaml": GOOD_CAMERA + text + "\n"})
    assert len(problems) == 1, problems
    assert expected in problems[0]
    assert problems[0].startswith("cams/x.yaml:")


@pytest.mark.parametrize(("text", "expected"), SOURCE_ERRORS, ids=[text[:40] for text, _ in SOURCE_ERRORS])
def test_a_mistake_in_a_source(refusal: Refusal, text: str, expected: str) -> None:
    problems = refusal({"site.yaml": "cameras: cams\n", "cams/x.yaml": text + "\n"}, env={"EMPTY": ""})
    assert len(problems) == 1, problems
    assert expected in problems[0]
    assert problems[0].startswith("cams/x.yaml:")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://u:SEKRET", "rtsp://u:***"),  # YAML has cut it at a #
        ("rtsp:/u:SEKRET@h/x", "rtsp:/***@h/x"),
        ("rtsp:u:SEKRET@h", "rtsp:***@h"),
        ("rtsp:\\\\u:SEKRET@h", "rtsp:\\\\***@h"),
        ("rtsp:///u:SEKRET@h/x", "rtsp://***@h/x"),
        ("u:SEKRET@h/x", "***@h/x"),
        ("rtsp://u:SEK/RET@h:554/x", "rtsp://***@h:554/x"),
        ("rtsp://h:99999/x", "rtsp://h:99999/x"),
        ("rtsp://[::1]:9/x", "rtsp://[::1]:9/x"),
        ("clips/2026-01-01T12:00@gate.mp4", "clips/2026-01-01T12:00@gate.mp4"),
    ],
)
def test_passwords_in_what_was_meant_as_a_url_are_hidden(text: str, shown: str) -> None:
    assert redact(text) == shown
