"""Owns whether the user's code asks if the module has a name, or uses the name. Reports nothing.

Newer CANN has functions that older has not, so programs probe: ``hasattr(acl.rt, "name")``, ``getattr`` with a default,
or ``try: acl.rt.name`` with ``except AttributeError`` around it. That is right whatever the answer. It shows in the
caller's instruction: an attribute that is written out is loaded by one of its own, a probe is a call. Handlers of
``except AttributeError`` are found by the code's table of exceptions.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType
from typing import Final

_LOADS: Final = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
_NAMES: Final = ("LOAD_GLOBAL", "LOAD_NAME")
_MEANT: Final = "AttributeError"


def probes(frame: FrameType) -> bool:
    """Whether the access that ``frame`` is at may fail without harm."""
    code, at = frame.f_code, frame.f_lasti
    if at < 0:
        return False
    if dis.opname[code.co_code[at]] not in _LOADS:
        return True
    entries = getattr(dis.Bytecode(code), "exception_entries", ())
    return any(entry.start <= at < entry.end and _catches(code, entry.target) for entry in entries)


def _catches(code: CodeType, handler: int) -> bool:
    """Whether the first ``except`` of the handler at this offset names AttributeError."""
    named: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset < handler:
            continue
        if instruction.opname in _NAMES:
            named.append(str(instruction.argval))
        elif instruction.opname == "CHECK_EXC_MATCH":
            return _MEANT in named
        elif instruction.opname not in ("PUSH_EXC_INFO", "BUILD_TUPLE", "NOP", "EXTENDED_ARG", "CACHE"):
            return False
    return False
