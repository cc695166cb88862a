"""Owns saying why a certificate is not trusted. Asks the camera itself once more; decides nothing by the answer."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Final

TIMEOUT_S: Final = 2.0
KEPT_NS: Final = 300_000_000_000  # a camera that is not trusted is tried again each few seconds: its answer is kept
PLACES_KEPT: Final = 256

# Codes of OpenSSL (X509_V_ERR_*), as SSLCertVerificationError.verify_code gives them.
_WORDS: Final = {
    9: "shows a certificate that is not valid yet; check the clocks of the camera and of this machine",
    10: "shows a certificate that has expired; renew it at the camera, or set source.tls_verify to false",
    18: "shows a certificate that it made itself; give it as source.tls_ca, or set source.tls_verify to false",
    19: "shows a certificate of an issuer that is not trusted; give the issuer's as source.tls_ca",
    20: "shows a certificate of an issuer that is not known; give the issuer's as source.tls_ca",
    21: "shows a certificate of an issuer that is not known; give the issuer's as source.tls_ca",
    62: "shows a certificate for another name; write that name in source.url, or set source.tls_verify to false",
    64: "shows a certificate for another address; write that one in source.url, or set source.tls_verify to false",
}
_OTHER: Final = "shows a certificate that can't be trusted; give it as source.tls_ca, or set source.tls_verify to false"
_NO_FILE: Final = "can't be trusted: the file of source.tls_ca holds no certificates in PEM form; give one that does"


def distrust(host: str, port: int, ca_file: str | None, timeout_s: float = TIMEOUT_S) -> str | None:
    """Why the certificate at ``host`` is not trusted, to follow its name in a sentence; None when that is not it."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError):
        return _NO_FILE
    context.hostname_checks_common_name = False  # as FFmpeg's TLS: subject names are long out of use
    try:
        with (
            socket.create_connection((host, port), timeout_s) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return _WORDS.get(error.verify_code, _OTHER)
    except (OSError, ValueError):
        return None


class Distrusts:
    """Answers of ``distrust``, each asked for once and kept for minutes. From any thread."""

    def __init__(self, ask: Callable[[str, int, str | None], str | None] = distrust) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, int, str | None], tuple[int, str | None]] = {}

    def why(self, host: str, port: int, ca_file: str | None, now_ns: int) -> str | None:
        """See ``distrust``; ``now_ns``: monotonic."""
        place = host, port, ca_file
        with self._lock:
            known = self._answers.get(place)
        if known is not None and now_ns - known[0] < KEPT_NS:
            return known[1]
        answer = self._ask(host, port, ca_file)
        with self._lock:
            self._answers.pop(place, None)
            if len(self._answers) >= PLACES_KEPT:
                del self._answers[next(iter(self._answers))]
            self._answers[place] = now_ns, answer
        return answer


DISTRUSTS: Final = Distrusts()  # a source lives for one try only
