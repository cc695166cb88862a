"""Owns reading YAML 1.2 text into nodes that know their line. Knows no key of campipe's: ``config`` gives them meaning.

Only plain data is taken: maps with text keys, lists, scalars of YAML 1.2's core schema (``no``, ``12:30:00`` are text).
Tags, several documents, duplicate keys, endless nesting and aliases that multiply are refused. No message repeats a
value of the file, because any of them may be a password.
"""

from __future__ import annotations

import dataclasses
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 20  # the deepest key that means something lies five maps down
MAX_NODES = 30_000  # keys and values, aliases expanded: some 2,000 cameras in one file, read in some 5 s
MAX_DIGITS = 40  # of a number; longer ones stay text, so that no conversion takes long

Scalar: TypeAlias = bool | int | float | str | None
Step: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was stated: ``label`` is the file as the user named it, or the option of the command line.

    ``folder`` is what relative paths stated here are relative to.
    """

    label: str
    line: int | None = None
    folder: Path = field(default_factory=Path.cwd)

    def __str__(self) -> str:
        return f"{self.label}:{self.line}" if self.line is not None else self.label


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place. Not changed once made; the repr keeps the value to itself, for it may be a password.

    ``blank``: nothing is written after the key. ``shown``: what messages show instead of the value, None: the value.
    """

    value: Scalar | tuple[Node, ...] | Mapping[str, Node] = field(repr=False)
    place: Place
    blank: bool = False
    shown: str | None = None

    def get(self, *path: Step) -> Node | None:
        """The node at ``path`` below this one, None if there is none."""
        node: Node | None = self
        for step in path:
            node = _child(node, step) if node is not None else None
        return node

    def nearest(self, path: Sequence[Step]) -> Node:
        """The node at ``path``, or else the deepest one on the way there."""
        node = self
        for step in path:
            child = _child(node, step)
            if child is None:
                # a single map stands for a list of one, so the index goes nowhere
                if step == 0 and isinstance(node.value, Mapping):
                    continue
                return node
            node = child
        return node

    def put(self, path: Sequence[Step], new: Node) -> Node:
        """A copy with ``new`` at ``path``; maps are made on the way, scalars on the way are replaced by maps."""
        if not path:
            return new
        step, rest = path[0], path[1:]
        below = _child(self, step) or Node({}, new.place)
        if isinstance(step, int):
            items = list(self.value) if isinstance(self.value, tuple) else []
            items[step : step + 1] = [below.put(rest, new)]
            return dataclasses.replace(self, value=tuple(items), blank=False)
        entries = dict(self.value) if isinstance(self.value, Mapping) else {}
        entries[step] = below.put(rest, new)
        return dataclasses.replace(self, value=entries, blank=False)

    def plain(self) -> Any:
        """The value without places; what is blank in a map counts as not stated."""
        if isinstance(self.value, Mapping):
            return {key: node.plain() for key, node in self.value.items() if not node.blank}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a text as YAML, and the remedy; ``key`` where one is concerned."""

    place: Place
    text: str
    key: str = ""


def _child(node: Node, step: Step) -> Node | None:
    if isinstance(step, int):
        return node.value[step] if isinstance(node.value, tuple) and 0 <= step < len(node.value) else None
    return node.value.get(step) if isinstance(node.value, Mapping) else None


# --- files ------------------------------------------------------------------------------------------------------------


def read_yaml(path: Path, label: str | None = None) -> tuple[Node | None, list[Fault]]:
    """Read one document from ``path``; None when it can't be used at all, with the faults that say why."""
    text, fault = read_text(path, label)
    if text is None:
        return None, [fault] if fault else []
    return parse_yaml(text, Place(label if label is not None else str(path), None, _folder(path)))


def read_text(path: Path, label: str | None = None) -> tuple[str | None, Fault | None]:
    """The text of a small UTF-8 file, or the reason why there is none."""
    place = Place(label if label is not None else str(path), None, _folder(path))
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return None, Fault(place, "is a folder; name a file")
        if not stat.S_ISREG(mode):
            return None, Fault(place, "is not a regular file; name a file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None, Fault(place, "no such file; check the path")
    except (OSError, ValueError) as error:  # ValueError: a path that can't be one
        reason = getattr(error, "strerror", None) or "not a path"
        return None, Fault(place, f"can't be read ({reason}); check the path and its permissions")
    if len(data) > MAX_FILE_BYTES:
        return None, Fault(place, f"is larger than {MAX_FILE_BYTES >> 20} MB; is it the right file?")
    return _decode(data, place)


def _folder(path: Path) -> Path:
    return Path(path).absolute().parent


def _decode(data: bytes, place: Place) -> tuple[str | None, Fault | None]:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None, Fault(place, "is UTF-16; save it as UTF-8")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        return None, Fault(dataclasses.replace(place, line=line), "is not text but binary data; name a text file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return None, Fault(dataclasses.replace(place, line=line), "is not UTF-8; save the file as UTF-8")
    if found := _CONTROL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        problem = f"holds the control character U+{ord(found[0]):04X}; remove it"
        return None, Fault(dataclasses.replace(place, line=line), problem)
    return text, None


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")


# --- text -------------------------------------------------------------------------------------------------------------


def parse_yaml(text: str, place: Place) -> tuple[Node | None, list[Fault]]:
    """Parse one document. Lines are counted from 1, unless ``place`` is an option of the command line (no lines)."""
    composer = _Composer(place, lines=not place.label.startswith("--"))
    try:
        node = composer.document(iter(YAML(typ="safe", pure=True).parse(text)))
    except _Hopeless:
        return None, composer.faults
    except MarkedYAMLError as error:
        begun = any(part in str(error.problem) for part in _BEGUN_EARLIER)
        mark = (begun and error.context_mark) or error.problem_mark or error.context_mark
        composer.fault(mark.line if mark else None, _explain(error, text))
        return None, composer.faults
    except (YAMLError, OverflowError, ValueError, IndexError, AssertionError, RecursionError):
        # seen from the parser for escapes beyond Unicode and the like
        composer.fault(None, "is not valid YAML; check quotes and escapes")
        return None, composer.faults
    return node, composer.faults


class _Hopeless(Exception):
    """The rest of the document need not be looked at."""


class _Composer:
    def __init__(self, place: Place, *, lines: bool) -> None:
        self._place = place
        self._lines = lines
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._open: set[str] = set()
        self._size = 0
        self.faults: list[Fault] = []

    def at(self, line: int | None) -> Place:
        return dataclasses.replace(self._place, line=line + 1 if self._lines and line is not None else None)

    def fault(self, line: int | None, text: str, key: str = "") -> None:
        self.faults.append(Fault(self.at(line), text, key))

    def document(self, events: Iterator[Any]) -> Node | None:
        """The first and only document of a stream; blank for an empty one."""
        root: Node | None = None
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                if root is not None:
                    self.fault(event.start_mark.line, "a second document starts here; remove the line '---'")
                    raise _Hopeless
                root = self._node(next(events), events, 0, None)
        return root if root is not None else Node(None, self.at(0), blank=True)

    def _node(self, event: Any, events: Iterator[Any], depth: int, place: Place | None) -> Node:
        line: int = event.start_mark.line
        if place is None:
            place = self.at(line)
        if depth > MAX_DEPTH:
            self.fault(line, f"is nested more than {MAX_DEPTH} deep; check brackets and indentation")
            raise _Hopeless
        before = self._size
        self._grow(1, line)
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(str(event.anchor), line, place)
        implicit = event.implicit if isinstance(event.implicit, tuple) else (event.implicit,)
        if not any(implicit):
            self.fault(line, "tags (an exclamation mark before a value) are not known here; put the value in quotes")
        anchor = None if event.anchor is None else str(event.anchor)
        if anchor is not None:
            self._open.add(anchor)
        if kind == "ScalarEvent":
            node = self._scalar(event, line, place)
        elif kind == "SequenceStartEvent":
            items: list[Node] = []
            while type(item := next(events)).__name__ != "SequenceEndEvent":
                items.append(self._node(item, events, depth + 1, None))
            node = Node(tuple(items), place)
        else:
            node = Node(self._entries(events, depth), place)
        if anchor is not None:
            self._open.discard(anchor)
            self._anchors[anchor] = node, self._size - before
        return node

    def _entries(self, events: Iterator[Any], depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while type(key_event := next(events)).__name__ != "MappingEndEvent":
            line: int = key_event.start_mark.line
            if type(key_event).__name__ != "ScalarEvent":
                self._node(key_event, events, depth + 1, None)
                self.fault(line, "a key is not plain text; write 'key: value', in quotes if it starts with { or [ or *")
                self._node(next(events), events, depth + 1, None)
                continue
            key = str(key_event.value)
            self._grow(1, line)
            # a value is shown at the line of its key: that's the line that a reader looks for
            node = self._node(next(events), events, depth + 1, self.at(line))
            if key in entries:
                first = entries[key].place.line
                self.fault(line, f"duplicate key, first stated on line {first}; remove one of them", key)
            elif found := _CONTROL.search(key):
                self.fault(line, f"a key holds the control character U+{ord(found[0]):04X}; remove it")
            else:
                entries[key] = node
        return entries

    def _scalar(self, event: Any, line: int, place: Place) -> Node:
        text = str(event.value)
        if found := _CONTROL.search(text):
            self.fault(line, f"a value holds the control character U+{ord(found[0]):04X}; remove it")
            return Node("", place)
        plain = event.style is None
        return Node(core_scalar(text) if plain else text, place, blank=plain and text == "")

    def _alias(self, anchor: str, line: int, place: Place) -> Node:
        if anchor in self._open:
            self.fault(line, "an alias stands for something that it is part of; write the value out")
            return Node(None, place, blank=True)
        if anchor not in self._anchors:
            self.fault(line, "an alias (*name) without its anchor (&name); put text that starts with * in quotes")
            return Node(None, place, blank=True)
        node, size = self._anchors[anchor]
        self._grow(size, line)
        return dataclasses.replace(node, place=place)

    def _grow(self, size: int, line: int) -> None:
        self._size += size
        if self._size > MAX_NODES:
            self.fault(line, f"holds more than {MAX_NODES} values with aliases expanded; write fewer")
            raise _Hopeless


_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE, _NAN = re.compile(r"([-+]?)\.(inf|Inf|INF)"), re.compile(r"\.(nan|NaN|NAN)")
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def core_scalar(text: str) -> Scalar:
    """What a plain (unquoted) scalar stands for in the core schema, YAML 1.2.2 section 10.3.2."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL_OR_HEX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if found := _INFINITE.fullmatch(text):
        return float(f"{found[1]}inf")
    return float("nan") if _NAN.fullmatch(text) else text


# What the parser says, and what helps. Its own words are never passed on: they can quote the file.
_SYNTAX = (
    (
        "mapping values are not allowed",
        "a colon where no key can be; put a value with ': ' in quotes or check indentation",
    ),
    ("could not find expected ':'", "a key without a colon; write 'key: value'"),
    (
        "expected ',' or",
        "a bracket is not closed or a comma is missing; check [ ] and { }, and put a value that holds one in quotes",
    ),
    ("expected the node content", "a value is missing, or a bracket is not closed; check [ ] and { }"),
    ("expected <block end>", "the indentation does not fit the lines above; line the keys up"),
    ("end of stream", "a quote is not closed; add the closing quote"),
    ("unknown escape", "a backslash in double quotes starts no known escape; use single quotes"),
    ("cannot start any token", "a value can't start with this character; put it in quotes"),
    ("incompatible YAML", "a YAML version that is not 1.x; remove the line that starts with %"),
)
_BEGUN_EARLIER = ("expected ':'", "expected ',' or", "end of stream")  # where it began is the line to look at


def _explain(error: MarkedYAMLError, text: str) -> str:
    problem = str(error.problem)
    if r"'\t'" in problem:
        tabs = [n for n, line in enumerate(text.split("\n"), 1) if "\t" in line]
        more = f" (tabs are on lines {', '.join(map(str, tabs[:8]))}{' …' if len(tabs) > 8 else ''})"
        return f"holds a tab; YAML is indented with spaces{more if len(tabs) > 1 else ''}"
    for part, remedy in _SYNTAX:
        if part in problem:
            return remedy
    return "is not valid YAML; check quotes, brackets and indentation"
