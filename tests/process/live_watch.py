"""A live camera's stage on a real connection, stepped as a worker's loop does. For tests of this folder; owns none."""

from __future__ import annotations

import random
import select
import subprocess
import time
from pathlib import Path

import pytest

from stages.camera import CameraSpec, LinkSpec
from stages.decode.live import LiveDecode
from stages.decode.probe import probe
from stages.errors import SourceRefused
from stages.frames import HeapRing
from stages.messages import FrameReady, LinkChanged
from stages.model import ModelSpec

MS = 1_000_000
SECOND = 1000 * MS
SOON_S = 15.0  # generous: machines are busy
# Long enough that a camera that is well is not lost on a busy machine.
LINK = LinkSpec(open_timeout_ms=2000, read_timeout_ms=1500, stall_ms=2500, retry_first_ms=100, retry_longest_ms=400)
PATIENT = LinkSpec(open_timeout_ms=10_000, read_timeout_ms=10_000, stall_ms=10_000)
MODEL = ModelSpec(
    name="m", path="/m.onnx", sha256="", width=64, height=64, channels="rgb", input_layout="nchw",
    input_dtype="float32", mean=(0, 0, 0), std=(1, 1, 1), pad_value=114, placement="center", layout="yolov8",
    labels=(), outputs=(), fixed_batch=None, confidence=0.4, iou=0.45,
)  # fmt: skip


class Watch:
    """A camera's stage, stepped as a worker does; its frames are taken at once."""

    def __init__(self, url: str, *, link: LinkSpec = LINK, **camera) -> None:
        spec = CameraSpec("gate", url, "m", live=True, network=True, link=link, max_age_ms=60_000, **camera)
        self.stage = LiveDecode(
            spec, MODEL, HeapRing("frames/gate", 2, MODEL.frame_bytes + 64), time.monotonic_ns,
            wall_ns=time.time_ns, draw=random.random,
        )  # fmt: skip
        self.messages: list[object] = []
        self.at_s: list[float] = []

    def __enter__(self) -> Watch:
        self.stage.open()
        self.stage.grant([0, 1])
        return self

    def __exit__(self, *_: object) -> None:
        self.stage.stop()
        self.stage.close()
        for reader in self.stage._readers():
            reader.join(SOON_S)  # so that the check of leaks finds nothing

    def until(self, condition, within_s: float = SOON_S):
        """Step until a message fulfils the condition; that message."""
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            wait_ns = self.stage.wait_ns()
            if wait_ns != 0:
                wait_s = 0.5 if wait_ns is None else min(wait_ns / 1e9, 0.5)
                select.select([self.stage.wake_fd], [], [], wait_s)
                continue
            for message in self.stage.step():
                self.messages.append(message)
                self.at_s.append(time.monotonic())
                if isinstance(message, FrameReady):
                    self.stage.grant([message.slot])
                if condition(message):
                    return message
        raise AssertionError(f"it did not come; told was {[m for m in self.messages if not isinstance(m, FrameReady)]}")

    def frames(self, count: int) -> list[FrameReady]:
        """The next ones."""
        found: list[FrameReady] = []
        self.until(lambda m: isinstance(m, FrameReady) and (found.append(m) or len(found) == count))
        return found

    def state(self, state: str) -> LinkChanged:
        """Wait for a state."""
        return self.until(lambda m: isinstance(m, LinkChanged) and m.state == state)

    def of(self, kind):
        return [message for message in self.messages if isinstance(message, kind)]


def cause(url: str, **camera) -> str:
    """What a check of this camera says."""
    link = camera.pop("link", LINK)
    with pytest.raises(SourceRefused) as refused:
        probe(CameraSpec("gate", url, "m", live=True, network=True, link=link, **camera))
    assert "wr0ng" not in str(refused.value)
    return refused.value.cause


def make_certificate(folder: Path) -> Path:
    """Key and certificate in one file, and the latter alone beside it (``.crt``), for 127.0.0.1 and no name."""
    path = folder / "camera.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(path), "-out", f"{path}.crt"]
    more = ["-days", "2", "-subj", "/CN=camera", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*command, *more], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path
