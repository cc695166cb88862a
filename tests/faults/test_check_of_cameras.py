"""``campipe check`` of cameras: each is told in its own words, side by side, in bounded time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from faults.canary import CANARY, USER, found_in
from faults.live_run import ROOT
from faults.servers.proxy import FaultyProxy
from faults.servers.rtsp import RtspServer
from made.ports import free_port

BOUND_S = 40.0


def test_good_unauthorised_refused_and_slow_cameras_are_told_apart(tmp_path: Path) -> None:
    with (
        RtspServer(scheme="digest", user=USER, password=CANARY) as server,
        FaultyProxy(server.port) as silent,
        FaultyProxy(server.port) as slow,
    ):
        silent.set("silence")
        slow.delay_s = 0.3
        right = {"user": USER, "password": CANARY}
        ports = {"good": server.port, "unauthorised": server.port, "refused": free_port(), "silent": silent.port}
        cameras = [
            {"name": name, "source": {"url": f"rtsp://127.0.0.1:{port}/gate", "open_timeout_ms": 4000, **right}}
            for name, port in {**ports, "slow": slow.port}.items()
        ]
        cameras[1]["source"]["password"] = "wrong-" + CANARY
        site = {"cameras": cameras, "devices": {"device": "canned:0"}, "publish": "off"}
        (tmp_path / "site.yaml").write_text(json.dumps(site))
        began_s = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "pipeline", "check", "site.yaml"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        took_s = time.monotonic() - began_s
    said = ran.stdout + ran.stderr
    print(said, f"{took_s:.1f} s")
    assert ran.returncode == 2, said
    assert "Traceback" not in said
    problems = ran.stderr

    def words(name: str) -> str:
        return " ".join(line for line in problems.splitlines() if name in line)

    assert "user and password" in words("unauthorised")
    assert "nobody listens" in words("refused")
    assert "does not answer" in words("silent")
    assert not words("good")
    assert not words("slow")
    assert "320x240" in ran.stdout
    assert took_s < BOUND_S
    assert not found_in(said)
