"""Owns the calls of the process, its devices and contexts, as the vendor's module answers them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.device import MOST_STREAMS, Context, Device
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.timeline import NEVER


class ProcessCalls:
    """``acl`` itself."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def init(self, config_path: str = "") -> int:
        """Counted; a second one tells so, and counts."""
        if config_path and not Path(config_path).is_file():
            return codes.INVALID_FILE
        if config_path:
            try:
                json.loads(Path(config_path).read_text(encoding="utf-8"))
            except (ValueError, OSError):
                return codes.PARSE_FILE
        self._m.initialised += 1
        return codes.SUCCESS if self._m.initialised == 1 else codes.REPEAT_INITIALIZE

    def finalize(self) -> int:
        """The count is zero at once."""
        if not self._m.initialised:
            return codes.REPEAT_FINALIZE
        self._m.initialised = 0
        return codes.SUCCESS

    def finalize_reference(self) -> tuple[int, int]:
        """Counts down."""
        if not self._m.initialised:
            return 0, codes.REPEAT_FINALIZE
        self._m.initialised -= 1
        return self._m.initialised, codes.SUCCESS

    def get_version(self) -> tuple[int, int, int, int]:
        """Of the interface."""
        return 1, 13, 0, codes.SUCCESS

    def get_soc_name(self) -> str | None:
        """As ATC's soc_version."""
        return self._m.options.soc if self._m.devices else None

    def get_recent_err_msg(self) -> str | None:
        """Of the calling thread; told once."""
        thread = self._m.threads.current()
        message, thread.message = thread.message, ""
        return message or None

    def app_log(self, level: int, message: str) -> None:
        """Goes to the vendor's log: nowhere."""

    def data_type_size(self, dtype: int) -> int:
        """Bytes of an element, 0 for what is unknown."""
        return codes.DATA_TYPE_BYTES.get(dtype, 0)


class DeviceCalls:
    """``acl.rt``: devices and contexts."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def _device(self, index: int) -> Device | None:
        return self._m.devices[index] if 0 <= index < len(self._m.devices) else None

    def set_device(self, index: int) -> int:
        """Counted; binds the default context to the thread."""
        device = self._device(index)
        if device is None:
            return codes.RT_INVALID_DEVICEID if self._m.devices else codes.RT_NO_DEVICE
        if device.default_context is None:
            device.default_context = self._m.open_context(device, default=True)
            if device.default_context is None:
                return codes.RT_DEV_SETUP_ERROR
        device.set_count += 1
        self._m.threads.current().context = device.default_context
        return codes.SUCCESS

    def reset_device(self, index: int) -> int:
        """At zero everything on the device goes, after its work."""
        device = self._device(index)
        if device is None or device.set_count == 0:
            return codes.RT_INVALID_DEVICEID
        device.set_count -= 1
        if device.set_count == 0:
            self._m.release_device(device, waiting=True)
        return codes.SUCCESS

    def reset_device_force(self, index: int) -> int:
        """Everything on the device goes at once, also what earlier processes left."""
        device = self._device(index)
        if device is None:
            return codes.RT_INVALID_DEVICEID
        self._m.release_device(device, waiting=False)
        device.lost_bytes = device.kept_bytes = 0
        self._m.kept.forget(device.physical)
        return codes.SUCCESS

    def get_device(self) -> tuple[int, int]:
        """Of the current context."""
        context = self._m.context()
        return (0, codes.RT_CONTEXT_NULL) if context is None else (context.device.index, codes.SUCCESS)

    def get_run_mode(self) -> tuple[int, int]:
        """A card in a host."""
        return codes.RUN_MODE_HOST, codes.SUCCESS

    def get_device_count(self) -> tuple[int, int]:
        """Those that are visible."""
        return (len(self._m.devices), codes.SUCCESS) if self._m.devices else (0, codes.RT_NO_DEVICE)

    def get_device_utilization_rate(self, index: int) -> tuple[dict[str, Any], int]:
        """Not measured, but memory."""
        device = self._device(index)
        if device is None:
            return {}, codes.RT_INVALID_DEVICEID
        used = 100 * (device.total_bytes - device.free_bytes) // device.total_bytes
        rates = {"cube_utilization": 0, "vector_utilization": 0, "aicpu_utilization": 0, "memory_utilization": used}
        return {**rates, "utilization_extend": 0}, codes.SUCCESS

    def query_device_status(self, index: int) -> tuple[int, int]:
        """1 once the device is lost."""
        device = self._device(index)
        if device is None:
            return 0, codes.RT_INVALID_DEVICEID
        return int(bool(device.lost)), codes.SUCCESS

    def set_ts_device(self, ts: int) -> int:
        """There is one."""
        return codes.SUCCESS if ts == 0 else codes.RT_PARAM_INVALID

    def device_can_access_peer(self, index: int, peer: int) -> tuple[int, int]:
        """Not on this product."""
        if self._device(index) is None or self._device(peer) is None:
            return 0, codes.RT_INVALID_DEVICEID
        return 0, codes.SUCCESS

    def synchronize_device(self) -> int:
        """Until everything queued on the device is over."""
        return self._synchronize(NEVER, holding=False)

    def synchronize_device_with_timeout(self, timeout_ms: int) -> int:
        """The same with a limit, holding the interpreter's lock."""
        if timeout_ms < -1:
            return codes.RT_PARAM_INVALID
        return self._synchronize(NEVER if timeout_ms == -1 else timeout_ms * 1_000_000, holding=True)

    def _synchronize(self, timeout_ns: int, *, holding: bool) -> int:
        context = self._m.context()
        if context is None:
            return codes.RT_CONTEXT_NULL
        streams = [s for c in context.device.contexts.values() for s in c.all_streams()]
        met = self._m.wait_for([(s, s.submitted) for s in streams], timeout_ns, holding=holding)
        if not met:
            return codes.RT_STREAM_SYNC_TIMEOUT if timeout_ns < NEVER else codes.RT_WAIT_TIMEOUT
        return next((code for code in [self._m.code_of(s) for s in streams] if code), codes.SUCCESS)

    def create_context(self, index: int) -> tuple[int, int]:
        """Current for the thread from now on."""
        device = self._device(index)
        if device is None:
            return 0, codes.RT_INVALID_DEVICEID
        context = self._m.open_context(device, default=False)
        if context is None:
            return 0, codes.RT_NO_STREAM_RESOURCE
        self._m.threads.current().context = context
        return context.handle, codes.SUCCESS

    def destroy_context(self, handle: int) -> int:
        """Not the default one."""
        context = self._context(handle)
        if context is None or context.default:
            return codes.RT_PARAM_INVALID if handle else codes.INVALID_PARAM
        self._m.close_context(context)
        return codes.SUCCESS

    def set_context(self, handle: int) -> int:
        """Current for the thread from now on."""
        context = self._context(handle)
        if context is None:
            return codes.RT_CONTEXT_NULL if handle else codes.INVALID_PARAM
        self._m.threads.current().context = context
        return codes.SUCCESS

    def get_context(self) -> tuple[int, int]:
        """Of the thread."""
        context = self._m.context()
        return (0, codes.RT_CONTEXT_NULL) if context is None else (context.handle, codes.SUCCESS)

    def ctx_get_current_default_stream(self) -> tuple[int, int]:
        """0 stands for it."""
        context = self._m.context()
        return (0, codes.RT_CONTEXT_NULL if context is None else codes.SUCCESS)

    def get_primary_ctx_state(self, index: int) -> tuple[int, int, int]:
        """Whether the default context exists."""
        device = self._device(index)
        if device is None:
            return 0, 0, codes.RT_INVALID_DEVICEID
        return int(device.default_context is not None), 0, codes.SUCCESS

    def get_stream_available_num(self) -> tuple[int, int]:
        """How many more streams the device has."""
        context = self._m.context()
        if context is None:
            return 0, codes.RT_CONTEXT_NULL
        return MOST_STREAMS - context.device.stream_count, codes.SUCCESS

    def _context(self, handle: int) -> Context | None:
        return self._m.find(handle, Context)
