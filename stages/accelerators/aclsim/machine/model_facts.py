"""Owns what a simulated model tells of itself, and its loads. Does not own the calls that ask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.device import Context
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.memory import Block
from stages.accelerators.aclsim.machine.timeline import Task
from stages.accelerators.aclsim.om import OmDescription

GEAR_BYTES = 8  # of the shape buffer; four are enough


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
