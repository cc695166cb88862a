"""Owns the module-like object: the machine's calls under the vendor's names. Does not own what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stages.accelerators.aclsim.contract import CONTRACT, SUBMODULES, Call, positional
from stages.accelerators.aclsim.machine.callback_calls import CallbackCalls
from stages.accelerators.aclsim.machine.execute_calls import DatasetCalls, ExecuteCalls
from stages.accelerators.aclsim.machine.load_calls import DescCalls, LoadCalls
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.memory_calls import HimpiCalls, MediaCalls, MemoryCalls
from stages.accelerators.aclsim.machine.process_calls import DeviceCalls, ProcessCalls
from stages.accelerators.aclsim.machine.stream_calls import EventCalls, StreamCalls
from stages.accelerators.aclsim.machine.util_calls import ProfCalls, UtilCalls

_PROVIDERS: dict[str, tuple[Callable[[Machine], Any], ...]] = {
    "": (ProcessCalls, DatasetCalls),
    "rt": (DeviceCalls, StreamCalls, EventCalls, MemoryCalls, CallbackCalls),
    "mdl": (LoadCalls, DescCalls, DatasetCalls, ExecuteCalls),
    "util": (UtilCalls,),
    "media": (MediaCalls,),
    "himpi": (HimpiCalls,),
    "prof": (ProfCalls,),
}
_UNLOCKED = frozenset({"rt.process_report", "util.start_thread", "util.stop_thread"})


class VendorModule:
    """An extension module, or one of its parts: functions only, and AttributeError for everything else."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        known = CONTRACT.get(f"{self.__name__}.{name}".removeprefix("acl."))
        why = " (it exists, but is not simulated)" if known is not None and not known.simulated else ""
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'{why}")

    def __repr__(self) -> str:
        return f"<simulated module '{self.__name__}'>"


def build_module(machine: Machine, *, failing: bool = True) -> VendorModule:
    """``acl`` on this machine. ``failing``: failures on demand strike its calls, and count them."""
    root = VendorModule("acl")
    parts = {"": root}
    for part in SUBMODULES:
        parts[part] = VendorModule(f"acl.{part}")
        setattr(root, part, parts[part])
    providers = {part: [make(machine) for make in makers] for part, makers in _PROVIDERS.items()}
    for call in CONTRACT.values():
        if not call.simulated or call.name in machine.options.missing:
            continue
        part, _, name = call.name.rpartition(".")
        function = next(getattr(p, name) for p in providers[part] if hasattr(p, name))
        setattr(parts[part], name, positional(call, _served(machine, call, function) if failing else function))
    return root


def _served(machine: Machine, call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
    """With the machine's lock, failures on demand and the text of errors."""
    lock, faults, name = machine.lock, machine.faults, call.name
    bare, coded = call.results == ("ret",), call.code_last

    def serve(*args: Any) -> Any:
        lock.acquire()
        try:
            if faults.active:
                machine.verdict = verdict = faults.called(name)
                if verdict is not None and verdict.code:
                    machine.verdict = None
                    return _told(machine, call, call.failed(verdict.code), verdict.code)
            result = function(*args)
            if bare:
                if result:
                    return _told(machine, call, result, result)
            elif coded and result[-1]:
                return _told(machine, call, result, result[-1])
            return result
        finally:
            lock.release()
            if machine.exceptions_due:
                machine.tell_exceptions()

    if name in _UNLOCKED:

        def serve_unlocked(*args: Any) -> Any:
            with lock:
                verdict = faults.called(name) if faults.active else None
            if verdict is not None and verdict.code:
                return _told(machine, call, call.failed(verdict.code), verdict.code)
            return function(*args)

        return serve_unlocked
    return serve


def _told(machine: Machine, call: Call, result: Any, code: int) -> Any:
    thread = machine.threads.current()
    thread.last_error = code
    thread.message = f"E{code}: acl.{call.name} failed" + (f": {thread.message}" if thread.message else "")
    return result
