"""Owns packets of RTP and RTCP: H.264 by RFC 6184, sender reports and farewells by RFC 3550. Sends nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from faults.servers.elementary import AccessUnit

PAYLOAD_BYTES = 1400
VIDEO_TYPE, AUDIO_TYPE = 96, 0
VIDEO_RATE, AUDIO_RATE = 90_000, 8_000
NTP_EPOCH_S = 2_208_988_800  # from 1900 to 1970
_FU_A = 28


def payloads(unit: AccessUnit) -> Iterator[tuple[bytes, bool]]:
    """RTP payloads of one picture; True with the last."""
    for position, nal in enumerate(unit.nals):
        last_nal = position == len(unit.nals) - 1
        if len(nal) <= PAYLOAD_BYTES:
            yield nal, last_nal
            continue
        header, body = nal[0], nal[1:]
        for start in range(0, len(body), PAYLOAD_BYTES):
            end = start + PAYLOAD_BYTES >= len(body)
            flags = (0x80 if start == 0 else 0) | (0x40 if end else 0)
            yield (
                bytes([header & 0xE0 | _FU_A, flags | header & 0x1F]) + body[start : start + PAYLOAD_BYTES],
                last_nal and end,
            )


def packet(payload: bytes, *, kind: int, marker: bool, sequence: int, stamp: int, ssrc: int) -> bytes:
    """One RTP packet; ``sequence`` and ``stamp`` are cut to 16 and 32 bits."""
    head = (0x80, kind | (0x80 if marker else 0), sequence & 0xFFFF, stamp & 0xFFFFFFFF, ssrc)
    return struct.pack(">BBHII", *head) + payload


def sender_report(*, ssrc: int, utc_s: float, stamp: int, packets: int, octets: int) -> bytes:
    """RTCP: at ``utc_s`` the media clock showed ``stamp``; with the CNAME that every report must have."""
    ntp = int((utc_s + NTP_EPOCH_S) * 2**32) & 0xFFFFFFFFFFFFFFFF
    counts = (stamp & 0xFFFFFFFF, packets & 0xFFFFFFFF, octets & 0xFFFFFFFF)
    report = struct.pack(">BBHIQIII", 0x80, 200, 6, ssrc, ntp, *counts)
    name = b"\x01\x04test\x00\x00"  # CNAME, its length, its text, the end of the list, padding
    return report + struct.pack(">BBHI", 0x81, 202, 1 + len(name) // 4, ssrc) + name


def farewell(ssrc: int) -> bytes:
    """RTCP BYE."""
    return struct.pack(">BBHI", 0x81, 203, 1, ssrc)
