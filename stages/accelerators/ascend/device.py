"""Owns a device ``ascend:N``: runtime, contexts, seats of executors, what is left at the end. Runs no batch.

Opened by one thread, which also loads the models: each executor's context is created and filled there, before any of
them runs, and then handed to the executor's thread. Order of release: lanes, instances and contexts of all seats,
weights, the device's own context, device, runtime.

Contexts are all made explicitly: by some documents the default one may be neither asked for nor set. The device is set
and reset once, by the thread that opens it; other threads set a context, which sets the device too. Some documents
count resets against sets and others do not: a thread that resets when it has done might take the device from the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack

from stages.accelerators.ascend.binding import Binding, bind, mode_of
from stages.accelerators.ascend.constants import DDR_MEM
from stages.accelerators.ascend.errors import AclError, mendable
from stages.accelerators.ascend.lanes import AscendLanes
from stages.accelerators.ascend.loaded import Seat
from stages.accelerators.ascend.models import DeviceModels
from stages.accelerators.ascend.options import AscendOptions
from stages.accelerators.ascend.owned import Owner
from stages.accelerators.ascend.runtime import Runtime, acquire_runtime
from stages.accelerators.ascend.surroundings import missing_here, versions_here
from stages.accelerators.ascend.visible import Visible, visible_devices
from stages.accelerators.ascend.watch import MemoryWatch
from stages.errors import DeviceFailed, UserError
from stages.model import ModelSpec
from stages.stage import MonotonicClock

log = logging.getLogger(__name__)


class AscendDevice:
    """See Device. ``executors``: LaneSets that are planned for; ``lanes``: of each of them."""

    runtime: Runtime
    owner: Owner
    _models: DeviceModels

    def __init__(  # noqa: PLR0917  wired in one place
        self,
        name: str,
        options: AscendOptions,
        executors: int,
        lanes: int,
        clock_ns: MonotonicClock,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        kind, _, number = name.partition(":")
        self._kind = kind
        self._index = int(number)
        self._options = options
        self._executors = executors
        self._sets = options.buffers or lanes
        self._clock_ns = clock_ns
        self._environ = os.environ if environ is None else environ
        self._lock = threading.RLock()
        self._stack: ExitStack | None = None  # None: not open
        self._pid = 0
        self._main_context = 0
        self._visible = Visible(None, ())
        self._simulated = False
        self._soc = ""
        self._free: list[Seat] = []
        self._taken: list[Seat] = []
        self._lane_sets: dict[Seat, tuple[AscendLanes, threading.Thread]] = {}
        self._watch_lock = threading.Lock()
        self._watch = MemoryWatch(options.sample_every)
        self._unread = False  # free memory: that it can't be read is told once

    # --- opening ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """See Device. Everything that was acquired is released again when it fails."""
        self._visible = visible_devices(self._environ)
        self._visible.check(self.name, self._index)
        mode = mode_of(self._kind, self._options, self._environ)
        self._simulated = mode == "simulated"
        with ExitStack() as stack:
            try:
                binding = bind(mode, self._options)
            except UserError as error:
                raise UserError.of([f"device {self.name}: {problem}" for problem in error.problems]) from error
            stack.callback(binding.close)
            try:
                self._open(stack, binding)
            except AclError as error:
                raise self._told(error) from error
            self._pid = os.getpid()
            self._stack = stack.pop_all()
        _open_devices.add(self)
        for note in self._visible.notes:
            log.info("device %s: %s", self.name, note)

    def _open(self, stack: ExitStack, binding: Binding) -> None:
        self.runtime = acquire_runtime(binding)
        stack.callback(self.runtime.release)
        acl = self.runtime.acl
        self.owner = Owner(acl, self.runtime.register)
        count = acl.rt.get_device_count()
        if count < 1:
            missing = [] if self._simulated else missing_here()
            why = "; ".join(missing) or "npu-smi info shows what the driver sees; ASCEND_RT_VISIBLE_DEVICES may hide it"
            raise UserError(f"device {self.name}: no device can be used: {why}")
        if self._index >= count:
            raise UserError(
                f"device {self.name}: {count} device(s) can be used, numbered from 0 to {count - 1}; use "
                f"{self._kind}:{count - 1} or less (npu-smi info lists them)"
            )
        self.runtime.entered(None)
        acl.rt.set_device(self._index)
        stack.callback(self._reset)
        self._main_context = stack.enter_context(self.owner.context(f"{self.name}/models", self._index))
        self.runtime.entered(self._main_context)
        self._soc = acl.get_soc_name() or ""
        self._models = DeviceModels(
            self.runtime, self.owner, self._options, self._main_context, self._soc, simulated=self._simulated
        )
        stack.callback(self._close_seats)
        for _ in range(self._executors):
            self._free.append(self._new_seat())
        self.runtime.enter(self._main_context)

    def _told(self, error: AclError) -> UserError | AclError:
        """Why it can't be opened: what can be seen to be missing explains it better than the code, and a new process
        would not mend it."""
        missing = [] if self._simulated else missing_here()
        if missing:
            return UserError.of([f"device {self.name}: {problem} ({error})" for problem in missing])
        versions = "" if self._simulated else versions_here(self._environ)
        told = mendable(error, f"device {self.name}")
        if isinstance(told, UserError) and versions:
            return UserError.of([f"{problem} (here: {versions})" for problem in told.problems])
        return told

    def _new_seat(self) -> Seat:
        number = len(self._free) + len(self._taken)
        seat = Seat(self.runtime, self.owner, self._index, f"{self.name}/{number}", self._sets)
        seat.open()
        return seat

    def _reset(self) -> None:
        if self.owner.abandoned:
            self.runtime.leave_to_exit()
            return
        self.runtime.entered(None)
        try:
            self.runtime.acl.rt.reset_device(self._index)
        except AclError as error:
            log.warning("device %s is not reset: %s", self.name, error)

    # --- models -------------------------------------------------------------------------------------------------------

    def load(self, model: ModelSpec, max_batch: int) -> None:
        """See Device. With a batch that is built in, ``max_batch`` may be larger: such batches run in several parts."""
        with self._lock:
            if self._stack is None:
                raise DeviceFailed(f"device {self.name} is not open")
            if self._taken and self._models.differs(model):
                raise UserError(f"model {model.name}: it is running with another description; stop it first")
            try:
                self._models.load(model, max_batch, self._free)
            except AclError as error:
                raise mendable(error, f"model {model.name} on {self.name}") from error
            finally:
                self.runtime.enter(self._main_context)

    # --- executors ----------------------------------------------------------------------------------------------------

    def lanes(self, count: int) -> AscendLanes:
        """See Device."""
        with self._lock:
            if self._stack is None or not self._models.loaded:
                raise DeviceFailed(f"device {self.name}: no model is loaded")
            seat = self._take_seat()
            models = tuple(self._models.loaded.values())
            lanes = AscendLanes(self, seat, models, count, self._sets, self._options, self._clock_ns)
            self._lane_sets[seat] = lanes, threading.current_thread()
        try:
            lanes.open()
        except BaseException:
            self.leave(seat)
            raise
        return lanes

    def _take_seat(self) -> Seat:
        """A free seat, or one more, for the calling thread, whose context is set."""
        self.runtime.entered(None)
        if not self._free:
            self._free.append(self._new_seat())
        seat = self._free[0]
        self._models.fill(seat)
        self._taken.append(self._free.pop(0))
        return seat

    def rebuild(self, seat: Seat) -> None:
        """See lanes.Place."""
        with self._lock:
            seat.close()
            seat.open()
            self._models.fill(seat)

    def leave(self, seat: Seat) -> None:
        """See lanes.Place."""
        with self._lock:
            if seat in self._taken:
                self._taken.remove(seat)
                self._free.append(seat)
                self._lane_sets.pop(seat, None)
                self.runtime.entered(None)

    def batch_ended(self) -> None:
        """See lanes.Place."""
        with self._watch_lock:  # not the device's own: another executor may be loading meanwhile
            if not self._watch.batch():
                return
            try:
                free_bytes, _ = self.runtime.acl.rt.get_mem_info(DDR_MEM)
            except AclError as error:
                if error.needs_new_process:
                    raise
                if not self._unread:  # some versions never tell, and this is asked for months
                    log.warning("device %s: its free memory can't be read: %s", self.name, error)
                self._unread = True
                return
            leak = self._watch.add(free_bytes)
        if leak is not None:
            table = "\n".join(f"  {line}" for line in self.runtime.register.lines())
            log.warning(
                "device %s: %.1f MiB of its memory were lost in %d batches (%.0f bytes each), and %.1f MiB are left; "
                "what this process holds has not grown, so the vendor's runtime or another process takes it:\n%s",
                self.name,
                leak.lost_bytes / 2**20,
                leak.batches,
                leak.bytes_per_batch,
                free_bytes / 2**20,
                table,
            )

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """See Device. LaneSets that are still open are closed first."""
        with self._lock:
            stack, self._stack = self._stack, None
        if stack is None:
            return
        _open_devices.discard(self)
        for lanes, _ in list(self._lane_sets.values()):
            lanes.close()
        stack.close()
        held = self.runtime.register.lines()
        if held and not _shared(self):
            log.warning("device %s: left at its end:\n%s", self.name, "\n".join(f"  {line}" for line in held))

    def _close_seats(self) -> None:
        for seat in (*self._free, *self._taken):
            self._enter_to_release(seat.context)
            seat.close()
        self._free.clear()
        self._taken.clear()
        self._enter_to_release(self._main_context)
        self._models.close()

    def _enter_to_release(self, context: int) -> None:
        if context and not self.owner.abandoned:
            try:
                self.runtime.enter(context)
            except AclError as error:  # then what is released next tells too
                log.warning("device %s: %s", self.name, error)

    def facts(self) -> list[str]:
        """What ``campipe check`` shows of an open device with its models."""
        acl = self.runtime.acl
        self.runtime.enter(self._main_context)
        try:
            free_bytes, total_bytes = acl.rt.get_mem_info(DDR_MEM)
            free = f"{free_bytes / 2**20:.0f} of {total_bytes / 2**20:.0f} MiB free"
        except AclError as error:
            if error.needs_new_process:
                raise
            free = f"its free memory can't be read: {error}"
        what = f"{self._soc or 'unknown chip'}{', simulated' if self._simulated else ''}"
        where = self._visible.where(self._index)
        lines = [f"{self.name}: {what}, {where}, {free}"]
        versions = "" if self._simulated else versions_here(self._environ)
        if versions:
            lines.append(f"  {versions}")
        for model in self._models.loaded.values():
            facts = model.facts
            assert facts is not None
            batches = "/".join(map(str, facts.batches))
            aipp = f"AIPP takes {model.om.aipp}" if model.om.aipp != "none" else "no AIPP"
            sharing = "shared weights" if model.weights.address else "weights per instance"
            lines.append(f"  {model.spec.name}: batch {batches}, {aipp}, {sharing}")
        held = self.runtime.register.size_bytes("device memory")
        lines.append(f"  holds {held / 2**20:.1f} MiB for models; lanes take more when they start")
        return [*lines, *(f"  {note}" for note in self._visible.notes)]

    def at_exit(self) -> None:
        """The last net: a device that nobody closed. Never in a forked child, never beside a thread that runs lanes.

        Releasing under a thread that is in a call, or finalising beside it, is what crashes at exit; the driver takes
        everything back when the process is gone. So the ordered release is done only where it is safe; what is left is
        told in any case.
        """
        if self._stack is None or os.getpid() != self._pid:
            return
        held = "\n".join(f"  {line}" for line in self.runtime.register.lines())
        log.warning("device %s was not closed; it holds:\n%s", self.name, held or "  nothing")
        here = threading.current_thread()
        if any(thread is not here and thread.is_alive() for _, thread in self._lane_sets.values()):
            return
        self.close()


_open_devices: set[AscendDevice] = set()


def _shared(device: AscendDevice) -> bool:
    """Whether another device of this process uses the same register."""
    return any(other.runtime is device.runtime for other in _open_devices)


@atexit.register
def _at_exit() -> None:
    for device in list(_open_devices):
        with contextlib.suppress(Exception):  # nobody is left to tell
            device.at_exit()
