"""Owns what one RTSP client is sent after PLAY: pictures in real time, sound, reports, and every mishap of them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from faults.servers import rtp
from faults.servers.elementary import PPS, SPS, AccessUnit, ElementaryStream
from faults.servers.mishaps import Mishaps

Send = Callable[[str, bytes], Awaitable[None]]  # track ("video", "video/rtcp", "audio" …), packet
Track = Callable[[str], bool]

LATE_S = 0.5  # further behind (the client does not read), pictures are left out up to the next keyframe
REPORT_EVERY_S = 1.0
STALLED_LOOK_S = 0.02
AUDIO_STEP_S = 0.02
UNDAMAGED_BYTES = 4  # heads of NAL unit and fragment, so that it still looks like a picture
HEADS = (SPS, PPS)


@dataclass
class Sent:
    """Counts of one path over all its clients; ``*_at_ns`` monotonic."""

    plays: int = 0
    pictures: int = 0
    skipped: int = 0
    packets: int = 0
    first_at_ns: int = 0  # first picture of the newest client
    last_at_ns: int = 0


class Player:
    """Sends to one client until cancelled or until a mishap closes the connection."""

    def __init__(
        self, streams: dict[str, ElementaryStream], mishaps: Mishaps, sent: Sent, send: Send, wanted: Track
    ) -> None:
        self._streams = streams
        self._mishaps = mishaps
        self._sent = sent
        self._send = send
        self._wanted = wanted
        self._ssrc = random.getrandbits(32)
        self._sequence = random.randrange(1 << 16)
        first = mishaps.first_stamp
        self.first_stamp = random.getrandbits(32) if first is None else first
        self._stamp = self.first_stamp
        self._audio_stamp = 0
        self._packets = self._octets = 0
        self._of_pictures = 0  # packets, without parameter sets
        self._reported_at_s = 0.0
        self._bye = False
        self._played = 0

    def bye(self) -> None:
        """Send an RTCP farewell with the next picture, and go on."""
        self._bye = True

    async def run(self) -> None:
        """Until cancelled; returns when ``close_after`` pictures were sent."""
        self._sent.plays += 1
        if self._wanted("audio"):
            async with asyncio.TaskGroup() as group:
                sound = group.create_task(self._sound())
                await self._pictures()
                sound.cancel()
        else:
            await self._pictures()

    async def _pictures(self) -> None:
        """Group by group, so that a variant begins with a keyframe; one that is late begins with the next group."""
        due_s = time.monotonic()
        media_s = 0.0  # of the present group's begin, on the media clock
        number = 0
        while True:
            stream = self._streams[self._mishaps.variant]
            group = stream.groups[number % len(stream.groups)]
            number += 1
            for position, unit in enumerate(group):
                if await self._paused():
                    due_s = time.monotonic()
                    break
                if self._mishaps.burst:
                    due_s = time.monotonic()
                    await asyncio.sleep(0)
                elif (wait_s := due_s - time.monotonic()) > 0:
                    await asyncio.sleep(wait_s)
                elif wait_s < -LATE_S:
                    due_s -= wait_s
                    self._sent.skipped += len(group) - position
                    break
                due_s += 1 / (stream.fps * self._mishaps.speed)
                await self._picture(unit, media_s + unit.pts_s)
                if self._mishaps.close_after is not None and self._played >= self._mishaps.close_after:
                    return
            media_s += len(group) / stream.fps

    async def _paused(self) -> bool:
        """Wait while stalled or without video; whether that was so."""
        paused = False
        while self._mishaps.stall or not self._mishaps.video:
            paused = True
            await asyncio.sleep(STALLED_LOOK_S)
        return paused

    async def _picture(self, unit: AccessUnit, at_s: float) -> None:
        mishaps = self._mishaps
        if not mishaps.freeze_stamp:
            ticks = int((at_s * mishaps.drift + mishaps.jump_s) * rtp.VIDEO_RATE)
            self._stamp = self.first_stamp + ticks
        if unit.key and not mishaps.keyframes:
            return
        if not mishaps.parameter_sets:
            unit = unit.without_parameter_sets
        await self._report()
        for payload, marker in rtp.payloads(unit):
            self._packets += 1
            self._octets += len(payload)
            self._sequence += 1
            if random.random() * 100 < mishaps.drop_percent:
                continue
            self._of_pictures += payload[0] & 31 not in HEADS  # else each n-th might be one of those for ever
            if mishaps.damage_every and payload[0] & 31 not in HEADS and self._of_pictures % mishaps.damage_every == 0:
                payload = payload[:UNDAMAGED_BYTES] + os.urandom(max(len(payload) - UNDAMAGED_BYTES, 0))  # noqa: PLW2901
            noisy = mishaps.garbage_every and self._packets % mishaps.garbage_every == 0
            packet = rtp.packet(
                os.urandom(len(payload)) if noisy else payload,
                kind=rtp.VIDEO_TYPE,
                marker=marker,
                sequence=self._sequence,
                stamp=self._stamp,
                ssrc=self._ssrc,
            )
            twice = mishaps.duplicate_every and self._packets % mishaps.duplicate_every == 0
            for _ in range(2 if twice else 1):
                self._sent.packets += 1
                await self._send("video", packet)
        now_ns = time.monotonic_ns()
        self._sent.pictures += 1
        self._sent.first_at_ns = now_ns if not self._played else self._sent.first_at_ns
        self._sent.last_at_ns = now_ns
        self._played += 1

    async def _report(self) -> None:
        if self._bye:
            self._bye = False
            await self._send("video/rtcp", rtp.farewell(self._ssrc))
        now_s = time.monotonic()
        if not self._mishaps.reports or now_s < self._reported_at_s + REPORT_EVERY_S:
            return
        self._reported_at_s = now_s
        utc_s = time.time() + self._mishaps.report_offset_s
        report = rtp.sender_report(
            ssrc=self._ssrc, utc_s=utc_s, stamp=self._stamp, packets=self._packets, octets=self._octets
        )
        await self._send("video/rtcp", report)

    async def _sound(self) -> None:
        """Silence in PCMU, for ever."""
        due_s, sequence, samples = time.monotonic(), 0, int(rtp.AUDIO_RATE * AUDIO_STEP_S)
        while True:
            if not self._mishaps.stall:
                head = {"marker": False, "sequence": sequence, "stamp": self._audio_stamp, "ssrc": self._ssrc ^ 1}
                await self._send("audio", rtp.packet(b"\xff" * samples, kind=rtp.AUDIO_TYPE, **head))
            sequence += 1
            self._audio_stamp += samples
            due_s = max(due_s + AUDIO_STEP_S, time.monotonic() - LATE_S)
            await asyncio.sleep(max(due_s - time.monotonic(), 0))
