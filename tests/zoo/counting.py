"""Owns counting the frames of a recording without campipe: ffprobe, else FFmpeg's command, else a plain PyAV loop."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import av
from av.error import FFmpegError
from av.stream import Disposition

Counter = Callable[[Path, int], int]


def counter() -> tuple[str, Counter]:
    """The most independent way of counting that this machine has, and its name."""
    if ffprobe := shutil.which("ffprobe"):
        return "ffprobe", lambda path, track: by_ffprobe(ffprobe, path, track)
    if ffmpeg := shutil.which("ffmpeg") or _bundled():
        return "ffmpeg", lambda path, track: by_ffmpeg(ffmpeg, path, track)
    return "PyAV", by_pyav


def _bundled() -> str | None:
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return None
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())


def by_ffprobe(ffprobe: str, path: Path, track: int = 0) -> int:
    """Frames that ffprobe decodes of video track ``track`` (cover pictures don't count)."""
    wanted = ("-select_streams", f"V:{track}", "-count_frames", "-show_entries", "stream=nb_read_frames")
    command = [ffprobe, "-v", "quiet", "-threads", "1", *wanted, "-of", "csv=p=0", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split()
    return int(said[0].strip(",")) if said and said[0].strip(",").isdigit() else 0


def by_ffmpeg(ffmpeg: str, path: Path, track: int = 0) -> int:
    """Frames that ``ffmpeg`` hands on of video track ``track``."""
    out = ("-map", f"0:V:{track}", "-fps_mode", "passthrough", "-enc_time_base", "1:1000000", "-f", "framecrc", "-")
    command = [ffmpeg, "-v", "quiet", "-nostdin", "-threads", "1", "-i", str(path), *out]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    return sum(not line.startswith("#") for line in said.splitlines())


def by_pyav(path: Path, track: int = 0) -> int:
    """Frames of a plain loop in which each packet may fail alone."""
    count = 0
    with av.open(str(path)) as container:
        tracks = [s for s in container.streams.video if Disposition.attached_pic not in Disposition(s.disposition)]
        stream = tracks[track]
        stream.thread_type = "NONE"
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return count
                count += len(packet.decode())
            except FFmpegError:
                continue
