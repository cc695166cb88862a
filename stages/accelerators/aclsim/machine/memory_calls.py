"""Owns the calls of memory and copies, as the vendor's module answers them."""

from __future__ import annotations

from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.machine import Machine, engine_of, poison_destination
from stages.accelerators.aclsim.machine.memory import Block, PinnedBlock, is_device
from stages.accelerators.aclsim.machine.timeline import NEVER, WORK, Stream, Task
from stages.accelerators.aclsim.machine.trace import Label

MOST_LABELS = 4096  # of addresses, for the trace
MOST_PENDING = 8  # ranges of queued copies that a pinned block remembers before it looks which are over
COMPUTE_GB_S = 60.0  # of copies inside a device
_KINDS = {"upload": "upload", "download": "download", "compute": "copy"}


class MemoryCalls:
    """``acl.rt``: memory and copies."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine
        options = machine.options
        self._ns_per_byte = 1 / options.pcie_gb_s
        self._copy_ns = None if options.copy_ms is None else int(options.copy_ms * 1e6)
        self._poisons = options.poisons
        self._moved = options.most_moved_bytes

    # ---- allocation ------------------------------------------------------------------------------------------------

    def malloc(self, size: int, policy: int) -> tuple[int, int]:
        """Device memory."""
        return self._malloc(size, policy, "malloc")

    def malloc_align32(self, size: int, policy: int) -> tuple[int, int]:
        """Without the additional 32 bytes, which pages hide."""
        return self._malloc(size, policy, "malloc")

    def malloc_cached(self, size: int, policy: int) -> tuple[int, int]:
        """The same on a card."""
        return self._malloc(size, policy, "malloc")

    def _malloc(self, size: int, policy: int, kind: str) -> tuple[int, int]:
        context = self._m.context()
        if context is None:
            return 0, codes.RT_CONTEXT_NULL
        if size == 0:
            return 0, codes.INVALID_PARAM
        block = self._m.take(context.device, size, policy, kind)
        return (0, codes.RT_MEMORY_ALLOCATION) if block is None else (block.address, codes.SUCCESS)

    def free(self, address: int) -> int:
        """Base addresses only; at once."""
        return self._free(address, "malloc")

    def _free(self, address: int, kind: str) -> int:
        if address == 0:
            return codes.INVALID_PARAM
        block = self._m.book.at(address)
        if block is None or block.kind != kind:
            return codes.RT_PARAM_INVALID
        self._m.give(block)
        return codes.SUCCESS

    def malloc_host(self, size: int) -> tuple[int, int]:
        """Pinned memory of this process."""
        if self._m.context() is None:
            return 0, codes.RT_CONTEXT_NULL
        if size == 0:
            return 0, codes.INVALID_PARAM
        block = PinnedBlock(size, self._poisons)
        self._m.book.add(block)
        return block.address, codes.SUCCESS

    def free_host(self, address: int) -> int:
        """At once."""
        block = self._m.book.at(address)
        if block is None or block.kind != "host":
            return codes.RT_PARAM_INVALID if address else codes.INVALID_PARAM
        self._m.book.remove(block)
        return codes.SUCCESS

    def get_mem_info(self, attr: int) -> tuple[int, int, int]:
        """Free and total bytes of the current device."""
        context = self._m.context()
        if context is None:
            return 0, 0, codes.RT_CONTEXT_NULL
        if not 0 <= attr <= 9:
            return 0, 0, codes.RT_PARAM_INVALID
        return context.device.free_bytes, context.device.total_bytes, codes.SUCCESS

    def host_register(self, address: int, size: int, kind: int) -> tuple[int, int]:
        """Not on this product."""
        del address, size, kind
        return 0, codes.RT_FEATURE_NOT_SUPPORT

    def host_unregister(self, address: int) -> int:
        """Not on this product."""
        del address
        return codes.RT_FEATURE_NOT_SUPPORT

    def pointer_get_attributes(self, address: int) -> tuple[dict[str, Any], int]:
        """Where an address lies: type 0 host, 1 device."""
        block = self._m.book.of(address)
        location = {"type": int(is_device(address)), "id": block.device if block is not None else 0}
        return {"location": location, "pageSize": 4096}, codes.SUCCESS

    # ---- copies ----------------------------------------------------------------------------------------------------

    def memset(self, address: int, most: int, value: int, count: int) -> int:
        """At once."""
        task, code = self._memset(address, most, value, count)
        return code if task is None else self._m.run_now(task)

    def memset_async(self, address: int, most: int, value: int, count: int, stream: int) -> int:
        """In stream order."""
        found = self._m.stream(stream)
        if isinstance(found, int):
            return found
        task, code = self._memset(address, most, value, count)
        return code if task is None else self._m.queue(found, task)

    def _memset(self, address: int, most: int, value: int, count: int) -> tuple[Task | None, int]:
        if address == 0 or count > most:
            return None, codes.RT_PARAM_INVALID if address else codes.INVALID_PARAM
        context = self._m.context()
        if context is None:
            return None, codes.RT_CONTEXT_NULL
        engine = context.device.engines["compute"] if is_device(address) else None
        task = Task(WORK, engine, int(count / COMPUTE_GB_S))
        task.label = Label("memset")

        def effect() -> None:
            view = self._m.book.view(address, count)
            if view is not None:
                view[:] = value & 0xFF

        task.effect = effect
        return task, codes.SUCCESS

    def memcpy(self, dst: int, most: int, src: int, count: int, kind: int) -> int:
        """At once, after nothing."""
        code = self._checked(dst, most, src, count, kind)
        if code or count == 0:
            return code
        task = self._copy(dst, src, count, None)
        return self._m.run_now(task)

    def memcpy_async(  # noqa: PLR0917  the vendor's
        self, dst: int, most: int, src: int, count: int, kind: int, stream: int
    ) -> int:
        """In stream order; with pageable memory at once, as newer versions do."""
        found = self._m.stream(stream)
        if isinstance(found, int):
            return found
        if kind == codes.MEMCPY_HOST_TO_HOST:
            return codes.RT_FEATURE_NOT_SUPPORT
        code = self._checked(dst, most, src, count, kind)
        if code or count == 0:
            return code
        blocks: list[tuple[Block, int, int]] = []
        pageable = False
        for address in (dst, src):
            if not is_device(address):
                block = self._m.book.of(address, count)
                if block is None:
                    pageable = True
                else:
                    blocks.append((block, address, address + count))
        task = self._copy(dst, src, count, found, blocks)
        code = self._m.queue(found, task)
        if code:
            return code
        if pageable:
            self._m.wait_for([(found, task.tick)], NEVER, holding=True)
            return codes.SUCCESS
        if self._poisons and blocks and not is_device(dst) and task.error == 0 and task.end_ns < 0:
            poison_destination(blocks[:1])
        for block, start, end in blocks:
            if len(block.pending) > MOST_PENDING:
                block.pending = [entry for entry in block.pending if entry[2].stream.settled < entry[2].tick]
            block.pending.append((start, end, task))
        return codes.SUCCESS

    def _checked(self, dst: int, most: int, src: int, count: int, kind: int) -> int:
        if count > most or not 0 <= kind <= 7:
            return codes.RT_PARAM_INVALID
        if dst == 0 or src == 0:
            return codes.INVALID_PARAM
        wanted = (is_device(dst), is_device(src))
        named = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}.get(kind, wanted)
        if wanted != named:
            return codes.RT_PARAM_INVALID
        return codes.SUCCESS

    def _copy(
        self, dst: int, src: int, count: int, stream: Stream | None, blocks: list[tuple[Block, int, int]] | None = None
    ) -> Task:
        context = self._m.context() if stream is None else stream.owner
        engine = None if context is None else engine_of(context.device, src, dst)
        if engine is None or engine.name == "compute":
            duration_ns = int(count / COMPUTE_GB_S)
        else:
            duration_ns = int(count * self._ns_per_byte) if self._copy_ns is None else self._copy_ns
        task = Task(WORK, engine, duration_ns)
        label = task.label = Label(_KINDS[engine.name] if engine is not None else "copy")
        if label.kind == "upload":
            if len(self._m.uploads) > MOST_LABELS:
                self._m.uploads.clear()
            self._m.uploads[dst] = label
        elif label.kind == "download":
            label.batch = self._m.written_by.get(src, 0)
        book = self._m.book
        moved = min(count, self._moved)

        def effect() -> None:
            target, source = book.view(dst, moved), book.view(src, moved)
            if target is not None and source is not None:
                target[:] = source

        task.effect = effect
        return task


class MediaCalls:
    """``acl.media``: memory only."""

    def __init__(self, machine: Machine) -> None:
        self._memory = MemoryCalls(machine)

    def dvpp_malloc(self, size: int) -> tuple[int, int]:
        """Device memory for DVPP."""
        return self._memory._malloc(size, 0, "dvpp")

    def dvpp_free(self, address: int) -> int:
        """Of what ``dvpp_malloc`` gave."""
        return self._memory._free(address, "dvpp")


class HimpiCalls:
    """``acl.himpi``: memory only."""

    def __init__(self, machine: Machine) -> None:
        self._media = MediaCalls(machine)

    def dvpp_malloc(self, device: int, size: int) -> tuple[int, int]:
        """Device memory for DVPP; the device is the current one."""
        del device
        return self._media.dvpp_malloc(size)

    def dvpp_free(self, address: int) -> int:
        """Of what ``dvpp_malloc`` gave."""
        return self._media.dvpp_free(address)

    def sys_init(self) -> int:
        """Nothing to do."""
        return codes.SUCCESS

    def sys_exit(self) -> int:
        """Nothing to do."""
        return codes.SUCCESS
