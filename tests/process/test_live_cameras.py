"""The live stage on real sockets: what a camera may speak, every way to lose it, and how soon it is back.

The servers are those of the fault tests; ``test_live_gstreamer`` asks one of another make.
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import socket
import ssl
import threading
import time
from concurrent import futures

import av
import pytest
from faults.servers.elementary import make_stream
from faults.servers.http_mjpeg import MjpegServer
from faults.servers.mpegts import HlsServer, TsSender
from faults.servers.proxy import FaultyProxy
from faults.servers.rtsp import RtspServer
from media.odd.making import scene
from process.live_watch import PATIENT, Watch, cause, make_certificate

from stages.camera import CameraSpec, LinkSpec
from stages.decode.probe import probe
from stages.errors import SourceRefused
from stages.messages import FrameDropped, FrameReady, StreamEnded, StreamStarted

pytestmark = pytest.mark.early

MS = 1_000_000
NOISE = LinkSpec(open_timeout_ms=2000, read_timeout_ms=1000, stall_ms=4000)
USER, PASSWORD = "ca m/2+@?", "p@ss:w/o?r#d%20 +&=!$'()*,;[]<>\"\\^`{|}~é"


# --- what a camera may speak ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_user_and_password_with_every_symbol(scheme) -> None:
    with RtspServer(scheme=scheme, user=USER, password=PASSWORD) as server:
        with Watch(server.url(), user=USER, password=PASSWORD, link=PATIENT) as it:
            it.frames(2)
        assert cause(server.url(), user=USER, password=PASSWORD + "wr0ng") == "unauthorised"
        assert cause(server.url()) == "unauthorised"


@pytest.mark.parametrize(("transport", "offered"), [("udp", ("udp",)), ("auto", ("udp",)), ("auto", ("tcp", "udp"))])
def test_transports(transport, offered) -> None:
    link = LinkSpec(transport=transport, open_timeout_ms=10_000)
    with RtspServer() as server:
        server.mishap("gate", transports=offered)
        with Watch(server.url(), link=link) as it:
            frames = it.frames(5)
        assert [frame.epoch for frame in frames] == [0] * 5
        server.mishap("gate", transports=("tcp",))
        if transport == "udp":
            assert cause(server.url(), link=link) == "transport"


def test_encryption_and_whom_it_trusts(tmp_path) -> None:
    certificate = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with RtspServer(tls=context) as server:
        assert cause(server.url(), link=PATIENT) == "tls"
        for link in (LinkSpec(tls_verify=False), LinkSpec(tls_ca=f"{certificate}.crt")):
            assert probe(CameraSpec("gate", server.url(), "m", network=True, link=link)).codec == "h264"
        with pytest.raises(SourceRefused, match="shows a certificate that it made itself; give it as"):
            probe(CameraSpec("gate", server.url(), "m", network=True, link=PATIENT))
        by_name = server.url().replace("127.0.0.1", "localhost")
        with pytest.raises(SourceRefused, match="shows a certificate for another name"):
            probe(CameraSpec("gate", by_name, "m", network=True, link=LinkSpec(tls_ca=f"{certificate}.crt")))


def test_mjpeg_over_http_with_a_password() -> None:
    with MjpegServer(scheme="digest", user=USER, password=PASSWORD) as server:
        assert cause(server.url(), user=USER, password="wr0ng") == "unauthorised"
        with Watch(server.url(), user=USER, password=PASSWORD) as it:
            frames = it.frames(10)
        steps_ms = [(b.pts_ns - a.pts_ns) / MS for a, b in itertools.pairwise(frames)]
        assert 40 < sum(steps_ms) / len(steps_ms) < 100  # 15 a second, although FFmpeg says 25
        server.mishap(status={"GET": 503})
        assert cause(server.url(), user=USER, password=PASSWORD) == "busy"


def test_mpeg_ts_over_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link = LinkSpec(open_timeout_ms=3000, read_timeout_ms=400, retry_first_ms=10, retry_longest_ms=10)
    with TsSender(port) as sender, Watch(f"udp://127.0.0.1:{port}", link=link) as it:
        it.frames(3)
        sender.stall.set()
        assert it.state("reconnecting").cause == "timeout"
        sender.stall.clear()
        assert it.frames(1)[0].epoch == 1


def test_hls(tmp_path) -> None:
    with HlsServer(tmp_path) as server, Watch(server.url, link=PATIENT) as it:
        frames = it.frames(20)
        assert all(b.pts_ns > a.pts_ns for a, b in itertools.pairwise(frames))
        assert {frame.clock for frame in frames} == {"arrival"}


def test_a_track_among_several_of_a_recording_that_a_server_sends(tmp_path) -> None:
    with av.open(str(tmp_path / "two.mkv"), "w") as out:
        streams = []
        for width in (64, 96):
            stream = out.add_stream("libx264", rate=25, options={"preset": "ultrafast", "threads": "1"})
            stream.width, stream.height, stream.pix_fmt = width, 48, "yuv420p"
            streams.append((stream, width))
        for stream, width in streams:
            for image in scene(10, width, 48):
                out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            out.mux(stream.encode(None))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **more) -> None:
            super().__init__(*args, directory=str(tmp_path), **more)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/two.mkv"
        with Watch(url, track=1) as it:
            assert {frame.width for frame in it.frames(3)} == {96}
            assert it.until(lambda m: isinstance(m, StreamEnded)).cause == "disconnected"
        assert cause(url, track=2) == "no_video"
        assert cause(url + "-not") == "not_found"
        server.shutdown()
        serving.join()


# --- every way to lose it ---------------------------------------------------------------------------------------------


WRONG = (
    ({"status": {"DESCRIBE": 403}}, "forbidden"),
    ({"status": {"SETUP": 453}}, "busy"),
    ({"transports": ()}, "transport"),
    ({"sdp": "audio_only"}, "no_video"),
    ({"sdp": "unknown_codec"}, "unsupported"),
    ({"garbage_answer": True}, "timeout protocol"),
    ({"silent_on": "DESCRIBE"}, "timeout"),
    ({"silent_on": "PLAY"}, "no_picture timeout"),  # it is asked again in what is left of the time
    ({"stall": True}, "no_picture"),
    ({"garbage_every": 1}, "no_picture corrupt no_keyframe"),
    ({"keyframes": False}, "no_keyframe"),
    ({"sprop": False, "parameter_sets": False}, "no_keyframe"),
)


def asked(camera: tuple[str, str]) -> str:
    """What a check says. Noise now and then looks like a picture, and the camera is taken: then it is asked again."""
    url, words = camera
    for _ in range(5 if "corrupt" in words else 1):
        with contextlib.suppress(pytest.fail.Exception):
            return cause(url)
    return "a picture"


def test_what_is_wrong_from_the_start_has_its_own_word() -> None:
    """All at the same time, each camera on a path of its own: nearly all of it is waiting."""
    paths = {f"camera-{number}": make_stream() for number in range(len(WRONG))}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(RtspServer({"gate": make_stream(), **paths}))
        refusing, silent, trickling = (stack.enter_context(FaultyProxy(server.port)) for _ in range(3))
        refusing.set("refuse")
        silent.set("silence")
        trickling.bytes_per_s = 20
        tried = [
            (server.url("nowhere"), "not_found"),
            (f"rtsp://127.0.0.1:{refusing.port}/gate", "refused"),
            (f"rtsp://127.0.0.1:{silent.port}/gate", "timeout"),
            (f"rtsp://127.0.0.1:{trickling.port}/gate", "timeout"),
            ("rtsp://no-such-camera.invalid/x", "unknown_host"),
            ("/dev/video63", "not_found"),
        ]
        for path, (mishap, words) in zip(paths, WRONG, strict=True):
            server.mishap(path, **mishap)
            tried.append((server.url(path), words))
        pool = stack.enter_context(futures.ThreadPoolExecutor(len(tried)))
        found = pool.map(asked, tried)
        wrong = [each for each, word in zip(tried, found, strict=True) if word not in each[1].split()]
        assert not wrong


def test_a_camera_that_is_absent_at_first_is_found_soon() -> None:
    server = RtspServer({"gate": make_stream(group_s=0.5)})
    with Watch(server.url()) as it:
        for _ in range(3):
            assert it.state("reconnecting").cause == "refused"
        server.start()
        back_s = time.monotonic()
        it.frames(1)
        assert time.monotonic() - back_s < 2 + 0.5 + 1
    server.close()


def test_it_is_lost_in_every_way_and_comes_back() -> None:
    """Closed, reset, half-open, stalled: the word, a new epoch, and soon."""
    stream = make_stream(group_s=0.5)
    with RtspServer({"gate": stream}) as server, FaultyProxy(server.port) as proxy:
        with Watch(f"rtsp://127.0.0.1:{proxy.port}/gate") as it:
            it.frames(3)
            for number, (lose, heal, words) in enumerate(
                (
                    (lambda: server.cut("gate"), lambda: None, {"disconnected"}),
                    (lambda: server.cut("gate", reset=True), lambda: None, {"disconnected"}),
                    (lambda: proxy.set("half_open"), lambda: proxy.set("pass"), {"timeout"}),
                    (lambda: server.mishap("gate", stall=True), lambda: server.heal("gate"), {"timeout"}),
                    (lambda: proxy.set("refuse"), lambda: proxy.set("pass"), {"disconnected", "refused"}),
                )
            ):
                lose()
                ended = it.until(lambda m: isinstance(m, StreamEnded))
                assert ended.cause in words
                assert (ended.epoch, ended.last) == (number, False)
                heal()
                back_s = time.monotonic()
                (frame,) = it.frames(1)
                assert frame.epoch == number + 1
                assert time.monotonic() - back_s < 2 + 0.5 + 1
        assert [m.epoch for m in it.of(StreamStarted)] == list(range(6))


def test_noise_instead_of_pictures_is_a_fault_of_the_camera() -> None:
    with RtspServer() as server, Watch(server.url()) as it:
        it.frames(3)
        server.mishap("gate", garbage_every=1)
        ended = it.until(lambda m: isinstance(m, StreamEnded))
        assert ended.cause in {"no_picture", "corrupt", "timeout"}
        server.heal("gate")
        assert it.frames(1)[0].epoch == 1


def test_a_camera_that_answers_and_sends_noise_is_not_told_not_to_answer() -> None:
    """Whichever deadline finds it, in the stage or in FFmpeg. Three cameras at the same time."""
    tried = {
        "noise": (
            {"garbage_every": 1},
            {"no_picture", "corrupt", "no_keyframe"},
        ),  # it may look like a piece of a picture
        "mute": ({"silent_on": "PLAY"}, {"no_picture"}),
        "nothing": ({"silent_on": "DESCRIBE"}, {"timeout"}),
    }

    def told(path: str) -> tuple[str, str]:
        with Watch(server.url(path), user="user", password="wr0ng", link=NOISE) as it:
            changed = it.state("reconnecting")
        return changed.cause, changed.detail

    with RtspServer({path: make_stream() for path in tried}) as server:
        for path, (mishap, _) in tried.items():
            server.mishap(path, **mishap)
        with futures.ThreadPoolExecutor(len(tried)) as pool:
            found = dict(zip(tried, pool.map(told, tried), strict=True))
    for path, (_, causes) in tried.items():
        cause, detail = found[path]
        assert cause in causes, found
        assert "wr0ng" not in detail
    assert "does not answer" not in found["noise"][1]


# --- pictures and time ------------------------------------------------------------------------------------------------


def test_the_size_may_change_in_mid_stream() -> None:
    sizes = {"main": make_stream(320, 240, group_s=0.4), "small": make_stream(160, 120, group_s=0.4)}
    with RtspServer({"gate": sizes}) as server, Watch(server.url()) as it:
        assert {(f.width, f.height) for f in it.frames(3)} == {(320, 240)}
        server.mishap("gate", variant="small")
        frame = it.until(lambda m: isinstance(m, FrameReady) and m.width == 160)
        assert (frame.height, frame.epoch) == (120, 0)
        server.cut("gate")
        assert it.until(lambda m: isinstance(m, StreamStarted)).epoch == 1


@pytest.mark.skipif(int(av.__version__.partition(".")[0]) < 17, reason="PyAV 16 can't read sender reports")
def test_time_of_day_from_the_camera_unless_it_is_absurd() -> None:
    with RtspServer({"gate": make_stream(group_s=0.4)}) as server:
        for offset_s, expected in ((-4.0, "rtcp"), (-3600.0, "arrival")):
            server.mishap("gate", report_offset_s=offset_s)
            with Watch(server.url()) as it:
                frame = it.until(lambda m: isinstance(m, FrameReady) and (m.clock == "rtcp" or m.seq >= 20))
                assert frame.clock == expected
                late_s = (time.time_ns() - frame.captured_ns) / 1e9
                assert (4.0 if expected == "rtcp" else 0.0) - 0.5 < late_s < (4.0 if expected == "rtcp" else 0.0) + 2


@pytest.mark.parametrize("mishap", [{"jump_s": 3600.0}, {"jump_s": -3600.0}, {"first_stamp": 2**32 - 20_000}])
def test_time_goes_on_across_jumps_and_wraps(mishap) -> None:
    with RtspServer() as server:
        if "first_stamp" in mishap:
            server.mishap("gate", **mishap)
        with Watch(server.url()) as it:
            frames = it.frames(8)
            server.mishap("gate", **mishap)
            frames += it.frames(12)
        steps_ms = [(b.pts_ns - a.pts_ns) / MS for a, b in itertools.pairwise(frames)]
        assert min(steps_ms) > 0
        assert max(steps_ms) < 1000


def test_only_keyframes() -> None:
    with RtspServer({"gate": make_stream(group_s=0.4)}) as server, Watch(server.url(), keyframes=True) as it:
        frames = it.frames(4)
        steps_ms = [(b.pts_ns - a.pts_ns) / MS for a, b in itertools.pairwise(frames)]
        assert all(250 < step < 600 for step in steps_ms[1:])  # the very first stamp is often missing
        assert frames[-1].decoded == 4


def test_a_camera_that_floods_is_read_as_fast_as_it_sends() -> None:
    with RtspServer() as server, Watch(server.url()) as it:
        server.mishap("gate", burst=True)
        it.frames(60)
        told = it.of(FrameReady) + it.of(FrameDropped)
        assert sorted(m.seq for m in told) == list(range(len(told)))
