"""Owns what can be wrong with a test camera, as values that may be changed while it serves. Does nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

SDP_KINDS = ("whole", "no_codec", "unknown_codec", "audio_only", "no_media", "empty", "absurd", "binary")


@dataclass
class Mishaps:
    """Of one path. All at their defaults: a well-behaved camera. Times are seconds."""

    # answers
    status: dict[str, int] = field(default_factory=dict)  # method -> status instead of 200, as {"DESCRIBE": 453}
    redirect: str | None = None  # DESCRIBE is answered with 302 and this url
    silent_on: str | None = None  # this method is never answered
    answer_delay_s: float = 0.0
    garbage_answer: bool = False  # DESCRIBE is answered with noise
    sdp: str = "whole"  # one of SDP_KINDS
    sprop: bool = True  # parameter sets are in the SDP
    transports: tuple[str, ...] = ("tcp", "udp")
    audio: bool = False  # there is a track of sound as well

    # pictures
    stall: bool = False  # nothing is sent, the connection stays
    video: bool = True  # False: only sound is sent
    close_after: int | None = None  # connection is closed after so many pictures
    keyframes: bool = True
    parameter_sets: bool = True  # SPS and PPS with each keyframe
    drop_percent: float = 0.0  # of RTP packets
    garbage_every: int = 0  # each n-th RTP packet holds noise
    damage_every: int = 0  # each n-th RTP packet holds noise behind its first bytes, as after errors of bits
    duplicate_every: int = 0  # each n-th RTP packet is sent twice
    variant: str = "main"  # which of the path's streams, from its next keyframe on
    burst: bool = False  # as fast as the client takes it
    speed: float = 1.0  # pictures come so much faster or slower than their timestamps say

    # time
    first_stamp: int | None = None  # RTP timestamp of the first picture; None: at random
    jump_s: float = 0.0  # added to timestamps from now on
    freeze_stamp: bool = False  # all pictures have the same timestamp
    drift: float = 1.0  # the media clock runs so much faster
    reports: bool = True  # RTCP sender reports
    report_offset_s: float = 0.0  # how wrong the camera's wall clock is

    def change(self, **values: Any) -> None:
        """Set some of the fields by name. Raises ValueError for a name or a kind that does not exist."""
        known = {each.name for each in fields(self)}
        if unknown := set(values) - known:
            raise ValueError(f"there is no mishap {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
        if values.get("sdp", "whole") not in SDP_KINDS:
            raise ValueError(f"there is no sdp {values['sdp']!r}; there are {', '.join(SDP_KINDS)}")
        for name, value in values.items():
            setattr(self, name, tuple(value) if name == "transports" else value)

    def heal(self) -> None:
        """Be well-behaved again."""
        for name, value in vars(Mishaps()).items():
            setattr(self, name, value)
