"""Owns what a worker is told at its start. Plain picklable data; shared memory travels in it as descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from pipeline.observe.logs import LogSettings
from pipeline.plan import DevicePlan
from pipeline.transport.arena import SharedRing
from stages.camera import CameraSpec
from stages.model import ModelSpec


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """Decode one camera into its ring."""

    camera: CameraSpec
    model: ModelSpec
    ring: SharedRing


@dataclass(frozen=True, slots=True)
class ExecutorWork:
    """Open one device, load the models, run one thread per address."""

    device: DevicePlan
    models: dict[str, ModelSpec]
    frames: dict[str, SharedRing]  # by camera
    outputs: dict[str, SharedRing]  # by model
    max_batch: dict[str, int]


@dataclass(frozen=True, slots=True)
class NmsWork:
    """Turn raw outputs into objects."""

    models: tuple[ModelSpec, ...]
    cameras: tuple[tuple[int, CameraSpec], ...]  # with the numbers of their settings
    outputs: dict[str, SharedRing]
    max_batch: dict[str, int]


@dataclass(frozen=True, slots=True)
class ExporterWork:
    """Serve the figures of the run."""

    host: str
    port: int


Work: TypeAlias = DecodeWork | ExecutorWork | NmsWork | ExporterWork


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """Everything that a worker process gets."""

    name: str
    addresses: tuple[str, ...]  # one per thread that talks to the engine; each ends with #incarnation
    where: str  # endpoint of the engine
    run_folder: str
    token: str
    door: str  # path at which an executor worker takes rings of cameras that join
    parent: Connection  # read end of a pipe that the engine holds open: end of file means that the engine is gone
    work: Work
    logs: LogSettings | None  # None: whoever embeds the engine has set up no logging of ours
