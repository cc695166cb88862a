"""Owns a recording's first frames, decoded once and played from memory. Decodes nothing itself: its source does.

For measuring everything behind the decoder: what a frame costs here is a reference to it. Which frames, and their
order, depend on the recording and the bounds below alone.
"""

from __future__ import annotations

from typing import Final

from av.video.frame import VideoFrame

from stages.decode.source import Ending, Source, SourceFacts, SourceFrame

MOST_FRAMES: Final = 250
MOST_BYTES: Final = 16 * 1024 * 1024  # per camera, as decoded: 25 frames of 768x576, 12 of 720p, 5 of 1080p


class MemorySource:
    """See ``stages.decode.source.Source``. With ``loop`` it never ends, and its timestamps go on rising."""

    def __init__(self, source: Source, *, loop: bool) -> None:
        self._source = source
        self._loop = loop
        self._frames: list[SourceFrame] = []
        self._next = 0
        self._passed_ns = 0  # length of all passes that are over
        self._pass_ns = 0

    @property
    def decode_errors(self) -> int:
        """See Source."""
        return self._source.decode_errors

    def open(self) -> SourceFacts:
        """Open the source, take in its frames up to the bounds (one at least), close it. Raises SourceRefused."""
        self._frames, self._next, self._passed_ns = [], 0, 0
        facts = self._source.open()
        try:
            held_bytes = 0
            while len(self._frames) < MOST_FRAMES and held_bytes < MOST_BYTES:
                frame = self._source.read()
                if frame is None:
                    break
                self._frames.append(frame)
                held_bytes += frame_bytes(frame.frame)
        finally:
            self._source.close()
        self._pass_ns = (self._frames[-1].pts_ns if self._frames else 0) + facts.nominal_ns
        return SourceFacts(
            width=facts.width,
            height=facts.height,
            fps=facts.fps,
            codec=facts.codec,
            pixel_format=facts.pixel_format,
            container=facts.container,
            frames=None if self._loop else len(self._frames),
            duration_s=None if self._loop else self._pass_ns / 1e9,
            rotation=facts.rotation,
            recorded_at_ns=facts.recorded_at_ns,
            nominal_ns=facts.nominal_ns,
        )

    def read(self) -> SourceFrame | None:
        """See Source."""
        if self._next == len(self._frames):
            if not (self._loop and self._frames):
                return None
            self._next = 0
            self._passed_ns += self._pass_ns
        held = self._frames[self._next]
        self._next += 1
        return SourceFrame(held.frame, held.pts_ns + self._passed_ns, held.corrupt, whole=held.whole)

    def ending(self) -> Ending:
        """See Source. The recording's frames beyond the bounds are not missed: they were not asked for."""
        return Ending("ended", "")

    def close(self) -> None:
        """See Source."""
        self._source.close()
        self._frames = []
        self._next = 0


def frame_bytes(frame: VideoFrame) -> int:
    """What a decoded frame holds."""
    return sum(plane.buffer_size for plane in frame.planes)
