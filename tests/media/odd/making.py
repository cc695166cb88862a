"""Owns making small recordings with PyAV's own encoders: a test scene, encode, remux, cut. Not what is odd in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from numpy.typing import NDArray

FRAMES = 100
FPS = 25
WIDTH, HEIGHT = 160, 120

# several key frames, no scene cuts: where frames lie must not depend on the encoder's taste
H264 = {"preset": "ultrafast", "crf": "28", "g": "25", "bf": "0", "sc_threshold": "0", "threads": "1"}
H264_B = H264 | {"preset": "veryfast", "bf": "3"}


def picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """Frame ``number`` of the test scene: a colour gradient, a moving bright square, a dark corner at the top left."""
    x, y = np.arange(width), np.arange(height)
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = (x * 255 // max(width - 1, 1)).astype(np.uint8)
    image[..., 1] = (y * 255 // max(height - 1, 1)).astype(np.uint8)[:, None]
    image[..., 2] = (x + number * 3).astype(np.uint8) + y.astype(np.uint8)[:, None]
    side = max(min(width, height) // 6, 1)
    left = (number * 2) % max(width - side, 1)
    top = height // 2
    image[top : top + side, left : left + side] = 250
    image[: max(height // 5, 1), : max(width // 5, 1)] = 5
    return image


def scene(count: int = FRAMES, width: int = WIDTH, height: int = HEIGHT) -> Iterator[NDArray[np.uint8]]:
    """``count`` frames of the test scene, RGB."""
    return (picture(number, width, height) for number in range(count))


def encode(
    path: Path,
    images: Iterable[NDArray[np.uint8]],
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    fps: int = FPS,
    ticks: Callable[[int], int] | None = None,
    time_base: Fraction | None = None,
    container_format: str | None = None,
    container_options: dict[str, str] | None = None,
    full_range: bool = False,
) -> None:
    """Encode RGB (or gray) ``images``; ``ticks`` gives each frame's pts in ``time_base`` (default: 1/fps)."""
    with av.open(path, "w", format=container_format, options=container_options or {}) as out:
        stream: Any = None
        for number, image in enumerate(images):
            if stream is None:
                stream = out.add_stream(codec, rate=fps, options=dict(H264 if options is None else options))
                stream.height, stream.width = image.shape[:2]
                stream.pix_fmt = pix_fmt
                stream.codec_context.time_base = time_base or Fraction(1, fps)
                stream.codec_context.thread_count = 1
                if full_range:
                    stream.codec_context.color_range = 2
            frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(
                format=pix_fmt, dst_color_range=2 if full_range else None
            )
            frame.pts = ticks(number) if ticks else number
            frame.time_base = time_base or Fraction(1, fps)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def remux(
    source: Path,
    target: Path,
    *,
    bsf: str | None = None,
    offset_s: float = 0.0,
    keep: Callable[[int], bool] | None = None,
    container_format: str | None = None,
    container_options: dict[str, str] | None = None,
) -> None:
    """Copy packets without encoding, optionally filtered, shifted in time or thinned out."""
    with (
        av.open(source) as reader,
        av.open(target, "w", format=container_format, options=container_options or {}) as writer,
    ):
        stream = reader.streams.video[0]
        copy = writer.add_stream_from_template(stream, opaque=False)
        bitstream_filter = BitStreamFilterContext(bsf, stream, copy) if bsf else None
        assert stream.time_base is not None
        shift = round(offset_s / stream.time_base)
        number = 0
        for packet in reader.demux(stream):
            if packet.size == 0:
                continue
            wanted = keep is None or keep(number)
            number += 1
            for each in bitstream_filter.filter(packet) if bitstream_filter else [packet]:
                if not wanted:
                    continue
                if each.pts is not None:
                    each.pts += shift
                if each.dts is not None:
                    each.dts += shift
                each.stream = copy
                writer.mux(each)


def tone(seconds: float, rate: int = 8000) -> Iterator[av.AudioFrame]:
    """A 440 Hz tone, mono."""
    step = 1024
    for start in range(0, int(seconds * rate), step):
        wave = (np.sin(np.arange(start, start + step) * (2 * np.pi * 440 / rate)) * 8000).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(wave.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = rate
        frame.pts = start
        frame.time_base = Fraction(1, rate)
        yield frame


def with_audio(source: Path, target: Path, seconds: float) -> None:
    """Copy the video of ``source`` and add a tone that lasts ``seconds``."""
    with av.open(source) as reader, av.open(target, "w") as writer:
        stream = reader.streams.video[0]
        copy = writer.add_stream_from_template(stream, opaque=False)
        sound = writer.add_stream("aac", rate=8000, layout="mono")
        video = [packet for packet in reader.demux(stream) if packet.size]
        audio = [packet for frame in tone(seconds) for packet in sound.encode(frame)] + sound.encode(None)
        for packet in video:
            packet.stream = copy
        both = [*video, *audio]
        both.sort(key=lambda packet: float((packet.dts or 0) * packet.time_base))
        writer.mux(both)


def joined(parts: Iterable[Path], target: Path) -> None:
    """The bytes of ``parts``, one after another."""
    target.write_bytes(b"".join(part.read_bytes() for part in parts))


def written(target: Path, data: bytes) -> None:
    """Just these bytes."""
    target.write_bytes(data)


def cut(source: Path, target: Path, part: float) -> None:
    """The first ``part`` (0..1) of the bytes of ``source``."""
    data = source.read_bytes()
    target.write_bytes(data[: int(len(data) * part)])
