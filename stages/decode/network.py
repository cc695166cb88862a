"""Owns one connection to a live source: open, read packet by packet, decode, timestamps. Not when to try again.

Everything may block; whoever calls watches from another thread. FFmpeg's own deadlines are a bit tighter than those of
the link, so that blocked calls mostly return by themselves. Its error texts go nowhere: they hold the password.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from stages.camera import CameraSpec
from stages.decode import fault_words
from stages.decode.address import Address, address_of
from stages.decode.backlog import Backlog
from stages.decode.clock import nominal_ns, told_fps
from stages.decode.fault_words import Attempt, told
from stages.decode.knock import answers
from stages.decode.live_clock import LiveClock, captured
from stages.decode.source import LiveFrame, SourceFacts
from stages.decode.trust import DISTRUSTS
from stages.decode.upright import quarter_turns, upright_size
from stages.errors import LinkFault
from stages.messages import LinkCause

TIGHTER: Final = 0.9  # of the link's deadlines
TIGHTER_OPEN: Final = 0.8  # FFmpeg's counts from the answers on: it must come before that of the link all the same
LEAST_LOOK_S: Final = 0.1
MOST_LOOK_S: Final = 0.5
# Formats in which FFmpeg makes timestamps up, one frame each 40 ms: what has passed here is better.
_NO_CLOCK: Final = frozenset({"mpjpeg", "mjpeg", "h264", "hevc", "m4v", "image2pipe", "jpeg_pipe"})
# Formats that bring pictures as they are taken; others (HLS, recordings on a server) bring seconds of them at once.
_AS_THEY_ARE_TAKEN: Final = _NO_CLOCK | {"rtsp", "mpegts", "video4linux2", "v4l2"}
ARRIVALS_KEPT: Final = 64  # of packets whose pictures the decoder still holds back: 16 at most, and fields
_PRFT: Final = struct.Struct("=qi")  # AVProducerReferenceTime: microseconds since 1970, flags


class NetworkSource:
    """See ``stages.decode.source.LiveSource``."""

    def __init__(self, camera: CameraSpec, clock_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
        self._address: Address = address_of(camera)
        self._track = camera.track
        self._open_ns = int(camera.link.open_timeout_ms * TIGHTER_OPEN) * 1_000_000
        self._read_ns = int(camera.link.read_timeout_ms * TIGHTER) * 1_000_000
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self.keyframes = camera.keyframes
        self.decode_errors = 0
        self.resolving = False
        self.remark = ""
        self._container: InputContainer | None = None
        self._packets: Iterator[Packet[Any]] | None = None
        self._stream: VideoStream | None = None
        self._context: VideoCodecContext | None = None
        self._skipping = False
        self._clock: LiveClock | None = None
        self._rtcp_offset_ns: int | None = None  # UTC less the camera's own time
        self._key_seen = False
        self._backlog = Backlog(camera.max_age_ms * 1_000_000)
        self._arrivals: dict[int, tuple[int, int]] = {}  # timestamp -> monotonic time and UTC of its packet
        self._in_pieces = False  # it comes in pieces of seconds, not picture by picture: that is no backlog
        self._ours = self._others = self._frames = 0  # packets of the track, of other tracks, frames

    # --- open ---------------------------------------------------------------------------------------------------------

    def open(self) -> SourceFacts:
        """Connect and learn what is sent; see LiveSource."""
        address = self._address
        if not address.credentials_fit:
            raise LinkFault("unauthorised", "user and password are too long for RTSP; choose shorter ones")
        self._resolve()
        began_ns = self._clock_ns()
        try:
            container = av.open(
                address.url,
                format=address.format,
                options=dict(address.options),
                timeout=(self._open_ns / 1e9, self._read_ns / 1e9),
                metadata_errors="replace",
            )
        except (FFmpegError, OSError, ValueError, MemoryError, RuntimeError) as error:
            waited_ns = self._clock_ns() - began_ns
            fault = fault_words.fault(error, Attempt(address, True, waited_ns, self._open_ns))
            raise self._looked_into(fault, waited_ns) from None
        self._container = container
        try:
            return self._begin(container)
        except BaseException:
            self.close()
            raise

    def _looked_into(self, fault: LinkFault, waited_ns: int) -> LinkFault:
        """``fault`` with what FFmpeg doesn't tell: why a certificate is not trusted, or that a camera answers."""
        if fault.cause == "timeout":
            left_s = (self._open_ns / TIGHTER_OPEN - waited_ns) / 1e9
            if answers(self._address, min(max(left_s, LEAST_LOOK_S), MOST_LOOK_S)):
                return told("no_picture", self._address, waited_ns)
            return fault
        verify = self._address.options.get("tls_verify") == "1"
        if fault.cause != "tls" or not verify or self._address.host is None:
            return fault
        ca_file = self._address.options.get("ca_file")
        why = DISTRUSTS.why(self._address.host, self._address.port, ca_file, self._clock_ns())
        return fault if why is None else LinkFault("tls", f"{self._address.place} {why}")

    def _resolve(self) -> None:
        """Look the name up: FFmpeg gives the same number for a name that is not known as for a broken handshake."""
        address = self._address
        if address.host is None:
            return
        self.resolving = True
        try:
            socket.getaddrinfo(address.host, address.port or None)
        except (OSError, UnicodeError):
            raise told("unknown_host", address) from None
        finally:
            self.resolving = False

    def _begin(self, container: InputContainer) -> SourceFacts:
        stream = self._choose(container)
        context = stream.codec_context
        if context is None:
            raise told("unsupported", self._address)
        codec = str(getattr(context.codec, "canonical_name", None) or context.name)
        context.thread_type = "NONE"
        context.thread_count = 1
        self._stream, self._context = stream, context
        if self._address.kind == "http":
            for other in container.streams:
                if other.index != stream.index and hasattr(other, "discard"):  # PyAV 18
                    other.discard = type(other.discard).all  # else HLS fetches every quality of a picture
        nominal = nominal_ns(stream.guessed_rate)
        container_name = container.format.name.partition(",")[0]
        self._clock = LiveClock(None if container_name in _NO_CLOCK else stream.time_base, nominal)
        self._packets = container.demux()
        self._in_pieces = container_name not in _AS_THEY_ARE_TAKEN
        return SourceFacts(
            width=max(context.width, 0),
            height=max(context.height, 0),
            fps=0.0 if container_name in _NO_CLOCK else told_fps(stream.average_rate, nominal),
            codec=codec,
            pixel_format=context.pix_fmt or "",
            container=container_name,
            frames=None,
            duration_s=None,
            rotation=0,
            recorded_at_ns=None,
            nominal_ns=nominal,
            held_back=int(getattr(context, "reorder_depth", 0)),
        )

    def _choose(self, container: InputContainer) -> VideoStream:
        """The video track that the camera names, counted without cover pictures."""
        place = self._address.place
        tracks = [s for s in container.streams.video if Disposition.attached_pic not in Disposition(s.disposition)]
        if not tracks:
            raise LinkFault("no_video", f"{place} answers, but sends no video; check the path and the camera's profile")
        if self._track >= len(tracks):
            held = "one video track, number 0" if len(tracks) == 1 else f"{len(tracks)} video tracks, numbered from 0"
            raise LinkFault("no_video", f"{place} has {held}: there is no track {self._track}; change source.track")
        return tracks[self._track]

    @property
    def skipped(self) -> int:
        """See LiveSource."""
        return self._backlog.skipped

    # --- read ---------------------------------------------------------------------------------------------------------

    def read(self) -> list[LiveFrame]:
        """Frames that the next packet completes; see LiveSource."""
        stream, context, packets = self._stream, self._context, self._packets
        if stream is None or context is None or packets is None:
            raise RuntimeError("read before open")
        began_ns = self._clock_ns()
        try:
            packet = next(packets, None)
        except (FFmpegError, OSError, ValueError, MemoryError, RuntimeError) as error:
            waited_ns = self._clock_ns() - began_ns
            fault = fault_words.fault(error, Attempt(self._address, False, waited_ns, self._read_ns))
            raise (self._silent(waited_ns) if fault.cause == "timeout" else fault) from None
        arrived_at_ns = self._clock_ns()
        waited_ns = arrived_at_ns - began_ns
        if waited_ns >= self._read_ns:
            # FFmpeg hides the deadline that passed: it gives what it held back, and waits as long again
            raise self._silent(waited_ns)
        if packet is None or not packet.size:  # the empty one at the end asks for a flush
            raise told("disconnected", self._address)
        if packet.stream_index != stream.index:
            self._others += 1
            return []
        self._ours += 1
        self._key_seen = self._key_seen or packet.is_keyframe
        if not self._in_pieces and not self._is_decoded(packet, arrived_at_ns, waited_ns):
            return []
        if self._skipping != self.keyframes:
            self._skipping = self.keyframes
            context.skip_frame = "NONKEY" if self._skipping else "DEFAULT"
        # what has waited in buffers had come before it was read
        arrived = arrived_at_ns - self._backlog.lag_ns, self._wall_ns() - self._backlog.lag_ns
        if packet.pts is not None:
            self._arrivals[packet.pts] = arrived
            if len(self._arrivals) > ARRIVALS_KEPT:
                del self._arrivals[next(iter(self._arrivals))]
        self._note_report(packet)
        try:
            frames = context.decode(packet)
        except (FFmpegError, ValueError, MemoryError):
            self.decode_errors += 1
            return []
        return [self._live(frame, arrived_at_ns, arrived) for frame in frames]

    def _silent(self, waited_ns: int) -> LinkFault:
        """No data; of a camera that has agreed to play it may be noise, of which FFmpeg makes nothing, or little."""
        if self._address.kind != "rtsp" or self._frames:
            return fault_words.silent(self._address, waited_ns)
        if self._ours or self._others:
            return LinkFault(*self.silence())
        return told("no_picture", self._address, waited_ns)

    def _is_decoded(self, packet: Packet[Any], arrived_at_ns: int, waited_ns: int) -> bool:
        assert self._clock is not None
        stream_ns = self._clock.camera_ns(packet.pts if packet.pts is not None else packet.dts)
        return self._backlog.decodes(arrived_at_ns, waited_ns, stream_ns, keyframe=packet.is_keyframe)

    def _note_report(self, packet: Packet[Any]) -> None:
        """Learn from RTCP's sender reports how the camera's timestamps and UTC go together.

        FFmpeg puts a report's time, moved on by the timestamps since, on each packet (libavformat/rtpdec.c).
        """
        assert self._clock is not None
        if not packet.has_sidedata("prft"):
            return
        try:
            data = bytes(packet.get_sidedata("prft"))
        except TypeError:  # before PyAV 17 it can't be read: arrival is what is left
            return
        camera_ns = self._clock.camera_ns(packet.pts)
        if len(data) >= _PRFT.size and camera_ns is not None:
            self._rtcp_offset_ns = _PRFT.unpack_from(data)[0] * 1000 - camera_ns

    def _live(self, frame: VideoFrame, read_at_ns: int, arrived: tuple[int, int]) -> LiveFrame:
        """``arrived``: monotonic time and UTC of the packet that released it, not always its own."""
        assert self._clock is not None
        self._frames += 1
        self._key_seen = self._key_seen or bool(frame.key_frame)
        pts = frame.pts if frame.pts is not None else frame.dts
        camera_ns = self._clock.camera_ns(pts)
        if pts is not None:
            arrived = self._arrivals.pop(pts, arrived)
        arrived_at_ns, arrived_ns = arrived
        offset_ns = self._rtcp_offset_ns
        pts_ns = self._clock.next_ns(pts, read_at_ns)
        rtcp_ns = None
        if not self._clock.believed:
            self._backlog.distrust()
        elif offset_ns is not None and camera_ns is not None:
            rtcp_ns = offset_ns + camera_ns
        self.remark = self._clock.remark
        captured_ns, clock = captured(rtcp_ns, arrived_ns)
        return LiveFrame(
            frame=frame,
            pts_ns=pts_ns,
            corrupt=frame.is_corrupt,
            whole=self._key_seen,
            arrived_at_ns=arrived_at_ns,
            captured_ns=captured_ns,
            clock=clock,
        )

    def silence(self) -> tuple[LinkCause, str]:
        """Why no whole picture comes; see LiveSource."""
        place = self._address.place
        if not self._ours:
            what = "sound or data" if self._others else "nothing"
            return "no_picture", f"{place} sends {what}, but no pictures; check its video settings"
        if not self._frames and self._context is not None and self._context.width <= 0:
            return "no_keyframe", (
                f"{place} sends data, but not the parameters of its codec that any picture begins with; restart the "
                "camera, or set its codec to H.264 and a shorter keyframe interval"
            )
        if self.decode_errors and not self._frames:
            return "corrupt", (
                f"of what {place} sends no picture can be made ({self.decode_errors} damaged packets); "
                "check the network between and the camera's firmware"
            )
        if not self._key_seen:
            return "no_keyframe", (
                f"{place} sends pictures, but none to begin with; set a shorter keyframe interval at the camera"
            )
        return "no_picture", f"{place} sends data, but no pictures; restart the camera"

    def close(self) -> None:
        """Release connection and decoder; may be called twice."""
        self._packets = None
        self._stream = self._context = self._clock = None
        if self._container is not None:
            container, self._container = self._container, None
            container.close()


def look(camera: CameraSpec, clock_ns: Callable[[], int], wall_ns: Callable[[], int]) -> SourceFacts:
    """Connect, wait for one whole picture, leave. Raises LinkFault."""
    source = NetworkSource(camera, clock_ns, wall_ns)
    try:
        facts = source.open()
        until_ns = clock_ns() + camera.link.stall_ms * 1_000_000
        while clock_ns() < until_ns:
            for live in source.read():
                if live.whole:
                    width, height = upright_size(live.frame)
                    return SourceFacts(
                        width=width,
                        height=height,
                        fps=facts.fps,
                        codec=facts.codec,
                        pixel_format=live.frame.format.name,
                        container=facts.container,
                        frames=None,
                        duration_s=None,
                        rotation=quarter_turns(live.frame) * 90,
                        recorded_at_ns=None,
                        nominal_ns=facts.nominal_ns,
                        held_back=facts.held_back,
                    )
        raise LinkFault(*source.silence())
    finally:
        source.close()
