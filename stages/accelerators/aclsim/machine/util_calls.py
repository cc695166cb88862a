"""Owns the pointer helpers and the profiler's calls, as the vendor's module answers them."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.memory import is_device


class UtilCalls:
    """``acl.util``."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self._threads: dict[int, tuple[threading.Thread, list[BaseException]]] = {}

    def bytes_to_ptr(self, data: bytes) -> int:
        """Where the object's own bytes lie; takes no reference."""
        if type(data) is not bytes:
            raise ValueError(f"util.bytes_to_ptr(): must be bytes, not {type(data).__name__}")
        return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    def ptr_to_bytes(self, address: int, size: int) -> bytes:
        """A copy of host memory."""
        view = self._host(address, size, "ptr_to_bytes")
        return view.tobytes()

    def numpy_to_ptr(self, array: NDArray[Any]) -> int:
        """Where the array's own data lie; takes no reference."""
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise TypeError("util.numpy_to_ptr(): must be a C-contiguous ndarray")
        return array.ctypes.data

    def numpy_contiguous_to_ptr(self, array: NDArray[Any]) -> tuple[int, NDArray[Any]]:
        """The same for any array; keep the one that is returned."""
        if not isinstance(array, np.ndarray):
            raise TypeError("util.numpy_contiguous_to_ptr(): must be an ndarray")
        packed = np.ascontiguousarray(array)
        return packed.ctypes.data, packed

    def ptr_to_numpy(self, address: int, shape: tuple[int, ...], npy_type: int) -> NDArray[Any]:
        """A view of host memory, by NumPy's type number."""
        if not isinstance(shape, tuple):
            raise TypeError("util.ptr_to_numpy(): shape must be a tuple")
        name = codes.NPY_TYPES.get(npy_type)
        if name is None:
            raise ValueError(f"util.ptr_to_numpy(): unknown type number {npy_type}")
        dtype = np.dtype(name)
        view = self._host(address, math.prod(shape) * dtype.itemsize, "ptr_to_numpy")
        return view.view(dtype).reshape(shape)

    def _host(self, address: int, size: int, name: str) -> NDArray[np.uint8]:
        if is_device(address):
            raise ValueError(f"util.{name}(): {address:#x} is no host address: the vendor's module crashes here")
        view = self._m.book.view(address, size)
        if view is None:
            raise ValueError(f"util.{name}(): {address:#x} can't be read: the vendor's module crashes here")
        return view

    def start_thread(self, function: Callable[..., Any], arguments: Any) -> tuple[int, int]:
        """Runs ``function(arguments)``, or ``function()`` for None."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                function() if arguments is None else function(arguments)
            except BaseException as error:  # noqa: BLE001  told by stop_thread
                failed.append(error)

        thread = threading.Thread(target=run, name="aclsim-util", daemon=True)
        thread.start()
        assert thread.ident is not None
        self._threads[thread.ident] = (thread, failed)
        return thread.ident, codes.SUCCESS

    def stop_thread(self, ident: int) -> int:
        """Joins."""
        found = self._threads.pop(ident, None)
        if found is None:
            return codes.INVALID_PARAM
        found[0].join()
        if found[1]:
            raise RuntimeError(f"util.stop_thread(): the thread raised {found[1][0]!r}")
        return codes.SUCCESS


class ProfCalls:
    """``acl.prof``: takes everything, measures nothing."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def init(self, path: str) -> int:
        """Nothing to do."""
        del path
        return codes.SUCCESS

    def finalize(self) -> int:
        """Nothing to do."""
        return codes.SUCCESS

    def create_config(self, devices: Any, metrics: int, events: int, mask: int) -> int:
        """A handle."""
        del devices, metrics, events, mask
        handle = self._m.new_handle()
        self._m.objects[handle] = "prof config"
        return handle

    def set_config(self, kind: int, value: str) -> int:
        """Nothing to do."""
        del kind, value
        return codes.SUCCESS

    def start(self, config: int) -> int:
        """Only the handle is looked at."""
        return codes.SUCCESS if self._m.objects.get(config) == "prof config" else codes.INVALID_PARAM

    def stop(self, config: int) -> int:
        """Only the handle is looked at."""
        return self.start(config)

    def destroy_config(self, config: int) -> int:
        """The handle is gone."""
        code = self.start(config)
        self._m.objects.pop(config, None)
        return code
