"""Owns the list of odd recordings: each with its maker and what must come of it. Frame counts are the oracle's word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from media.odd.making import FPS, H264, encode, joined, scene, written
from media.odd.odd_inputs import BUILDERS, OddInputs

Maker = Callable[[OddInputs, Path], None]
SMALL = (160, 120)
X265 = {"preset": "ultrafast", "x265-params": "log-level=none:pools=1:frame-threads=1"}


@dataclass(frozen=True, slots=True)
class Specimen:
    """``sizes``: of the upright pictures, in the order in which they first come. ``ending``: EndCause of the stream.
    ``refused``: words of the refusal; nothing is played then. ``damaged``: some pictures may be marked corrupt."""

    name: str
    make: Maker
    sizes: tuple[tuple[int, int], ...] = (SMALL,)
    ending: str = "ended"
    refused: str = ""
    damaged: bool = False
    track: int = 0
    slow: bool = False
    disputed: bool = False  # decoders differ in how much of it they show

    def path(self, folder: Path, odd: OddInputs) -> Path:
        """The file, made if need be."""
        target = folder / self.name
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self.make(odd, target)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
        return target


def _known(name: str) -> Maker:
    return BUILDERS[name]


def _h265(pix_fmt: str, count: int = 20) -> Maker:
    return lambda _, to: encode(to, scene(count), codec="libx265", pix_fmt=pix_fmt, options=X265)


def _x264(params: str, **more: str) -> Maker:
    options = {k: v for k, v in H264.items() if k not in ("g", "bf", "sc_threshold")} | {"x264-params": params} | more
    return lambda _, to: encode(to, scene(), options=options)


def _aspect(_: OddInputs, to: Path) -> None:
    """Pixels that are not square: 352x288 that is meant to be shown 16:9."""
    with av.open(to, "w") as out:
        stream: Any = out.add_stream("libx264", rate=FPS, options=dict(H264))
        stream.width, stream.height, stream.pix_fmt = 352, 288, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(16, 11)
        for number, image in enumerate(scene(20, 352, 288)):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def _alpha(_: OddInputs, to: Path) -> None:
    options = {"deadline": "realtime", "cpu-used": "8", "auto-alt-ref": "0"}
    encode(to, scene(12), codec="libvpx-vp9", pix_fmt="yuva420p", options=options)


def _noise_at(part: float) -> Maker:
    def make(odd: OddInputs, to: Path) -> None:
        data = bytearray(odd.path("faststart.mp4").read_bytes())
        start = data.index(b"mdat") + 8
        at = start + int((len(data) - start) * part)
        data[at : at + 400] = np.random.default_rng(3).bytes(400)
        to.write_bytes(data)

    return make


def _flipped(odd: OddInputs, to: Path) -> None:
    """One byte in 500 of the pictures is wrong."""
    data = bytearray(odd.path("faststart.mp4").read_bytes())
    start = data.index(b"mdat") + 8
    for at in np.random.default_rng(5).integers(start, len(data), (len(data) - start) // 500):
        data[at] ^= 0xFF
    to.write_bytes(data)


def _truncated_at(name: str, part: float) -> Maker:
    def make(odd: OddInputs, to: Path) -> None:
        data = odd.path(name).read_bytes()
        to.write_bytes(data[: int(len(data) * part)])

    return make


def _coded(codec: str, count: int = 20, container_format: str | None = None, **options: str) -> Maker:
    return lambda _, to: encode(to, scene(count), codec=codec, options=options, container_format=container_format)


def _still(codec: str, pix_fmt: str, width: int, height: int, count: int = 1) -> Maker:
    return lambda _, to: encode(to, scene(count, width, height), codec=codec, pix_fmt=pix_fmt, options={})


def _codecs_change(odd: OddInputs, to: Path) -> None:
    """H.264, then MPEG-2, in one transport stream: what a recorder leaves whose camera was replaced."""
    second = to.with_suffix(".second")
    encode(second, scene(20), codec="mpeg2video", options={}, container_format="mpegts")
    joined([odd.path("plain.ts"), second], to)
    second.unlink()


def _s(name: str, make: Maker | str | None = None, *sizes: tuple[int, int], **more: Any) -> Specimen:
    maker = make if callable(make) else _known(make or name)
    return Specimen(name, maker, sizes or (SMALL,), **more)


def _tiny(codec: str, n: int, pix_fmt: str, ending: str) -> Specimen:
    return _s(f"{codec}_{n}x{n}.{ending}", _still(codec, pix_fmt, n, n, 2), (n, n), slow=n not in (1, 2, 3, 7, 16))


_ODD = (321, 241)

WHOLE = [
    *(_s(name) for name in ("good.mp4", "good.mkv", "frag.mp4", "good.ts", "good.flv", "live.mkv", "one_frame.mp4")),
    # timing
    *(_s(name) for name in ("vfr.mp4", "vfr.mkv", "timelapse.mp4", "fps1000.mp4", "raw_bframes.h264", "raw.h264")),
    _s("bframes_in_avi.avi", "bframes.avi"),
    *(_s(name) for name in ("start_at_100s.mkv", "jump_forward.ts", "jump_back.ts", "twice.ts")),
    _s("ts_wrap33.ts", "wrap33.ts"),
    _s("editlist_neg_start.mp4", "cut_start.mp4"),
    _s("cbr.ts", lambda _, to: encode(to, scene(), container_options={"muxrate": "1000000"})),
    _s("open_gop.ts", _x264("open-gop=1:keyint=15:bframes=3")),
    _s("intra_refresh_no_idr.ts", _x264("intra-refresh=1:keyint=9999")),
    _s("av_audio.mp4", "long_audio.mp4"),
    _s("short_audio.mkv"),
    # geometry and pixel formats
    _s("rotated90.mp4", None, (120, 160)),
    _s("rotated-90.mp4", None, (120, 160)),
    _s("rotated180.mp4"),
    _s("odd_321x241_mpeg4.avi", "odd_321x241.avi", _ODD),
    _s("odd_321x241_444.mp4", None, _ODD),
    _s("odd_321x241_vp9.webm", "vp9_321x241.webm", _ODD),
    _s("sar_16_11.mp4", _aspect, (352, 288)),
    _s("interlaced_tff.mp4", _x264("tff=1:keyint=25", flags="+ildct+ilme")),
    _s("hevc_8bit.ts", _h265("yuv420p")),
    _s("hevc_10bit.mp4", _h265("yuv420p10le")),
    _s("hevc_12bit_444.mp4", _h265("yuv444p12le", 5)),
    _s("hevc_gray.mp4", _h265("gray")),
    _s("h264_10bit.mp4", "ten_bit.mp4"),
    _s("h264_422_10bit.mp4", "ten_bit_422.mp4"),
    _s("fullrange.mp4", "full_range.mp4"),
    _s("gray.mp4", "gray_h264.mp4"),
    _s("ffv1_gray.mkv", "gray_ffv1.mkv"),
    _s("ffv1_gray16.mkv", _still("ffv1", "gray16le", *SMALL, 3)),
    _s("rgb_lossless.mkv"),
    _s("mjpeg422.avi", _still("mjpeg", "yuvj422p", *SMALL, 20)),
    _s("raw.mjpeg", _still("mjpeg", "yuvj420p", *SMALL, 100)),
    _s("mpeg2.mpg"),
    _s("mpeg1.mpg", _coded("mpeg1video", container_format="mpeg")),
    _s("av1.mp4", _coded("libsvtav1", preset="11", crf="45")),
    _s("vp8.webm", _coded("libvpx", deadline="realtime")),
    _s("alpha.webm", _alpha),
    _s("alpha.mov"),
    _s("wmv2.asf", _coded("wmv2", container_format="asf")),
    _s("prores.mov", _still("prores_ks", "yuv422p10le", *SMALL, 3)),
    _s("huffyuv.avi", _still("huffyuv", "yuv422p", *SMALL, 5)),
    _s("anim.gif"),
    _s("still.jpg"),
    # streams
    _s("res_change.h264", "size_change.h264", SMALL, (320, 240)),
    _s("res_change.ts", "size_change.ts", SMALL, (320, 240)),
    _s("two_video.mkv", None, SMALL),
    _s("two_video_second.mkv", "two_video.mkv", _ODD, track=1),
    # extremes
    *(_tiny("ffv1", n, "bgr0", "mkv") for n in range(1, 17)),
    *(_tiny("libx264", n, "yuv444p" if n % 2 else "yuv420p", "mp4") for n in range(1, 17)),
    _s("mjpeg_1x1.avi", _still("mjpeg", "yuvj444p", 1, 1, 2), (1, 1)),
    _s("vp9_1x1.webm", _still("libvpx-vp9", "yuv420p", 1, 1, 2), (1, 1)),
    _s("wide_16384x2.mkv", _still("ffv1", "bgr0", 16384, 2), (16384, 2)),
    _s("tall_2x16384.mkv", _still("ffv1", "bgr0", 2, 16384), (2, 16384)),
    _s("eight_k_mjpeg.avi", _still("mjpeg", "yuvj420p", 7680, 4320), (7680, 4320)),
    _s("eight_k_h264.mp4", _still("libx264", "yuv420p", 7680, 4320), (7680, 4320), slow=True),
]

DAMAGED = [
    *(
        _s(name, None, ending="truncated", damaged=True)
        for name in ("trunc_faststart.mp4", "trunc.mkv", "trunc_frag.mp4", "trunc.avi", "trunc.flv", "wrong_index.avi")
    ),
    *(_s(f"trunc_{percent}.ts", _truncated_at("good.ts", percent / 100), damaged=True) for percent in (37, 60, 99)),
    _s("corrupt_noise.mp4", "corrupt_light.mp4", damaged=True),
    _s("corrupt_heavy.mp4", damaged=True),
    _s("byte_flipped.mp4", _flipped, damaged=True),
    *(_s(f"noise_at_{percent}.mp4", _noise_at(percent / 100), damaged=True) for percent in (0, 30, 95)),
    _s("dropped_packets.mkv", damaged=True),
    _s("ts_mid_start.ts", "mid_start.ts", damaged=True),
    _s("corrupt_start.avi", damaged=True),
    _s("codec_change.ts", _codecs_change, damaged=True, disputed=True),
]

REFUSED = [
    _s("trunc_moov_at_end.mp4", refused="its index (the moov box) is missing"),
    _s("trunc_before_first_frame.mp4", refused="the file stops after 0 of 100 frames"),
    _s("empty.mp4", refused="(0 bytes)"),
    _s("text.mp4", refused="is not a video file"),
    _s("random.mp4", refused="is not a video file"),
    _s("random.ts", lambda _, to: written(to, np.random.default_rng(11).bytes(60_000)), refused="is not a video file"),
    _s("audio_only.m4a", refused="has no video track, only audio"),
    _s("cover_art.m4a", refused="has no video track, only audio and a cover picture"),
    _s("unsupported.avi", refused="no decoder for its video codec"),
    _s("all_corrupt.avi", refused="not one frame of it can be decoded"),
]

__all__ = ["DAMAGED", "REFUSED", "WHOLE", "Specimen"]
