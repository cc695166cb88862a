"""Owns the pictures that the test cameras send: H.264 made at test time, as access units in groups. Sends nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from media.odd.making import scene
from numpy.typing import NDArray

SPS, PPS, IDR = 7, 8, 5
_START_CODE = re.compile(b"\x00\x00\x00?\x01")


@dataclass(frozen=True, slots=True)
class AccessUnit:
    """One picture; ``nals`` without start codes, ``pts_s`` since its group began (B-frames: not in order)."""

    nals: tuple[bytes, ...]
    pts_s: float

    @property
    def key(self) -> bool:
        """Whether decoding may begin here."""
        return any(nal[0] & 31 == IDR for nal in self.nals)

    @property
    def without_parameter_sets(self) -> AccessUnit:
        """The picture alone."""
        return AccessUnit(tuple(nal for nal in self.nals if nal[0] & 31 not in (SPS, PPS)), self.pts_s)


@dataclass(frozen=True, slots=True)
class ElementaryStream:
    """Groups of pictures, each beginning with a keyframe and complete in itself, so that they may be looped."""

    width: int
    height: int
    fps: int
    groups: tuple[tuple[AccessUnit, ...], ...]
    sps: bytes
    pps: bytes

    @property
    def annex_b(self) -> bytes:
        """All of it as a file of type .h264."""
        nals = (nal for group in self.groups for unit in group for nal in unit.nals)
        return b"".join(b"\0\0\0\1" + nal for nal in nals)


@functools.lru_cache(maxsize=32)
def make_stream(
    width: int = 320,
    height: int = 240,
    fps: int = 15,
    seconds: int = 2,
    *,
    group_s: float = 1.0,
    b_frames: int = 0,
    bitrate: int | None = None,
    clip: Path | None = None,
) -> ElementaryStream:
    """Encode a moving test picture, or the beginning of ``clip``; a keyframe each ``group_s``."""
    count, group = fps * seconds, max(round(fps * group_s), 1)
    params = f"keyint={group}:min-keyint={group}:scenecut=0:open-gop=0:bframes={b_frames}:b-adapt=0:repeat-headers=1"
    options = {"preset": "ultrafast" if not b_frames else "veryfast", "crf": "30", "x264-params": params}
    context: Any = av.CodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base, context.framerate = Fraction(1, fps), Fraction(fps)
    context.thread_count = 1
    if bitrate is not None:
        options.pop("crf")
        context.bit_rate = bitrate
    context.options = options
    packets = []
    for number, image in enumerate(_images(count, width, height, clip)):
        frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = number, Fraction(1, fps)
        packets += context.encode(frame)
    packets += context.encode(None)
    groups: list[list[AccessUnit]] = []
    for packet in packets:
        nals = tuple(nal for nal in _START_CODE.split(bytes(packet)) if nal)
        unit = AccessUnit(nals, 0.0)
        if unit.key:
            groups.append([])
        groups[-1].append(AccessUnit(nals, packet.pts / fps - (len(groups) - 1) * group / fps))
    first = groups[0][0].nals
    sps, pps = (next(nal for nal in first if nal[0] & 31 == kind) for kind in (SPS, PPS))
    return ElementaryStream(width, height, fps, tuple(map(tuple, groups)), sps, pps)


def _images(count: int, width: int, height: int, clip: Path | None) -> Iterator[NDArray[np.uint8]]:
    if clip is None:
        yield from scene(count, width, height)
        return
    with av.open(str(clip)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number == count:
                return
            yield frame.reformat(width, height, "rgb24").to_ndarray()
