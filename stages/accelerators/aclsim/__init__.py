"""A simulator of the vendor's module ``acl`` and a sanitizer around any such module. Does not own the real device.

``simulate`` gives a machine with the module on it, ``check`` puts the same sanitizer around another module.
"""

from stages.accelerators.aclsim.checker import CheckedModule, check
from stages.accelerators.aclsim.om import Aipp, OmDescription, describe
from stages.accelerators.aclsim.options import CheckOptions, SimOptions
from stages.accelerators.aclsim.simulation import Simulation, simulate
from stages.accelerators.aclsim.violations import Violation

__all__ = [
    "Aipp",
    "CheckOptions",
    "CheckedModule",
    "OmDescription",
    "SimOptions",
    "Simulation",
    "Violation",
    "check",
    "describe",
    "simulate",
]
