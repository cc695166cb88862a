"""Owns the form of the ZeroMQ addresses that campipe binds and connects to. Does not own sockets; resolves no names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stages.errors import UserError

MAX_IPC_BYTES = 107  # what Linux allows for the path of a local socket, less the closing zero

_HOST = re.compile(r"\*|\[[0-9A-Fa-f:.%\w-]+\]|[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_EXAMPLES = "such as tcp://127.0.0.1:5600 or ipc:///run/campipe.sock"


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address. ``host`` and ``port`` (0: any free one) for tcp, ``path`` for ipc."""

    text: str
    transport: Literal["tcp", "ipc"]
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def ipv6(self) -> bool:
        """Whether the socket must be allowed to speak IPv6."""
        return self.host.startswith("[")


def parse_address(text: str, *, bind: bool) -> Address:
    """Check ``text``, to be bound (``bind``) or connected to; raises UserError with the remedy.

    ZeroMQ itself is lenient where it hurts: it takes port 99999 as 34463, and connects to port 0 for ever.
    """
    shown = repr(text if len(text) <= 200 else f"{text[:200]}…")
    scheme, separator, rest = text.partition("://")
    if not separator:
        remedy = f"write tcp://{text}" if re.fullmatch(r"[\w.*\[\]:-]+:\d+", text) else f"write one {_EXAMPLES}"
        raise UserError(f"{shown} is not an address: it has no tcp:// or ipc:// in front; {remedy}")
    if scheme == "tcp":
        return _tcp(text, rest, shown, bind=bind)
    if scheme == "ipc":
        return _ipc(text, rest, shown, bind=bind)
    raise UserError(
        f"{shown} is not an address campipe can use: {scheme!r} is neither tcp nor ipc; write one {_EXAMPLES}"
    )


def _tcp(text: str, rest: str, shown: str, *, bind: bool) -> Address:
    host, colon, port_text = rest.rpartition(":")
    if not colon or not port_text:
        raise UserError(f"{shown} is not an address: it has no port; write one {_EXAMPLES}")
    if not _HOST.fullmatch(host):
        raise UserError(
            f"{shown} is not an address: {host!r} is no host; write a name, an IPv4 address, or an IPv6 address in "
            "brackets"
        )
    if host == "*" and not bind:
        raise UserError(f"{shown} can't be connected to: '*' stands for every interface; name the host that publishes")
    if bind and port_text == "*":
        return Address(text, "tcp", host, 0)
    port = int(port_text) if re.fullmatch(r"[0-9]{1,6}", port_text) else -1
    least = 0 if bind else 1
    if not least <= port <= 65535:
        raise UserError(
            f"{shown} is not an address: the port must be a number from {least} to 65535, not {port_text!r}"
        )
    return Address(text, "tcp", host, port)


def _ipc(text: str, path: str, shown: str, *, bind: bool) -> Address:
    if not path or path == "@":
        raise UserError(f"{shown} is not an address: it names no file; write one such as ipc:///run/campipe.sock")
    if not path.isprintable():
        raise UserError(
            f"{shown} is not an address: its path holds characters that can't be shown; choose another path"
        )
    if path == "*" and not bind:
        raise UserError(
            f"{shown} can't be connected to: '*' stands for any name; give the name that the publisher shows"
        )
    size = len(path.encode())
    if size > MAX_IPC_BYTES:
        raise UserError(
            f"{shown} is too long: {size} bytes of path, local sockets take {MAX_IPC_BYTES}; choose a shorter folder"
        )
    return Address(text, "ipc", path=path)
