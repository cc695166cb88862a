"""Log lines: their form, and what must never be in them."""

from __future__ import annotations

import io
import json
import logging
import os
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.observe import logs


@pytest.fixture(autouse=True)
def _no_secrets_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_secrets", set())
    monkeypatch.setattr(logs, "_secret_pattern", None)


@pytest.fixture
def text_lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    undo = logs.configure("text", "debug", stream=stream)
    yield stream
    undo()


@pytest.fixture
def json_lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    undo = logs.configure("json", "info", stream=stream)
    yield stream
    undo()


log = logging.getLogger("pipeline.somewhere")


def test_a_text_line_has_utc_time_level_subject_and_message(text_lines: io.StringIO) -> None:
    log.info("saw %d", 3, extra={"camera": "gate-1", "stage": "decode", "epoch": 0, "seq": 17})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    gate-1 decode 0/17: saw 3\n", text_lines.getvalue()
    )


def test_a_text_line_whose_message_names_the_camera_does_not_name_it_twice(text_lines: io.StringIO) -> None:
    log.info("camera a: gone", extra={"camera": "a", "stage": "decode", "epoch": 3})
    log.info("nms/0 died", extra={"stage": "nms"})
    log.info("camera a-1: gone", extra={"camera": "a"})
    assert [line.split("INFO    ")[1] for line in text_lines.getvalue().splitlines()] == [
        "camera a: gone",
        "nms/0 died",
        "a: camera a-1: gone",
    ]


def test_what_a_workers_libraries_log_has_the_subject_of_the_worker() -> None:
    stream = io.StringIO()
    undo = logs.configure("json", "info", stream=stream, subject={"camera": "gate", "stage": "decode"})
    try:
        logging.getLogger("libav.h264").warning("error while decoding MB")
        log.info("mine", extra={"camera": "yard", "epoch": 2})
    finally:
        undo()
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["camera"], first["stage"]) == ("gate", "decode")
    assert (second["camera"], second["epoch"], second.get("stage")) == ("yard", 2, None)


@pytest.mark.parametrize(
    ("extra", "subject"),
    [
        ({}, ""),
        ({"camera": "a"}, "a: "),
        ({"stage": "nms"}, "nms: "),
        ({"camera": "a", "epoch": 2}, "a epoch 2: "),
        ({"camera": "a", "seq": 5}, "a -/5: "),
        ({"camera": "a", "epoch": 0, "seq": 0}, "a 0/0: "),
    ],
)
def test_the_subject_names_what_is_known(text_lines: io.StringIO, extra: dict[str, object], subject: str) -> None:
    log.warning("m", extra=extra)
    assert text_lines.getvalue().endswith(f"WARNING {subject}m\n")


def test_a_json_line_is_one_object_with_the_subject_and_data(json_lines: io.StringIO) -> None:
    log.error("x\ny", extra={"camera": "gate-1", "epoch": 1, "seq": 2, "data": {"fps": 7.5, "dropped": {"too_old": 1}}})
    (line,) = json_lines.getvalue().splitlines()
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "error",
        "logger": "pipeline.somewhere",
        "message": "x\ny",
        "camera": "gate-1",
        "epoch": 1,
        "seq": 2,
        "data": {"fps": 7.5, "dropped": {"too_old": 1}},
    }


def test_what_json_does_not_know_becomes_text_without_its_secrets(json_lines: io.StringIO) -> None:
    logs.register_secret("hunter22")

    class Odd:
        def __str__(self) -> str:
            return "odd hunter22"

    log.info("m", extra={"data": {"x": Odd(), "list": ["hunter22"], "hunter22": 1}})
    assert json.loads(json_lines.getvalue())["data"] == {"x": "odd ***", "list": ["***"], "***": 1}


def test_a_name_full_of_escapes_stays_on_one_line_and_moves_no_cursor(text_lines: io.StringIO) -> None:
    log.info("m\x1b[2J\r\n2026-01-01 INFO forged", extra={"camera": "\x1b]0;title\x07\u202egate\u2028"})
    (line,) = text_lines.getvalue().splitlines()
    assert "\x1b" not in line
    assert "\\x1b[2J\\r\\n2026" in line
    assert "\\x1b]0;title\\x07\\u202egate\\u2028: m" in line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("open rtsp://admin:secret@10.0.0.1:554/ch1 failed", "open rtsp://***@10.0.0.1:554/ch1 failed"),
        ("rtsp://admin:p@ss@cam/1", "rtsp://***@cam/1"),
        ("rtsp://admin@cam/1", "rtsp://***@cam/1"),
        ("'rtsp://a:b@c/d', 'rtsp://e:f@g/h'", "'rtsp://***@c/d', 'rtsp://***@g/h'"),
        ("http://cam/snap?user=x&password=geheim&n=1", "http://cam/snap?user=x&password=***&n=1"),
        ("http://cam/snap?PWD=geheim", "http://cam/snap?PWD=***"),
        ("rtsp://10.0.0.1:554/ch1?x=a@b", "rtsp://10.0.0.1:554/ch1?x=a@b"),
        ("mail a@b, nothing else", "mail a@b, nothing else"),
        ("rtsp://cam/user=admin_password=geheim_channel=1", "rtsp://cam/user=admin_password=***"),
    ],
)
def test_credentials_in_addresses_are_hidden(text: str, shown: str) -> None:
    assert logs.redact(text) == shown


def test_a_secret_in_a_traceback_of_a_library_is_hidden(text_lines: io.StringIO) -> None:
    logs.register_secret("s3cr3t!")
    try:
        raise OSError("cannot open rtsp://u:s3cr3t!@h/ with s3cr3t!")
    except OSError:
        log.exception("decode failed with %s", "s3cr3t!", extra={"camera": "s3cr3t!"})
    assert "s3cr3t" not in text_lines.getvalue()
    assert "OSError: cannot open rtsp://***@h/ with ***" in text_lines.getvalue()


@given(st.text(st.characters(exclude_characters="*xyz "), min_size=4, max_size=12), st.text("xyz *"), st.text("xyz *"))
def test_a_registered_secret_is_never_shown(secret: str, before: str, after: str) -> None:
    logs._secrets.clear()
    logs.register_secret(secret)
    assert logs.redact(before + secret + after) == f"{before}***{after}"


def test_a_short_secret_hides_words_not_letters() -> None:
    logs.register_secret("1")
    assert logs.redact("password 1, camera gate-1x, 1024 frames") == "password ***, camera gate-1x, 1024 frames"


def test_a_secret_is_hidden_in_the_escapes_of_a_url_too() -> None:
    logs.register_secret("pä/ss word")
    assert logs.redact("GET /p%C3%A4%2Fss%20word and pä/ss word") == "GET /*** and ***"


def test_a_secret_that_begins_another_leaves_no_rest() -> None:
    logs.register_secret("abcd")
    logs.register_secret("abcdefgh")
    assert logs.redact("abcdefgh abcd") == "*** ***"


@given(st.text())
def test_printable_is_one_line_without_controls(text: str) -> None:
    shown = logs.printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in shown)


def test_levels_hold_for_our_loggers_and_others_speak_from_warning_on() -> None:
    stream = io.StringIO()
    undo = logs.configure("text", "debug", stream=stream)
    logging.getLogger("stages.x").debug("ours")
    logging.getLogger("libav.h264").info("theirs")
    logging.getLogger("libav.h264").warning("their warning")
    undo()
    assert [line.split(maxsplit=2)[2] for line in stream.getvalue().splitlines()] == ["ours", "their warning"]


def test_undo_leaves_logging_as_it_was() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("pipeline").level)
    logs.configure("json", "error", stream=io.StringIO())()
    assert (list(root.handlers), root.level, logging.getLogger("pipeline").level) == before


def test_a_pipe_that_nobody_reads_stops_nobody_and_the_loss_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "STUCK_WAIT_MS", 1)
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb", buffering=0) as source:
        undo = logs.configure("text", "info", stream=stream)
        for i in range(3000):
            log.info("line %d %s", i, "x" * 60)
        while len(source.read(4096)) == 4096:  # make room
            pass
        log.info("after")
        undo()
        rest = source.read(65536).decode()
    assert re.search(r"WARNING \d+ log lines were dropped: stderr was not being read\n.*INFO    after\n", rest)


def test_a_closed_stderr_is_no_error() -> None:
    stream = io.StringIO()
    undo = logs.configure(stream=stream)
    stream.close()
    log.warning("into the void")
    undo()


@given(message=st.text("ab-_ é"), name=st.text("ab-_ é", min_size=1))
def test_a_name_is_found_in_a_message_as_a_pattern_would_find_it(message: str, name: str) -> None:
    found = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", message) is not None
    assert logs._mentions(message, name) == found
