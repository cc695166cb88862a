"""Owns what is given to FFmpeg to open a live source: URL with credentials, format, options. Pure; opens nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

from stages.camera import CameraSpec

Kind = Literal["rtsp", "http", "udp", "device"]
NetworkKind = Literal["rtsp", "http", "udp"]  # a device needs no options of a network's

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>\[[^\]/?#]*\]|[^:/?#]*)(?::(?P<port>[0-9]*))?"
)
_PORTS: Final = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}

# What may stand unescaped in the user part of a URL (RFC 3986). Escaping no more than needed matters: FFmpeg's RTSP
# client keeps "user:password" in a buffer of 128 bytes and cuts off the rest without a word.
_UNESCAPED: Final = "!$&'()*+,;="
MAX_RTSP_USERINFO_BYTES: Final = 127

# Enough to learn what SDP and the first packets say; what was read for it is decoded too, so it delays no picture.
# MPEG-TS has nothing like SDP: its tables come each half second at the latest, parameters with the next keyframe.
_PROBE_US: Final[Mapping[NetworkKind, int]] = {"rtsp": 200_000, "http": 2_000_000, "udp": 2_000_000}
_UDP_BUFFER_BYTES: Final = 4 << 20  # a keyframe comes as one burst; the kernel gives what net.core.rmem_max allows

# A camera (or whoever answers in its place) may not lead FFmpeg to files or to other services.
_PROTOCOLS: Final[Mapping[NetworkKind, str]] = {
    "rtsp": "rtsp,rtsps,rtp,srtp,tcp,udp,tls",
    "http": "http,https,tcp,tls,crypto,data,httpproxy",
    "udp": "udp,rtp",
}
_TRUSTED_BY_SYSTEM: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # openEuler, Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",  # SUSE
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a live source is and how it is opened. Its repr holds no credentials."""

    kind: Kind
    place: str  # for people: host and port, or the device
    host: str | None  # a name or number that must be looked up first
    port: int
    tls: bool
    url: str = field(repr=False)
    format: str | None
    options: Mapping[str, str]

    @property
    def credentials_fit(self) -> bool:
        """Whether FFmpeg takes user and password whole."""
        userinfo = self.url.partition("://")[2].rpartition("@")[0]
        return self.kind != "rtsp" or len(userinfo) <= MAX_RTSP_USERINFO_BYTES


def is_live(url: str) -> bool:
    """Whether ``url`` names something that is connected to: a scheme with a host, or a video device."""
    return bool(_URL.match(url)) or url.startswith("/dev/video")


def address_of(camera: CameraSpec) -> Address:
    """The address of ``camera``. Raises ValueError for a URL that names no host."""
    link = camera.link
    if camera.url.startswith("/dev/"):
        return Address("device", camera.url, None, 0, False, camera.url, "v4l2", {})
    found = _URL.match(camera.url)
    if found is None or not found["host"]:
        raise ValueError("names no host")
    scheme = found["scheme"].lower()
    kind: NetworkKind = "rtsp" if scheme in {"rtsp", "rtsps"} else "http" if scheme in {"http", "https"} else "udp"
    tls = scheme in {"rtsps", "https"}
    port = int(found["port"] or _PORTS.get(scheme, 0))
    host = found["host"].strip("[]")
    options = {
        "protocol_whitelist": _PROTOCOLS[kind],
        "analyzeduration": str(_PROBE_US[kind]),
        "fpsprobesize": "0",
    }
    if kind == "rtsp":
        options |= _TRANSPORTS[link.transport]
        options |= {"allowed_media_types": "video", "buffer_size": str(_UDP_BUFFER_BYTES)}
    elif kind == "udp":
        options |= {"overrun_nonfatal": "1", "buffer_size": str(_UDP_BUFFER_BYTES)}
    if tls:
        options |= _trust(link.tls_ca) if link.tls_verify else {"tls_verify": "0"}
    return Address(
        kind=kind,
        place=f"{found['host']}:{port}" if port else found["host"],
        host=host,
        port=port,
        tls=tls,
        url=with_credentials(camera.url, camera.user, camera.password),
        format="mpegts" if kind == "udp" else "rtsp" if kind == "rtsp" else None,
        options=options,
    )


_TRANSPORTS: Final[Mapping[str, Mapping[str, str]]] = {
    "auto": {"rtsp_transport": "tcp+udp", "rtsp_flags": "prefer_tcp"},
    "tcp": {"rtsp_transport": "tcp"},
    "udp": {"rtsp_transport": "udp"},
}


def _trust(ca_file: str | None) -> dict[str, str]:
    if ca_file is None:
        ca_file = next((path for path in _TRUSTED_BY_SYSTEM if Path(path).is_file()), None)
    return {"tls_verify": "1"} | ({"ca_file": ca_file} if ca_file else {})


def with_credentials(url: str, user: str | None, password: str | None) -> str:
    """``url`` with user and password in it, every symbol that a URL gives a meaning to escaped; as it is without them.

    They arrive here decoded, so that text that was escaped in the user's own URL is escaped just once again.
    """
    if user is None and password is None:
        return url
    # bytes that are no UTF-8 (an environment variable may hold them) go as they are
    userinfo = quote(user or "", safe=_UNESCAPED, errors="surrogateescape")
    if password is not None:
        userinfo += ":" + quote(password, safe=_UNESCAPED + ":", errors="surrogateescape")
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{userinfo}@{rest}"
