"""Owns the sentences for files that can't be used: which file, what is wrong, what to do. Opens no container."""

from __future__ import annotations

import os
import stat

from stages.errors import SourceRefused

_OTHER_THAN_FILES = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

# How containers begin, enough to tell a damaged video from no video: offset, bytes, name, what is often wrong.
_SIGNATURES = (
    (4, b"ftyp", "MP4", "its index (the moov box) is missing or damaged, as after an interrupted recording or copy"),
    (0, b"\x1aE\xdf\xa3", "Matroska", "its header is damaged"),
    (0, b"RIFF", "AVI", "its header is damaged"),
    (0, b"FLV\x01", "FLV", "its header is damaged"),
    (0, b"OggS", "Ogg", "its header is damaged"),
)

# How files begin that name others to be played; looked for where FFmpeg opened nothing.
_PLAYLISTS = ((b"#EXTM3U", "an HLS playlist"), (b"ffconcat", "a list for FFmpeg"), (b"<MPD", "a DASH manifest"))
_START_BYTES = 2048


def check_path(path: str) -> None:
    """Raise SourceRefused for what can be told before a container is opened: missing, folder, empty, not readable."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a str may hold what Path refuses
    except FileNotFoundError:
        raise SourceRefused(
            "not_found", f"{path}: no such file; check the path, and that the disk it is on is mounted"
        ) from None
    except (OSError, ValueError) as error:
        raise SourceRefused("not_found", f"{path}: {reason(error)}; check the path") from None
    if stat.S_ISDIR(found.st_mode):
        raise SourceRefused("not_video", f"{path} is a folder; name one recording in it")
    for is_kind, kind in _OTHER_THAN_FILES:
        if is_kind(found.st_mode):
            raise SourceRefused("unreadable", f"{path} is {kind}, not a file; give the path of a recorded file")
    if not os.access(path, os.R_OK):
        raise SourceRefused("unreadable", f"{path} can't be read (permission denied); give campipe's user read access")
    if found.st_size == 0:
        raise SourceRefused("not_video", f"{path} is empty (0 bytes); record or copy it again")


def not_opened(path: str, error: Exception) -> SourceRefused:
    """FFmpeg recognised no container, or found it too damaged, or couldn't read it."""
    if isinstance(error, OSError) and not isinstance(error, ValueError):
        return SourceRefused("unreadable", f"{path} can't be read ({reason(error)}); check the disk and its mount")
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a str may hold what Path refuses
            start = file.read(_START_BYTES)
    except OSError as failure:
        return SourceRefused("unreadable", f"{path} can't be read ({reason(failure)}); check the disk and its mount")
    for offset, signature, name, fault in _SIGNATURES:
        if start[offset : offset + len(signature)] == signature:
            return SourceRefused(
                "corrupt",
                f"{path} begins like {name}, but {fault}; copy it again or repair it, "
                "and record to MKV, TS or fragmented MP4, which survive an interruption",
            )
    for mark, kind in _PLAYLISTS:
        if mark in start:
            return SourceRefused(
                "not_video",
                f"{path} is {kind}: it holds no pictures but names other files; give those, or make one recording of "
                "them (ffmpeg -i LIST -c copy RECORDING.mkv)",
            )
    return not_video(path)


def not_video(path: str) -> SourceRefused:
    """Text, noise, a document."""
    return SourceRefused("not_video", f"{path} is not a video file; give a recording such as MP4, MKV, AVI or TS")


def no_video_track(path: str, others: list[str]) -> SourceRefused:
    """A container without pictures; ``others`` says what is in it."""
    held = f", only {' and '.join(others)}" if others else ""
    return SourceRefused("no_frames", f"{path} has no video track{held}; give a recording with pictures")


def no_such_track(path: str, track: int, tracks: int) -> SourceRefused:
    """It has fewer video tracks than the camera asks for."""
    held = "one video track, number 0" if tracks == 1 else f"{tracks} video tracks, numbered from 0"
    return SourceRefused("no_frames", f"{path} has {held}: there is no track {track}; change source.track")


def unsupported(path: str, codec: str) -> SourceRefused:
    """No decoder for this codec."""
    return SourceRefused(
        "unsupported", f"{path}: no decoder for its video codec ({codec}); re-encode it, for example to H.264"
    )


def no_frame_decodes(path: str, codec: str, errors: int) -> SourceRefused:
    """There is a video track, and packets, but no picture comes of them."""
    return SourceRefused(
        "corrupt" if errors else "no_frames",
        f"{path} has a video track ({codec}) but not one frame of it can be decoded"
        + (f" (damaged packets: {errors})" if errors else "")
        + "; copy or record it again",
    )


def nothing_but_a_header(path: str, detail: str) -> SourceRefused:
    """Cut before the first frame."""
    return SourceRefused("truncated", f"{path}: {detail}; copy or record it again")


def reason(error: Exception) -> str:
    """What the system says, without the path that it repeats."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]
