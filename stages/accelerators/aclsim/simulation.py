"""Owns putting a simulation together: the machine, its module, the sanitizer around it. Does not own any of them."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from stages.accelerators.aclsim.checker import CheckedModule, check
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.module import build_module
from stages.accelerators.aclsim.options import CheckOptions, SimOptions


class Simulation:
    """One simulated machine with the module ``acl`` of one process on it.

    ``acl``: what a program uses as the vendor's module. ``module``: the same without the sanitizer. ``machine``: its
    controls. ``checker``: what the sanitizer found.
    """

    def __init__(self, options: SimOptions) -> None:
        self.options = options
        self.machine = Machine(options)
        self.module: Any = build_module(self.machine)
        quiet = build_module(self.machine, failing=False)
        self.checker: CheckedModule = check(
            self.module, CheckOptions(raise_=not options.lenient, hidden=options.hidden), inspect=quiet
        )
        self.acl: Any = self.checker.acl if options.check else self.module

    def close(self) -> None:
        """The process is over, as far as the machine is concerned. May be called twice."""
        self.checker.close()
        self.machine.close()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def simulate(options: SimOptions | None = None) -> Simulation:
    """A simulated machine, ready to use. Raises UserError for options that can't be."""
    return Simulation(options or SimOptions())
