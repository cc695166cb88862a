"""Owns one camera to which faults are done: a server of its own behind a proxy of its own. Knows no fault."""

from __future__ import annotations

from typing import Any

from faults.canary import CANARY, USER, credentials
from faults.servers.elementary import ElementaryStream, make_stream
from faults.servers.proxy import FaultyProxy
from faults.servers.rtsp import RtspServer

OPEN_S = 2.0  # its open_timeout_ms
GROUP_S = 1.0  # from keyframe to keyframe


def pictures(fps: int = 5, width: int = 160, height: int = 120) -> dict[str, ElementaryStream]:
    """What a victim can send: ``main``, and ``small`` after a change of its settings."""
    return {"main": make_stream(width, height, fps), "small": make_stream(width // 4 * 2, height // 4 * 2, fps)}


class Victim:
    """``scheme``: of authentication. A context manager: enters serving unless ``absent``."""

    def __init__(self, name: str, fps: int = 5, scheme: str = "digest", *, absent: bool = False) -> None:
        self.name = name
        self.fps = fps
        self._absent = absent
        self.server = RtspServer({"gate": pictures(fps)}, scheme=scheme, user=USER, password=CANARY)
        self.other = RtspServer({"gate": pictures(fps)})  # where a redirect leads to
        self.proxy = FaultyProxy(self.server.port)
        if absent:
            self.proxy.mode = "refuse"

    def camera(self, *, in_url: bool = False, transport: str = "auto", **more: Any) -> dict[str, Any]:
        """Its entry in a site. Password in the URL or in fields of its own."""
        source: dict[str, Any] = {
            "url": f"rtsp://{credentials() + '@' if in_url else ''}127.0.0.1:{self.proxy.port}/gate",
            "transport": transport,
            "open_timeout_ms": int(OPEN_S * 1000),
            "read_timeout_ms": 2000,
            "stall_ms": 3000,
        }
        if in_url:
            source["url"] = source["url"].replace("$", "$$")
        else:
            source |= {"user": USER, "password": CANARY}
        return {"source": source | more}

    def whole(self) -> None:
        """Nothing is wrong any more."""
        self.server.heal("gate")
        self.server.gatekeeper.password = CANARY
        self.proxy.bytes_per_s, self.proxy.delay_s = None, 0.0
        self.server.start()
        if self.proxy.mode != "pass":
            self.proxy.set("pass")

    def __enter__(self) -> Victim:
        self.server.start()
        self.other.start()
        self.proxy.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.close()
        self.server.close()
        self.other.close()
