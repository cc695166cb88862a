"""Owns the odd and broken recordings that tests read, made on the spot with PyAV's own encoders. Commits no media.

``OddInputs(folder).path("rotated90.mp4")`` makes the file (and what it is made from) once and gives its path. The name
says what is odd. All are small: 100 frames of 160x120 at 25 fps unless the name says otherwise.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.stream import Disposition
from media.odd.making import H264_B, cut, encode, joined, remux, scene, tone, with_audio, written


class OddInputs:
    """Makes each file when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """The file called ``name``, made if need be."""
        target = self._folder / name
        if not target.exists():
            if name not in BUILDERS:
                raise KeyError(name)
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                BUILDERS[name](self, target)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
        return target


Builder = Callable[[OddInputs, Path], None]
BUILDERS: dict[str, Builder] = {}


def _makes(name: str) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        BUILDERS[name] = builder
        return builder

    return register


def _register(name: str, builder: Builder) -> None:
    BUILDERS[name] = builder


# --- whole and well-formed --------------------------------------------------------------------------------------------

_register("good.mp4", lambda _, to: encode(to, scene(), options=H264_B))
_register("plain.mp4", lambda _, to: encode(to, scene()))
_register(
    "faststart.mp4",
    lambda odd, to: remux(odd.path("good.mp4"), to, container_options={"movflags": "+faststart"}),
)
_register(
    "frag.mp4",
    lambda odd, to: remux(
        odd.path("good.mp4"), to, container_options={"movflags": "+frag_keyframe+empty_moov+default_base_moof"}
    ),
)
_register("good.mkv", lambda odd, to: remux(odd.path("good.mp4"), to))
_register("good.ts", lambda odd, to: remux(odd.path("good.mp4"), to))
_register("plain.ts", lambda odd, to: remux(odd.path("plain.mp4"), to))
_register("good.flv", lambda odd, to: remux(odd.path("good.mp4"), to))
_register("mjpeg.avi", lambda _, to: encode(to, scene(), codec="mjpeg", pix_fmt="yuvj420p", options={"q:v": "5"}))
_register("mpeg2.mpg", lambda _, to: encode(to, scene(), codec="mpeg2video", options={}, container_format="mpeg"))
_register("long_audio.mkv", lambda odd, to: with_audio(odd.path("good.mp4"), to, 7.0))
_register("long_audio.mp4", lambda odd, to: with_audio(odd.path("good.mp4"), to, 7.0))
_register("short_audio.mkv", lambda odd, to: with_audio(odd.path("good.mp4"), to, 1.0))
_register("one_frame.mp4", lambda _, to: encode(to, scene(1)))
_register("still.jpg", lambda _, to: encode(to, scene(1), codec="mjpeg", pix_fmt="yuvj420p", options={}))
_register("live.mkv", lambda odd, to: remux(odd.path("good.mp4"), to, container_options={"live": "1"}))


@_makes("two_video.mkv")
def _two_video(odd: OddInputs, to: Path) -> None:
    with (
        av.open(odd.path("plain.mp4")) as first,
        av.open(odd.path("odd_321x241.avi")) as second,
        av.open(to, "w") as writer,
    ):
        pairs = [
            (reader, reader.streams.video[0], writer.add_stream_from_template(reader.streams.video[0]))
            for reader in (first, second)
        ]
        for reader, stream, copy in pairs:
            for packet in reader.demux(stream):
                if packet.size:
                    packet.stream = copy
                    writer.mux(packet)


# --- truncated --------------------------------------------------------------------------------------------------------

_register("trunc_moov_at_end.mp4", lambda odd, to: cut(odd.path("good.mp4"), to, 0.6))
_register("trunc_faststart.mp4", lambda odd, to: cut(odd.path("faststart.mp4"), to, 0.6))
_register("trunc.mkv", lambda odd, to: cut(odd.path("good.mkv"), to, 0.6))
_register("trunc_frag.mp4", lambda odd, to: cut(odd.path("frag.mp4"), to, 0.6))
_register("trunc.avi", lambda odd, to: cut(odd.path("mjpeg.avi"), to, 0.6))
_register("trunc.flv", lambda odd, to: cut(odd.path("good.flv"), to, 0.6))
_register("trunc_long_audio.mkv", lambda odd, to: cut(odd.path("long_audio.mkv"), to, 0.4))
_register("trunc_last_byte.mp4", lambda odd, to: written(to, odd.path("faststart.mp4").read_bytes()[:-1]))


@_makes("trunc_before_first_frame.mp4")
def _trunc_first(odd: OddInputs, to: Path) -> None:
    data = odd.path("faststart.mp4").read_bytes()
    to.write_bytes(data[: data.index(b"mdat") + 4])


@_makes("wrong_index.avi")
def _wrong_index(odd: OddInputs, to: Path) -> None:
    """The header promises 444 frames, 100 exist."""
    data = bytearray(odd.path("mjpeg.avi").read_bytes())
    avih, strh = data.index(b"avih") + 8, data.index(b"strh") + 8
    struct.pack_into("<I", data, avih + 16, 444)
    struct.pack_into("<I", data, strh + 32, 444)
    to.write_bytes(data)


# --- damaged ----------------------------------------------------------------------------------------------------------

_register("corrupt_light.mp4", lambda odd, to: remux(odd.path("good.mp4"), to, bsf="noise=amount=2000"))
_register("corrupt_heavy.mp4", lambda odd, to: remux(odd.path("good.mp4"), to, bsf="noise=amount=100"))
_register("dropped_packets.mkv", lambda odd, to: remux(odd.path("good.mp4"), to, keep=lambda n: n == 0 or n % 7 != 0))
_register("mid_start.ts", lambda odd, to: written(to, odd.path("good.ts").read_bytes()[10_001:]))


@_makes("corrupt_start.avi")
def _corrupt_start(odd: OddInputs, to: Path) -> None:
    """The first ten pictures are noise."""
    data = bytearray(odd.path("mjpeg.avi").read_bytes())
    at = data.index(b"movi")
    for _ in range(10):
        at = data.index(b"00dc", at)
        size = struct.unpack_from("<I", data, at + 4)[0]
        data[at + 8 : at + 8 + size] = bytes(size)
        at += 8 + size
    to.write_bytes(data)


@_makes("all_corrupt.avi")
def _all_corrupt(odd: OddInputs, to: Path) -> None:
    """Not one picture can be decoded."""
    data = bytearray(odd.path("mjpeg.avi").read_bytes())
    at = data.index(b"movi")
    while (at := data.find(b"00dc", at)) >= 0 and at < data.rindex(b"idx1"):
        size = struct.unpack_from("<I", data, at + 4)[0]
        data[at + 8 : at + 8 + size] = bytes(size)
        at += 8 + size
    to.write_bytes(data)


# --- not videos -------------------------------------------------------------------------------------------------------

_register("empty.mp4", lambda _, to: to.touch())
_register("text.mp4", lambda _, to: written(to, b"not a video\n"))
_register("text.txt", lambda _, to: written(to, b"not a video\n" * 500))
_register("source.py", lambda _, to: written(to, Path(__file__).read_bytes()))
_register("random.mp4", lambda _, to: written(to, np.random.default_rng(7).bytes(100_000)))
_register("folder.mp4", lambda _, to: to.mkdir())


@_makes("audio_only.m4a")
def _audio_only(_: OddInputs, to: Path) -> None:
    with av.open(to, "w") as writer:
        sound = writer.add_stream("aac", rate=8000, layout="mono")
        for frame in tone(1.0):
            writer.mux(sound.encode(frame))
        writer.mux(sound.encode(None))


@_makes("cover_art.m4a")
def _cover_art(odd: OddInputs, to: Path) -> None:
    with (
        av.open(odd.path("audio_only.m4a")) as music,
        av.open(odd.path("still.jpg")) as art,
        av.open(to, "w", format="mp4") as writer,
    ):
        sound = writer.add_stream_from_template(music.streams.audio[0], opaque=False)
        cover = writer.add_stream_from_template(art.streams.video[0], opaque=False)
        cover.disposition = Disposition.attached_pic
        pairs: list[tuple[Any, Any]] = [(art, cover), (music, sound)]
        for reader, stream in pairs:
            for packet in reader.demux():
                if packet.size:
                    packet.stream = stream
                    writer.mux(packet)


@_makes("unsupported.avi")
def _unsupported(odd: OddInputs, to: Path) -> None:
    """A codec that no decoder knows."""
    data = odd.path("mjpeg.avi").read_bytes()
    to.write_bytes(data.replace(b"MJPG", b"Q0Q0"))


# --- timing -----------------------------------------------------------------------------------------------------------

_register("raw_bframes.h264", lambda _, to: encode(to, scene(), options=H264_B, container_format="h264"))
_register("raw.h264", lambda _, to: encode(to, scene(), container_format="h264"))
_register("bframes.avi", lambda odd, to: remux(odd.path("good.mp4"), to, bsf="h264_mp4toannexb"))
_register("start_at_100s.mkv", lambda odd, to: remux(odd.path("good.mp4"), to, offset_s=100))
_register("wrap33.ts", lambda odd, to: remux(odd.path("good.mp4"), to, offset_s=95441))
_register("late.ts", lambda odd, to: remux(odd.path("good.mp4"), to, offset_s=5000))
_register(
    "jump_forward.ts",
    lambda odd, to: joined([odd.path("good.ts"), odd.path("late.ts")], to),
)
_register(
    "jump_back.ts",
    lambda odd, to: joined([odd.path("late.ts"), odd.path("good.ts")], to),
)
_register(
    "twice.ts",
    lambda odd, to: joined([odd.path("plain.ts")] * 2, to),
)
_register(
    "cut_start.mp4",  # starts between key frames by way of an edit list
    lambda odd, to: remux(odd.path("good.mp4"), to, offset_s=-0.5, container_options={"avoid_negative_ts": "disabled"}),
)
_register(
    "cut_start_index_first.mp4",
    lambda odd, to: remux(
        odd.path("good.mp4"),
        to,
        offset_s=-0.5,
        container_options={"avoid_negative_ts": "disabled", "movflags": "+faststart"},
    ),
)
_register(
    "start_at_100s_index_first.mp4",
    lambda odd, to: remux(odd.path("good.mp4"), to, offset_s=100, container_options={"movflags": "+faststart"}),
)
_register("fps1000.mp4", lambda _, to: encode(to, scene(200), fps=1000))


def _vfr_tick(number: int) -> int:
    """Milliseconds: 25 fps with pauses of up to 0.8 s."""
    return number * 40 + number // 10 * 400 + (number // 25) * 400


_register("vfr.mp4", lambda _, to: encode(to, scene(), ticks=_vfr_tick, time_base=Fraction(1, 1000)))
_register("vfr.mkv", lambda _, to: encode(to, scene(), ticks=_vfr_tick, time_base=Fraction(1, 1000)))
_register(
    "timelapse.mp4",  # a frame each 30 s
    lambda _, to: encode(to, scene(20), ticks=lambda number: number * 30_000, time_base=Fraction(1, 1000)),
)

# --- geometry and pixel formats ---------------------------------------------------------------------------------------

_TURNED = {  # degrees counterclockwise that make it upright: a, b, c, d of the matrix in the track header
    90: (0, -1, 1, 0),
    180: (-1, 0, 0, -1),
    -90: (0, 1, -1, 0),  # as a phone held upright writes it
}


def _rotated(degrees: int) -> Builder:
    def build(odd: OddInputs, to: Path) -> None:
        data = bytearray(odd.path("plain.mp4").read_bytes())
        a, b, c, d = (value * 0x10000 for value in _TURNED[degrees])
        struct.pack_into(">9i", data, data.index(b"tkhd") + 44, a, b, 0, c, d, 0, 0, 0, 0x40000000)
        to.write_bytes(data)

    return build


for _degrees in _TURNED:
    _register(f"rotated{_degrees}.mp4", _rotated(_degrees))
_register("odd_321x241.avi", lambda _, to: encode(to, scene(20, 321, 241), codec="mpeg4", options={"q:v": "5"}))
_register("odd_321x241_444.mp4", lambda _, to: encode(to, scene(20, 321, 241), pix_fmt="yuv444p"))
_register(
    "vp9_321x241.webm",
    lambda _, to: encode(
        to, scene(20, 321, 241), codec="libvpx-vp9", options={"cpu-used": "8", "deadline": "realtime"}
    ),
)
_register("gray_ffv1.mkv", lambda _, to: encode(to, scene(10), codec="ffv1", pix_fmt="gray", options={}))
_register("gray_h264.mp4", lambda _, to: encode(to, scene(10), pix_fmt="gray"))
_register("ten_bit.mp4", lambda _, to: encode(to, scene(10), pix_fmt="yuv420p10le"))
_register("ten_bit_422.mp4", lambda _, to: encode(to, scene(10), pix_fmt="yuv422p10le"))
_register("full_range.mp4", lambda _, to: encode(to, scene(10), pix_fmt="yuv420p", full_range=True))
_register("alpha.mov", lambda _, to: encode(to, scene(10), codec="qtrle", pix_fmt="argb", options={}))
_register("rgb_lossless.mkv", lambda _, to: encode(to, scene(10), codec="ffv1", pix_fmt="bgr0", options={}))
_register("anim.gif", lambda _, to: encode(to, scene(10), codec="gif", pix_fmt="rgb8", options={}, fps=10))
_register("two_by_two.mp4", lambda _, to: encode(to, scene(5, 2, 2)))
_register("one_pixel.mkv", lambda _, to: encode(to, scene(3, 1, 1), codec="ffv1", pix_fmt="bgr0", options={}))
_register("wide_1px.mkv", lambda _, to: encode(to, scene(3, 640, 1), codec="ffv1", pix_fmt="bgr0", options={}))
_register("eight_k.mp4", lambda _, to: encode(to, scene(2, 7680, 4320), codec="mjpeg", pix_fmt="yuvj420p", options={}))
_register("half_a.h264", lambda _, to: encode(to, scene(50), container_format="h264"))
_register("half_b.h264", lambda _, to: encode(to, scene(50, 320, 240), container_format="h264"))
_register(
    "size_change.h264",
    lambda odd, to: joined([odd.path("half_a.h264"), odd.path("half_b.h264")], to),
)
_register("half_a.ts", lambda _, to: encode(to, scene(50)))
_register("half_b.ts", lambda _, to: encode(to, scene(50, 320, 240)))
_register(
    "size_change.ts",
    lambda odd, to: joined([odd.path("half_a.ts"), odd.path("half_b.ts")], to),
)
