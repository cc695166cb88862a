"""Owns the rules of models, datasets and data buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.copy_rules import CopyRules
from stages.accelerators.aclsim.checker.memory_rules import ALIGN, MemoryRules, Range
from stages.accelerators.aclsim.checker.model_facts import read_facts
from stages.accelerators.aclsim.checker.shadows import (
    BlockShadow,
    BufferShadow,
    BufferSize,
    DatasetShadow,
    ModelShadow,
    StreamShadow,
)
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.checker.stream_rules import StreamRules
from stages.accelerators.aclsim.violations import (
    GearChanged,
    GearNotSet,
    Misaligned,
    ModelContext,
    ModelLoadedTwice,
    ModelOnTwoStreams,
    UnloadedInUse,
    UseAfterFree,
    WrongSize,
)


class ModelRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State, streams: StreamRules, memory: MemoryRules, copies: CopyRules) -> None:
        self._s = state
        self._streams = streams
        self._memory = memory
        self._copies = copies

    # ---- loading ---------------------------------------------------------------------------------------------------

    def before_load_from_file(self, path: str) -> None:
        """In a context."""
        self._before_load(())

    def after_load_from_file(self, result: tuple[int, int], path: str) -> None:
        """A model lives."""
        self._loaded(result, path, ())

    def before_load_from_mem(self, address: int, size: int) -> None:
        """In a context, from host memory."""
        self._before_load(())
        self._memory.host_range(address, size, "model")

    def after_load_from_mem(self, result: tuple[int, int], address: int, size: int) -> None:
        """A model lives."""
        self._loaded(result, f"memory at {address:#x}", ())

    def before_load_from_file_with_mem(self, path: str, *memory: int) -> Any:
        """In a context, into memory of a device."""
        return self._before_load(memory)

    def after_load_from_file_with_mem(self, result: tuple[int, int], path: str, *memory: int) -> None:
        """A model lives."""
        self._loaded(result, path, self._s.me.token)

    def before_load_from_mem_with_mem(self, address: int, size: int, *memory: int) -> Any:
        """In a context, from host memory, into memory of a device."""
        self._memory.host_range(address, size, "model")
        return self._before_load(memory)

    def after_load_from_mem_with_mem(self, result: tuple[int, int], address: int, size: int, *memory: int) -> None:
        """A model lives."""
        self._loaded(result, f"memory at {address:#x}", self._s.me.token)

    def _before_load(self, memory: tuple[int, ...]) -> tuple[Range | None, ...]:
        self._s.check_callback()
        self._s.context()
        found: list[Range | None] = []
        for address, size, what in zip(memory[::2], memory[1::2], ("work memory", "weight memory"), strict=False):
            touched = self._memory.device_range(address, size, what) if address else None
            if touched is not None:
                self._memory.host_touches(touched, write=True)
            found.append(touched)
        return tuple(found)

    def _loaded(self, result: tuple[int, int], path: str, memory: tuple[Range | None, ...]) -> None:
        model_id, code = result
        context = self._s.me.context
        if code != codes.SUCCESS or context is None:
            return
        name = str(Path(path).resolve()) if not path.startswith("memory at") else path
        model = ModelShadow(model_id, self._s.site, context, name)
        if memory:
            model.work, model.weights = memory[0], memory[1]
        twin = next((m for m in self._s.models.values() if self._is_twin(m, model)), None)
        self._s.add(model)
        for part in (model.work, model.weights):
            if part is not None:
                part[0].models.append(model)
        model.facts = read_facts(self._s.inspect, model_id)
        if twin is not None:
            self._s.tell(
                ModelLoadedTwice,
                f"{name} is loaded on device {context.device.index} already, and pays for its weights again",
                twin.site,
                "load with mdl.load_from_file_with_mem and the same weight memory",
            )

    @staticmethod
    def _is_twin(known: ModelShadow, model: ModelShadow) -> bool:
        if known.path != model.path or known.context.device is not model.context.device:
            return False
        if known.weights is None or model.weights is None:
            return True
        return known.weights[0] is not model.weights[0] or known.weights[1] != model.weights[1]

    def before_unload(self, model_id: int) -> None:
        """In its context, when nothing uses it."""
        state = self._s
        state.check_callback()
        model = self.model(model_id)
        if model is None:
            return
        self._check_context(model, "unloaded")
        site = model.in_use()
        if (site is not None or model.executing) and not model.context.device.lost:
            state.tell(
                UnloadedInUse,
                f"{model} is unloaded while a run of it is not known to be over",
                site or model.site,
                "synchronise the stream of its last run first",
            )

    def after_unload(self, code: int, model_id: int) -> None:
        """It is gone."""
        model = self._s.models.get(model_id)
        if model is None:
            return
        if code != codes.SUCCESS:
            model.refused = code
            return
        for part in (model.work, model.weights):
            if part is not None and model in part[0].models:
                part[0].models.remove(model)
        self._s.remove(model)

    def model(self, model_id: int) -> ModelShadow | None:
        """A loaded model. A number that never was one is left to the module."""
        model = self._s.models.get(model_id)
        if model is None:
            gone = self._s.tombs.site(ModelShadow.kind, model_id)
            if gone:
                self._s.tell(UseAfterFree, f"model {model_id} was unloaded", gone, "unload it after its last run")
        return model

    def _check_context(self, model: ModelShadow, verb: str) -> None:
        context = self._s.context()
        if context is not None and context is not model.context:
            self._s.tell(
                ModelContext,
                f"{model} is {verb} in another context than it was loaded in",
                model.site,
                "load, execute and unload a model in one context: rt.set_context in every thread that uses it",
            )

    # ---- running ---------------------------------------------------------------------------------------------------

    def before_set_dynamic_batch_size(self, model_id: int, handle: int, index: int, batch: int) -> Any:
        """A dataset with which nothing is pending."""
        self._s.check_callback()
        model = self.model(model_id)
        dataset = self._s.want(handle, DatasetShadow)
        if model is None or dataset is None:
            return None
        site = dataset.in_use()
        if site is not None and not model.context.device.lost:
            self._s.tell(
                GearChanged,
                f"the batch of {dataset} is set while a run that was queued with it is not known to be over",
                site,
                "use one dataset and one shape buffer per buffer set, and set its batch when its last run is over",
            )
        if index < len(dataset.buffers) and dataset.buffers[index].address:
            buffer = dataset.buffers[index]
            touched = self._memory.device_range(buffer.address, min(8, buffer.size), "shape buffer")
            if touched is not None and site is None:
                self._memory.host_touches(touched, write=True)
        return dataset

    def after_set_dynamic_batch_size(self, code: int, model_id: int, handle: int, index: int, batch: int) -> None:
        """It is set."""
        dataset: DatasetShadow | None = self._s.me.token
        if code == codes.SUCCESS and dataset is not None:
            dataset.gear = batch

    def before_execute(self, model_id: int, inputs: int, outputs: int) -> Any:
        """At once: nothing that is queued may touch its buffers."""
        state = self._s
        state.check_callback()
        state.context()
        self._copies.count_synchronous()
        model = self.model(model_id)
        found = self._datasets(model, inputs, outputs, allocate=True)
        if model is None or found is None:
            return None
        self._check_context(model, "executed")
        site = model.in_use()
        if site is not None or model.executing:
            state.tell(
                ModelOnTwoStreams,
                f"{model} is executed while another run of it is not known to be over",
                site or model.site,
                "synchronise its stream first, or load it again with shared weights",
            )
        if model.work is not None:
            found.append((model.work, True))
        for touched, write in found:
            self._memory.host_touches(touched, write=write, run=True)
        model.executing += 1
        return model

    def after_execute(self, code: int, model_id: int, inputs: int, outputs: int) -> None:
        """It is over."""
        model: ModelShadow | None = self._s.me.token
        if model is None:
            return
        model.executing -= 1
        dataset = self._s.handles.get(outputs)
        if code == codes.SUCCESS and isinstance(dataset, DatasetShadow):
            self._note_allocated(model, dataset)

    def _note_allocated(self, model: ModelShadow, dataset: DatasetShadow) -> None:
        """The system allocated outputs of (0, 0): the user frees them."""
        for buffer in dataset.buffers:
            if buffer.address == 0:
                buffer.address = int(self._s.inspect.get_data_buffer_addr(buffer.handle))
                buffer.size = int(self._s.inspect.get_data_buffer_size_v2(buffer.handle))
                if buffer.address and self._s.block_of(buffer.address) is None:
                    block = BlockShadow(buffer.address, self._s.site, "malloc", buffer.size, model.context.device)
                    block.ranges.mark_written(0, buffer.size)
                    self._s.add(block)

    def before_execute_async(self, model_id: int, inputs: int, outputs: int, handle: int) -> StreamShadow | None:
        """In stream order; one model on one stream."""
        state = self._s
        stream = state.stream(handle)
        model = self.model(model_id)
        found = self._datasets(model, inputs, outputs, allocate=False)
        if stream is None or model is None or found is None:
            return None
        if model.context is not state.me.context:
            self._check_context(model, "executed")
        clock = stream.clock
        for other, (tick, site) in model.uses.items():
            if other is not clock and tick > other.done:
                state.tell(
                    ModelOnTwoStreams,
                    f"{model} is queued on {stream} while a run on another stream is not known to be over",
                    site,
                    "run one model on one stream; load it again with shared weights for another stream",
                )
        queued = self._streams.queued(handle)
        if queued is None:
            return None
        for touched, write in found:
            self._memory.queued_touch(queued, touched, write=write)
        if model.work is not None:
            self._memory.queued_touch(queued, model.work, write=True)
        if model.weights is not None:
            self._memory.queued_touch(queued, model.weights, write=False)
        mark = (clock.tick, stream.thread_site)
        if len(model.uses) > 1:
            model.uses.clear()
        model.uses[clock] = mark
        for dataset_handle in (inputs, outputs):
            dataset = state.handles[dataset_handle]
            dataset.uses[clock] = mark
            assert isinstance(dataset, DatasetShadow)
            for buffer in dataset.buffers:
                buffer.uses[clock] = mark
        return queued

    def after_execute_async(self, code: int, *_: int) -> None:
        """Queued, or not."""
        if code != codes.SUCCESS:
            self._streams.refused()

    def _datasets(
        self, model: ModelShadow | None, inputs: int, outputs: int, *, allocate: bool
    ) -> list[tuple[Range, bool]] | None:
        """What a run reads and writes; tells what is wrong with its datasets."""
        fed, made = self._s.want(inputs, DatasetShadow), self._s.want(outputs, DatasetShadow)
        if fed is None or made is None or model is None:
            return None
        facts = model.facts
        found: list[tuple[Range, bool]] = []
        for dataset, wanted, write in ((fed, facts.inputs, False), (made, facts.outputs, True)):
            side = "outputs" if write else "inputs"
            if wanted is not None and len(dataset.buffers) != len(wanted):
                self._s.tell(
                    WrongSize,
                    f"{dataset} has {len(dataset.buffers)} data buffers, {model} has {len(wanted)} {side}",
                    dataset.site,
                    "add a data buffer for each, in order; a dynamic batch has an input of its own",
                )
                return None
            for index, buffer in enumerate(dataset.buffers):
                size = wanted[index] if wanted is not None else BufferSize("", buffer.size)
                touched = self._buffer_range(buffer, size, allocate=allocate and write)
                if touched is not None:
                    found.append((touched, write))
        if facts.gears and fed.gear is None and not fed.told:
            fed.told = True
            self._s.tell(
                GearNotSet,
                f"the batch of {fed} was never set: the largest gear, {max(facts.gears)}, runs",
                fed.site,
                "call mdl.set_dynamic_batch_size for each dataset before it is executed",
            )
        return found

    def _buffer_range(self, buffer: BufferShadow, wanted: BufferSize, *, allocate: bool) -> Range | None:
        state = self._s
        if state.handles.get(buffer.handle) is not buffer:
            state.tell_wrong_handle(buffer.handle, BufferShadow)
            return None
        if buffer.address == 0 and (allocate or buffer.size == 0):
            return None  # the system allocates it, or the module refuses it
        what = f"buffer of {wanted.name}" if wanted.name else "data buffer"
        if buffer.size < wanted.size or (wanted.exact and buffer.size != wanted.size):
            state.tell(
                WrongSize,
                f"the {what} has {buffer.size} bytes, the model wants {wanted.size}",
                buffer.site,
                "take sizes from mdl.get_input_size_by_index and mdl.get_output_size_by_index",
            )
            return None
        touched = self._memory.device_range(buffer.address, buffer.size, what)
        if touched is not None and buffer.address % ALIGN:
            state.tell(
                Misaligned,
                f"the {what} at {buffer.address:#x} is no multiple of {ALIGN}",
                buffer.site,
                f"let pieces of a block begin at multiples of {ALIGN}",
            )
        return None if touched is None else (touched[0], touched[1], touched[1] + (wanted.size or buffer.size))
