"""Owns the rules of init, finalize, devices and contexts."""

from __future__ import annotations

import os
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.shadows import ContextShadow, DeviceShadow, ModelShadow, Shadow, StreamShadow
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.violations import (
    AliveAtFinalize,
    ForeignContext,
    RepeatedInit,
    UnpairedSetDevice,
)


class ProcessRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State) -> None:
        self._s = state

    def before_init(self, *config: str) -> None:
        """Once per process."""
        if self._s.initialised is not None:
            self._s.tell(
                RepeatedInit,
                f"init was called before ({codes.REPEAT_INITIALIZE}): the first configuration stays in force, and "
                "finalize ends it for all",
                self._s.initialised,
                "call init once per process",
            )

    def after_init(self, code: int, *config: str) -> None:
        """The process is initialised, also by somebody else."""
        if code in (codes.SUCCESS, codes.REPEAT_INITIALIZE):
            self._s.initialised = self._s.site
            self._s.finalised = None
            self._s.pid = os.getpid()
            self._s.forks.open()

    def before_finalize(self) -> None:
        """Once per init."""
        if self._s.finalised is not None:
            self._s.tell(
                RepeatedInit,
                f"finalize was called before ({codes.REPEAT_FINALIZE})",
                self._s.finalised,
                "call finalize once, at the end",
            )

    def after_finalize(self, code: int) -> None:
        """Nothing may be left."""
        state = self._s
        if code != codes.SUCCESS:
            return
        state.initialised, state.finalised = None, state.site
        refusals_count = state.options.refusals_are_leaks
        alive = [s for s in state.living() if refusals_count or not s.refused]
        unpaired = [d for d in state.devices.values() if d.set_at and not d.lost]
        for shadow in list(state.living()):
            state.forget(shadow)
        for device in state.devices.values():
            sites_of_set, device.set_at = device.set_at, []
            if device in unpaired:
                device.lost = 0
            self._end_contexts(device)
            device_sites = sites_of_set
            if device in unpaired and not alive:
                state.tell(
                    UnpairedSetDevice,
                    f"device {device.index} was set {len(device_sites)} times more than it was reset",
                    device_sites[-1],
                    "call rt.reset_device once for each rt.set_device, before finalize",
                )
        if alive:
            state.tell(
                AliveAtFinalize,
                f"{len(alive)} things live that finalize does not release:{self._listed(alive)}",
                alive[0].site,
                "release everything before: events and streams, datasets, data buffers, memory, models, descriptions, "
                "contexts, rt.reset_device",
            )

    def _listed(self, alive: list[Shadow]) -> str:
        return self._s.listed(alive)

    def after_finalize_reference(self, result: tuple[int, int]) -> None:
        """The last one ends the process."""
        if result == (0, codes.SUCCESS):
            self.after_finalize(codes.SUCCESS)

    # ---- devices ---------------------------------------------------------------------------------------------------

    def _device(self, index: int) -> DeviceShadow:
        return self._s.devices.setdefault(index, DeviceShadow(index))

    def after_set_device(self, code: int, index: int) -> None:
        """Counted; the default context is current."""
        if code == codes.SUCCESS:
            device = self._device(int(index))
            device.set_at.append(self._s.site)
            if device.default is None:
                device.default = ContextShadow(0, self._s.site, device, default=True)
                device.lost = 0
            self._s.me.context = device.default

    def before_reset_device(self, index: int) -> None:
        """Only what was set."""
        self._s.check_callback()
        device = self._s.devices.get(int(index))
        if device is None or not device.set_at:
            self._s.tell(
                UnpairedSetDevice,
                f"device {index} is reset more often than it was set",
                None,
                "call rt.reset_device once for each rt.set_device",
            )

    def after_reset_device(self, code: int, index: int) -> None:
        """At zero everything of the device must be gone."""
        device = self._s.devices.get(int(index))
        if code != codes.SUCCESS or device is None or not device.set_at:
            return
        device.set_at.pop()
        if device.set_at:
            return
        alive = [s for s in self._of_device(device) if not s.refused or self._s.options.refusals_are_leaks]
        lost = device.lost
        self._release(device, memory=False)
        if alive and not lost:
            self._s.tell(
                AliveAtFinalize,
                f"device {device.index} is reset while things live on it:{self._listed(alive)}",
                alive[0].site,
                "destroy events, streams and contexts and unload models before the last rt.reset_device",
            )

    def after_reset_device_force(self, code: int, index: int) -> None:
        """Everything of the device is gone, as was asked for."""
        if code == codes.SUCCESS:
            device = self._device(int(index))
            device.set_at.clear()
            self._release(device, memory=True)

    def _of_device(self, device: DeviceShadow) -> list[Shadow]:
        found: list[Shadow] = []
        for shadow in self._s.living():
            context = shadow if isinstance(shadow, ContextShadow) else getattr(shadow, "context", None)
            if isinstance(context, ContextShadow) and context.device is device:
                found.append(shadow)
        return found

    def _release(self, device: DeviceShadow, *, memory: bool) -> None:
        for shadow in self._of_device(device):
            if isinstance(shadow, (StreamShadow, ContextShadow)):
                self._quiet(shadow if isinstance(shadow, StreamShadow) else shadow.default_stream)
            if isinstance(shadow, ModelShadow):
                self._unpin(shadow)
            self._s.remove(shadow)
        if memory:
            for block in [b for b in self._s.blocks.values() if b.device is device]:
                self._s.remove(block)
        self._end_contexts(device)
        device.lost = 0

    def _end_contexts(self, device: DeviceShadow) -> None:
        if device.default is not None:
            self._quiet(device.default.default_stream)
            device.default.ended = self._s.site
            self._s.handles.pop(device.default.handle, None)
            device.default = None

    def _quiet(self, stream: StreamShadow) -> None:
        clock = stream.clock
        self._s.learn(clock.point(), compare=False)

    def _unpin(self, model: ModelShadow) -> None:
        for memory in (model.work, model.weights):
            if memory is not None and model in memory[0].models:
                memory[0].models.remove(model)

    # ---- contexts --------------------------------------------------------------------------------------------------

    def before_create_context(self, index: int) -> None:
        """Not in a callback."""
        self._s.check_callback()

    def after_create_context(self, result: tuple[int, int], index: int) -> None:
        """Current for the thread."""
        handle, code = result
        if code == codes.SUCCESS:
            context = ContextShadow(handle, self._s.site, self._device(int(index)), default=False)
            self._s.add(context)
            self._s.me.context = context

    def before_set_context(self, handle: int) -> Any:
        """Only a living one."""
        return self._context(handle)

    def after_set_context(self, code: int, handle: int) -> None:
        """Current for the thread."""
        found = self._s.handles.get(handle)
        if code == codes.SUCCESS and isinstance(found, ContextShadow):
            self._s.me.context = found

    def _context(self, handle: int) -> ContextShadow | None:
        found = self._s.handles.get(handle)
        if isinstance(found, ContextShadow):
            return found
        if not handle:
            return None
        gone = self._s.tombs.site(ContextShadow.kind, handle)
        if gone:
            self._s.tell(
                ForeignContext,
                f"context {handle:#x} was destroyed, or its device was reset",
                gone,
                "make a context of a living device current",
            )
            return None
        self._s.tell_wrong_handle(handle, ContextShadow, found)
        return None

    def before_destroy_context(self, handle: int) -> None:
        """Only explicit ones, and nothing in them."""
        self._s.check_callback()
        context = self._context(handle)
        if context is None:
            return
        if context.default:
            self._s.tell(
                ForeignContext,
                f"{context} is the default context of device {context.device.index}: it goes with rt.reset_device",
                context.site,
                "destroy only what rt.create_context returned",
            )
        alive = [s for s in self._s.living() if getattr(s, "context", None) is context and not s.refused]
        if alive and not context.device.lost:
            self._s.tell(
                AliveAtFinalize,
                f"{context} is destroyed while things live in it:{self._listed(alive)}",
                alive[0].site,
                "destroy its streams and events and unload its models first",
            )

    def after_destroy_context(self, code: int, handle: int) -> None:
        """Its streams are gone."""
        context = self._s.handles.get(handle)
        if code == codes.SUCCESS and isinstance(context, ContextShadow):
            self._quiet(context.default_stream)
            for shadow in [s for s in self._s.living() if getattr(s, "context", None) is context]:
                if isinstance(shadow, StreamShadow):
                    self._quiet(shadow)
                if isinstance(shadow, ModelShadow):
                    self._unpin(shadow)
                self._s.remove(shadow)
            context.ended = self._s.site
            self._s.remove(context)
        elif isinstance(context, ContextShadow):
            context.refused = code

    def after_get_context(self, result: tuple[int, int]) -> None:
        """The number of a default context is told here only."""
        handle, code = result
        context = self._s.me.context
        if code != codes.SUCCESS or not handle:
            return
        if context is None:  # somebody else made it current: taken as it is
            device = self._device(0)
            device.default = device.default or ContextShadow(handle, self._s.site, device, default=True)
            self._s.me.context = context = device.default
        if context.default and handle not in self._s.handles:
            context.handle = handle
            self._s.handles[handle] = context
            self._s.tombs.forget(ContextShadow.kind, handle)
