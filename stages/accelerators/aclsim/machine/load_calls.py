"""Owns the calls that load models and describe them, as the vendor's module answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.device import Plain
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.memory import Block, is_device
from stages.accelerators.aclsim.machine.model_facts import LoadedModel, ModelFacts, Tensor, aipp_info
from stages.accelerators.aclsim.om import OmDescription, completed
from stages.errors import UserError


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
