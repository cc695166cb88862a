"""Owns how a mistake in the configuration reads: one line, value shortened and escaped, secrets left out. Finds none.

A line is ``file:line: key: value: what is wrong; the remedy``; parts that say nothing are left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.yaml import Fault, Node, Place, Step
from stages.errors import UserError

MAX_SHOWN_CHARACTERS = 60
MAX_PATH_CHARACTERS = 200
MAX_KEY_CHARACTERS = 120
MAX_LINE_CHARACTERS = 1000
MAX_PROBLEMS = 200  # more than anyone reads; the rest is counted
HIDDEN = "(hidden)"  # stands for a secret
_NOTHING = object()


class Problems:
    """Collects mistakes, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[str, int]] = {}  # the line itself -> what it is sorted by
        self._files: list[str] = []

    def __len__(self) -> int:
        return len(self._lines)

    def __bool__(self) -> bool:
        return bool(self._lines)

    def expect_in(self, label: str) -> None:
        """Let problems in the file ``label`` come after those of all files before it, whichever are found first."""
        if label not in self._files:
            self._files.append(label)

    def add_node(self, node: Node, key: str, problem: str) -> None:
        """Add one about the value of ``node``, which is shown unless it is a secret or a map."""
        if node.shown is not None:
            self.add(node.place, key, problem, node.shown)
        elif isinstance(node.value, (Mapping, tuple)):
            self.add(node.place, key, problem)
        else:
            self.add(node.place, key, problem, node.value)

    def add(self, place: Place, key: str, problem: str, value: Any = _NOTHING) -> None:
        """Add one, with ``value`` if it is given."""
        parts = [place_text(place)]
        if place.label.startswith("--set "):  # which says the key already, unless it is about something further down
            key = re.sub(r"^cameras\[[0-9]+\]\.?", "", key)
            last = key.replace("[", ".").rstrip("]").split(".")[-1]
            key = "" if place.label.endswith((f" {last}", f".{last}")) else key
        if key:
            parts.append(show_key(key))
        if value is not _NOTHING:
            parts.append(show(value))
        parts.append(problem)
        self.expect_in(place.label)
        # problems passed on from elsewhere may repeat a path as it is
        line = escape(shorten(": ".join(part for part in parts if part), MAX_LINE_CHARACTERS))
        self._lines.setdefault(line, (place.label, place.line or 0))

    def add_faults(self, faults: Iterable[Fault]) -> None:
        """Add what is wrong with a file before any key of it has a meaning."""
        for fault in faults:
            self.add(fault.place, fault.key, fault.text)

    def raise_if_any(self) -> None:
        """Raise UserError with everything collected: by file in the order of reading, then by line."""
        if not self._lines:
            return
        order = sorted(self._lines, key=lambda line: (self._files.index(self._lines[line][0]), self._lines[line][1]))
        if len(order) > MAX_PROBLEMS:
            order = [*order[:MAX_PROBLEMS], f"… and {len(order) - MAX_PROBLEMS} more problems like these"]
        raise UserError.of(order)


def place_text(place: Place) -> str:
    """``file:line`` with a file name that can't disturb a terminal."""
    return escape(shorten(str(place), MAX_KEY_CHARACTERS * 2))


def key_text(path: Sequence[Step]) -> str:
    """``("sinks", 0, "jsonl")`` as people write it: ``sinks[0].jsonl``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def show_key(key: str) -> str:
    """A key, escaped and shortened."""
    return escape(shorten(key, MAX_KEY_CHARACTERS))


def show(value: Any) -> str:
    """A value as it may stand in a message: text in quotes and shortened, maps and lists by their kind."""
    if value is None:
        return "null"
    if value == HIDDEN:
        return HIDDEN
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{escape(shorten(redact(value)))}"'
    if isinstance(value, Mapping):
        return "a map" if value else "an empty map"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return shorten(str(value))


def shorten(text: str, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """``text``, or its beginning and its length; of a long path the end too, where the name of the file is."""
    if "/" in text and len(text) > most:
        if len(text) <= MAX_PATH_CHARACTERS:
            return text
        return f"{text[: most // 2]}…{text[-most:]} ({len(text)} characters)"
    return text if len(text) <= most else f"{text[: most - 20]}… ({len(text)} characters)"


def escape(text: str) -> str:
    """``text`` with everything that is not printable (terminal escapes, line ends) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_USERINFO = re.compile(r"(?<=://)\S*@")  # up to the last @: a password may hold an @ or / that should have been escaped
# What was meant as a URL with a password and is none: rtsp:/user:pass@host, rtsp:\\user:pass@host, user:pass@host ...
_MEANT_AS_URL = re.compile(r"^((?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]{0,3})[^\s/\\@:]+:\S*@")
# ... and one that YAML has cut at a #, so that its @ and host are gone: rtsp://user:pass
_CUT_OFF = re.compile(r"(?<=://)([^\s/@:\[]*):(?!\d{0,5}(?:[/?#]|$))[^\s/]*")
_PARAMETER = re.compile(r"(?i)((?:user|usr|login|pass|pwd|token|secret|auth|key|sig)[a-z]*=)[^&;#\s]+")


def redact(text: str) -> str:
    """``text`` without the credentials of any URL in it, or of what was meant as one: before the host, and in
    parameters that sound like some."""
    if "://" not in text:
        return _MEANT_AS_URL.sub(r"\1***@", text)
    return _PARAMETER.sub(r"\1***", _CUT_OFF.sub(r"\1:***", _USERINFO.sub("***@", text)))


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` probably stands for."""
    if len(word) > MAX_KEY_CHARACTERS:
        return None
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def suggestion(word: str, known: Sequence[str], none_known: str, most: int = 12) -> str:
    """The remedy for an unknown word: the likely one, or all there are, or ``none_known``."""
    if likely := did_you_mean(word, known):
        return f"did you mean '{show_key(likely)}'?"
    if not known:
        return none_known
    listed = ", ".join(show_key(each) for each in known[:most])
    return f"known are {listed}{' …' if len(known) > most else ''}"
