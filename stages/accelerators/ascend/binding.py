"""Owns where the module ``acl`` comes from: the vendor's, the vendor's under the sanitizer, or the simulator's.

The one place that imports ``acl``. Whatever it gives is used in the same way: the backend knows neither the simulator
nor the sanitizer. One module is shared by all devices of a process that ask for the same.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from stages.accelerators.ascend.importing import foreign_module, import_problem
from stages.accelerators.ascend.options import AscendOptions
from stages.errors import UserError

log = logging.getLogger(__name__)

Mode = Literal["vendor", "vendor+checked", "simulated"]
VARIABLE: Final = "CAMPIPE_ACL"
MODES: Final[tuple[Mode, ...]] = ("vendor", "vendor+checked", "simulated")
SIMULATED_DEVICES: Final = 8  # that a simulated machine has
MOST_INTERVALS: Final = 1_000_000  # in a trace that is asked for
SIGNALS: Final = "ASCEND_COREDUMP_SIGNAL"  # none: CANN installs no handlers of signals
HIDDEN: Final = ("ascend/calls.py", "ascend/owned.py")  # frames that are not the place of a call

_lock = threading.Lock()
_bindings: dict[object, Binding] = {}


@dataclass(slots=True)
class Binding:
    """A module to use as ``acl``. ``close`` when the last user is gone."""

    mode: Mode
    module: Any
    key: object = None
    users: int = 0
    on_close: Callable[[], None] = lambda: None

    def close(self) -> None:
        """One user less; the last one tells what the sanitizer found and writes the simulator's trace."""
        with _lock:
            if self.users == 0:
                return
            self.users -= 1
            if self.users:
                return
            _bindings.pop(self.key, None)
        self.on_close()


def mode_of(kind: str, options: AscendOptions, environ: Mapping[str, str]) -> Mode:
    """Which module devices of this kind (``ascend``, ``ascend-sim``) use. Raises UserError for a wrong variable."""
    if kind == "ascend-sim":
        return "simulated"
    text = environ.get(VARIABLE, "") or "vendor"
    for mode in MODES:
        if text == mode:
            return "vendor+checked" if mode == "vendor" and options.check else mode
    raise UserError(f"{VARIABLE} is {text[:80]!r}; set it to {', '.join(MODES)}, or unset it")


def bind(mode: Mode, options: AscendOptions) -> Binding:
    """The module for this mode, shared with other users of the same; each of them closes it once."""
    key: object = (mode, _sim_key(options)) if mode == "simulated" else mode
    with _lock:
        binding = _bindings.get(key)
        if binding is None:
            binding = _bind(mode, options)
            binding.key = key
            _bindings[key] = binding
        binding.users += 1
        return binding


def _bind(mode: Mode, options: AscendOptions) -> Binding:
    if mode == "simulated":
        return _simulated(options)
    acl = _vendors()
    if mode == "vendor":
        return Binding(mode, acl)
    from stages.accelerators import aclsim

    checked = aclsim.check(acl, aclsim.CheckOptions(hidden=HIDDEN))
    return Binding(mode, checked.acl, on_close=lambda: _tell(checked.violations, checked.report))


def _vendors() -> Any:
    """The vendor's module. Raises UserError with what is missing.

    CANN installs handlers for SIGINT, SIGTERM, SIGSEGV and others by default, over those that the process has. Workers
    ignore the first two (Ctrl-C reaches the whole group, and only the engine decides when a worker ends) and have
    Python's fault handler for the third; so it is told not to, unless the user has said something else.
    """
    os.environ.setdefault(SIGNALS, "none")
    try:
        import acl  # type: ignore[import-not-found, unused-ignore]
    except Exception as error:  # a module of another numpy or Python raises what it likes
        raise UserError(import_problem(error, os.environ, np.__version__)) from error
    problem = foreign_module(acl)
    if problem:
        raise UserError(problem)
    return acl


def _sim_key(options: AscendOptions) -> object:
    return (
        *(options.service_ms, options.pcie_gb_s, options.copy_ms, options.compute, options.clock, options.memory_mb),
        *(options.leak_bytes_per_run, options.faults, options.state_path, options.trace, options.check),
    )


def _simulated(options: AscendOptions) -> Binding:
    from stages.accelerators import aclsim

    settings: dict[str, Any] = {} if options.memory_mb is None else {"memory_bytes": options.memory_mb << 20}
    simulation = aclsim.simulate(
        aclsim.SimOptions(
            devices=SIMULATED_DEVICES,
            clock=options.clock,
            service=dict(options.service_ms) or None,
            pcie_gb_s=options.pcie_gb_s,
            copy_ms=options.copy_ms,
            compute=options.compute,
            faults=options.faults,
            state_path=options.state_path,
            leak_bytes_per_run=options.leak_bytes_per_run,
            check=options.check is not False,
            hidden=HIDDEN,
            trace_intervals=MOST_INTERVALS if options.trace else 0,
            **settings,
        )
    )

    def close() -> None:
        if options.trace:
            path = Path(options.trace)
            try:
                path.write_text(json.dumps(simulation.machine.trace.chrome()), encoding="utf-8")
            except OSError as error:
                log.warning("the trace can't be written to %s: %s", path, error.strerror)
        if simulation.checker is not None:
            _tell(simulation.checker.violations, simulation.checker.report)
        simulation.close()

    return Binding("simulated", simulation.acl, on_close=close)


def _tell(violations: Any, report: Callable[[], str]) -> None:
    """Misuses as an error; codes that were returned and warnings are told for the curious only."""
    misuses = [each for each in violations if not each.warning and type(each).__name__ != "ErrorReturned"]
    if misuses:
        log.error("the sanitizer found %d misuse(s) of acl:\n%s", len(misuses), report())
    elif violations:
        log.debug("the sanitizer found:\n%s", report())
