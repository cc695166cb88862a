"""Owns what the decode stage knows of any source of frames. Opens nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from av.video.frame import VideoFrame

from stages.messages import ClockSource, LinkCause


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What a source says of itself; sizes are those of the upright picture, in pixels."""

    width: int
    height: int
    fps: float  # 0.0: not known before pictures come
    codec: str  # FFmpeg's name of the codec: h264, hevc, msmpeg4v3 …
    pixel_format: str  # as decoded: yuv420p …
    container: str
    frames: int | None  # what the index promises, None when it says nothing
    duration_s: float | None
    rotation: int  # degrees counterclockwise that make the picture upright: 0, 90, 180 or 270
    recorded_at_ns: int | None  # UTC of the first frame according to the file
    nominal_ns: int  # from frame to frame when timestamps don't say
    held_back: int = 0  # pictures that the decoder keeps to put them in order


@dataclass(frozen=True, slots=True)
class SourceFrame:
    """One decoded frame, not yet converted; ``pts_ns`` since the first frame of this opening."""

    frame: VideoFrame
    pts_ns: int
    corrupt: bool
    whole: bool = True  # False: no keyframe came before it, so that parts of it may never have been sent


@dataclass(frozen=True, slots=True)
class LiveFrame(SourceFrame):
    """One decoded frame of a live source."""

    arrived_at_ns: int = 0  # monotonic time at which its data was there, before it waited in buffers
    captured_ns: int = 0  # UTC
    clock: ClockSource = "arrival"  # what captured_ns comes from


@dataclass(frozen=True, slots=True)
class Ending:
    """Why there are no more frames; ``cause`` is an EndCause, ``detail`` for people."""

    cause: str
    detail: str


class Source(Protocol):
    """Frames in presentation order, from one opening to its end."""

    @property
    def decode_errors(self) -> int:
        """Packets that the decoder refused or that couldn't be read, since ``open``."""

    def open(self) -> SourceFacts:
        """Open and decode up to the first frame. Raises SourceRefused."""

    def read(self) -> SourceFrame | None:
        """The next frame, or None when there is none any more: then ``ending`` says why."""

    def ending(self) -> Ending:
        """Why ``read`` gave None."""

    def close(self) -> None:
        """Release everything; may be called twice."""


class LiveSource(Protocol):
    """A connection that is opened once, read until it is lost, and closed. All but the properties may block.

    One thread calls the methods; the properties may be read from any, and ``keyframes`` set from any.
    """

    keyframes: bool  # decode nothing but keyframes

    @property
    def decode_errors(self) -> int:
        """Packets that the decoder refused, since ``open``."""

    @property
    def skipped(self) -> int:
        """Packets that were not decoded, since ``open``, because decoding could not keep up."""

    @property
    def resolving(self) -> bool:
        """Whether it waits for the name service, which has deadlines of its own and can't be interrupted."""

    @property
    def remark(self) -> str:
        """For people: what is odd about this camera though pictures come; empty if nothing is."""

    def open(self) -> SourceFacts:
        """Connect. Sizes are 0 when they aren't known before the first picture. Raises LinkFault."""

    def read(self) -> list[LiveFrame]:
        """The frames that the next packet completes, often none. Raises LinkFault when the connection is over."""

    def silence(self) -> tuple[LinkCause, str]:
        """Why no whole picture has come of late, as far as can be told; cause and a sentence for people."""

    def close(self) -> None:
        """Release everything; may be called twice."""
