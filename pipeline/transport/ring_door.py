"""Owns how a ring reaches a worker that runs already: its descriptor, over a datagram socket in the run's folder.

The engine pushes, the worker takes when a message names the ring. A push never blocks: a worker that does not take
(stopped, loading a model) makes it fail, and the engine tries again later. The folder is private, so only campipe's own
processes can push.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
from pathlib import Path

from pipeline.transport.arena import SharedRing
from stages.errors import StageDead

MAX_NAME_BYTES = 512
TAKE_WITHIN_S = 5.0  # a ring is pushed before the message that names it


def push(path: str, ring: SharedRing) -> bool:
    """Hand ``ring`` to the worker that listens at ``path``; False when it can't take it now, or is not there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        try:
            descriptors = array.array("i", [ring.descriptor])
            out.sendmsg([ring.name.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)], 0, path)
        except OSError:  # full, not bound yet, gone
            return False
    return True


class RingDoor:
    """A worker's end: rings by name, mapped once for all of its threads."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._arrived: dict[str, int] = {}  # descriptors that nobody has asked for yet
        self._rings: dict[str, tuple[SharedRing, int]] = {}  # name -> ring, how many use it

    def open(self) -> None:
        """Listen; before the worker says Hello."""
        with contextlib.suppress(FileNotFoundError):
            Path(self._path).unlink()  # of a former incarnation, which is dead
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(TAKE_WITHIN_S)
        self._socket.bind(self._path)

    def keep(self, ring: SharedRing, users: int) -> None:
        """A ring that came with the worker's start."""
        self._rings[ring.name] = (ring, users)

    def take(self, name: str, slots: int, slot_bytes: int) -> SharedRing:
        """The ring of that name, mapped. Raises StageDead when it has not come."""
        with self._lock:
            if name in self._rings:
                ring, users = self._rings[name]
                self._rings[name] = (ring, users + 1)
                return ring
            while name not in self._arrived:
                self._receive(name)
            ring = SharedRing(name, slots, slot_bytes, self._arrived.pop(name))
            self._rings[name] = (ring, 1)
            return ring

    def give_back(self, name: str) -> None:
        """One thread needs it no more; unmapped with the last one."""
        with self._lock:
            ring, users = self._rings.pop(name, (None, 0))
            if ring is None:
                return
            if users > 1:
                self._rings[name] = (ring, users - 1)
            else:
                ring.close()

    def _receive(self, wanted: str) -> None:
        if self._socket is None:
            raise StageDead(f"ring {wanted} can't be taken: the door is closed")
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                MAX_NAME_BYTES, socket.CMSG_SPACE(array.array("i", [0]).itemsize)
            )
        except TimeoutError:
            raise StageDead(f"ring {wanted} has not come") from None
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            return
        name = data.decode(errors="replace")
        if name in self._rings:  # mapped long ago
            os.close(descriptors[0])
            return
        stale = self._arrived.pop(name, None)
        if stale is not None:  # pushed twice, because the message that names it was lost with an incarnation
            os.close(stale)
        self._arrived[name] = descriptors[0]

    def close(self) -> None:
        """Stop listening, unmap; may be called twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for descriptor in self._arrived.values():
            os.close(descriptor)
        self._arrived.clear()
        for ring, _ in self._rings.values():
            ring.close()
        self._rings.clear()
