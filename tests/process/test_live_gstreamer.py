"""The live stage against a camera of another make: GStreamer's RTSP server, where Debian's packages are installed.

``apt-get install --no-install-recommends python3-gi gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-{base,good,bad}``
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import shutil
import subprocess
import time
from collections.abc import Iterator

import av
import pytest
from media.odd.making import scene
from process.live_watch import PATIENT, Watch, cause, make_certificate

from stages.camera import LinkSpec

PYTHON = shutil.which("python3", path="/usr/bin:/bin")  # python3-gi is not in a virtual environment
USER, PASSWORD = "ca m/ü", "p@ss:w/o?r#d%20 +&=!$'()*,;[]<>\"\\^`{|}~é"
NEEDED = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
START_S = 20.0

# Path, what is sent: a pipeline whose payloader is called pay0.
SERVER = r"""
import sys, json
import gi
gi.require_version("Gst", "1.0"); gi.require_version("GstRtspServer", "1.0")
from gi.repository import Gio, GLib, Gst, GstRtsp, GstRtspServer
Gst.init(None)
told = json.load(sys.stdin)
server = GstRtspServer.RTSPServer()
server.set_address("127.0.0.1"); server.set_service("0")
auth = GstRtspServer.RTSPAuth() if told["user"] or told["tls"] else None
if auth:
    token = GstRtspServer.RTSPToken(); token.set_string("media.factory.role", "viewer")
    if told["user"] and told["digest"]:
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        auth.add_digest(told["user"], told["password"], token)
    elif told["user"]:
        auth.add_basic(GstRtspServer.RTSPAuth.make_basic(told["user"], told["password"]), token)
    else:
        auth.set_default_token(token)
    if told["tls"]:
        auth.set_tls_certificate(Gio.TlsCertificate.new_from_file(told["tls"]))
    server.set_auth(auth)
for path, launch in told["paths"].items():
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch("( " + launch + " )"); factory.set_shared(True)
    if auth:
        rights = GstRtspServer.RTSPPermissions()
        rights.add_permission_for_role("viewer", "media.factory.access", True)
        rights.add_permission_for_role("viewer", "media.factory.construct", True)
        factory.set_permissions(rights)
    server.get_mount_points().add_factory("/" + path, factory)
server.attach(None)
print(server.get_bound_port(), flush=True)
GLib.MainLoop().run()
"""


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Skip where GStreamer's server can't be had."""
    if PYTHON is None or subprocess.run([PYTHON, "-c", NEEDED], capture_output=True).returncode:
        pytest.skip("Debian's python3-gi and gir1.2-gst-rtsp-server-1.0 are not installed")


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> dict[str, str]:
    """Pipelines by path: some seconds of the test scene at 10 fps, a keyframe each half second."""
    folder = tmp_path_factory.mktemp("clips")
    x264 = {"preset": "ultrafast", "x264-params": "keyint=5:scenecut=0:bframes=0:repeat-headers=1"}
    x265 = {"preset": "ultrafast", "x265-params": "keyint=5:bframes=0:repeat-headers=1:log-level=none"}
    made = {
        "h264": ("libx264", x264, "yuv420p", "mp4", "qtdemux ! h264parse ! rtph264pay config-interval=-1 pt=96"),
        "h265": ("libx265", x265, "yuv420p", "matroska", "matroskademux ! h265parse ! rtph265pay pt=96"),
        "h265-10": ("libx265", x265, "yuv420p10le", "matroska", "matroskademux ! h265parse ! rtph265pay pt=96"),
        "mjpeg": ("mjpeg", {"huffman": "default"}, "yuvj420p", "avi", "avidemux ! jpegparse ! rtpjpegpay pt=26"),
    }
    for name, (codec, options, pixels, container, _) in made.items():
        with av.open(str(folder / name), "w", format=container) as out:
            stream = out.add_stream(codec, rate=10, options=options)
            stream.width, stream.height, stream.pix_fmt = 320, 240, pixels
            stream.codec_context.thread_count = 1
            for image in scene(100 if name == "h264" else 30, 320, 240):
                out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            out.mux(stream.encode(None))
    return {name: f"filesrc location={folder / name} ! {more[4]} name=pay0" for name, more in made.items()}


@contextlib.contextmanager
def serving(paths: dict[str, str], **more: object) -> Iterator[int]:
    """A server; its port."""
    assert PYTHON is not None
    told = {"user": "", "password": "", "digest": False, "tls": "", "paths": paths, **more}
    process = subprocess.Popen([PYTHON, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            json.dump(told, process.stdin)
        assert select.select([process.stdout], [], [], START_S)[0], "GStreamer's server did not start"
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def port(clips) -> Iterator[int]:
    with serving(clips) as number:
        yield number


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("path", ["h264", "h265", "h265-10", "mjpeg"])
def test_codecs_over_both_transports(port, path, transport) -> None:
    with Watch(f"rtsp://127.0.0.1:{port}/{path}", link=LinkSpec(transport=transport)) as it:
        frames = it.frames(8)
    started = next(message for message in it.messages if type(message).__name__ == "StreamStarted")
    assert (started.codec, started.width, started.height) == ("hevc" if "h265" in path else path, 320, 240)
    steps_ms = [(b.pts_ns - a.pts_ns) / 1e6 for a, b in itertools.pairwise(frames[2:])]
    assert all(95 < step < 105 for step in steps_ms)
    assert not any(frame.corrupt for frame in frames)


def test_time_of_day_comes_from_sender_reports(port) -> None:
    with Watch(f"rtsp://127.0.0.1:{port}/h264") as it:
        frame = it.until(lambda m: getattr(m, "clock", "") == "rtcp")
    assert abs(time.time_ns() - frame.captured_ns) < 2e9


@pytest.mark.parametrize("digest", [False, True])
def test_users(clips, digest) -> None:
    with serving({"h264": clips["h264"]}, user=USER, password=PASSWORD, digest=digest) as number:
        url = f"rtsp://127.0.0.1:{number}/h264"
        assert cause(url, user=USER, password="wr0ng") == "unauthorised"
        with Watch(url, user=USER, password=PASSWORD) as it:
            it.frames(1)


def test_encryption(clips, tmp_path) -> None:
    certificate = make_certificate(tmp_path)
    with serving({"h264": clips["h264"]}, tls=str(certificate)) as number:
        url = f"rtsps://127.0.0.1:{number}/h264"
        assert cause(url, link=PATIENT) == "tls"
        with Watch(url, link=LinkSpec(tls_ca=f"{certificate}.crt")) as it:
            it.frames(1)
