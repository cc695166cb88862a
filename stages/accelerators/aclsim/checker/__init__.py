"""The sanitizer: a shadow of every handle, byte range and order, around any module like the vendor's."""

from stages.accelerators.aclsim.checker.checked import CheckedModule, check

__all__ = ["CheckedModule", "check"]
