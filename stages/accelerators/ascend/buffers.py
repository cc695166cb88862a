"""Owns the memory of one executor: pinned pictures per lane, sets of device and pinned result buffers. Queues no work.

Everything is allocated when it is opened, from the models' sizes, as one device block and two pinned blocks that are
cut up; nothing in the loop. Models share them, for a lane runs one at a time. Datasets are built once per set, model
and chunk.

Results are copied once more, from pinned memory into the output slot: slots are shared memory of the arena, and this
card can't register memory of others for asynchronous copies (host_register is not supported on the 310P).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.ascend.feeding import Feeder, feeder_of
from stages.accelerators.ascend.layout import BatchLayout, ChunkLayout, Piece, lay_out, padded
from stages.accelerators.ascend.loaded import LoadedModel
from stages.accelerators.ascend.om import OmFacts, OmTensor, tensor_bytes
from stages.accelerators.ascend.owned import Owner
from stages.model import TensorSpec


@dataclass(frozen=True, slots=True)
class Bindings:
    """One run's device memory as the vendor takes it: two datasets, and the addresses behind them."""

    inputs: int
    outputs: int
    picture: int
    picture_bytes: int
    results: tuple[int, ...]  # in the order of the model's description


def bind_chunk(owner: Owner, stack: ExitStack, model: LoadedModel, chunk: ChunkLayout, base: int) -> Bindings:
    """Build the datasets of one run over a block at ``base``."""
    facts, name = model.facts, model.spec.name
    assert facts is not None

    def buffer(piece: Piece) -> int:
        return stack.enter_context(owner.data_buffer(name, base + piece.offset, piece.size_bytes))

    by_index = dict(zip((tensor.index for tensor in model.outputs), chunk.outputs, strict=True))
    ins = [buffer(chunk.shape if index == facts.shape_index and chunk.shape else chunk.picture)
           for index in range(facts.inputs)]  # fmt: skip
    outs = [buffer(by_index[index]) for index in range(len(facts.outputs))]
    inputs, outputs = (stack.enter_context(owner.dataset(f"{name}: {kind}")) for kind in ("inputs", "outputs"))
    for dataset, buffers in ((inputs, ins), (outputs, outs)):
        for handle in buffers:
            owner.acl.mdl.add_dataset_buffer(dataset, handle)
    return Bindings(
        inputs,
        outputs,
        base + chunk.picture.offset,
        chunk.picture.size_bytes,
        tuple(base + piece.offset for piece in chunk.outputs),
    )


def host_rows(memory: NDArray[np.uint8], tensor: OmTensor, wanted: TensorSpec, frames: int) -> NDArray[Any]:
    """An output in host memory as (frames, *shape) of the type that the OM gives."""
    size_bytes = frames * tensor_bytes(wanted.shape, tensor.dtype)
    return memory[:size_bytes].view(tensor.dtype).reshape(frames, *wanted.shape)


class LaneModel:
    """One model as one executor runs it."""

    def __init__(self, model: LoadedModel) -> None:
        assert model.facts is not None
        self.model = model
        self.spec = model.spec
        self.facts: OmFacts = model.facts
        self.max_batch = model.max_batch
        self.feeder: Feeder = feeder_of(model.spec, model.om)
        self.frame_bytes = tensor_bytes(self.feeder.input_shape, self.feeder.dtype.name)
        self.row_bytes = [
            tensor_bytes(wanted.shape, tensor.dtype)
            for wanted, tensor in zip(model.spec.outputs, model.outputs, strict=True)
        ]
        self.layout: BatchLayout = lay_out(
            -(-self.max_batch // self.facts.most_frames),
            self.facts.picture.size_bytes,
            self.facts.shape_bytes,
            [tensor.size_bytes for tensor in model.outputs],
        )
        self.estimate_ns = 0.0  # how long a batch took lately

    def chunks(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """Runs that ``rows`` frames make: number, first row, rows."""
        most = self.facts.most_frames
        for number, start in enumerate(range(0, rows, most)):
            yield number, start, min(most, rows - start)


class Pictures:
    """The pinned pictures of one lane, by model and chunk."""

    def __init__(self, memory: NDArray[np.uint8], address: int, models: Sequence[LaneModel]) -> None:
        self.address = address
        self.rows: dict[str, list[NDArray[Any]]] = {
            model.spec.name: [
                memory[piece.offset : piece.offset + model.facts.most_frames * model.frame_bytes]
                .view(model.feeder.dtype)
                .reshape(model.facts.most_frames, *model.feeder.input_shape)
                for piece in model.layout.pictures
            ]
            for model in models
        }


class BufferSet:
    """Device memory for one batch of any model, pinned memory for its results, its events."""

    def __init__(self, index: int, result_address: int) -> None:
        self.index = index
        self.result_address = result_address
        self.bindings: dict[str, list[Bindings]] = {}
        self.results: dict[str, list[list[NDArray[Any]]]] = {}  # per model, chunk and output: all rows
        self.gears: dict[tuple[str, int], int] = {}  # by model and chunk: the batch that its dataset says
        self.model_ids: dict[str, int] = {}
        self.in_ready = 0
        self.done = 0
        self.ended: tuple[int, int] = (0, 0)  # two, in turn: see lanes
        self.turn = 0


class Buffers:
    """All of one executor's. Opened and closed with the executor's context current."""

    def __init__(self, owner: Owner, name: str, models: Sequence[LaneModel], lanes: int, sets: int) -> None:
        self._owner = owner
        self._name = name
        self._models = models
        self._lanes = lanes
        self._sets = sets
        self._outer = ExitStack()
        self._inner = ExitStack()
        self.lanes: list[Pictures] = []
        self.sets: list[BufferSet] = []

    def open_pictures(self) -> None:
        """Allocate what lanes stage their frames in; it outlives the sets, so that a batch can be run again."""
        each = padded(max(model.layout.pictures_bytes for model in self._models))
        memory, base = self._pinned(self._outer, "pictures", each * self._lanes)
        for lane in range(self._lanes):
            part = memory[lane * each : (lane + 1) * each]
            self.lanes.append(Pictures(part, base + lane * each, self._models))

    def open_sets(self, instances: dict[str, tuple[int, ...]]) -> None:
        """Allocate the sets. ``instances``: model ids; one for all sets, or one for each."""
        stack, owner = self._inner, self._owner
        device_bytes = padded(max(model.layout.device_bytes for model in self._models))
        result_bytes = padded(max(model.layout.results_bytes for model in self._models))
        memory, host = self._pinned(stack, "results", result_bytes * self._sets)
        total = device_bytes * self._sets
        base = stack.enter_context(owner.device_memory(f"{self._name}: buffers", total))
        owner.acl.rt.memset(base, total, 0, total)  # what pads a batch is never what somebody left there
        for index in range(self._sets):
            one = BufferSet(index, host + index * result_bytes)
            part = memory[index * result_bytes : (index + 1) * result_bytes]
            for model in self._models:
                self._bind(stack, one, model, part, base + index * device_bytes)
                ids = instances[model.spec.name]
                one.model_ids[model.spec.name] = ids[index % len(ids)]
            self.sets.append(one)

    def _bind(self, stack: ExitStack, one: BufferSet, model: LaneModel, part: NDArray[np.uint8], base: int) -> None:
        name, layout = model.spec.name, model.layout
        one.bindings[name] = [bind_chunk(self._owner, stack, model.model, chunk, base) for chunk in layout.chunks]
        one.results[name] = [
            [
                host_rows(part[piece.offset : piece.offset + piece.size_bytes], tensor, wanted, model.facts.most_frames)
                for piece, tensor, wanted in zip(pieces, model.model.outputs, model.spec.outputs, strict=True)
            ]
            for pieces in layout.results
        ]

    def close_sets(self) -> None:
        """Give the sets back: datasets, buffers, device memory, results."""
        self.sets.clear()
        self._inner.close()
        self._inner = ExitStack()

    def close(self) -> None:
        """Give everything back; may be called twice."""
        try:
            self.close_sets()
        finally:
            self.lanes.clear()
            self._outer.close()
            self._outer = ExitStack()

    def _pinned(self, stack: ExitStack, what: str, size_bytes: int) -> tuple[NDArray[np.uint8], int]:
        address = stack.enter_context(self._owner.pinned_memory(f"{self._name}: {what}", size_bytes))
        # a view over the vendor's memory; it owns nothing, and is dropped before the memory is given back
        view = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
        view[:] = 0
        return view, address
