"""Owns what is measured: clip, model, device, cameras, and the plan made of them. Runs nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import av

from pipeline.config import replay_site, resolve
from pipeline.config.labels import COCO
from pipeline.plan import PublishPlan, RunPlan
from pipeline.planning import make_plan
from stages.camera import CameraSpec, LinkSpec
from stages.errors import UserError
from stages.model import ModelSpec, TensorSpec

# Published for an Atlas 300V Pro running YOLOv5s 640 INT8, milliseconds by batch size, where the model prepares the
# tensor (batch 8: 465 frames/s; of its smaller batches nothing is published: those of a host that does).
SERVICE_PREPARED: Final = "1:5.2,4:12.8,8:17.2"
PICTURES: Final = 60  # of a clip that is made for a measurement; then it begins anew
KEYFRAME_EVERY: Final = 20
OBJECTS: Final = 20  # that are found in each frame: a busy street

MODEL_640: Final = ModelSpec(
    name="yolov5-640",
    path="",
    sha256="",
    width=640,
    height=640,
    channels="rgb",
    input_layout="nhwc",  # pixels as they are: the rest is in the model
    input_dtype="uint8",
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    pad_value=114,
    placement="center",
    layout="yolov5",
    labels=tuple(COCO),
    outputs=(TensorSpec("output0", (25200, 85), "float16"),),
    fixed_batch=None,
    confidence=0.4,
    iou=0.45,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """``model``: a name or a description's path; None: YOLOv5 of 640 pixels, whose file no made-up device reads."""

    clip: Path
    device: str
    options: dict[str, str]
    model: str | None = None
    settings: tuple[str, ...] = ()  # KEY=VALUE of the site
    preload: bool = False


def options_of(device: str, given: dict[str, str]) -> dict[str, str]:
    """What the device is told: ``given``, and for a made-up device what the user left open."""
    kind = device.partition(":")[0]
    if kind == "canned":
        service = {} if "service_ms" in given else {"service_ms_by_batch": SERVICE_PREPARED}
        return {**service, "objects": str(OBJECTS), **given}
    if kind == "ascend-sim":
        return {"service_ms": SERVICE_PREPARED, "compute": "canned", "clock": "real", "check": "off", **given}
    return dict(given)


def made_up(device: str) -> bool:
    """Whether the device answers without a model's file."""
    return device.partition(":")[0] in {"canned", "ascend-sim"}


def make_up(load: Workload, cameras: Sequence[CameraSpec], *, publish: str, trace: bool) -> RunPlan:
    """The plan of a run, decided as for any site. Raises UserError."""
    model = load.model
    if model is None and not made_up(load.device):
        model = "coco-ssd"
    options = [f"devices.0.options.{key}={value!r}" for key, value in load.options.items()]
    site = replay_site([load.clip], model, load.device, overrides=[*options, *load.settings])
    resolved = resolve(site)
    if model is None:
        resolved = dataclasses.replace(resolved, models=(MODEL_640,))
    (spec,) = resolved.models
    given = [dataclasses.replace(each, model=spec.name, confidence=spec.confidence, iou=spec.iou) for each in cameras]
    return make_plan(
        dataclasses.replace(
            resolved,
            cameras=tuple(given),
            publish=PublishPlan(bind=publish, join_ms=0, trace=trace),
        )
    )


def recordings(load: Workload, count: int, *, paced: bool) -> list[CameraSpec]:
    """``count`` cameras that play the clip for ever: as fast as possible, or as cameras do, newest frame first."""
    return [
        CameraSpec(
            f"camera-{number:03}",
            str(load.clip),
            "",
            loop=True,
            pace="realtime" if paced else "fast",
            live=paced,
            preload=load.preload,
        )
        for number in range(1, count + 1)
    ]


def network_cameras(urls: Sequence[str], names: Sequence[str]) -> list[CameraSpec]:
    """Cameras at these addresses."""
    return [
        CameraSpec(name, url, "", live=True, network=True, link=LinkSpec(open_timeout_ms=3000, read_timeout_ms=2000))
        for name, url in zip(names, urls, strict=True)
    ]


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(clip: Path) -> tuple[int, int]:
    """Width and height of the clip's pictures as they are stored."""
    with av.open(str(clip)) as container:
        track = container.streams.video[0]
        return track.width, track.height


def retime(clip: Path, fps: Fraction, folder: Path) -> Path:
    """The clip's own packets with the times of another rate: nothing is decoded, every picture stays as it is."""
    target = folder / f"{clip.stem}-{float(fps):g}fps.mp4"
    with av.open(str(clip)) as source, av.open(str(target), "w") as out:
        track = source.streams.video[0]
        rate = track.average_rate
        if not rate:
            raise UserError(f"{clip} says nothing of its rate; take another clip")
        speed = fps / Fraction(rate.numerator, rate.denominator)
        copy = out.add_stream_from_template(track)
        copy.time_base = Fraction(1, 90_000)
        for packet in source.demux(track):
            base = packet.time_base
            if packet.dts is None or packet.pts is None or base is None:
                continue
            tick = Fraction(base.numerator, base.denominator) * 90_000 / speed
            packet.pts, packet.dts = round(packet.pts * tick), round(packet.dts * tick)
            packet.duration = round((packet.duration or 0) * tick)
            packet.time_base = Fraction(1, 90_000)
            packet.stream = copy
            out.mux(packet)
    return target


def shrink(clip: Path, size: tuple[int, int], fps: int, folder: Path) -> Path:
    """The clip's first pictures as a camera's second stream sends them: small, slow, H.264, none held back."""
    target = folder / f"{clip.stem}-{size[0]}x{size[1]}-{fps}fps.mp4"
    with av.open(str(clip)) as source, av.open(str(target), "w") as out:
        track = out.add_stream("libx264", rate=fps, options={"preset": "veryfast", "bf": "0"})
        track.width, track.height, track.pix_fmt = *size, "yuv420p"
        track.gop_size = KEYFRAME_EVERY
        for index, frame in enumerate(itertools.islice(source.decode(video=0), PICTURES)):
            small = frame.reformat(width=size[0], height=size[1], format="yuv420p")
            small.pts, small.time_base, small.pict_type = index, Fraction(1, fps), 0
            out.mux(track.encode(small))
        out.mux(track.encode(None))
    return target
