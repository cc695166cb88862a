"""Owns the rules of the pointer helpers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.memory_rules import MemoryRules
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.violations import OutOfBounds, WrongArguments


class UtilRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State, memory: MemoryRules) -> None:
        self._s = state
        self._memory = memory

    def before_bytes_to_ptr(self, data: Any) -> None:
        """Exactly bytes."""
        if type(data) is not bytes:
            self._s.tell(
                WrongArguments,
                f"util.bytes_to_ptr takes bytes, not {type(data).__name__}",
                None,
                "use bytes(...), or util.numpy_to_ptr for an ndarray",
            )

    def after_bytes_to_ptr(self, address: int, data: bytes) -> None:
        """Its address is known."""
        if type(data) is bytes:
            self._s.objects.add(data, address, self._s.site)

    def before_numpy_to_ptr(self, array: Any) -> None:
        """A contiguous array."""
        self._check_array(array, contiguous=True)

    def before_numpy_contiguous_to_ptr(self, array: Any) -> None:
        """An array."""
        self._check_array(array, contiguous=False)

    def _check_array(self, array: Any, *, contiguous: bool) -> None:
        if not isinstance(array, np.ndarray):
            remedy = "use util.bytes_to_ptr for bytes" if isinstance(array, bytes) else "make it an ndarray first"
            self._s.tell(WrongArguments, f"an ndarray is wanted, not {type(array).__name__}", None, remedy)
        elif contiguous and not array.flags.c_contiguous:
            self._s.tell(
                WrongArguments,
                "the array is not C-contiguous",
                None,
                "use numpy.ascontiguousarray, and keep the result",
            )

    def after_numpy_to_ptr(self, address: int, array: Any) -> None:
        """Its address is known, unless it is a view of pinned memory."""
        if isinstance(array, np.ndarray) and self._s.block_of(address) is None:
            self._s.objects.add(array, address, self._s.site)

    def after_numpy_contiguous_to_ptr(self, result: tuple[int, Any], array: Any) -> None:
        """Its address is known."""
        self.after_numpy_to_ptr(result[0], result[1])

    def before_ptr_to_bytes(self, address: int, size: int) -> None:
        """Host memory, with nothing queued that writes it."""
        touched = self._memory.host_range(address, size, "source")
        if touched is not None:
            self._memory.host_touches(touched, write=False)
        elif self._unknown(address):
            self._tell_unknown(address, size)

    def before_ptr_to_numpy(self, address: int, shape: Any, npy_type: Any) -> None:
        """Host memory; a view is no read yet."""
        if not isinstance(shape, tuple):
            self._s.tell(WrongArguments, "the shape is no tuple", None, "give a tuple, as (n,)")
            return
        name = codes.NPY_TYPES.get(int(npy_type))
        if name is None:
            self._s.tell(
                WrongArguments, f"{npy_type} is no NumPy type number", None, "2 is uint8, 11 float32, 23 float16"
            )
            return
        size = math.prod(shape) * np.dtype(name).itemsize
        if self._memory.host_range(address, size, "memory") is None and self._unknown(address):
            self._tell_unknown(address, size)

    def _unknown(self, address: int) -> bool:
        state = self._s
        known = state.block_of(address) or state.objects.of(address) or state.tombs.block(address)
        return known is None and (address in state.handles or address < 4096)

    def _tell_unknown(self, address: int, size: int) -> None:
        message = f"[{address:#x}, {address + size:#x}) is no memory of the host"
        self._s.tell(OutOfBounds, message, None, "give an address of host memory")
