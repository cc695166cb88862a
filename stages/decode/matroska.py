"""Owns one question about Matroska and WebM files: are all the bytes there that the header states? Decodes nothing.

FFmpeg drops a frame that the file ends in without a word, and the duration alone can't tell some missing frames from
a last frame that lasts long. The Segment element, which holds everything, states its size (RFC 8794, RFC 9559).
"""

from __future__ import annotations

import os

_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"


def missing_bytes(path: str) -> int:
    """How many bytes of the Segment are missing at the end of the file; 0 when it states none or can't be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a str may hold what Path refuses
            size = os.fstat(file.fileno()).st_size
            start = file.read(64)
            if start[:4] != _EBML:
                return 0
            header_bytes, at = _number(start, 4)
            if header_bytes is None:
                return 0
            file.seek(at + header_bytes)
            start = file.read(12)
    except OSError:
        return 0
    if start[:4] != _SEGMENT:
        return 0
    segment_bytes, length = _number(start, 4)
    if segment_bytes is None:  # written by one who couldn't go back, for example live
        return 0
    return max(at + header_bytes + length + segment_bytes - size, 0)


def _number(data: bytes, at: int) -> tuple[int | None, int]:
    """The variable-length size at ``at`` (None: all ones, unknown) and where it ends."""
    if at >= len(data) or data[at] == 0:
        return None, at
    length = 9 - data[at].bit_length()
    value = int.from_bytes(data[at : at + length], "big") & ((1 << 7 * length) - 1)
    known = len(data) >= at + length and value != (1 << 7 * length) - 1
    return (value if known else None), at + length
