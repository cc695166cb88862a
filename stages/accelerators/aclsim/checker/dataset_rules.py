"""Owns the rules of descriptions, datasets and data buffers."""

from __future__ import annotations

from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.model_rules import ModelRules
from stages.accelerators.aclsim.checker.shadows import BufferShadow, ConfigShadow, DatasetShadow, DescShadow
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.violations import DestroyedInUse, FreedInUse


class DatasetRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State, models: ModelRules) -> None:
        self._s = state
        self._models = models

    def after_create_desc(self, handle: int) -> None:
        """It lives."""
        if handle:
            self._s.add(DescShadow(handle, self._s.site))

    def before_destroy_desc(self, handle: int) -> None:
        """A living one."""
        self._s.want(handle, DescShadow)

    def before_get_desc(self, handle: int, model_id: int) -> None:
        """A living one, of a loaded model."""
        self._s.want(handle, DescShadow)
        self._models.model(model_id)

    def after_create_config(self, handle: int, *_: Any) -> None:
        """It lives."""
        if handle:
            self._s.add(ConfigShadow(handle, self._s.site))

    def after_create_data_buffer(self, handle: int, address: int, size: int) -> None:
        """It lives."""
        if handle:
            self._s.add(BufferShadow(handle, self._s.site, address, size))

    def before_destroy_data_buffer(self, handle: int) -> None:
        """Not in use."""
        buffer = self._s.want(handle, BufferShadow)
        if buffer is not None:
            self._check_idle(buffer, "destroyed")

    def _check_idle(self, shadow: BufferShadow | DatasetShadow, verb: str) -> None:
        site = shadow.in_use()
        if site is not None and not (self._s.me.context and self._s.me.context.device.lost):
            self._s.tell(
                FreedInUse if verb == "re-pointed" else DestroyedInUse,
                f"{shadow} is {verb} while a run that was queued with it is not known to be over",
                site,
                "synchronise the stream of that run first",
            )

    def released(self, code: int, handle: int) -> None:
        """It is gone, or not."""
        shadow = self._s.handles.get(handle)
        if shadow is not None:
            if code == codes.SUCCESS:
                self._s.remove(shadow)
            else:
                shadow.refused = code

    after_destroy_desc = released
    after_destroy_data_buffer = released
    after_destroy_dataset = released
    after_destroy_config = released

    def before_update_data_buffer(self, handle: int, address: int, size: int) -> None:
        """Not in use."""
        buffer = self._s.want(handle, BufferShadow)
        if buffer is not None:
            self._check_idle(buffer, "re-pointed")

    def after_update_data_buffer(self, code: int, handle: int, address: int, size: int) -> None:
        """It points elsewhere."""
        buffer = self._s.handles.get(handle)
        if code == codes.SUCCESS and isinstance(buffer, BufferShadow):
            buffer.address, buffer.size = address, size

    def before_get_data_buffer_addr(self, handle: int) -> None:
        """A living one."""
        self._s.want(handle, BufferShadow)

    before_get_data_buffer_size = before_get_data_buffer_addr
    before_get_data_buffer_size_v2 = before_get_data_buffer_addr

    def after_create_dataset(self, handle: int) -> None:
        """It lives."""
        if handle:
            self._s.add(DatasetShadow(handle, self._s.site))

    def before_destroy_dataset(self, handle: int) -> None:
        """Not in use."""
        dataset = self._s.want(handle, DatasetShadow)
        if dataset is not None:
            self._check_idle(dataset, "destroyed")

    def before_add_dataset_buffer(self, handle: int, buffer_handle: int) -> None:
        """A dataset and a data buffer."""
        self._s.want(handle, DatasetShadow)
        self._s.want(buffer_handle, BufferShadow)

    def after_add_dataset_buffer(self, result: tuple[int, int], handle: int, buffer_handle: int) -> None:
        """One more."""
        dataset, buffer = self._s.handles.get(handle), self._s.handles.get(buffer_handle)
        if result[1] == codes.SUCCESS and isinstance(dataset, DatasetShadow) and isinstance(buffer, BufferShadow):
            dataset.buffers.append(buffer)

    def before_get_dataset_num_buffers(self, handle: int) -> None:
        """A living one."""
        self._s.want(handle, DatasetShadow)

    def before_get_dataset_buffer(self, handle: int, index: int) -> None:
        """A living one."""
        self._s.want(handle, DatasetShadow)
