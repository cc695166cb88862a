"""YAML text to nodes: what is read, what is refused, and on which line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pipeline.yaml import MAX_FILE_BYTES, Node, Place, core_scalar, parse_yaml, read_yaml

HERE = Place("x.yaml", None, Path("/"))


def parsed(text: str) -> Node:
    node, faults = parse_yaml(text, HERE)
    assert not faults
    assert node is not None
    return node


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("Yes", "Yes"),
        ("off", "off"),
        ("12:30:00", "12:30:00"),
        ("2026-05-01", "2026-05-01"),
        ("1_000", "1_000"),
        ("0b101", "0b101"),
        ("010", 10),
        ("0o10", 8),
        ("0xff", 255),
        ("-5", -5),
        ("+5", 5),
        ("5.", 5.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-.inf", -math.inf),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("9" * 41, "9" * 41),
        ("=", "="),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    assert core_scalar(text) == value
    assert type(core_scalar(text)) is type(value)


def test_quotes_make_text() -> None:
    assert parsed("a: '5'\nb: \"true\"\nc: |\n  1\n").plain() == {"a": "5", "b": "true", "c": "1\n"}


def test_nan_is_a_number() -> None:
    assert math.isnan(core_scalar(".nan"))  # type: ignore[arg-type]


def test_a_value_is_placed_on_the_line_of_its_key() -> None:
    node = parsed("a: 1\nb:\n  c:\n    [1,\n     2]\n")
    lines = {
        path: place.place.line
        for path in [("a",), ("b",), ("b", "c"), ("b", "c", 0), ("b", "c", 1)]
        if (place := node.get(*path))
    }
    assert lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 4, ("b", "c", 1): 5}


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    node, faults = read_yaml(tmp_path / "x.yaml")
    assert not faults
    assert node is not None
    assert node.plain() == {"a": 1, "b": 2}
    assert (found := node.get("b")) is not None
    assert found.place.line == 2


def test_what_is_blank_counts_as_not_stated() -> None:
    assert parsed("a:\nb: null\nc: ''\n").plain() == {"b": None, "c": ""}


def test_anchors_work_and_place_the_value_where_it_is_used() -> None:
    node = parsed("a: &x {k: 1}\nb: *x\n")
    assert node.plain() == {"a": {"k": 1}, "b": {"k": 1}}
    assert (found := node.get("b")) is not None
    assert found.place.line == 2


def test_put_changes_a_copy_and_not_what_shares_an_anchor() -> None:
    node = parsed("a: &x {k: 1}\nb: *x\n")
    changed = node.put(("b", "k"), Node(2, HERE))
    assert node.plain() == {"a": {"k": 1}, "b": {"k": 1}}
    assert changed.plain() == {"a": {"k": 1}, "b": {"k": 2}}


def test_a_node_keeps_its_value_out_of_its_repr() -> None:
    assert "hunter2" not in repr(parsed("password: hunter2"))


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a:\n\tb: 1\n", 2, "holds a tab; YAML is indented with spaces"),
        ("a:\n\tb: 1\n\tc: 1\n", 2, "tabs are on lines 2, 3"),
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key, first stated on line 1; remove one of them"),
        ("a: {b: 1,\n  b: 2}\n", 2, "duplicate key, first stated on line 1"),
        ("a: 1\n b: 2\n", 2, "a colon where no key can be"),
        ("a: b: c\n", 1, "a colon where no key can be"),
        ("- a\nb: c\n", 2, "the indentation does not fit"),
        ("a: 1\nb: [1, 2\nc: 3\n", 2, "a bracket is not closed"),
        ("a: 1\nb: 'x\n", 2, "a quote is not closed"),
        ('a: "x\\q"\n', 1, "a backslash in double quotes"),
        ("a: @x\n", 1, "put it in quotes"),
        ("a: 1\nb\n", 2, "a key without a colon"),
        ("a: 1\nb: !!str 5\n", 2, "tags (an exclamation mark before a value) are not known here"),
        ("a: !x {}\n", 1, "tags"),
        ("a: 1\nb: *x\n", 2, "an alias (*name) without its anchor"),
        ("a: &x\n  b: *x\n", 2, "an alias stands for something that it is part of"),
        ("? [a]\n: b\n", 1, "a key is not plain text"),
        ("a: 1\n---\nb: 2\n", 2, "a second document starts here"),
        ("%YAML 3.0\n---\na: 1\n", 1, "a YAML version that is not 1.x"),
        ('a: 1\nb: "\\e[2J"\n', 2, "a value holds the control character U+001B"),
        ('a: "\\ud800"\n', 1, "control character U+D800"),
        ('"\\0": 1\n', 1, "a key holds the control character U+0000"),
        ("a: 1\nb: " + "[" * 21 + "]" * 21, 2, "is nested more than 20 deep"),
        ("[" * 100_000, 1, "is nested more than 20 deep"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: str, line: int, part: str) -> None:
    node, faults = parse_yaml(text, HERE)
    del node
    assert [fault.place.line for fault in faults][:1] == [line]
    assert part in faults[0].text


def test_an_escape_beyond_unicode_is_refused() -> None:
    node, faults = parse_yaml('a: "\\UFFFFFFFF"', HERE)
    assert node is None
    assert faults[0].text == "is not valid YAML; check quotes and escapes"


def test_aliases_that_multiply_are_refused_before_they_fill_memory() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    _, faults = parse_yaml(text, HERE)
    assert "holds more than 30000 values with aliases expanded" in faults[0].text


def test_all_duplicate_keys_are_told_not_the_first_alone() -> None:
    _, faults = parse_yaml("a: 1\na: 2\nb: 1\nb: 2\n", HERE)
    assert [(fault.place.line, fault.key) for fault in faults] == [(2, "a"), (4, "b")]


@pytest.mark.parametrize(
    "line",
    [
        "password: *hunter2",
        "password: &hunter2 !hunter2 x",
        "password: @hunter2",
        "password: hunter2: hunter2",
        "password: 'hunter2",
        'password: "hunter2\\q"',
        "password: {hunter2",
        "password: %hunter2",
        "hunter2\nx: 1",
    ],
)
def test_no_syntax_message_quotes_what_may_be_a_password(line: str) -> None:
    _, faults = parse_yaml(line, HERE)
    assert "hunter2" not in str(faults)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "place", "part"),
    [
        (b"a: 1\nb: \xff\xfe\n", "x.yaml:2", "is not UTF-8; save the file as UTF-8"),
        ("a: 1\n".encode("utf-16"), "x.yaml", "is UTF-16; save it as UTF-8"),
        (b"a: 1\n\0\1\2", "x.yaml:2", "is not text but binary data"),
        (b"\x89PNG\r\n\x1a\n\0\0", "x.yaml:3", "is not text but binary data"),
        (b"a: 1\nb: \x1b[2J\n", "x.yaml:2", "holds the control character U+001B"),
        (b"#" * (MAX_FILE_BYTES + 1), "x.yaml", "is larger than 1 MB"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, data: bytes, place: str, part: str) -> None:
    (tmp_path / "x.yaml").write_bytes(data)
    node, faults = read_yaml(tmp_path / "x.yaml", "x.yaml")
    assert node is None
    assert [str(fault.place) for fault in faults] == [place]
    assert part in faults[0].text


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for name, part in [
        ("none.yaml", "no such file"),
        ("pipe", "not a regular file"),
        (".", "is a folder"),
        ("n" * 300, "can't be read"),
    ]:
        node, faults = read_yaml(tmp_path / name, name)
        assert node is None
        assert part in faults[0].text
