"""Owns the first runs of a model: real ones over noise, with every batch that it has. Does not own streams or lanes.

They run before the pipeline starts, so they may block: synchronous copies and runs, in the context of the instance.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.ascend.buffers import Bindings, bind_chunk, host_rows
from stages.accelerators.ascend.constants import DEVICE_TO_HOST, HOST_TO_DEVICE
from stages.accelerators.ascend.feeding import feeder_of
from stages.accelerators.ascend.layout import lay_out
from stages.accelerators.ascend.loaded import LoadedModel
from stages.accelerators.ascend.owned import Owner


def warm_up(owner: Owner, model: LoadedModel, model_id: int, *, every_batch: bool) -> list[NDArray[Any]]:
    """Run an instance once with its smallest batch, or with each; the outputs of one frame of noise."""
    facts, acl = model.facts, owner.acl
    assert facts is not None
    feeder = feeder_of(model.spec, model.om)
    frame = np.random.default_rng(0).integers(0, 256, (model.spec.height, model.spec.width, 3), np.uint8)
    largest = facts.most_frames if every_batch else facts.batches[0]
    fed = np.zeros((largest, *feeder.input_shape), feeder.dtype)
    for row in fed:
        feeder.write(frame, row)
    outputs = [np.zeros(tensor.size_bytes, np.uint8) for tensor in model.outputs]
    layout = lay_out(1, facts.picture.size_bytes, facts.shape_bytes, [t.size_bytes for t in model.outputs])
    with ExitStack() as stack:
        base = stack.enter_context(owner.device_memory(f"{model.spec.name}: warm-up", layout.device_bytes))
        acl.rt.memset(base, layout.device_bytes, 0, layout.device_bytes)
        chunk: Bindings = bind_chunk(owner, stack, model, layout.chunks[0], base)
        acl.rt.memcpy(chunk.picture, chunk.picture_bytes, fed.ctypes.data, fed.nbytes, HOST_TO_DEVICE)
        for batch in facts.batches if every_batch else facts.batches[:1]:
            if facts.shape_index is not None:
                acl.mdl.set_dynamic_batch_size(model_id, chunk.inputs, facts.shape_index, batch)
            acl.mdl.execute(model_id, chunk.inputs, chunk.outputs)
        for address, output in zip(chunk.results, outputs, strict=True):
            acl.rt.memcpy(output.ctypes.data, output.nbytes, address, output.nbytes, DEVICE_TO_HOST)
    rows = [host_rows(output, tensor, wanted, facts.most_frames) for output, tensor, wanted in
            zip(outputs, model.outputs, model.spec.outputs, strict=True)]  # fmt: skip
    return [row[0].astype(wanted.dtype) for row, wanted in zip(rows, model.spec.outputs, strict=True)]
