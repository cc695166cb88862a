"""Owns a TCP proxy with the faults of a network: refuse, silence, half-open, reset, trickle, delay, cut, flap."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal

from faults.servers.loop_thread import LoopThread
from faults.servers.port import Port, end_at_once

Mode = Literal["pass", "refuse", "silence", "half_open"]
CHUNK_BYTES = 16 * 1024


class FaultyProxy:
    """Between a client and ``target_port`` of the loopback. Changes hold at once, for open connections too.

    ``refuse``: nobody listens, open connections end with a reset. ``silence``: accepts and never says a word, open
    connections go on. ``half_open``: all bytes vanish in both directions, nothing is closed, as if a cable was pulled.
    ``bytes_per_s`` and ``delay_s`` slow down what comes from the target.
    """

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.target_port = target_port
        self._port = Port(port)
        self.port = self._port.number
        self.mode: Mode = "pass"
        self.bytes_per_s: float | None = None
        self.delay_s = 0.0
        self.accepted = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = LoopThread("faulty-proxy")

    # --- from any thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Accept connections unless the mode is ``refuse``."""
        self._thread.open()
        if self.mode != "refuse":
            self._thread.run(self._port.listen(self._serve))

    def close(self) -> None:
        """End for good; may be called twice."""
        if self._thread.loop is not None:
            self._thread.run(self._port.close())
            self._thread.run(self._end(reset=True))
            self._thread.close()

    def __enter__(self) -> FaultyProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, mode: Mode) -> None:
        """Change the mode. Leaving ``half_open`` ends the connections that hung in it, as a router that was reset."""
        before, self.mode = self.mode, mode
        if mode == "refuse":
            self._thread.run(self._port.refuse())
            self._thread.run(self._end(reset=True))
            return
        if before in ("half_open", "silence"):
            self._thread.run(self._end(reset=True))
        self._thread.run(self._port.listen(self._serve))

    def reset(self) -> int:
        """Every open connection ends with a reset; how many there were."""
        return self._thread.run(self._end(reset=True))

    def cut(self) -> int:
        """Every open connection ends in order."""
        return self._thread.run(self._end(reset=False))

    def flap(self, times: int, up_s: float, down_s: float) -> None:
        """Refuse and pass in turn, so many times; returns at once."""
        self._thread.start(self._flap(times, up_s, down_s))

    @property
    def open_connections(self) -> int:
        """Both legs of each."""
        return len(self._writers)

    # --- in the loop --------------------------------------------------------------------------------------------------

    async def _flap(self, times: int, up_s: float, down_s: float) -> None:
        for _ in range(times):
            self.mode = "refuse"
            await self._port.refuse()
            await self._end(reset=True)
            await asyncio.sleep(down_s)
            self.mode = "pass"
            await self._port.listen(self._serve)
            await asyncio.sleep(up_s)

    async def _end(self, *, reset: bool) -> int:
        writers, self._writers = self._writers, set()
        for writer in writers:
            if reset:
                end_at_once(writer)
            else:
                writer.close()
        await asyncio.sleep(0)
        return len(writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        target = None
        try:
            if self.mode == "silence":
                while await reader.read(CHUNK_BYTES):
                    pass
                return
            target_reader, target = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers.add(target)
            ways = [
                asyncio.create_task(self._carry(reader, target, slowed=False)),
                asyncio.create_task(self._carry(target_reader, writer, slowed=True)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except ConnectionError:
            end_at_once(writer)
        finally:
            for each in (writer, target):
                if each is not None:
                    self._writers.discard(each)
                    with contextlib.suppress(Exception):
                        each.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slowed: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                rate = self.bytes_per_s if slowed else None
                data = await reader.read(CHUNK_BYTES if rate is None else max(1, int(rate / 10)))
                if not data:
                    if self.mode == "half_open":  # the end of a connection does not get through either
                        await asyncio.Event().wait()
                    return
                if self.mode == "half_open":
                    continue
                if slowed and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
                if rate is not None:
                    await asyncio.sleep(len(data) / rate)
