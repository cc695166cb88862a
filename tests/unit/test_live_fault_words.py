"""What errors are called and told: one cause each, a sentence that names place and remedy, and never a password."""

from __future__ import annotations

import errno
import typing

import av.error as fferror
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.camera import CameraSpec
from stages.decode import fault_words
from stages.decode.address import address_of
from stages.decode.fault_words import Attempt
from stages.messages import LinkCause

CANARY = "kanarienvogel-7"
S = 1_000_000_000


def attempt(url: str = "rtsp://cam/x", *, opening: bool = True, waited_s: float = 0.1) -> Attempt:
    spec = CameraSpec("gate", url, "m", user=CANARY, password=CANARY, network=True)
    return Attempt(address_of(spec), opening, int(waited_s * S), 5 * S)


def ffmpeg(kind, code: int) -> fferror.FFmpegError:
    """As PyAV raises it: with the whole URL, and FFmpeg's last words."""
    url = f"rtsp://{CANARY}:{CANARY}@cam/x"
    return kind(code, f"failed: {url}", url, (16, "rtsp", f"method failed for {url}"))


def number(code: int) -> OSError:
    return OSError(code, f"rtsp://u:{CANARY}@cam/x")


INVALID = ffmpeg(fferror.InvalidDataError, 1094995529)
CASES = [
    (ffmpeg(fferror.HTTPUnauthorizedError, 825242872), {}, "unauthorised"),
    (ffmpeg(fferror.HTTPForbiddenError, 858797304), {}, "forbidden"),
    (ffmpeg(fferror.HTTPNotFoundError, 875574520), {}, "not_found"),
    (ffmpeg(getattr(fferror, "HTTPTooManyRequestsError", fferror.HTTPServerError), 959591672), {}, "busy"),
    (ffmpeg(fferror.HTTPOtherClientError, 1482175736), {}, "busy"),
    (ffmpeg(fferror.HTTPOtherClientError, 1482175736), {"url": "http://cam"}, "protocol"),
    (ffmpeg(fferror.HTTPServerError, 1482175992), {}, "busy"),
    (ffmpeg(fferror.HTTPBadRequestError, 808465656), {}, "protocol"),
    (ffmpeg(fferror.ExitError, 1414092869), {}, "timeout"),
    (ffmpeg(fferror.ExitError, 1414092869), {"opening": False}, "timeout"),
    (ffmpeg(fferror.DecoderNotFoundError, 1128613112), {}, "unsupported"),
    (ffmpeg(fferror.ProtocolNotFoundError, 1330794744), {}, "unsupported"),
    (ffmpeg(fferror.PatchWelcomeError, 1163346256), {}, "unsupported"),
    (ffmpeg(fferror.EOFError, 541478725), {}, "disconnected"),
    (INVALID, {}, "protocol"),
    (INVALID, {"waited_s": 5.1}, "timeout"),
    (INVALID, {"opening": False}, "corrupt"),
    (ffmpeg(fferror.ConnectionRefusedError, errno.ECONNREFUSED), {}, "refused"),
    (ffmpeg(fferror.ConnectionResetError, errno.ECONNRESET), {}, "disconnected"),
    (ffmpeg(fferror.BrokenPipeError, errno.EPIPE), {"opening": False}, "disconnected"),
    (ffmpeg(fferror.TimeoutError, errno.ETIMEDOUT), {}, "timeout"),
    (ffmpeg(fferror.OSError, errno.EPROTONOSUPPORT), {}, "transport"),
    (ffmpeg(fferror.OSError, errno.EIO), {"url": "rtsps://cam"}, "tls"),
    (ffmpeg(fferror.OSError, errno.EIO), {"url": "https://cam"}, "tls"),
    (ffmpeg(fferror.OSError, errno.EIO), {}, "protocol"),
    (ffmpeg(fferror.OSError, errno.EIO), {"opening": False}, "disconnected"),
    (number(errno.EHOSTUNREACH), {}, "unreachable"),
    (number(errno.ENETUNREACH), {}, "unreachable"),
    (number(errno.EPERM), {"waited_s": 5.1}, "timeout"),  # FFmpeg's -1, after a PLAY that was never answered
    (number(errno.EPERM), {}, "protocol"),
    (number(errno.ENOENT), {"url": "/dev/video9"}, "not_found"),
    (number(errno.ENOENT), {}, "protocol"),  # noise in place of an answer
    (number(errno.EBUSY), {"url": "/dev/video0"}, "busy"),
    (number(errno.EACCES), {"url": "/dev/video0"}, "forbidden"),
    (number(errno.ENOTTY), {"url": "/dev/video0"}, "protocol"),
    (number(errno.ENODEV), {"url": "/dev/video0", "opening": False}, "not_found"),
    (MemoryError(CANARY), {}, "corrupt"),
    (RuntimeError(CANARY), {}, "protocol"),
    (ValueError(CANARY), {"opening": False}, "disconnected"),
]


@pytest.mark.parametrize(("error", "where", "cause"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_the_cause_and_a_sentence_without_secrets(error, where, cause) -> None:
    assert CANARY in str(error) or CANARY in repr(vars(error))  # the canary lives where FFmpeg puts passwords
    told = fault_words.fault(error, attempt(**where))
    assert told.cause == cause
    assert ("/dev/video" if "/dev" in where.get("url", "") else "cam:") in told.detail
    assert told.detail == str(told).partition(": ")[2]
    assert CANARY not in str(told) + repr(told) + repr(attempt(**where))
    assert told.detail[-1] != "."
    assert told.__cause__ is None


@given(code=st.integers(-2_000_000_000, 2_000_000_000), opening=st.booleans(), waited_s=st.floats(0, 100))
def test_any_number_has_a_cause(code, opening, waited_s) -> None:
    told = fault_words.fault(number(code), attempt(opening=opening, waited_s=waited_s))
    assert told.cause in typing.get_args(LinkCause)
    assert CANARY not in told.detail


def test_silence_says_for_how_long() -> None:
    address = attempt().address
    assert fault_words.silent(address, 4_500_000_000).detail.startswith("no data from cam:554 for 4.5 s, although")
    assert fault_words.told("timeout", address, 9 * S).detail.startswith("cam:554 does not answer within 9 s;")
    sender = attempt("udp://239.1.1.1:5000").address
    assert fault_words.silent(sender, S).detail.startswith("nothing came to 239.1.1.1:5000 for 1 s;")
