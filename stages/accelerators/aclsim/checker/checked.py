"""Owns the module-like object around another: every call goes through the rules. Does not own rules.

Facts about models are asked of the module itself. Calls that hold the interpreter's lock run with the sanitizer's own
lock held, so that the order in which it sees submissions is the order in which the module does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker import sites
from stages.accelerators.aclsim.checker.copy_rules import CopyRules
from stages.accelerators.aclsim.checker.dataset_rules import DatasetRules
from stages.accelerators.aclsim.checker.event_rules import EventRules
from stages.accelerators.aclsim.checker.hints import hint_for
from stages.accelerators.aclsim.checker.memory_rules import MemoryRules
from stages.accelerators.aclsim.checker.model_rules import ModelRules
from stages.accelerators.aclsim.checker.probing import probes
from stages.accelerators.aclsim.checker.process_rules import ProcessRules
from stages.accelerators.aclsim.checker.report import report_text
from stages.accelerators.aclsim.checker.shadows import DeviceShadow, StreamShadow
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.checker.stream_rules import StreamRules
from stages.accelerators.aclsim.checker.util_rules import UtilRules
from stages.accelerators.aclsim.contract import CONTRACT, SUBMODULES, Call, quick_test
from stages.accelerators.aclsim.options import CheckOptions
from stages.accelerators.aclsim.violations import (
    ErrorReturned,
    Leak,
    NotInitialised,
    UnknownName,
    UsedAfterFork,
    Violation,
    WrongArguments,
)

# calls that need no init: those of the process, and those that touch no runtime
_ANYTIME = frozenset({
    "init", "finalize", "finalize_reference", "get_version", "get_soc_name", "get_recent_err_msg", "app_log",
    "data_type_size", "get_cann_version", "get_version_str", "rt.get_device_count", "rt.get_run_mode",
    "rt.peek_at_last_error", "rt.get_last_error",
})  # fmt: skip
_UNLOCKED = frozenset({"rt.process_report", "util.start_thread", "util.stop_thread"})
_PLAIN_CODES = {"rt.process_report": (codes.RT_REPORT_TIMEOUT,)}  # normal answers that are no success


class CheckedModule:
    """The sanitizer around one module.

    ``acl``: what a program uses as the module. ``violations``: what was found, oldest first; warnings and returned
    codes among them.
    """

    def __init__(self, module: Any, options: CheckOptions, inspect: Any = None) -> None:
        self._state = State(options, inspect if inspect is not None else module)
        streams = StreamRules(self._state)
        memory = MemoryRules(self._state, streams)
        self._streams = streams
        copies = CopyRules(self._state, streams, memory)
        models = ModelRules(self._state, streams, memory, copies)
        self._memory = memory
        self._rules = (
            ProcessRules(self._state),
            streams,
            EventRules(self._state, streams),
            memory,
            copies,
            UtilRules(self._state, memory),
            models,
            DatasetRules(self._state, models),
        )
        self.acl: Any = _Part(self, module, "acl", "")
        self._closed = False

    @property
    def violations(self) -> list[Violation]:
        """What was found."""
        self._hear_of_children()
        return self._state.violations

    def report(self) -> str:
        """Everything that was found, as text."""
        return report_text(self.violations, self._state.dropped)

    def close(self) -> None:
        """The program is over: what it still holds is a leak. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._hear_of_children()
        state = self._state
        with state.lock:
            alive = [s for s in state.living() if not s.refused or state.options.refusals_are_leaks]
            in_child = state.initialised is not None and os.getpid() != state.pid
            held = alive or any(d.set_at for d in state.devices.values()) or state.initialised is not None
            if held and not state.raised and not in_child:
                first = alive[0].site if alive else state.initialised
                state.keep(
                    Leak(
                        "finalize",
                        f"the program ended without finalize, with {len(alive)} things alive:{state.listed(alive)}",
                        "",
                        sites.text(first),
                        "release everything in a `finally`, then rt.reset_device and finalize",
                    )
                )
            state.forks.close()

    def piece(self, address: int, size: int) -> None:
        """A program's own allocator says that it cut this piece out of a block.

        Tells OutOfBounds for one that leaves its block or overlaps another, or that has not the 32 bytes of room behind
        it that the hardware wants; Misaligned for a start that is no multiple of 64.
        """
        with self._state.lock:
            me = self._state.me
            me.call, me.frame = "piece", sys._getframe(1)
            self._memory.piece(address, size)

    def __enter__(self) -> CheckedModule:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _hear_of_children(self) -> None:
        text = self._state.forks.read() if os.getpid() == self._state.pid else ""
        if text:
            call, where, other = text.split("\n")[:3]
            self._state.keep(UsedAfterFork(call, _FORKED, where, other, _FORK_REMEDY))

    # ---- building --------------------------------------------------------------------------------------------------

    def checked(self, call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function behind its rules."""
        name = call.name.rpartition(".")[2]
        before = self._hook(f"before_{name}", call)
        after = self._hook(f"after_{name}", call)
        if call.name == "rt.launch_callback":
            function = self._wrapping(function)
        elif call.name == "rt.set_exception_info_callback":
            function = self._wrapping_exceptions(function)
        if call.gil_free or call.name in _UNLOCKED:
            return self._waiting(call, function, before, after)
        return self._holding(call, function, before, after)

    def _hook(self, name: str, call: Call) -> Callable[..., Any] | None:
        if call.name in ("prof.init", "prof.finalize"):
            return None
        return next((getattr(rules, name) for rules in self._rules if hasattr(rules, name)), None)

    def _wrapping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def launch(user: Any, data: Any, block: int, stream: int) -> Any:
            return function(self._streams.wrapped(user, stream), data, block, stream)

        return launch

    def _wrapping_exceptions(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def set_callback(user: Any) -> Any:
            return function(self._streams.restricted(user) if callable(user) else user)

        return set_callback

    def _holding(
        self,
        call: Call,
        function: Callable[..., Any],
        before: Callable[..., Any] | None,
        after: Callable[..., Any] | None,
    ) -> Callable[..., Any]:
        state, name = self._state, call.name
        me, lock = state.me, state.lock
        quick = quick_test(call)
        anytime, bare, coded = name in _ANYTIME, call.results == ("ret",), call.code_last
        getpid = os.getpid

        def run(*args: Any, **keywords: Any) -> Any:
            frame = sys._getframe(1)
            lock.acquire()
            try:
                me.call, me.frame = name, frame
                if keywords or not quick(args):
                    self._check_arguments(call, args, keywords)
                if not anytime and (state.initialised is None or state.pid != getpid()):
                    self._check_process(name)
                token = before(*args) if before is not None else None
                result = function(*args)
                if after is not None:
                    me.call, me.frame, me.token = name, frame, token
                    after(result, *args)
                code = result if bare else result[-1] if coded else 0
                if code:
                    me.call, me.frame = name, frame
                    self._code_returned(call, code)
                return result
            finally:
                me.frame = None
                lock.release()

        run.__name__ = run.__qualname__ = name.rpartition(".")[2]
        run.__doc__ = getattr(function, "__doc__", None)
        return run

    def _waiting(
        self,
        call: Call,
        function: Callable[..., Any],
        before: Callable[..., Any] | None,
        after: Callable[..., Any] | None,
    ) -> Callable[..., Any]:
        state, name = self._state, call.name
        me, lock = state.me, state.lock

        def run(*args: Any, **keywords: Any) -> Any:
            frame = sys._getframe(1)
            with lock:
                me.call, me.frame = name, frame
                self._check_arguments(call, args, keywords)
                if state.initialised is None or state.pid != os.getpid():
                    self._check_process(name)
                token = before(*args) if before is not None else None
            result = function(*args)
            try:
                with lock:
                    me.call, me.frame, me.token = name, frame, token
                    if after is not None:
                        after(result, *args)
                    code = call.code_of(result)
                    if code and code not in _PLAIN_CODES.get(name, ()):
                        self._code_returned(call, code)
            finally:
                me.frame = None
            return result

        run.__name__ = run.__qualname__ = name.rpartition(".")[2]
        run.__doc__ = getattr(function, "__doc__", None)
        return run

    # ---- checks of every call --------------------------------------------------------------------------------------

    def _check_arguments(self, call: Call, args: tuple[Any, ...], keywords: Any) -> None:
        problem = call.problem(args, keywords)
        if problem is None:
            return
        remedy = (
            "handles, addresses and sizes are plain ints, given in order; see the function's arguments: "
            + ", ".join(call.arguments)
        )
        self._state.tell(WrongArguments, str(problem), None, remedy)
        raise problem  # when nothing is raised, the module's own parser does

    def _check_process(self, name: str) -> None:
        state = self._state
        if state.initialised is None:
            if not name.startswith("util."):
                finalised = state.finalised
                when = "after finalize" if finalised else "before init"
                state.tell(NotInitialised, f"called {when}", finalised, "call init first, once, and finalize last")
            return
        where, other = sites.text(state.site), sites.text(state.initialised)
        state.forks.write(f"{name}\n{where}\n{other}\n")
        state.tell(UsedAfterFork, _FORKED, state.initialised, _FORK_REMEDY)

    def _code_returned(self, call: Call, code: int) -> None:
        state = self._state
        if code in codes.CONTEXT_LOST:
            context = state.me.context
            if context is not None:
                self._lose(context.device, code)
        remedy = hint_for(code)
        state.tell(ErrorReturned, f"returned {code}", None, remedy)

    def _lose(self, device: DeviceShadow, code: int) -> None:
        """The device does no work any more: nothing is pending on it."""
        device.lost = code
        state = self._state
        for shadow in list(state.handles.values()):
            if isinstance(shadow, StreamShadow) and shadow.context.device is device:
                state.learn(shadow.clock.point(), compare=False)
        if device.default is not None:
            state.learn(device.default.default_stream.clock.point(), compare=False)


_FORKED = "called in a child process that was forked after init: its handles mean nothing here"
_FORK_REMEDY = "start processes with spawn, or fork before init"


class _Part:
    """The module, or a part of it."""

    def __init__(self, checked: CheckedModule, module: Any, name: str, prefix: str) -> None:
        self.__name__ = name
        self._checked = checked
        self._module = module
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        found = self._find(name)
        self.__dict__[name] = found  # the next time it is an ordinary attribute
        return found

    def _find(self, name: str) -> Any:
        if not self._prefix and name in SUBMODULES:
            return _Part(self._checked, getattr(self._module, name), f"acl.{name}", f"{name}.")
        call = CONTRACT.get(self._prefix + name)
        function = getattr(self._module, name, None) if not name.startswith("__") else None
        if call is not None and function is not None:
            return self._checked.checked(call, function)
        if function is not None:
            return function  # of the module, and not known here
        if call is not None or name.startswith("_"):
            return getattr(self._module, name)  # missing in this version: the module's own refusal
        state = self._checked._state
        with state.lock:
            state.me.call, state.me.frame = f"{self.__name__}.{name}", sys._getframe(2)
            if not probes(state.me.frame):
                state.tell(UnknownName, f"module '{self.__name__}' has no attribute '{name}'", None, hint_for(name))
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")

    def __repr__(self) -> str:
        return f"<checked module '{self.__name__}'>"


def check(module: Any, options: CheckOptions | None = None, *, inspect: Any = None) -> CheckedModule:
    """The sanitizer around a module like the vendor's. ``inspect``: asked for facts in its place."""
    return CheckedModule(module, options or CheckOptions(), inspect)
