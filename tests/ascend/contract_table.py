"""Owns reading ``contract_names.txt``: which functions of the vendor's module exist, as far as this project knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "contract_names.txt"
_LINE = re.compile(r"(?P<name>[\w.]+)\((?P<parameters>[^)]*)\) -> (?P<returns>[\w, ]+?)(?P<newer> \?)?")


@dataclass(frozen=True, slots=True)
class Function:
    """One function. ``name``: without ``acl.``; ``newer``: older versions of CANN lack it."""

    name: str
    least: int  # parameters
    most: int
    returns: tuple[str, ...]
    newer: bool


def read_table() -> dict[str, Function]:
    """All functions by name."""
    table = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        assert match, f"{TABLE.name}: {line!r}"
        parameters = [word.strip() for word in match["parameters"].split(",") if word.strip()]
        needed = [word for word in parameters if not word.startswith("[")]
        returns = tuple(word.strip() for word in match["returns"].split(","))
        assert match["name"] not in table, line
        table[match["name"]] = Function(match["name"], len(needed), len(parameters), returns, bool(match["newer"]))
    return table
