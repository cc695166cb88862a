"""Owns what a site file may say: keys, defaults, bounds, and the Site that a run is planned from. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from pipeline.config.camera import CameraConfig
from pipeline.config.fields import NAME_PATTERN, AlsoAccepts, Auto, Described, Many, Name, OrOne, Section, auto_or
from pipeline.config.model import ModelConfig
from pipeline.yaml import Place, Step
from stages.errors import UserError
from stages.sinks.address import parse_address

DEVICE_PATTERN = r"^[a-z][a-z0-9_-]{0,31}(:[0-9]{1,3})?$"


def _device_name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    if not re.fullmatch(DEVICE_PATTERN, value, re.ASCII) or "\n" in value:
        raise ValueError("is not the name of a device; write its kind and number, such as cpu or ascend:0")
    return value


def _option_texts(value: Any) -> Any:
    """Numbers and switches as text, for options are handed to the device as they are written."""
    if not isinstance(value, dict):
        return value
    texts = {key: str(each).lower() if isinstance(each, bool) else each for key, each in value.items()}
    return {key: str(each) if isinstance(each, (int, float)) else each for key, each in texts.items()}


Options: TypeAlias = Annotated[
    dict[str, Annotated[str, Field(max_length=4096)]],
    BeforeValidator(_option_texts),
]


class DeviceConfig(Section):
    """An inference device: one process with as many threads as executors."""

    device: Annotated[str, Described(_device_name, {"type": "string", "pattern": DEVICE_PATTERN})] = Field(
        default="cpu",
        description="Kind and number: cpu; ascend:0 (NPU); ascend-sim:0 (a simulated one, which computes on the CPU); "
        "canned:0 (answers at once with made-up outputs, for measuring).",
    )
    executors: Annotated[int | Auto, auto_or(1, 64)] = Field(
        default="auto",
        description="Batches at work at the same time. auto: what the device's share of the machine carries.",
    )
    threads: Annotated[int | Auto, auto_or(1, 256)] = Field(
        default="auto",
        description="Threads of each executor inside the device's own runtime. auto: the free CPUs, shared.",
    )
    lanes: Annotated[int | Auto, auto_or(1, 8)] = Field(
        default="auto",
        description="Sets of buffers per executor: while one computes, the next is filled. auto: 2, and 3 on an NPU in "
        "batches of 1, which take hardly longer than their copies.",
    )
    options: Options = Field(default_factory=dict, description="Options of this kind of device, by name.")


class BatchConfig(Section):
    """How frames of several cameras are put together for one run of a model."""

    max_batch: Annotated[int | Auto, auto_or(1, 64)] = Field(
        default="auto",
        description="At most so many frames per run. auto: what the model or its OM has built in; else 1 on CPUs, 8 "
        "elsewhere.",
    )
    max_wait_ms: float = Field(
        default=5.0,
        ge=0,
        le=10_000,
        description="A frame waits at most so long for a fuller batch while the device is free: of a live camera only "
        "when others are expected so soon that all have their results sooner together; of a recording always.",
    )


class NmsConfig(Section):
    """Processes that turn raw outputs into objects."""

    workers: Annotated[int | Auto, auto_or(1, 64)] = Field(
        default="auto", description="Number of processes. auto: one for each four CPUs, at least one."
    )


def _address(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    try:
        return parse_address(value, bind=True).text
    except UserError as error:
        # the line shows the value already
        problem = error.problems[0].removeprefix(f"{value!r} ")
    problem = problem.replace("is not an address:", "is not an address to publish at:", 1)
    raise ValueError(problem if "; " in problem else f"{problem}; write one such as tcp://127.0.0.1:5600")


class PublishConfig(Section):
    """The ZeroMQ socket that subscribers connect to."""

    bind: Annotated[str, Described(_address, {"type": "string", "pattern": "^(tcp|ipc)://.+$"})] = Field(
        default="tcp://127.0.0.1:5600",
        description="Address to publish at: tcp://HOST:PORT, port 0 for a free one, host * for all networks, or ipc://PATH.",
    )
    hwm: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Messages kept for a subscriber that is slower than the cameras. With live cameras at most 256, or "
        "16 for each of them if that is more: old detections are worth little.",
    )
    trace: bool = Field(
        default=False, description="Add to each detections message how long its frame spent in each stage."
    )
    heartbeat_ms: int = Field(
        default=1_000, ge=50, le=3_600_000, description="A heartbeat message each so many milliseconds."
    )
    join_ms: int = Field(
        default=300,
        ge=0,
        le=60_000,
        description="Wait before the first message, so that waiting subscribers have joined.",
    )
    stall_ms: int = Field(
        default=5_000,
        ge=0,
        le=3_600_000,
        description="Recordings: how long a full subscriber may hold up the run before messages are lost, and counted.",
    )
    linger_ms: int = Field(
        default=5_000,
        ge=0,
        le=3_600_000,
        description="At the end: how long to wait for subscribers to take what is queued.",
    )


def _listen(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    try:
        parse_address(f"tcp://{value}", bind=True)
    except UserError:
        raise ValueError("is not a place to listen at; write HOST:PORT, such as 127.0.0.1:9464") from None
    return value


class ObserveConfig(Section):
    """A page of figures for Prometheus (/metrics) and for watchdogs (/healthz, /livez), served by its own process."""

    listen: Annotated[str, Described(_listen, {"type": "string", "pattern": "^.+:[0-9]{1,5}$"})] | None = Field(
        default=None,
        description="HOST:PORT to serve at, such as 127.0.0.1:9464. There is no password: keep it to this machine, or "
        "to a network that may see it. Default: not served.",
    )


def _path_with_camera(value: str) -> str:
    if re.sub(r"\{camera\}", "", value).count("{") or re.sub(r"\{camera\}", "", value).count("}"):
        raise ValueError("has braces that are not {camera}; {camera} is the one thing that is filled in")
    return value


class JsonlConfig(Section):
    """A file with the published messages, one JSON object a line."""

    path: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_path_with_camera)] = Field(
        description="File, relative to the file that states it; {camera} in it makes one file per camera."
    )
    rotate_mb: float | None = Field(
        default=None,
        ge=0.001,
        le=1_000_000,
        description="Begin a new file when this one has so many megabytes of 1,048,576 bytes. Default: one file.",
    )
    merged: bool = Field(
        default=False, description="One file for all cameras, in an order that is the same each time (recordings only)."
    )
    status: bool = Field(default=False, description="Write status messages too, not detections alone.")

    @model_validator(mode="after")
    def _merged_into_one(self) -> JsonlConfig:
        if self.merged and "{camera}" in self.path:
            raise ValueError("has 'merged' and a path with {camera}; keep one of them")
        return self


def _short_jsonl(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class SinkConfig(Section):
    """One place besides the socket that messages go to; the key says which kind."""

    jsonl: Annotated[JsonlConfig, BeforeValidator(_short_jsonl), AlsoAccepts(({"type": "string", "minLength": 1},))] = (
        Field(description="A file with one JSON object a line; the path alone is enough.")
    )


class LimitsConfig(Section):
    """Budgets of a run."""

    shared_memory_mb: Annotated[int | Auto, auto_or(1, 1_048_576)] = Field(
        default="auto", description="Shared memory for frames and raw outputs. auto: what the machine has free."
    )
    start_ms: Annotated[int | Auto, auto_or(100, 3_600_000)] = Field(
        default="auto",
        description="How long a worker may take to become ready. auto: 30 s; 180 s where a device is a card "
        "(ascend:N), whose first use in a process and whose models take their time.",
    )
    stop_ms: int = Field(
        default=10_000, ge=100, le=3_600_000, description="How long stopping may take before it is forced."
    )
    hang_ms: int = Field(
        default=20_000,
        ge=3_000,
        le=3_600_000,
        description="A worker that gives no sign for so long is replaced; and one that gives no result for 20 times as "
        "long as its work took lately (8 s at least, three times hang_ms at most).",
    )
    restarts: int = Field(
        default=10, ge=0, le=1_000, description="How often one worker may be replaced within restart_window_ms."
    )
    restart_window_ms: int = Field(default=60_000, ge=1_000, le=86_400_000, description="See restarts.")
    quarantine: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Folder for frames that took a worker down more than once. Default: they are counted, not kept.",
    )


class ControlConfig(Section):
    """How cameras are changed while the site runs: by `campipe ctl`, and by their files."""

    watch: bool = Field(
        default=True,
        description="Take changes of the site's and the cameras' files as they happen, without a restart.",
    )
    socket: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Path of the socket for `campipe ctl`, which only its owner may use. Default: in a private folder, "
        "where `campipe ctl` finds it.",
    )
    models: Many[Name] = Field(
        default=(),
        max_length=64,
        description="Models to load besides those that cameras use, so that cameras with them can be added.",
    )


def _switch(value: Any) -> Any:
    if value is False or value == "off":
        return None
    return {} if value is True or value == "on" else value


class SiteSettings(Section):
    """What a site file says besides its cameras and models, which lie in files of their own."""

    devices: Annotated[Many[DeviceConfig], Field(min_length=1, max_length=64), OrOne()] = Field(
        default=(DeviceConfig(),),
        description="Inference devices, one process each: a list, or a single one. Default: the CPU.",
    )
    batch: BatchConfig = Field(default_factory=BatchConfig, description="How batches form.")
    nms: NmsConfig = Field(default_factory=NmsConfig, description="Processes that turn raw outputs into objects.")
    publish: Annotated[
        PublishConfig | None, BeforeValidator(_switch), AlsoAccepts(({"enum": ["off", "on"]}, {"type": "boolean"}))
    ] = Field(default_factory=PublishConfig, description="The socket that subscribers connect to, or `off`.")
    sinks: Annotated[Many[SinkConfig], Field(max_length=64), OrOne()] = Field(
        default=(), description="Where messages go besides the socket, e.g. [{jsonl: out.jsonl}]."
    )
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="Budgets of a run.")
    control: Annotated[
        ControlConfig | None, BeforeValidator(_switch), AlsoAccepts(({"enum": ["off", "on"]}, {"type": "boolean"}))
    ] = Field(default_factory=ControlConfig, description="Changes while the site runs, or `off`.")
    observe: ObserveConfig = Field(default_factory=ObserveConfig, description="Figures for Prometheus and watchdogs.")


class Site(SiteSettings):
    """A whole site, validated: paths absolute, secrets filled in, every camera with a name and a known model."""

    models: dict[Name, Annotated[ModelConfig, AlsoAccepts(({"type": "string", "minLength": 1},))]] = Field(
        default_factory=dict,
        description="Models by the names that cameras use: the path of a description, the description itself, or the "
        "name of a model that comes with campipe. Those need not be listed to be used.",
        json_schema_extra={"propertyNames": {"pattern": NAME_PATTERN}},
    )
    cameras: Annotated[
        Many[CameraConfig], Field(max_length=10_000), AlsoAccepts(({"type": "string", "minLength": 1},))
    ] = Field(description="A folder with one YAML file per camera, or the list of cameras itself.")

    _origins: Mapping[tuple[Step, ...], Place] = PrivateAttr(default_factory=dict)

    def with_origins(self, origins: Mapping[tuple[Step, ...], Place]) -> Site:
        """A copy that knows where each of its values was stated."""
        copy = self.model_copy()
        copy._origins = origins
        return copy

    def origin(self, *path: Step) -> Place | None:
        """Where the value at ``path`` was stated, or the nearest map around it; None for what nobody stated.

        A camera may be named instead of numbered: ``site.origin("cameras", "gate-1", "confidence")``.
        """
        steps = list(path)
        if len(steps) > 1 and steps[0] == "cameras" and isinstance(steps[1], str):
            steps[1] = next((i for i, camera in enumerate(self.cameras) if camera.name == steps[1]), -1)
        while steps:
            if place := self._origins.get(tuple(steps)):
                return place
            steps.pop()
        return None

    def camera(self, name: str) -> CameraConfig:
        """The camera of this name; KeyError if there is none."""
        for camera in self.cameras:
            if camera.name == name:
                return camera
        raise KeyError(name)


__all__ = [
    "BatchConfig",
    "ControlConfig",
    "DeviceConfig",
    "JsonlConfig",
    "LimitsConfig",
    "NmsConfig",
    "PublishConfig",
    "Site",
    "SiteSettings",
    "SinkConfig",
]
