"""Owns failures on demand, from short scripts. Does not own what a failure does to a device.

::

    fail the 7th execute_async with 507018       the seventh call; 1st, 2nd, 3rd …
    fail every memcpy_async with 507899 after 100    all calls but the first hundred
    fail each malloc with 207001                 the same as "every"
    hang the 3rd execute_async                   its work never ends (until the watchdog: 547 s)
    slow execute_async by 3                      its work takes three times as long
    out of memory at malloc 5                    the fifth malloc returns 207001

Behind any of them: ``on submit`` (the call itself returns the code, although it is one that queued work leaves
behind), ``once`` (with ``state_path``: not again in another process). Calls are named without ``rt.`` and ``mdl.``;
those of other parts with it, as ``prof.start``. Codes from 500000 and 207018 of calls that queue work are left behind
by that work and surface at the next synchronise or query of its stream; all other codes are returned at once, and the
call does nothing.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.contract import CONTRACT
from stages.accelerators.aclsim.machine.kept import update_state
from stages.accelerators.aclsim.machine.timeline import Task
from stages.errors import UserError

GRAMMAR = (
    "fail the 7th CALL with CODE; fail every CALL with CODE [after N]; hang the 3rd CALL; slow CALL by FACTOR; "
    "out of memory at CALL N"
)
QUEUEING = frozenset({"rt.memcpy_async", "rt.memset_async", "mdl.execute_async"})
_WORKING = QUEUEING | {"rt.memcpy", "rt.memset", "mdl.execute"}  # what can hang or be slow
_WHICH = r"(?:the (?P<nth>\d+)(?:st|nd|rd|th)|(?P<all>every|each))"
_END = r"(?: after (?P<after>\d+))?(?P<submit> on submit)?(?P<once> once)?"
_FORMS = (
    ("fail", re.compile(rf"fail {_WHICH} (?P<call>[\w.]+) with (?P<code>\d+){_END}")),
    ("hang", re.compile(rf"hang {_WHICH} (?P<call>[\w.]+){_END}")),
    ("slow", re.compile(rf"slow (?P<call>[\w.]+) by (?P<factor>\d+(?:\.\d+)?){_END}")),
    ("fail", re.compile(rf"out of memory at (?P<call>[\w.]+) (?P<nth>\d+){_END}")),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One script, read. ``nth`` 0: every call after the first ``after``."""

    text: str
    kind: str
    call: str
    nth: int
    after: int
    code: int
    factor: float
    on_submit: bool
    once: bool

    def strikes(self, count: int) -> bool:
        """Whether the call of this number is struck, counted from 1."""
        return count == self.nth if self.nth else count > self.after


@dataclass(frozen=True, slots=True)
class Verdict:
    """What befalls the call that is under way."""

    code: int = 0  # returned at once
    left_code: int = 0  # left behind by its work
    hangs: bool = False
    factor: float = 1.0

    def apply(self, task: Task, watchdog_ns: int) -> None:
        """To the work that the call queues."""
        if self.left_code:
            task.error, task.effect = self.left_code, None
        if self.hangs:
            task.error, task.effect = codes.RT_AICORE_TIMEOUT, None
            task.duration_ns = watchdog_ns
        elif task.duration_ns is not None:
            task.duration_ns = int(task.duration_ns * self.factor)


def read_fault(text: str) -> Fault:
    """Read one script. Raises UserError that names the grammar."""
    words = " ".join(text.split())
    for kind, form in _FORMS:
        match = form.fullmatch(words)
        if match is None:
            continue
        parts = match.groupdict()
        call = _call(text, parts["call"])
        if kind in ("hang", "slow") and call not in _WORKING:
            raise UserError(f"fault {text!r}: {call} does no work on the device; {kind} one of {_names(_WORKING)}")
        nth = int(parts.get("nth") or 0)
        if parts.get("nth") is not None and nth < 1:
            raise UserError(f"fault {text!r}: calls are counted from 1; give 1st or more")
        code = int(parts.get("code") or codes.RT_MEMORY_ALLOCATION)
        if kind == "fail" and not CONTRACT[call].code_last and parts.get("code") and code == 0:
            raise UserError(f"fault {text!r}: code 0 is success; give a code of the vendor's")
        return Fault(
            words,
            kind,
            call,
            nth,
            int(parts.get("after") or 0),
            code,
            float(parts.get("factor") or 1),
            bool(parts["submit"]),
            bool(parts["once"]),
        )
    raise UserError(f"fault {text!r}: can't be read; write {GRAMMAR}")


def _call(text: str, name: str) -> str:
    for full in (f"rt.{name}", f"mdl.{name}", name, f"util.{name}"):
        if full in CONTRACT and CONTRACT[full].simulated:
            return full
    close = difflib.get_close_matches(name, [known.rpartition(".")[2] for known in CONTRACT], 1)
    hint = f"did you mean {close[0]}?" if close else "name a function without `acl.rt.` or `acl.mdl.`"
    raise UserError(f"fault {text!r}: there is no call {name}; {hint}")


def _names(calls: frozenset[str]) -> str:
    return ", ".join(sorted(call.rpartition(".")[2] for call in calls))


class Faults:
    """All scripts of a simulation. More can be added while it runs."""

    def __init__(self, scripts: tuple[str, ...], state_path: str = "") -> None:
        self._faults: dict[str, list[Fault]] = {}
        self.counts: Counter[str] = Counter()
        self.struck: list[str] = []
        self._path = Path(state_path) if state_path else None
        self._spent = self._read_spent()
        for script in scripts:
            self.add(script)

    def add(self, script: str) -> None:
        """One more script; calls count from now on if none of this name was watched. Raises UserError."""
        fault = read_fault(script)
        if fault.once and self._path is None:
            raise UserError(f"fault {script!r}: `once` needs a file that remembers it; give state_path")
        if fault.text not in self._spent:
            self._faults.setdefault(fault.call, []).append(fault)

    def clear(self) -> None:
        """No more failures."""
        self._faults.clear()

    @property
    def active(self) -> bool:
        """Whether there are any."""
        return bool(self._faults)

    def called(self, call: str) -> Verdict | None:
        """A call begins; what befalls it."""
        faults = self._faults.get(call)
        if faults is None:
            return None
        self.counts[call] += 1
        code = left_code = 0
        hangs, factor = False, 1.0
        for fault in list(faults):
            if not fault.strikes(self.counts[call]):
                continue
            if fault.kind != "slow":
                self.struck.append(fault.text)
            if fault.once:
                self._spend(fault)
            if fault.kind == "slow":
                factor *= fault.factor
            elif fault.kind == "hang":
                hangs = True
            elif (
                call in QUEUEING and not fault.on_submit and (fault.code >= 500000 or fault.code == codes.RT_DEVICE_OOM)
            ):
                left_code = fault.code
            else:
                code = fault.code
        if code or left_code or hangs or factor != 1:
            return Verdict(code, left_code, hangs, factor)
        return None

    def _spend(self, fault: Fault) -> None:
        assert self._path is not None
        self._spent.append(fault.text)
        self._faults[fault.call].remove(fault)
        update_state(self._path, "spent", self._spent)

    def _read_spent(self) -> list[str]:
        import json

        if self._path is None:
            return []
        try:
            return list(json.loads(self._path.read_text(encoding="utf-8")).get("spent", []))
        except (OSError, ValueError):
            return []
