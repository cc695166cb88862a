"""Owns asking an RTSP server, once more and in plain words, whether it answers at all. Sends no user and no password.

FFmpeg opens a stream in one call that answers, pictures and their parameters all have to come within: when its time is
up, it does not tell how far it came. A camera that answers and sends noise has another fault than one that is off.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack

from stages.decode.address import Address

_BEGIN, _END = b"RTSP/", b"\r\n\r\n"
_MOST_BYTES = 64 << 10


def answers(address: Address, timeout_s: float) -> bool:
    """Whether an RTSP server at ``address`` gives a whole answer to what it has, a refusal too, within this time.

    It may take twice the time where connecting takes most of it.
    """
    if address.kind != "rtsp" or address.host is None:
        return False
    scheme, _, rest = address.url.partition("://")
    authority, slash, path = rest.partition("/")
    url = f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"
    request = f"DESCRIBE {url} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n"
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((address.host, address.port), timeout_s))
            if address.tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing secret is said
                connection = stack.enter_context(context.wrap_socket(connection))
            connection.sendall(request.encode("utf-8", "surrogateescape"))
            answer = b""
            until_s = time.monotonic() + timeout_s
            while _END not in answer and len(answer) < _MOST_BYTES:
                connection.settimeout(max(until_s - time.monotonic(), 0.001))  # for all of it: it may come in drops
                more = connection.recv(4096)
                if not more:
                    return False
                answer += more
    except (OSError, ValueError):
        return False
    return answer.startswith(_BEGIN) and _END in answer
