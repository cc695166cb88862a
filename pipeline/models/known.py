"""Owns the models that campipe knows by name, and where the official file of each is. Fetches nothing (``fetch``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model file pinned by content; ``url`` None: it comes with the installation."""

    name: str
    file: str
    sha256: str
    size_bytes: int
    url: str | None


# Sizes and checksums stand in configs/models/NAME.yaml too, which may be replaced by the user; what is fetched may not.
KNOWN = {
    model.name: model
    for model in (
        KnownModel(
            name="coco-ssd",
            file="coco-ssd.onnx",
            sha256="c3ef7d5abff52608956932d085a5b8324fbd112d8b64ba69a7cc866f05aca5bb",
            size_bytes=8_756_373,
            url=None,
        ),
        KnownModel(
            name="yolox-nano",
            file="yolox_nano.onnx",
            sha256="c789161ed43c8269fcd4e67c67eeeb4e80c622da2eb296a20bc6007bd18a0b7d",
            size_bytes=3_659_407,
            url="https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0/yolox_nano.onnx",
        ),
    )
}


def by_file(file: str) -> KnownModel | None:
    """The known model whose file has this name."""
    return next((model for model in KNOWN.values() if model.file == file), None)
