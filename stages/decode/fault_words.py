"""Owns what a failed connection is called and told: from FFmpeg's and the system's errors to a cause and a sentence.

FFmpeg's own texts hold the whole URL with its password: nothing of them is ever repeated, nor of any exception's text.
What is said comes from the kind of the exception, its number, and what was being done.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

import av.error as fferror

from stages.decode.address import Address
from stages.errors import LinkFault
from stages.messages import LinkCause


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was being done when an error came."""

    address: Address
    opening: bool  # else reading
    waited_ns: int  # how long the call that failed had taken
    allowed_ns: int  # how long it might take

    @property
    def late(self) -> bool:
        """Whether the call took all the time that it had."""
        return self.waited_ns >= self.allowed_ns


_KINDS: Final[tuple[tuple[type[Exception], LinkCause], ...]] = (
    (fferror.HTTPUnauthorizedError, "unauthorised"),
    (fferror.HTTPForbiddenError, "forbidden"),
    (fferror.HTTPNotFoundError, "not_found"),
    (getattr(fferror, "HTTPTooManyRequestsError", fferror.HTTPServerError), "busy"),  # PyAV 18
    (fferror.HTTPServerError, "busy"),
    (fferror.HTTPBadRequestError, "protocol"),
    (fferror.HTTPError, "protocol"),
    (fferror.HTTPClientError, "protocol"),
    (fferror.ExitError, "timeout"),
    (fferror.DecoderNotFoundError, "unsupported"),
    (fferror.DemuxerNotFoundError, "unsupported"),
    (fferror.ProtocolNotFoundError, "unsupported"),
    (fferror.PatchWelcomeError, "unsupported"),
    (fferror.EOFError, "disconnected"),
)

_NUMBERS: Final[dict[int, LinkCause]] = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EAGAIN: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ENETDOWN: "unreachable",
    errno.EADDRNOTAVAIL: "unreachable",
    errno.ECONNRESET: "disconnected",
    errno.ECONNABORTED: "disconnected",
    errno.EPIPE: "disconnected",
    errno.ENOTCONN: "disconnected",
    errno.EPROTONOSUPPORT: "transport",
    errno.EADDRINUSE: "busy",
    errno.EPROTO: "protocol",
}
# Of devices; from the network FFmpeg gives such numbers for answers that make no sense to it.
_DEVICE_NUMBERS: Final[dict[int, LinkCause]] = {
    errno.EBUSY: "busy",
    errno.ENOENT: "not_found",
    errno.ENODEV: "not_found",
    errno.ENXIO: "not_found",
    errno.ENOTTY: "protocol",
    errno.EACCES: "forbidden",
}

# {place}: host and port, or device. {s}: seconds waited.
_SENTENCES: Final[dict[LinkCause, str]] = {
    "refused": "nobody listens at {place}; check that the camera is on, and its port",
    "timeout": "{place} does not answer within {s} s; check that the camera is on, its cable, and firewalls between",
    "unreachable": "there is no way to {place}; check the address, this machine's network, and the camera's",
    "unknown_host": "the name of {place} is not known to the name service; check its spelling, or write its number",
    "unauthorised": "{place} refuses user and password; check source.user and source.password",
    "forbidden": "{place} knows the user but denies this stream; give the user the right to view it",
    "not_found": "{place} has no such stream; check the path after the port in the camera's manual",
    "busy": "{place} serves no further client now; close other viewers, or raise the camera's limits",
    "transport": "{place} sends no pictures in the way that is asked for; set source.transport to auto",
    "tls": "the encrypted connection to {place} fails; check that this port speaks TLS",
    "protocol": "what answers at {place} is not what the url says; check scheme and port",
    "unsupported": "{place} sends something that nothing here can decode; set its codec to H.264 or H.265",
    "corrupt": "what {place} sends is damaged beyond use; check its cable and firmware",
    "disconnected": "{place} closed the connection; it may have been restarted",
    "no_picture": (
        "{place} answers, but sent nothing within {s} s that a picture can be made of; restart the camera, check its "
        "video settings, and the network between"
    ),
}
_SILENT: Final = "no data from {place} for {s} s, although connected; check the network between and the camera"
_NOTHING_SENT: Final = "nothing came to {place} for {s} s; check that the sender sends there, and firewalls between"
_DEVICE: Final[dict[LinkCause, str]] = {
    "not_found": "{place} is not there; plug the camera in, and see 'ls /dev/video*'",
    "forbidden": "{place} may not be opened; give campipe's user the group 'video'",
    "busy": "{place} is in use by another program; close that",
    "protocol": "{place} gives no pictures; a camera often has several devices: try the next number",
    "disconnected": "{place} went away; check the plug",
}


def cause_of(error: BaseException, attempt: Attempt) -> LinkCause:
    """The one word for ``error``."""
    if isinstance(error, fferror.HTTPOtherClientError) and attempt.address.kind == "rtsp":
        return "busy"  # 453, not enough bandwidth, and its neighbours: FFmpeg does not tell which
    for kind, cause in _KINDS:
        if isinstance(error, kind):
            return cause
    if attempt.late:
        return "timeout"  # whatever FFmpeg makes of an answer that it stopped in the middle of
    if isinstance(error, fferror.InvalidDataError):
        return "protocol" if attempt.opening else "corrupt"
    number = getattr(error, "errno", None)
    if number == errno.EIO:
        # FFmpeg's number for a failed handshake; a name that is not known was told before it was asked
        if attempt.opening and attempt.address.tls:
            return "tls"
        return "protocol" if attempt.opening else "disconnected"
    numbers = _DEVICE_NUMBERS if attempt.address.kind == "device" else _NUMBERS
    if isinstance(number, int) and number in numbers:
        return numbers[number]
    if isinstance(error, MemoryError):
        return "corrupt"  # a header that asks for absurd sizes
    return "protocol" if attempt.opening else "disconnected"


def fault(error: BaseException, attempt: Attempt) -> LinkFault:
    """``error`` as it is told."""
    cause = cause_of(error, attempt)
    if cause == "timeout" and (not attempt.opening or attempt.address.kind == "udp"):
        return silent(attempt.address, attempt.waited_ns)
    return told(cause, attempt.address, attempt.waited_ns)


def told(cause: LinkCause, address: Address, waited_ns: int = 0) -> LinkFault:
    """The sentence that goes with a cause."""
    sentence = (_DEVICE.get(cause) if address.kind == "device" else None) or _SENTENCES[cause]
    return LinkFault(cause, sentence.format(place=address.place, s=_seconds(waited_ns)))


def silent(address: Address, waited_ns: int) -> LinkFault:
    """Connected, but no data."""
    sentence = _NOTHING_SENT if address.kind == "udp" else _SILENT
    return LinkFault("timeout", sentence.format(place=address.place, s=_seconds(waited_ns)))


def _seconds(waited_ns: int) -> str:
    return f"{waited_ns / 1e9:.1f}".removesuffix(".0")
