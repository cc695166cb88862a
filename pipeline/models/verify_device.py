"""Owns whether a device's own file of a model gives what its ONNX file gives on the CPU, and if not, why.

Two processes: ``run_on`` goes with the device, ``judge`` loads ONNX Runtime; neither needs the other's libraries. The
cause is looked for as between two models: the ONNX file is fed in other ways, and the one that comes close names it.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.models.verify_against import EXPLAINED, SMALL, differences, distance
from pipeline.models.verify_run import Trial
from pipeline.models.verify_variants import other_ways
from pipeline.models.verify_views import Picture, colour_chart
from stages.accelerators.accelerator import Device
from stages.errors import DeviceFailed, UserError
from stages.letterbox import geometry, place
from stages.model import ModelSpec

PICTURES: Final = 2  # of the colour chart: of plain and of strong colours
LONGEST_S: Final = 60.0
LOOK_S: Final = 0.001

Raw = list[list[NDArray[Any]]]  # outputs of one frame each, by picture and output


@lru_cache(maxsize=1)
def pictures() -> tuple[Picture, ...]:
    """What both are run on."""
    return tuple(colour_chart()[:PICTURES])


def run_on(device: Device, model: ModelSpec) -> Raw:
    """The raw outputs of the device, on which the model is loaded and a seat is free, in the calling thread.

    Raises DeviceFailed.
    """
    found: Raw = []
    lanes = device.lanes(1)
    try:
        for picture in pictures():
            height, width = picture.shape[:2]
            where = geometry(width, height, model.width, model.height, model.placement, scale_up=model.scale_up)
            frame = np.empty((model.height, model.width, 3), np.uint8)
            ordered = picture if model.channels == "rgb" else np.ascontiguousarray(picture[:, :, ::-1])
            place(ordered, where, model.pad_value, frame)
            outputs = [np.zeros((1, *tensor.shape), tensor.dtype) for tensor in model.outputs]
            lanes.submit(0, model.name, [frame], outputs)
            until_s = time.monotonic() + LONGEST_S
            while not (ended := lanes.finished()):
                if time.monotonic() > until_s:
                    raise DeviceFailed(f"model {model.name}: a run of a drawn picture has not ended in {LONGEST_S:g} s")
                time.sleep(LOOK_S)
            result = ended[0][1]
            if isinstance(result, Exception):
                raise DeviceFailed(f"model {model.name}: a run of a drawn picture failed: {result}") from result
            found.append([output[0] for output in outputs])
    finally:
        lanes.close()
    return found


def judge(model: ModelSpec, device: str, given: Raw) -> str:
    """A line on how near ``given`` is to what the ONNX file gives.

    Raises UserError when the device gives what the ONNX file gives if it is fed in another way: then its own file was
    made wrongly. An ONNX file that contradicts its description is no fault of the device, which does not run it.
    """
    trial = Trial(model)

    def apart(fed: ModelSpec) -> float:
        return distance(differences(model, [trial.raw(fed, picture) for picture in pictures()], given))

    try:
        trial.open()
        base = apart(model)
    except UserError as error:
        return f"{model.name}: not held against its ONNX file: {'; '.join(error.problems)}"
    told = f"its numbers differ from those of the ONNX file by {base:.2g} of their size, on drawn pictures"
    if base <= SMALL:
        return f"{model.name}: {told}"
    ways = {what: fed for what, fed in other_ways(model).items() if not what.startswith("placement")}  # as on the CPU
    tried = {what: apart(fed) for what, fed in ways.items()}
    best = min(tried, key=lambda what: tried[what])
    if tried[best] <= base * EXPLAINED:
        raise UserError(
            f"model {model.name}: on {device} {told}, and by {tried[best]:.2g} if that is fed with {best}: "
            f"{_blame(best)}"
        )
    nv12 = model.om is not None and model.om.aipp == "nv12"
    may = "pictures as NV12, which has fewer colours, and INT8 may do that" if nv12 else "INT8 may do that"
    return (
        f"{model.name}: {told}; {may}, else it was converted from another file: compare what is found with "
        "`--device cpu`"
    )


def _blame(way: str) -> str:
    if way.startswith("channels"):
        return "red and blue are exchanged; correct `aipp`, or rbuv_swap_switch in the AIPP file, and convert it again"
    return (
        "what scales the pixels differs; correct mean_chn, min_chn and var_reci_chn in the AIPP file, or `mean` and "
        "`std` in the description"
    )
