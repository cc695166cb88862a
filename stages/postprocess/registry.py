"""Owns the names of the output layouts. Does not own any layout, nor the guessing of one from a file."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from stages.errors import UserError
from stages.model import ModelSpec
from stages.postprocess.classify import Classify
from stages.postprocess.end2end import EndToEnd
from stages.postprocess.head import Head
from stages.postprocess.nanodet import NanoDet, PicoDet
from stages.postprocess.quantised import reading_codes, with_floats
from stages.postprocess.rtdetr import RtDetr
from stages.postprocess.ssd import Ssd
from stages.postprocess.yolonas import YoloNas
from stages.postprocess.yolov5 import YoloV5
from stages.postprocess.yolov5_raw import YoloV5Raw
from stages.postprocess.yolov6 import YoloV6
from stages.postprocess.yolov8 import YoloV8, YoloV8Rows
from stages.postprocess.yolov8_obb import YoloV8Obb
from stages.postprocess.yolov8_pose import YoloV8Pose
from stages.postprocess.yolov8_seg import YoloV8Seg
from stages.postprocess.yolox import Yolox

LAYOUTS: Final[MappingProxyType[str, Callable[[ModelSpec], Head]]] = MappingProxyType(
    {
        "ssd": Ssd,
        "yolov5": YoloV5,
        "yolov5_raw": YoloV5Raw,
        "yolov6": YoloV6,
        "yolov8": YoloV8,
        "yolov8_rows": YoloV8Rows,
        "yolov8_seg": YoloV8Seg,
        "yolov8_pose": YoloV8Pose,
        "yolov8_obb": YoloV8Obb,
        "yolox": Yolox,
        "yolonas": YoloNas,
        "rtdetr": RtDetr,
        "nanodet": NanoDet,
        "picodet": PicoDet,
        "end2end": EndToEnd,
        "classify": Classify,
    }
)


def head_for(model: ModelSpec) -> Head:
    """The head of the model's layout, checked against its outputs. Raises UserError with the remedy."""
    make = LAYOUTS.get(model.layout)
    if make is None:
        near = difflib.get_close_matches(model.layout.lower(), LAYOUTS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"model {model.name}: layout {model.layout!r} isn't known; {hint}known layouts: {', '.join(LAYOUTS)}"
        )
    try:
        head = checked(make, model)
    except UserError as error:
        others = fitting(model)
        if not others:
            raise
        raise UserError(*error.problems[:-1], f"{error.problems[-1]} (its shape fits: {', '.join(others)})") from None
    return reading_codes(head, model)


def checked(make: Callable[[ModelSpec], Head], model: ModelSpec) -> Head:
    """A head that has accepted the model; it reads floats only. Raises UserError."""
    floats = with_floats(model)
    head = make(floats)
    head.check(floats)
    return head


def fitting(model: ModelSpec) -> list[str]:
    """Layouts that the model's outputs and labels do not contradict, in the registry's order."""
    found = []
    for name, make in LAYOUTS.items():
        try:
            checked(make, model)
        except UserError:
            continue
        found.append(name)
    return found
