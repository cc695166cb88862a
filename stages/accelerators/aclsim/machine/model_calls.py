"""Owns the calls of models, their descriptions and datasets, as the vendor's module answers them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.device import Context, DataBuffer, Dataset, Plain
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.memory import Block, is_device
from stages.accelerators.aclsim.machine.timeline import WORK, Task
from stages.accelerators.aclsim.machine.trace import Label
from stages.accelerators.aclsim.om import OmDescription, completed, service_time_ms
from stages.errors import UserError

GEAR_BYTES = 8  # of the shape buffer; four are enough
DIMS_MOST = 128


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as a description tells it; ``dims`` with -1 for an open batch."""

    name: str
    dims: tuple[int, ...]
    size: int
    dtype: str
    layout: int

    def as_dict(self, batch: int | None = None) -> dict[str, Any]:
        """As the module gives dims; ``batch`` stands in for the open one."""
        dims = [batch if d == -1 and batch is not None else d for d in self.dims]
        return {"name": self.name, "dimCount": len(dims), "dims": dims}


class ModelFacts:
    """What a description tells of a model."""

    def __init__(self, om: OmDescription) -> None:
        batch = -1 if om.gears else om.largest
        self.om = om
        picture = om.picture
        layout = codes.FORMAT_NHWC if om.aipp or not om.planes else codes.FORMAT_NCHW
        self.inputs = [
            Tensor(picture.name, (batch, *picture.shape), picture.frame_bytes * om.largest, picture.dtype, layout)
        ]
        if om.gears:
            self.inputs.append(Tensor(codes.DYNAMIC_BATCH_INPUT, (1,), GEAR_BYTES, "int64", codes.FORMAT_ND))
        self.outputs = [
            Tensor(t.name, (batch, *t.shape), t.frame_bytes * om.largest, t.dtype, codes.FORMAT_ND) for t in om.results
        ]


class LoadedModel:
    """One load. ``blocks``: memory that the system manages for it."""

    def __init__(
        self, model_id: int, facts: ModelFacts, context: Context, blocks: list[Block], machine: Machine
    ) -> None:
        self.model_id = model_id
        self.facts = facts
        self.context = context
        self.gear = facts.om.largest
        self.pending: Task | None = None
        self._blocks = blocks
        self._m = machine

    @property
    def running(self) -> bool:
        """Whether a run of it is queued or under way."""
        return self.pending is not None and self.pending.end_ns < 0

    def release(self) -> None:
        """It is gone, with its memory."""
        for block in self._blocks:
            if self._m.book.at(block.address) is block:
                self._m.give(block)
        self._m.models.pop(self.model_id, None)


class LoadCalls:
    """``acl.mdl``: loading."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def load_from_file(self, path: str) -> tuple[int, int]:
        """The system manages memory."""
        om, code = self._read(path)
        return (0, code) if om is None else self._load(om, (0, 0, 0, 0))

    def load_from_mem(self, address: int, size: int) -> tuple[int, int]:
        """From host memory."""
        om, code = self._parse(address, size)
        return (0, code) if om is None else self._load(om, (0, 0, 0, 0))

    def load_from_file_with_mem(
        self, path: str, work: int, work_size: int, weight: int, weight_size: int
    ) -> tuple[int, int]:
        """0 leaves a part to the system."""
        om, code = self._read(path)
        return (0, code) if om is None else self._load(om, (work, work_size, weight, weight_size))

    def load_from_mem_with_mem(  # noqa: PLR0917  the vendor's
        self, address: int, size: int, work: int, work_size: int, weight: int, weight_size: int
    ) -> tuple[int, int]:
        """Both."""
        om, code = self._parse(address, size)
        return (0, code) if om is None else self._load(om, (work, work_size, weight, weight_size))

    def query_size(self, path: str) -> tuple[int, int, int]:
        """Bytes of work and weight memory."""
        om, code = self._read(path)
        return (0, 0, code) if om is None else (*om.memory_bytes, codes.SUCCESS)

    def query_size_from_mem(self, address: int, size: int) -> tuple[int, int, int]:
        """Bytes of work and weight memory."""
        om, code = self._parse(address, size)
        return (0, 0, code) if om is None else (*om.memory_bytes, codes.SUCCESS)

    def unload(self, model_id: int) -> int:
        """Refused while it runs, as newer versions do."""
        model = self._m.models.get(model_id)
        if model is None:
            return codes.GE_EXEC_MODEL_ID_INVALID
        if model.running and not model.context.device.lost:
            return codes.RT_MODEL_RUNNING
        model.release()
        return codes.SUCCESS

    def _read(self, path: str) -> tuple[OmDescription | None, int]:
        from pathlib import Path

        if not Path(path).is_file():
            self._say(f"OM {path}: there is no such file")
            return None, codes.GE_EXEC_MODEL_PATH_INVALID
        try:
            return completed(OmDescription.read(path)), codes.SUCCESS
        except UserError as error:
            self._say(str(error))
            return None, codes.PARSE_MODEL

    def _parse(self, address: int, size: int) -> tuple[OmDescription | None, int]:
        view = self._m.book.view(address, size) if address and size else None
        if view is None or is_device(address):
            return None, codes.INVALID_PARAM
        try:
            return completed(OmDescription.parse(view.tobytes().decode(), "./memory.om")), codes.SUCCESS
        except (UserError, UnicodeDecodeError) as error:
            self._say(str(error))
            return None, codes.PARSE_MODEL

    def _say(self, message: str) -> None:
        self._m.threads.current().message = message

    def _load(self, om: OmDescription, memory: tuple[int, int, int, int]) -> tuple[int, int]:
        context = self._m.context()
        if context is None:
            return 0, codes.RT_CONTEXT_NULL
        if context.device.lost:
            return 0, context.device.lost
        if om.soc != self._m.options.soc:
            self._say(f"the OM is for {om.soc}, this device is an {self._m.options.soc}")
            return 0, codes.GE_LOAD_MODEL
        blocks: list[Block] = []
        for (address, size), wanted in zip((memory[:2], memory[2:]), om.memory_bytes, strict=True):
            if address:
                if size < wanted or self._m.book.of(address, wanted) is None:
                    return self._refuse(blocks, codes.GE_PARAM_INVALID)
                continue
            block = self._m.take(context.device, wanted, codes.MALLOC_HUGE_FIRST, "model")
            if block is None:
                return self._refuse(blocks, codes.RT_MEMORY_ALLOCATION)
            blocks.append(block)
        try:
            self._m.computer.prepare(om)
        except UserError as error:
            self._say(str(error))
            return self._refuse(blocks, codes.PARSE_MODEL)
        model = LoadedModel(self._m.new_model_id(), ModelFacts(om), context, blocks, self._m)
        self._m.models[model.model_id] = model
        return model.model_id, codes.SUCCESS

    def _refuse(self, blocks: list[Block], code: int) -> tuple[int, int]:
        for block in blocks:
            self._m.give(block)
        return 0, code


class DescCalls:
    """``acl.mdl``: descriptions."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def create_desc(self) -> int:
        """An empty one."""
        desc = Plain(self._m.new_handle(), "desc")
        self._m.objects[desc.handle] = desc
        return desc.handle

    def destroy_desc(self, handle: int) -> int:
        """Does nothing to the model."""
        if self._desc(handle) is None:
            return codes.INVALID_PARAM
        del self._m.objects[handle]
        return codes.SUCCESS

    def get_desc(self, handle: int, model_id: int) -> int:
        """Of a loaded model."""
        desc, model = self._desc(handle), self._m.models.get(model_id)
        if desc is None:
            return codes.INVALID_PARAM
        if model is None:
            return codes.GE_EXEC_MODEL_ID_INVALID
        desc.value = (model.facts, model)
        return codes.SUCCESS

    def get_desc_from_file(self, handle: int, path: str) -> int:
        """Without loading."""
        desc = self._desc(handle)
        if desc is None:
            return codes.INVALID_PARAM
        om, code = LoadCalls(self._m)._read(path)
        if om is not None:
            desc.value = (ModelFacts(om), None)
        return code

    def get_desc_from_mem(self, handle: int, address: int, size: int) -> int:
        """Without loading."""
        desc = self._desc(handle)
        if desc is None:
            return codes.INVALID_PARAM
        om, code = LoadCalls(self._m)._parse(address, size)
        if om is not None:
            desc.value = (ModelFacts(om), None)
        return code

    def _desc(self, handle: int) -> Plain | None:
        found = self._m.find(handle, Plain)
        return found if found is not None and found.kind == "desc" else None

    def _tensors(self, handle: int, side: str) -> list[Tensor]:
        desc = self._desc(handle)
        if desc is None or desc.value is None:
            return []
        tensors: list[Tensor] = getattr(desc.value[0], side)
        return tensors

    def _tensor(self, handle: int, side: str, index: int) -> Tensor | None:
        tensors = self._tensors(handle, side)
        return tensors[index] if index < len(tensors) else None

    def get_num_inputs(self, desc: int) -> int:
        """With the one of the batch."""
        return len(self._tensors(desc, "inputs"))

    def get_num_outputs(self, desc: int) -> int:
        """Their number."""
        return len(self._tensors(desc, "outputs"))

    def get_input_size_by_index(self, desc: int, index: int) -> int:
        """Bytes, of the largest gear."""
        tensor = self._tensor(desc, "inputs", index)
        return tensor.size if tensor else 0

    def get_output_size_by_index(self, desc: int, index: int) -> int:
        """Bytes, of the largest gear."""
        tensor = self._tensor(desc, "outputs", index)
        return tensor.size if tensor else 0

    def _dims(self, desc: int, side: str, index: int, batch: int | None = None) -> tuple[dict[str, Any], int]:
        tensor = self._tensor(desc, side, index)
        return ({}, codes.INVALID_PARAM) if tensor is None else (tensor.as_dict(batch), codes.SUCCESS)

    def get_input_dims(self, desc: int, index: int) -> tuple[dict[str, Any], int]:
        """-1 for the open batch."""
        return self._dims(desc, "inputs", index)

    def get_input_dims_v2(self, desc: int, index: int) -> tuple[dict[str, Any], int]:
        """Such that their product is the number of bytes under AIPP."""
        return self._dims(desc, "inputs", index)

    def get_output_dims(self, desc: int, index: int) -> tuple[dict[str, Any], int]:
        """Of the largest gear."""
        found = self._desc(desc)
        largest = found.value[0].om.largest if found is not None and found.value else None
        return self._dims(desc, "outputs", index, largest)

    def get_cur_output_dims(self, desc: int, index: int) -> tuple[dict[str, Any], int]:
        """Of the gear that was set last for this model, whatever the dataset."""
        found = self._desc(desc)
        model = found.value[1] if found is not None and found.value else None
        if model is None:
            return self.get_output_dims(desc, index)
        return self._dims(desc, "outputs", index, model.gear)

    def get_input_name_by_index(self, desc: int, index: int) -> str:
        """Its name."""
        tensor = self._tensor(desc, "inputs", index)
        return tensor.name if tensor else ""

    def get_output_name_by_index(self, desc: int, index: int) -> str:
        """Its name."""
        tensor = self._tensor(desc, "outputs", index)
        return tensor.name if tensor else ""

    def get_input_data_type(self, desc: int, index: int) -> int:
        """The vendor's number."""
        tensor = self._tensor(desc, "inputs", index)
        return codes.DATA_TYPES.get(tensor.dtype, -1) if tensor else -1

    def get_output_data_type(self, desc: int, index: int) -> int:
        """The vendor's number."""
        tensor = self._tensor(desc, "outputs", index)
        return codes.DATA_TYPES.get(tensor.dtype, -1) if tensor else -1

    def get_input_format(self, desc: int, index: int) -> int:
        """NCHW 0, NHWC 1, ND 2."""
        tensor = self._tensor(desc, "inputs", index)
        return tensor.layout if tensor else -1

    def get_output_format(self, desc: int, index: int) -> int:
        """ND."""
        tensor = self._tensor(desc, "outputs", index)
        return tensor.layout if tensor else -1

    def _index(self, desc: int, side: str, name: str) -> tuple[int, int]:
        names = [t.name for t in self._tensors(desc, side)]
        return (names.index(name), codes.SUCCESS) if name in names else (0, codes.INVALID_PARAM)

    def get_input_index_by_name(self, desc: int, name: str) -> tuple[int, int]:
        """Where it is."""
        return self._index(desc, "inputs", name)

    def get_output_index_by_name(self, desc: int, name: str) -> tuple[int, int]:
        """Where it is."""
        return self._index(desc, "outputs", name)

    def get_dynamic_batch(self, desc: int) -> tuple[dict[str, Any], int]:
        """The gears; none for a fixed model."""
        found = self._desc(desc)
        if found is None or found.value is None:
            return {}, codes.INVALID_PARAM
        gears = list(found.value[0].om.gears)
        return {"batchCount": len(gears), "batch": gears}, codes.SUCCESS

    def get_dynamic_hw(self, desc: int, index: int) -> tuple[dict[str, Any], int]:
        """Never dynamic here."""
        del index
        return ({}, codes.INVALID_PARAM) if self._desc(desc) is None else ({"hwCount": 0, "hw": []}, codes.SUCCESS)

    def get_input_dynamic_gear_count(self, desc: int, index: int) -> tuple[int, int]:
        """Of dynamic dims, which are never dynamic here."""
        del index
        return 0, codes.INVALID_PARAM if self._desc(desc) is None else codes.SUCCESS

    def get_aipp_type(self, model_id: int, index: int) -> tuple[int, int, int]:
        """0 none, 1 static."""
        model = self._m.models.get(model_id)
        if model is None:
            return 0, 0, codes.GE_EXEC_MODEL_ID_INVALID
        if index >= len(model.facts.inputs):
            return 0, 0, codes.INVALID_PARAM
        return int(index == 0 and model.facts.om.aipp is not None), index, codes.SUCCESS

    def get_first_aipp_info(self, model_id: int, index: int) -> tuple[dict[str, Any] | None, int]:
        """Of static AIPP; three elements of the matrix are left out, as the binding does."""
        model = self._m.models.get(model_id)
        if model is None:
            return None, codes.GE_EXEC_MODEL_ID_INVALID
        if model.facts.om.aipp is None or index != 0:
            return None, codes.NOT_STATIC_AIPP
        return aipp_info(model.facts), codes.SUCCESS


def aipp_info(facts: ModelFacts) -> dict[str, Any]:
    """The keys of ``get_first_aipp_info``."""
    om = facts.om
    assert om.aipp is not None
    (height, width), aipp = om.size, om.aipp
    info: dict[str, Any] = {
        "inputFormat": {"YUV420SP_U8": 1, "XRGB8888_U8": 2, "RGB888_U8": 3, "YUV400_U8": 4}[aipp.input],
        "srcFormat": codes.FORMAT_NCHW if om.planes else codes.FORMAT_NHWC,
        "srcDatatype": codes.DATA_TYPES.get(om.input.dtype if om.input else "float32", 0),
        "srcDimNum": 4,
        "shapeCount": 1,
        "srcImageSizeW": width,
        "srcImageSizeH": height,
        "cscSwitch": int(aipp.input == "YUV420SP_U8"),
        "rbuvSwapSwitch": int(aipp.rbuv_swap),
        "aippExtend": 0,
    }
    for name in ("cropSwitch", "loadStartPosW", "loadStartPosH", "cropSizeW", "cropSizeH", "resizeSwitch",
                 "resizeOutputW", "resizeOutputH", "paddingSwitch", "leftPaddingSize", "rightPaddingSize",
                 "topPaddingSize", "bottomPaddingSize", "axSwapSwitch", "singleLineMode",
                 "outputBias0", "outputBias1", "outputBias2"):  # fmt: skip
        info[name] = 0
    for place in ("R0C0", "R0C1", "R1C0", "R1C1", "R1C2", "R2C2"):
        info[f"matrix{place}" if place == "R0C0" else place] = aipp.matrix[int(place[1]) * 3 + int(place[3])]
    for channel in range(4):
        mean = aipp.mean[channel] if channel < len(aipp.mean) else 0.0
        info[f"meanChn{channel}"] = int(mean)
        info[f"minChn{channel}"] = mean - int(mean)  # the part that is no whole number goes here
        info[f"varReciChn{channel}"] = aipp.var_reci[channel] if channel < len(aipp.var_reci) else 1.0
    for channel in range(3):
        info[f"inputBias{channel}"] = aipp.input_bias[channel]
    picture, inner = facts.inputs[0], om.input
    assert inner is not None
    aipp_dims = [om.largest, *inner.shape]
    info["outDims"] = [
        {"srcDims": picture.as_dict(om.largest), "srcSize": picture.size,
         "aippOutdims": {"name": inner.name, "dimCount": len(aipp_dims), "dims": aipp_dims},
         "aippOutSize": 2 * math.prod(aipp_dims)}
    ]  # fmt: skip
    return info


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
