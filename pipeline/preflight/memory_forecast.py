"""Owns the forecast of memory: what the processes of a run will hold, by kind. Pure: measures and starts nothing.

Memory here is what no file backs and no ring is (``own_bytes`` of ``observe.processes``): pages that workers have in
common with the process they were forked from count once, with that process. The figures were measured with
`campipe bench scale` on x86-64 with Python 3.11, numpy 2, OpenCV 5 and PyAV 18: what a process holds before its first
picture, and how many decoded pictures a decoder keeps (1280x720 and more; H.264, HEVC, MJPEG).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.plan import RunPlan
from pipeline.runtime.rings import shared_memory_bytes
from stages.camera import CameraSpec
from stages.decode.memory import MOST_BYTES
from stages.decode.source import SourceFacts

MIB: Final = 2**20
ENGINE: Final = int(36.8 * MIB)
ENGINE_PER_CAMERA: Final = int(0.055 * MIB)
FORKSERVER: Final = int(31.0 * MIB)  # what it shares with its workers among it
TRACKER: Final = int(5.7 * MIB)  # Python's own helper
NMS: Final = int(6.3 * MIB)
EXPORTER: Final = int(12 * MIB)
EXECUTOR: Final = int(18.3 * MIB)  # before it opens its device
DECODER: Final = int(8.4 * MIB)
NETWORK: Final = int(2 * MIB)  # a connection's thread and its buffers
PICTURES: Final = 3.2  # that a decoder holds when it gives each at once
PICTURES_HELD_BACK: Final = 2.0  # beside those, for each that it holds back
SIMPLE_CODECS: Final = {"mjpeg": 0.5}
UNKNOWN_PICTURE: Final = (1920, 1080)  # of a source that could not be looked at


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """Bytes by kind of process, all processes of a kind together, and of shared memory."""

    kinds: dict[str, int]
    shared_bytes: int

    @property
    def own_bytes(self) -> int:
        """All processes."""
        return sum(self.kinds.values())

    @property
    def all_bytes(self) -> int:
        """Processes and shared memory."""
        return self.own_bytes + self.shared_bytes


def forecast(plan: RunPlan, sources: Mapping[str, SourceFacts], devices: Mapping[str, int]) -> MemoryForecast:
    """``sources`` by camera; ``devices``: bytes that each device's process takes beyond what every one does."""
    kinds = {
        "engine": ENGINE + ENGINE_PER_CAMERA * len(plan.cameras),
        "forkserver": FORKSERVER,
        "tracker": TRACKER,
        "nms": NMS * plan.nms_workers,
        "executor": sum(EXECUTOR + devices.get(device.device, 0) for device in plan.devices),
        "decode": sum(decoder_bytes(camera, sources.get(camera.name)) for camera in plan.cameras),
    }
    if plan.observe:
        kinds["observe"] = EXPORTER
    return MemoryForecast(kinds, sum(shared_memory_bytes(plan).values()))


def decoder_bytes(camera: CameraSpec, facts: SourceFacts | None) -> int:
    """Of the process that decodes this camera."""
    width, height = (facts.width, facts.height) if facts is not None and facts.width else UNKNOWN_PICTURE
    picture = width * height * 3 // 2
    pictures = PICTURES
    if facts is not None:
        pictures = SIMPLE_CODECS.get(facts.codec, PICTURES + PICTURES_HELD_BACK * facts.held_back)
    size = DECODER + int(pictures * picture)
    if camera.preload:
        size += MOST_BYTES
    return size + (NETWORK if camera.network else 0)
