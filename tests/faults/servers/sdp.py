"""Owns the session description of a test camera, right or wrong in every way that Mishaps name."""

from __future__ import annotations

import base64
import os

from faults.servers.elementary import ElementaryStream
from faults.servers.mishaps import Mishaps

_HEAD = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\na=control:*\r\n"
_AUDIO = "m=audio 0 RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\na=control:trackID=1\r\n"


def describe(stream: ElementaryStream, mishaps: Mishaps) -> bytes:
    """The body of the answer to DESCRIBE."""
    video = _video(stream, "H264/90000", sprop=mishaps.sprop)
    bodies = {
        "whole": _HEAD + video + (_AUDIO if mishaps.audio else ""),
        "no_codec": _HEAD + "m=video 0 RTP/AVP 96\r\na=control:trackID=0\r\n",
        "unknown_codec": _HEAD + _video(stream, "X-NOBODY/90000", sprop=False),
        "audio_only": _HEAD + _AUDIO,
        "no_media": _HEAD,
        "empty": "",
        "absurd": _absurd(video),
    }
    if mishaps.sdp == "binary":
        return os.urandom(2000)
    return bodies[mishaps.sdp].encode()


def _video(stream: ElementaryStream, codec: str, *, sprop: bool) -> str:
    sets = ",".join(base64.b64encode(each).decode() for each in (stream.sps, stream.pps))
    parameters = f";sprop-parameter-sets={sets}" if sprop else ""
    return (
        f"m=video 0 RTP/AVP 96\r\na=rtpmap:96 {codec}\r\na=fmtp:96 packetization-mode=1{parameters}\r\n"
        f"a=framerate:{stream.fps}\r\na=control:trackID=0\r\n"
    )


def _absurd(video: str) -> str:
    """Numbers out of all bounds, endless lines, a thousand tracks, attributes of nothing."""
    numbers = "a=framesize:96 4294967295-4294967295\r\na=framerate:-1e308\r\na=range:npt=nan-\r\nb=AS:-99999999999\r\n"
    long = "a=fmtp:96 sprop-parameter-sets=" + "A" * 100_000 + "\r\na=" + "x" * 100_000 + "\r\n"
    tracks = "".join(f"m=video {70_000 + n} RTP/AVP 96\r\na=rtpmap:96 H264/0\r\n" for n in range(1000))
    return "v=99\r\n" + _HEAD + numbers + video + long + tracks
