"""Owns the calls of datasets and of runs, as the vendor's module answers them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.device import DataBuffer, Dataset
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.memory import is_device
from stages.accelerators.aclsim.machine.memory_calls import MOST_LABELS
from stages.accelerators.aclsim.machine.model_facts import GEAR_BYTES, LoadedModel, Tensor
from stages.accelerators.aclsim.machine.timeline import WORK, Task
from stages.accelerators.aclsim.machine.trace import Label
from stages.accelerators.aclsim.om import OmDescription, service_time_ms


class DatasetCalls:
    """``acl.mdl`` and ``acl``: datasets and data buffers."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def create_data_buffer(self, address: int, size: int) -> int:
        """The pair only."""
        buffer = DataBuffer(self._m.new_handle(), address, size)
        self._m.objects[buffer.handle] = buffer
        return buffer.handle

    def destroy_data_buffer(self, handle: int) -> int:
        """Not the memory."""
        if self._m.find(handle, DataBuffer) is None:
            return codes.INVALID_PARAM
        del self._m.objects[handle]
        return codes.SUCCESS

    def get_data_buffer_addr(self, handle: int) -> int:
        """Its address."""
        buffer = self._m.find(handle, DataBuffer)
        return buffer.address if buffer else 0

    def get_data_buffer_size(self, handle: int) -> int:
        """The lower 32 bits."""
        return self.get_data_buffer_size_v2(handle) & 0xFFFFFFFF

    def get_data_buffer_size_v2(self, handle: int) -> int:
        """Its size."""
        buffer = self._m.find(handle, DataBuffer)
        return buffer.size if buffer else 0

    def update_data_buffer(self, handle: int, address: int, size: int) -> int:
        """Another pair."""
        buffer = self._m.find(handle, DataBuffer)
        if buffer is None:
            return codes.INVALID_PARAM
        buffer.address, buffer.size = address, size
        return codes.SUCCESS

    def create_dataset(self) -> int:
        """An empty one."""
        dataset = Dataset(self._m.new_handle())
        self._m.objects[dataset.handle] = dataset
        return dataset.handle

    def destroy_dataset(self, handle: int) -> int:
        """Not its buffers."""
        if self._m.find(handle, Dataset) is None:
            return codes.INVALID_PARAM
        del self._m.objects[handle]
        return codes.SUCCESS

    def add_dataset_buffer(self, handle: int, buffer_handle: int) -> tuple[int, int]:
        """At the end."""
        dataset, buffer = self._m.find(handle, Dataset), self._m.find(buffer_handle, DataBuffer)
        if dataset is None or buffer is None:
            return handle, codes.INVALID_PARAM
        dataset.buffers.append(buffer)
        return handle, codes.SUCCESS

    def get_dataset_num_buffers(self, handle: int) -> int:
        """Their number."""
        dataset = self._m.find(handle, Dataset)
        return len(dataset.buffers) if dataset else 0

    def get_dataset_buffer(self, handle: int, index: int) -> int:
        """0 for a bad index."""
        dataset = self._m.find(handle, Dataset)
        return dataset.buffers[index].handle if dataset and index < len(dataset.buffers) else 0


class ExecuteCalls:
    """``acl.mdl``: running."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def set_dynamic_batch_size(self, model_id: int, dataset_handle: int, index: int, batch: int) -> int:
        """Noted in the dataset and in the model, and copied to the device at once, after nothing."""
        model = self._m.models.get(model_id)
        if model is None:
            return codes.GE_EXEC_MODEL_ID_INVALID
        dataset = self._m.find(dataset_handle, Dataset)
        if dataset is None or batch == 0 or index >= len(dataset.buffers) or not dataset.buffers[index].address:
            return codes.INVALID_PARAM
        om = model.facts.om
        if not om.gears:
            return codes.MODEL_NOT_DYNAMIC
        if batch not in om.gears:
            return codes.GE_DYNAMIC_BATCH_SIZE_INVALID
        buffer = dataset.buffers[index]
        if buffer.size < 4:
            return codes.GE_DYNAMIC_INPUT_LENGTH_INVALID
        length = GEAR_BYTES if buffer.size >= GEAR_BYTES else 4
        task = Task(WORK, model.context.device.engines["upload"], 0)

        def effect() -> None:
            view = self._m.book.view(buffer.address, length)
            if view is not None:
                view[:] = np.frombuffer(int(batch).to_bytes(length, "little"), np.uint8)

        task.effect = effect
        code = self._m.run_now(task)
        if code == 0:
            dataset.gear = model.gear = batch
        return code

    def execute(self, model_id: int, inputs: int, outputs: int) -> int:
        """At once, holding the interpreter's lock; allocates outputs of (0, 0)."""
        task, code = self._prepare(model_id, inputs, outputs, allocate=True)
        return code if task is None else self._m.run_now(task)

    def execute_async(self, model_id: int, inputs: int, outputs: int, stream: int) -> int:
        """In stream order."""
        found = self._m.stream(stream)
        if isinstance(found, int):
            return found
        task, code = self._prepare(model_id, inputs, outputs, allocate=False)
        return code if task is None else self._m.queue(found, task)

    def _prepare(self, model_id: int, inputs: int, outputs: int, *, allocate: bool) -> tuple[Task | None, int]:
        model: LoadedModel | None = self._m.models.get(model_id)
        if model is None:
            return None, codes.GE_EXEC_MODEL_ID_INVALID
        if self._m.context() is None:
            return None, codes.RT_CONTEXT_NULL
        fed, made = self._m.find(inputs, Dataset), self._m.find(outputs, Dataset)
        if fed is None or made is None:
            return None, codes.INVALID_PARAM
        facts = model.facts
        if len(fed.buffers) != len(facts.inputs):
            return None, codes.MODEL_INPUT_NOT_MATCH
        if len(made.buffers) != len(facts.outputs):
            return None, codes.MODEL_OUTPUT_NOT_MATCH
        if allocate and (code := self._allocate(model, made)):
            return None, code
        for buffers, tensors in ((fed.buffers, facts.inputs), (made.buffers, facts.outputs)):
            for buffer, tensor in zip(buffers, tensors, strict=True):
                if code := self._unfit(facts.om, buffer, tensor):
                    return None, code
        return self._task(model, fed, made), codes.SUCCESS

    def _allocate(self, model: LoadedModel, made: Dataset) -> int:
        for buffer, tensor in zip(made.buffers, model.facts.outputs, strict=True):
            if buffer.address == 0:
                block = self._m.take(model.context.device, tensor.size, codes.MALLOC_HUGE_FIRST, "malloc")
                if block is None:
                    return codes.RT_MEMORY_ALLOCATION
                buffer.address, buffer.size = block.address, tensor.size
        return codes.SUCCESS

    def _unfit(self, om: OmDescription, buffer: DataBuffer, tensor: Tensor) -> int:
        if buffer.address == 0:
            return codes.INVALID_PARAM
        if not is_device(buffer.address):
            return codes.GE_DYNAMIC_INPUT_ADDR_INVALID
        if om.gears:
            return codes.SUCCESS  # the size check is skipped
        exact = om.aipp is not None and tensor.name == om.picture.name
        if buffer.size < tensor.size or (exact and buffer.size != tensor.size):
            return codes.GE_EXEC_MODEL_DATA_SIZE_INVALID
        return codes.SUCCESS

    def _task(self, model: LoadedModel, fed: Dataset, made: Dataset) -> Task:
        machine, om = self._m, model.facts.om
        device = model.context.device
        batch = (fed.gear or om.largest) if om.gears else om.largest
        device.runs += 1
        device.lost_bytes += machine.options.leak_bytes_per_run
        label = Label("execute", device.runs)
        addresses = [b.address for b in fed.buffers]
        results = [b.address for b in made.buffers]
        for address in addresses:
            upload = machine.uploads.pop(address, None)
            if upload is not None:
                upload.batch = label.batch
        if len(machine.written_by) > MOST_LABELS:
            machine.written_by.clear()
        for address in results:
            machine.written_by[address] = label.batch
        service_ms = service_time_ms(machine.options.service or om.service_ms, batch)
        duration_ns: int | None = 0 if service_ms is None else int(service_ms * 1e6)
        if service_ms is None and not machine.clock.virtual and machine.computer.takes_time:
            duration_ns = None
        task = Task(WORK, device.engines["compute"], duration_ns)
        task.label = label
        set_gear = fed.gear is not None

        def effect() -> None:
            count = self._gear(om, addresses[1]) if om.gears and set_gear else batch
            picture = self._array(addresses[0], om.picture.shape, om.picture.dtype, count)
            rooms = [self._array(a, t.shape, t.dtype, count) for a, t in zip(results, om.results, strict=True)]
            if picture is not None and all(room is not None for room in rooms):
                machine.computer.run(om, picture, [room for room in rooms if room is not None], count)

        task.effect = effect
        model.pending = task
        return task

    def _gear(self, om: OmDescription, address: int) -> int:
        """What stands in the device's shape buffer when the run begins."""
        view = self._m.book.view(address, 4)
        gear = 0 if view is None else int.from_bytes(view.tobytes(), "little")
        return gear if gear in om.gears else om.largest

    def _array(self, address: int, shape: tuple[int, ...], dtype: str, batch: int) -> NDArray[Any] | None:
        size = batch * math.prod(shape) * np.dtype(dtype).itemsize
        view = self._m.book.view(address, size)
        return None if view is None else view.view(dtype).reshape(batch, *shape)
