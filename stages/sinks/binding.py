"""Owns binding of a publishing address and what its refusals mean to a user. Does not own the socket."""

from __future__ import annotations

import errno
import os
import socket as sockets
import stat
from pathlib import Path

import zmq

from stages.errors import UserError
from stages.sinks.address import Address
from stages.sinks.sink import Occupied


def bind_socket(socket: zmq.Socket[bytes], address: Address) -> str:
    """Bind and give the real address (port 0 and ``*`` replaced); raises UserError with the remedy."""
    if address.transport == "ipc" and not address.path.startswith(("@", "*")):
        _refuse_taken_path(address)
    if address.ipv6:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(address.text)
    except zmq.ZMQError as error:
        refusal = Occupied if error.errno == errno.EADDRINUSE else UserError
        raise refusal(f"can't publish on {address.text}: {_why(error.errno, address)}") from None
    endpoint = socket.last_endpoint
    assert isinstance(endpoint, bytes)
    return endpoint.decode().rstrip("\0")


def check_address(address: Address) -> None:
    """Raise what binding would, creating and removing nothing; a port is held for a moment."""
    if address.transport == "ipc":
        _check_ipc_path(address)
        return
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket: zmq.Socket[bytes] = context.socket(zmq.XPUB)
        try:
            bind_socket(socket, address)
        finally:
            socket.close(0)
    finally:
        context.term()


def _check_ipc_path(address: Address) -> None:
    if address.path.startswith(("@", "*")):
        return
    _refuse_taken_path(address)
    folder = Path(address.path).parent
    number = None
    if not folder.exists():
        number = errno.ENOENT
    elif not folder.is_dir():
        number = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        number = errno.EACCES
    if number is not None:
        raise UserError(f"can't publish on {address.text}: {_why(number, address)}")


def release_address(address: str) -> None:
    """Remove the file of a closed ipc address; libzmq leaves it behind."""
    if not address.startswith("ipc://") or address.startswith("ipc://@"):
        return
    path = Path(address.removeprefix("ipc://"))
    try:
        if stat.S_ISSOCK(path.lstat().st_mode) and not _answers(path):
            path.unlink()
    except OSError:
        pass  # gone already, or not ours to remove: the next bind deals with it


def _refuse_taken_path(address: Address) -> None:
    """libzmq deletes whatever file is there, be it a living publisher's or a user's document."""
    path = Path(address.path)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"can't publish on {address.text}: {error.strerror}; choose another path") from None
    if not stat.S_ISSOCK(mode):
        raise UserError(f"can't publish on {address.text}: there is a file or folder of that name; choose another path")
    if _answers(path):
        raise Occupied(
            f"can't publish on {address.text}: another program publishes there; end it, or choose another path"
        )


def _answers(path: Path) -> bool:
    """Whether somebody listens on this local socket."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:
            return True  # it listens, and has no time just now
        except OSError as error:
            return error.errno not in {errno.ECONNREFUSED, errno.ENOENT}
        return True


def _why(number: int | None, address: Address) -> str:
    match number:
        case errno.EADDRINUSE:
            return "another program uses that port; end it, or choose another port (0 takes any free one)"
        case errno.EADDRNOTAVAIL | errno.ENODEV:
            return (
                f"{address.host!r} is no address of this machine; use 127.0.0.1 for subscribers on this machine, "
                "0.0.0.0 for subscribers anywhere"
            )
        case errno.EACCES | errno.EPERM if address.transport == "tcp":
            return "the system allows ports below 1024 to administrators only; choose another port"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"no permission to create {address.path}; choose a folder that you may write to"
        case errno.ENOENT | errno.ENOTDIR:
            return f"there is no folder {Path(address.path).parent}; create it, or choose another path"
        case errno.EAFNOSUPPORT:
            return "this machine has no IPv6; use an IPv4 address"
        case None:
            return "the system refused it; choose another address"
        case _:
            return f"{zmq.strerror(number)}; choose another address"
