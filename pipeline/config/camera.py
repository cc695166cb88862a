"""Owns what the file of one camera may say: keys, defaults, bounds. Opens no file, resolves no secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr, Strict, model_validator

from pipeline.config.fields import AlsoAccepts, Auto, Described, Many, Name, PointOfTime, Section, auto_or
from pipeline.config.problems import redact

DEFAULT_MODEL = "coco-ssd"


class ReconnectConfig(Section):
    """Waiting between two tries to connect: it doubles from ``first_ms`` to ``longest_ms``, each a bit at random."""

    first_ms: int = Field(default=250, ge=10, le=600_000, description="Before the second try.")
    longest_ms: int = Field(
        default=2_000,
        ge=10,
        le=3_600_000,
        description="At most between two tries. A refused password is tried each 30 s at most: cameras lock users.",
    )
    attempts: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Tries in a row after which the camera has failed. Default: for ever.",
    )


class SourceConfig(Section):
    """Where the pictures come from. A file needs `url` alone; what speaks of cameras has no effect on files."""

    url: str = Field(
        min_length=1,
        max_length=4096,
        description="A recording, relative to the file that states it; or a camera: rtsp://HOST:PORT/PATH, rtsps://, "
        "http:// and https:// (MJPEG, HLS), udp:// (MPEG-TS), /dev/videoN (USB). `asset:street.mp4` is "
        "the clip that comes with campipe. ${NAME} is replaced by the environment variable NAME, $$ by a $. "
        "A user and password in it are taken out and never shown.",
    )
    user: SecretStr | None = Field(
        default=None, exclude=True, repr=False, description="User at the camera; ${NAME} takes it from the environment."
    )
    password: SecretStr | None = Field(
        default=None,
        exclude=True,
        repr=False,
        description="Password at the camera. Better than the password is ${NAME}, which takes it from the environment.",
    )
    transport: Literal["auto", "tcp", "udp"] = Field(
        default="auto",
        description="Cameras: how RTSP carries pictures. auto: TCP, and UDP where the camera refuses that.",
    )
    track: Annotated[int | Auto, auto_or(0, 63)] = Field(
        default="auto",
        description="Which video track to play, counted from 0 among the video tracks. auto: the first one.",
    )
    loop: bool = Field(default=False, description="Files: begin anew at the end, for ever (or until max_frames).")
    pace: Literal["fast", "realtime"] = Field(
        default="fast", description="Files: as fast as possible, or as fast as they were recorded."
    )
    preload: bool = Field(
        default=False,
        description="Files, for measuring: decode the beginning (16 MiB of pictures, at most 250) once and play that "
        "from memory, with loop for ever. What a run then costs is all but decoding.",
    )
    recorded_at: PointOfTime | None = Field(
        default=None,
        description="Files: when the first picture was taken, like 2026-05-01T12:00:00Z. Default: what the file says."
        " If it says nothing, time begins in 1970.",
    )
    max_frames: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Stop after so many decoded frames. Default: no limit."
    )
    open_timeout_ms: int = Field(
        default=10_000, ge=100, le=600_000, description="Cameras: how long opening may take before it is tried anew."
    )
    read_timeout_ms: int = Field(
        default=5_000, ge=100, le=600_000, description="Cameras: how long to wait for data before connecting anew."
    )
    stall_ms: int = Field(
        default=10_000,
        ge=100,
        le=600_000,
        description="Cameras: how long data may come without a whole picture before connecting anew.",
    )

    tls_verify: bool = Field(
        default=True,
        description="Cameras, rtsps and https: refuse a camera whose certificate can't be trusted. Cameras mostly have "
        "made their own: give it as tls_ca, or switch this off where nobody can get between.",
    )
    tls_ca: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Cameras: a PEM file of certificates to trust, relative to the file that states it.",
    )
    reconnect: ReconnectConfig = Field(
        default_factory=ReconnectConfig, description="Cameras: how it is tried again when it is lost."
    )

    _shown: str | None = PrivateAttr(None)  # the url as it was written, for secrets from the environment are filled in

    @property
    def shown(self) -> str:
        """The url for people: without credentials, environment variables by their name."""
        return redact(self._shown if self._shown is not None else self.url)

    def with_url(self, url: str, shown: str | None) -> SourceConfig:
        """A copy that plays ``url`` and shows ``shown``, or the url itself."""
        copy = self.model_copy(update={"url": url})
        copy._shown = shown
        return copy

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(key, self.shown if key == "url" else value) for key, value in super().__repr_args__()]


class SamplingConfig(Section):
    """Which frames are looked at; the others are decoded, counted as dropped by `sampling`, and go no further."""

    fps: float | None = Field(
        default=None, ge=0.01, le=240, description="At most so many frames a second, evenly spaced by their timestamps."
    )
    every: int | None = Field(default=None, ge=1, le=100_000, description="Each n-th frame; 1 is all of them.")
    keyframes: bool = Field(
        default=False,
        description="Decode keyframes only, which costs a fraction: one picture each 1 to 10 s with most cameras.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> SamplingConfig:
        if self.fps is not None and self.every is not None:
            raise ValueError("has both 'fps' and 'every'; keep one of them")
        return self


class LiveConfig(Section):
    """What happens when frames come faster than they can be worked on."""

    policy: Literal["auto", "lossless", "newest"] = Field(
        default="auto",
        description="lossless: decoding waits, no frame is lost. newest: old frames give way to new ones and are "
        "counted. "
        "auto: lossless for files, newest for cameras.",
    )
    max_age_ms: int = Field(
        default=1_000, ge=10, le=600_000, description="newest: a frame older than this when its turn comes is dropped."
    )


def _part(value: Any) -> float:
    if type(value) in (int, float) and 0 <= value <= 1:
        return float(value)
    raise ValueError("is not a part of the picture; write a number from 0 to 1 (0.5 is the middle), not pixels")


def _spans_an_area(roi: tuple[float, ...]) -> tuple[float, ...]:
    x1, y1, x2, y2 = roi
    if x2 - x1 < 0.01 or y2 - y1 < 0.01:
        raise ValueError("spans no area; write [x1, y1, x2, y2] with x1 < x2 and y1 < y2, each side at least 0.01")
    return roi


Part: TypeAlias = Annotated[float, Described(_part, {"type": "number", "minimum": 0.0, "maximum": 1.0})]
Roi: TypeAlias = Annotated[
    tuple[Part, ...], Strict(False), Field(min_length=4, max_length=4), AfterValidator(_spans_an_area)
]


def _class_ref(value: Any) -> str | int:
    if (isinstance(value, str) and 0 < len(value) <= 100) or (type(value) is int and 0 <= value < 100_000):
        return value
    raise ValueError


ClassRef: TypeAlias = Annotated[
    str | int,
    Described(
        _class_ref,
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 100},
                {"type": "integer", "minimum": 0, "maximum": 99_999},
            ]
        },
    ),
]


def _apart(groups: tuple[tuple[str | int, ...], ...]) -> tuple[tuple[str | int, ...], ...]:
    seen: set[str | int] = set()
    for group in groups:
        for each in group:
            if each in seen:
                raise ValueError(f"names {each} twice; write each class once, in one group")
            seen.add(each)
    return groups


Groups: TypeAlias = Annotated[
    Many[Annotated[Many[ClassRef], Field(min_length=2)]], Field(max_length=1_000), AfterValidator(_apart)
]


def _short_source(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


class CameraConfig(Section):
    """One camera, or one recording that plays a camera's part."""

    name: Name = Field(
        default="",
        description="Name in topics, files and messages: 1 to 64 of a-z A-Z 0-9 . _ - and no dot in front. "
        "Default: the name of the camera's file without its ending.",
    )
    source: Annotated[
        SourceConfig, BeforeValidator(_short_source), AlsoAccepts(({"type": "string", "minLength": 1},))
    ] = Field(description="Where the pictures come from; the url alone is enough.")
    sampling: SamplingConfig = Field(
        default_factory=SamplingConfig, description="Which frames are looked at. Default: all of them."
    )
    roi: Roi | None = Field(
        default=None,
        description="Look only at this part of the upright picture: [x1, y1, x2, y2] from 0 (left, top) to 1 (right, "
        "bottom). Parts and not pixels, so that it stays right when the camera's resolution is changed. Default: all.",
    )
    model: Name = Field(
        default=DEFAULT_MODEL,
        description="Name of a model: one under `models` of the site, or one that comes with campipe.",
    )
    confidence: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Objects with a lower score are left out. Default: what the model's description says.",
    )
    iou: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Of two boxes of one class that overlap more than this, the better one stays (intersection over "
        "union). Default: what the model's description says.",
    )
    classes: Annotated[Many[ClassRef], Field(min_length=1)] | None = Field(
        default=None,
        description="Keep only these, by label or number, e.g. [person, bus]. Default: all that the model knows.",
    )
    class_agnostic: bool = Field(
        default=False, description="Let boxes of different classes suppress each other as well."
    )
    nms_groups: Groups = Field(
        default=(),
        description="Groups of classes, by label or number, that suppress each other, e.g. [[car, truck, bus]]: "
        "one vehicle, one box. Default: each class for itself.",
    )
    max_objects: int = Field(
        default=100, ge=1, le=1_000, description="At most so many objects per frame, the best ones."
    )
    live: LiveConfig = Field(default_factory=LiveConfig, description="What gives way when there is too much to do.")
    corrupt: Literal["flag", "drop"] = Field(
        default="flag",
        description="Pictures with damage: flag marks them (`corrupt` in the message), drop leaves them out and counts "
        "them.",
    )

    @model_validator(mode="after")
    def _groups_or_all(self) -> CameraConfig:
        if self.class_agnostic and self.nms_groups:
            raise ValueError("has 'nms_groups', but 'class_agnostic' makes one group of all classes; keep one of them")
        return self


__all__ = ["CameraConfig", "ClassRef", "LiveConfig", "Roi", "SamplingConfig", "SourceConfig"]
