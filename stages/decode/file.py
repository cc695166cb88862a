"""Owns reading one recorded file: open, decode packet by packet, timestamps, how it ended. Not sampling, not slots.

One bad packet doesn't end a stream: each packet is decoded in its own ``try`` and failures are counted. A file that
stops early ends without any error in FFmpeg; ``ending`` compares what came with what the header promised.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from functools import lru_cache
from typing import Any

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from stages.camera import CameraSpec
from stages.decode import refusal
from stages.decode.clock import SECOND_NS, StreamClock, nominal_ns, told_fps, utc_ns
from stages.decode.matroska import missing_bytes
from stages.decode.source import Ending, SourceFacts, SourceFrame
from stages.decode.truncation import Outcome, Promise, missing
from stages.decode.upright import quarter_turns, upright_size

AVFMT_TS_DISCONT = 0x0200  # libavformat/avformat.h

# A clock that may wrap or restart inside a file (MPEG-TS and -PS) is believed less than one that can't.
DISCONTINUOUS_GAP_NS = 10 * SECOND_NS
CONTINUOUS_GAP_NS = 3600 * SECOND_NS
KEYFRAMES_GAP_NS = 60 * SECOND_NS  # where nothing but keyframes is decoded, gaps are the rule

READ_ERRORS_IN_A_ROW = 8  # then the rest of the file counts as lost

# Formats whose header holds a duration that was written when the recording was finished. Others (TS, raw streams) have
# it estimated from the very bytes that are there: no promise.
_LENGTH_PROMISED = {"mov", "avi"}
_END_PROMISED = {"matroska", "flv"}
_TAG_TIME = re.compile(r"(\d+):(\d\d):(\d\d)(\.\d+)?")
_NOT_VIDEO = {"tty"}  # FFmpeg would draw a .txt as a terminal picture
# They open whatever other files their text names: pipes that nothing comes of, parts whose loss is not told, playlists
# that are waited for to grow. A recording is the one file that was named.
_NAMING_OTHERS = {"hls", "dash", "webm_dash_manifest", "concat", "imf", "sdp", "lavfi"}


class FileSource:
    """See ``stages.decode.source.Source``. Decodes on the caller's thread alone."""

    def __init__(self, camera: CameraSpec) -> None:
        self._path = camera.url
        self._track = camera.track
        self.keyframes = camera.keyframes
        self._container: InputContainer | None = None
        self._frames: Generator[VideoFrame, None, None] | None = None
        self._clock: StreamClock | None = None
        self._first: VideoFrame | None = None
        self._nominal_ns = 0
        self._promise = Promise(None, None)
        self._promises_end = False
        self._forget_outcome()

    def _forget_outcome(self) -> None:
        self.decode_errors = 0
        self._decoded = 0
        self._packets = 0
        self._start_ns: int | None = None
        self._end_ns = 0
        self._cut_short = False
        self._key_seen = False
        self._skipping = False
        self._read_error: FFmpegError | None = None

    def open(self) -> SourceFacts:
        """Open and decode up to the first frame. Raises SourceRefused with a sentence that names file and remedy."""
        refusal.check_path(self._path)
        self._forget_outcome()
        try:
            container = av.open(self._path, options={"format_whitelist": _formats()})
        except (FFmpegError, OSError, ValueError) as error:
            raise refusal.not_opened(self._path, error) from None
        self._container = container
        try:
            return self._begin(container)
        except BaseException:
            self.close()
            raise

    def _begin(self, container: InputContainer) -> SourceFacts:
        name = container.format.name.partition(",")[0]
        if name in _NOT_VIDEO:
            raise refusal.not_video(self._path)
        stream = self._choose(container)
        context = stream.codec_context
        codec = str(getattr(context.codec, "canonical_name", None) or context.name)
        stream.thread_type = "NONE"
        stream.thread_count = 1
        self._nominal_ns = nominal_ns(stream.guessed_rate)
        duration_ns, of_track = _duration_ns(container, stream, name)
        frames = _frames(stream, name, duration_ns, self._nominal_ns)
        self._promises_end = name in _END_PROMISED
        whole = self._promises_end or name in _LENGTH_PROMISED
        self._promise = Promise(frames, duration_ns) if whole else Promise(None, None)
        discontinuous = bool(container.format.flags & AVFMT_TS_DISCONT)
        gap_ns = DISCONTINUOUS_GAP_NS if discontinuous else CONTINUOUS_GAP_NS
        if self.keyframes:
            gap_ns = max(gap_ns, KEYFRAMES_GAP_NS)
        self._clock = StreamClock(stream.time_base, self._nominal_ns, gap_ns)
        self._frames = self._decode_all(container, stream, whole, of_track)
        self._first = first = next(self._frames, None)
        if first is None:
            ending = self.ending()
            if ending.cause == "truncated":
                raise refusal.nothing_but_a_header(self._path, ending.detail)
            raise refusal.no_frame_decodes(self._path, codec, self.decode_errors)
        width, height = upright_size(first)
        return SourceFacts(
            width=width,
            height=height,
            fps=told_fps(stream.average_rate, self._nominal_ns),
            codec=codec,
            pixel_format=first.format.name,
            container=name,
            frames=None if self.keyframes else frames,
            duration_s=None if duration_ns is None else duration_ns / SECOND_NS,
            rotation=quarter_turns(first) * 90,
            recorded_at_ns=utc_ns(container.metadata.get("creation_time") or stream.metadata.get("creation_time")),
            nominal_ns=self._nominal_ns,
            held_back=int(getattr(context, "reorder_depth", 0)),
        )

    def _choose(self, container: InputContainer) -> VideoStream:
        """The first video track that isn't a cover picture, or the one that the camera names."""
        pictures = 0
        tracks: list[VideoStream] = []
        for stream in container.streams.video:
            if Disposition.attached_pic in Disposition(stream.disposition):
                pictures += 1
                continue
            tracks.append(stream)
        if tracks and self._track >= len(tracks):
            raise refusal.no_such_track(self._path, self._track, len(tracks))
        if tracks:
            stream = tracks[self._track]
            if stream.codec_context is None:
                raise refusal.unsupported(self._path, "of an unknown kind")
            return stream
        others = [stream.type for stream in container.streams if stream.type != "video"]
        held = sorted(set(others)) + (["a cover picture"] if pictures else [])
        raise refusal.no_video_track(self._path, held)

    def read(self) -> SourceFrame | None:
        """The next frame in presentation order, or None at the end."""
        frame, self._first = self._first, None
        if frame is None:
            frame = next(self._frames, None) if self._frames is not None else None
        if frame is None or self._clock is None:
            return None
        self._key_seen = self._key_seen or bool(frame.key_frame)
        pts_ns = self._clock.next_ns(frame.pts, frame.dts)
        return SourceFrame(frame, pts_ns, frame.is_corrupt, whole=self._key_seen)

    def ending(self) -> Ending:
        """How the file ended: ``ended``, ``truncated``, or ``unreadable`` / ``corrupt`` when the rest was given up."""
        error = self._read_error
        if error is not None:
            cause = "corrupt" if isinstance(error, ValueError) else "unreadable"
            return Ending(cause, f"the rest can't be read ({refusal.reason(error)}), after {self._decoded} frames")
        start_ns = 0 if self._promises_end else self._start_ns or 0
        cut_short = self._cut_short or missing_bytes(self._path) > 0
        outcome = Outcome(self._packets, self._decoded, max(self._end_ns - start_ns, 0), cut_short, self._nominal_ns)
        detail = missing(self._promise, outcome)
        return Ending("ended", "") if detail is None else Ending("truncated", detail)

    def close(self) -> None:
        """Release file, decoder and frames; may be called twice."""
        frames, self._frames, self._first, self._clock = self._frames, None, None, None
        if frames is not None:
            frames.close()
        if self._container is not None:
            self._container.close()
            self._container = None

    def _decode_all(
        self, container: InputContainer, stream: VideoStream, whole: bool, of_track: bool
    ) -> Generator[VideoFrame, None, None]:
        """Every frame of ``stream``; keeps the book on packets.

        ``whole``: the file was finished by its writer, so that an incomplete last packet proves a cut. ``of_track``:
        the promised duration is that of this track, so that other tracks say nothing of it.
        """
        context = stream.codec_context
        for packet in self._packets_of(container):
            self._cut_short = whole and packet.is_corrupt
            ours = packet.stream_index == stream.index
            if ours or not of_track:
                self._note_time(packet, ours)
            if not ours:
                continue
            self._packets += 1
            self._key_seen = self._key_seen or packet.is_keyframe  # of an edit list's hidden start no frame is shown
            if self._skipping != self.keyframes:
                self._skipping = self.keyframes
                context.skip_frame = "NONKEY" if self._skipping else "DEFAULT"
            try:
                frames = context.decode(packet)
            except FFmpegError:
                self.decode_errors += 1
                continue
            while frames:
                self._decoded += 1
                yield frames.pop(0)
        try:
            frames = context.decode(None)
        except EOFError:  # nothing was held back
            return
        except FFmpegError:
            self.decode_errors += 1
            return
        while frames:
            self._decoded += 1
            yield frames.pop(0)

    def _packets_of(self, container: InputContainer) -> Iterator[Packet[Any]]:
        """Packets of all tracks (how far *any* of them reaches tells a short track from a short file)."""
        failures = 0
        while True:
            try:
                for packet in container.demux():
                    if packet.size:  # the empty ones at the end only ask for a flush
                        failures = 0
                        yield packet
                return
            except FFmpegError as error:
                self.decode_errors += 1
                failures += 1
                if failures == READ_ERRORS_IN_A_ROW:
                    self._read_error = error
                    return

    def _note_time(self, packet: Packet[Any], ours: bool) -> None:
        base = packet.time_base
        if packet.pts is None or not base:
            return
        tick_ns = base.numerator * SECOND_NS
        at_ns = packet.pts * tick_ns // base.denominator
        if ours and not packet.is_discard and (self._start_ns is None or at_ns < self._start_ns):
            self._start_ns = at_ns
        self._end_ns = max(self._end_ns, at_ns + (packet.duration or 0) * tick_ns // base.denominator)


@lru_cache(maxsize=1)
def _formats() -> str:
    """What FFmpeg may take a file for, as it wants it listed; a format may have several names."""
    return ",".join(sorted(each for each in av.formats_available if _NAMING_OTHERS.isdisjoint(each.split(","))))


def _duration_ns(container: InputContainer, stream: VideoStream, name: str) -> tuple[int | None, bool]:
    """How long the recording is according to the container, and whether that is said of this track alone."""
    base = stream.time_base
    if stream.duration and base:
        return stream.duration * base.numerator * SECOND_NS // base.denominator, True
    tag = _TAG_TIME.fullmatch(stream.metadata.get("DURATION", "")) if name == "matroska" else None
    if tag:
        hours, minutes, seconds = (int(tag[i]) for i in (1, 2, 3))
        return (hours * 3600 + minutes * 60 + seconds) * SECOND_NS + int(float(tag[4] or 0) * SECOND_NS), True
    return None if container.duration is None else container.duration * 1000, False


def _frames(stream: VideoStream, name: str, duration_ns: int | None, nominal: int) -> int | None:
    """How many frames the index promises; without AVI's empty chunks, there when its clock is finer than its frames."""
    frames = stream.frames or None
    average = stream.average_rate
    if frames is None or name != "avi" or not average or duration_ns is None:
        return frames
    empty_chunks = average.numerator * nominal > 2 * SECOND_NS * average.denominator
    return min(frames, -(-duration_ns // nominal)) if empty_chunks else frames
