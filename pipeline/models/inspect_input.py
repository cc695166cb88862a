"""Owns the guess of what a model wants to be fed: channel order, scaling, padding. Does not own the layout's guess.

A model file does not say this of itself, but its family usually has one way, which its own preprocessing code shows:
YOLOX ``ValTransform`` (yolox/data/data_augment.py): BGR, 0..255, top left, pad 114. Ultralytics and YOLOv5
``LetterBox``: RGB, 0..1, centre, pad 114; YOLOv6 alike. RT-DETR: RGB, 0..1, stretched. NanoDet's configurations: BGR,
ImageNet mean and std over 0..255, stretched. YOLO-NAS (super-gradients, ``default_yolo_nas_coco_processing_params``):
BGR, 0..1, centre, pad 114. ``campipe models verify`` puts it to the test on a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from stages.model import Placement
from stages.postprocess.detect_facts import FileFacts

Triple = tuple[float, float, float]

ZERO: Final[Triple] = (0.0, 0.0, 0.0)
ONE: Final[Triple] = (1.0, 1.0, 1.0)
TO_ONE: Final[Triple] = (255.0, 255.0, 255.0)
IMAGENET_MEAN: Final[Triple] = (123.675, 116.28, 103.53)  # red, green, blue
IMAGENET_STD: Final[Triple] = (58.395, 57.12, 57.375)


@dataclass(frozen=True, slots=True)
class InputGuess:
    """``known``: the file says whose it is; else its family is only concluded from the layout. ``why``: a sentence."""

    channels: Literal["rgb", "bgr"]
    mean: Triple
    std: Triple
    placement: Placement
    pad_value: int
    known: bool
    why: str


def input_of(facts: FileFacts, layout: str) -> InputGuess:
    """What this file most likely wants."""
    if facts.producer == "campipe" and layout == "ssd":
        return InputGuess("rgb", ZERO, ONE, "stretch", 114, True, "the file was converted by campipe's own tool")
    guess = _of_family(facts, layout)
    if facts.input_dtype == "uint8":
        why = f"{guess.why}; an input of type uint8 takes pixels as they are"
        return InputGuess(guess.channels, ZERO, ONE, guess.placement, guess.pad_value, guess.known, why)
    return guess


def _of_family(facts: FileFacts, layout: str) -> InputGuess:
    if facts.ultralytics:
        placement: Placement = "stretch" if layout == "rtdetr" else "center"
        return InputGuess("rgb", ZERO, TO_ONE, placement, 114, True, "the file says that Ultralytics exported it")
    if layout == "yolox":
        why = "YOLOX feeds BGR, 0 to 255, top left, since release 0.1.1 (before: RGB, ImageNet mean and std)"
        return InputGuess("bgr", ZERO, ONE, "top_left", 114, False, why)
    if layout in ("nanodet", "picodet"):
        why = "NanoDet feeds BGR less ImageNet's mean, stretched"
        return InputGuess("bgr", _reversed(IMAGENET_MEAN), _reversed(IMAGENET_STD), "stretch", 114, False, why)
    if layout == "yolonas":
        return InputGuess("bgr", ZERO, TO_ONE, "center", 114, False, "YOLO-NAS feeds BGR, 0 to 1, centred")
    if layout == "rtdetr":
        return InputGuess("rgb", ZERO, TO_ONE, "stretch", 114, False, "RT-DETR feeds RGB, 0 to 1, stretched")
    if layout == "ssd":
        why = "SSD exports differ: many feed RGB from -1 to 1, stretched"
        return InputGuess("rgb", (127.5,) * 3, (127.5,) * 3, "stretch", 114, False, why)
    if layout == "classify":
        why = "classifiers mostly feed RGB less ImageNet's mean, stretched"
        return InputGuess("rgb", IMAGENET_MEAN, IMAGENET_STD, "stretch", 114, False, why)
    why = "models of this layout are fed RGB, 0 to 1, centred, by YOLOv5 and its successors"
    return InputGuess("rgb", ZERO, TO_ONE, "center", 114, False, why)


def _reversed(triple: Triple) -> Triple:
    return triple[2], triple[1], triple[0]
