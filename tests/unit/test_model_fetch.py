"""Fetching a model file: from a real HTTP server that resumes, breaks off, lies and refuses."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from searching import examples

from pipeline import cli
from pipeline.models import fetch as fetch_module
from pipeline.models.fetch import fetch, shown
from pipeline.models.known import KnownModel
from stages.errors import UserError

CONTENT = random.Random(7).randbytes(300_000)
MODEL = KnownModel("tiny", "tiny.onnx", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), None)
PART = f"tiny.onnx.{MODEL.sha256[:12]}.part"


@dataclass
class Answer:
    """How the server answers one request."""

    cut: int | None = None  # close after so many bytes of the body
    ranges: bool = True
    status: int = 200
    body: bytes = CONTENT
    wrong_place: bool = False
    chunked: bool = False
    delay_s: float = 0.0  # after each block
    hold_at: int | None = None  # block after which the server waits for `go_on`
    mute: bool = False


@dataclass
class Server:
    """A server whose next answers are listed; afterwards it answers as it should."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    ranges_asked: list[str | None] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.ranges_asked.append(asked)
        answer = self.answers.pop(0) if self.answers else Answer()
        if answer.mute:
            time.sleep(1.0)
            return
        body, start, status = answer.body, 0, answer.status
        if status == 200 and asked and answer.ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            status = 206 if start < len(body) else 416
        request.send_response(status)
        if status == 206:
            place = start + 5 if answer.wrong_place else start
            request.send_header("Content-Range", f"bytes {place}-{len(body) - 1}/{len(body)}")
        rest = body[start:] if status in (200, 206) else b"no"
        if answer.chunked:
            request.send_header("Transfer-Encoding", "chunked")
            request.end_headers()
            request.wfile.write(b"%x\r\n%s\r\n" % (len(rest), rest[: answer.cut]))
            if answer.cut is None:
                request.wfile.write(b"0\r\n\r\n")
            return
        request.send_header("Content-Length", str(len(rest)))
        request.end_headers()
        for block in range(0, len(rest[: answer.cut]), 1 << 14):
            request.wfile.write(rest[: answer.cut][block : block + (1 << 14)])
            time.sleep(answer.delay_s)
            if answer.hold_at is not None and block >> 14 >= answer.hold_at:
                self.go_on.wait(30)


@pytest.fixture(scope="module")
def http() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):  # the client has gone, as some tests want it to
                server.handle(self)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_address[1]}/models/tiny.onnx"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    listening.shutdown()
    thread.join()
    listening.server_close()


@pytest.fixture
def server(http: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("no_proxy", "*")
    http.answers.clear()
    http.ranges_asked.clear()
    return http


def get(server: Server, folder: Path, **more: object) -> Path:
    options = {"url": server.url, "timeout_s": 5.0, "retry_wait_s": 0.0, **more}
    return fetch(MODEL, folder, **options)  # type: ignore[arg-type]


def left(folder: Path) -> set[str]:
    """What lies in ``folder``, the lock aside."""
    return {path.name for path in folder.iterdir()} - {".tiny.onnx.lock"}


def test_fetches_once_and_reports_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    folder = tmp_path / "a" / "b"
    path = get(server, folder, progress=lambda *step: seen.append(step))
    assert path == folder / "tiny.onnx"
    assert path.read_bytes() == CONTENT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    assert left(folder) == {"tiny.onnx"}
    assert get(server, folder) == path
    assert len(server.ranges_asked) == 1  # the second call needed no network


def test_file_has_the_users_usual_permissions(server: Server, tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    assert get(server, tmp_path).stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_connection_that_breaks_off_is_resumed_by_range(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(cut=100_000), Answer(cut=50_000)]
    said: list[str] = []
    assert get(server, tmp_path, say=said.append).read_bytes() == CONTENT
    assert server.ranges_asked == [None, "bytes=100000-", "bytes=150000-"]
    assert len(said) == 2
    assert "100000 of 300000 bytes" in said[0]
    assert left(tmp_path) == {"tiny.onnx"}


def test_interrupted_by_the_user_goes_on_next_time(server: Server, tmp_path: Path) -> None:
    def interrupt(done: int, _size: int) -> None:
        if done > 120_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(server, tmp_path, progress=interrupt)
    (part,) = left(tmp_path)
    assert part == PART
    kept = (tmp_path / part).stat().st_size
    assert 120_000 < kept < len(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges_asked[-1] == f"bytes={kept}-"


def test_part_that_is_complete_needs_no_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges_asked == []


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (Answer(ranges=False), 1000),
        (Answer(wrong_place=True), 1000),
        (Answer(status=416), 1000),
        (Answer(), len(CONTENT) + 1),
    ],
    ids=["server without ranges", "resumed at another place", "range refused", "part too long"],
)
def test_part_that_cannot_be_resumed_starts_again(server: Server, tmp_path: Path, answer: Answer, size: int) -> None:
    (tmp_path / PART).write_bytes((CONTENT + b"x")[:size])
    server.answers = [answer]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_damaged_part_is_not_resumed_twice(server: Server, tmp_path: Path) -> None:
    (tmp_path / PART).write_bytes(b"?" * 1000)
    said: list[str] = []
    assert get(server, tmp_path, say=said.append).read_bytes() == CONTENT
    assert server.ranges_asked == ["bytes=1000-", None]
    assert said == ["what was kept of an earlier attempt does not fit; starting again"]


def test_damaged_file_is_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").write_bytes(b"?" + CONTENT[1:])
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_wrong_checksum_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    other = b"?" + CONTENT[1:]
    server.answers = [Answer(body=other)]
    with pytest.raises(UserError) as refused:
        get(server, tmp_path)
    assert MODEL.sha256 in str(refused.value)
    assert hashlib.sha256(other).hexdigest() in str(refused.value)
    assert left(tmp_path) == set()


def test_other_size_is_refused_before_the_download(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(body=b"<html>please log in</html>")]
    with pytest.raises(UserError, match="offers 26 bytes, expected 300000"):
        get(server, tmp_path)
    assert left(tmp_path) == set()


def test_server_that_always_breaks_off_is_given_up_and_its_part_kept(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(cut=10_000)] * fetch_module.ATTEMPTS
    with pytest.raises(UserError, match=r"60000 of 300000 bytes.*campipe models fetch tiny"):
        get(server, tmp_path)
    assert (tmp_path / PART).read_bytes() == CONTENT[:60_000]
    assert get(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("cut", [None, 5000])
def test_chunked_answer(server: Server, tmp_path: Path, cut: int | None) -> None:
    server.answers = [Answer(chunked=True, cut=cut)]
    assert get(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 410])
def test_refusal_names_the_status_and_the_way_round(server: Server, tmp_path: Path, status: int) -> None:
    server.answers = [Answer(status=status)]
    with pytest.raises(UserError) as refused:
        get(server, tmp_path)
    assert f"answered {status}" in str(refused.value)
    assert str(tmp_path / "tiny.onnx") in str(refused.value)
    assert len(server.ranges_asked) == 1
    assert left(tmp_path) == set()


def test_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(status=503), Answer(status=429)]
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_silent_server_ends_in_a_message(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_module, "ATTEMPTS", 2)
    server.answers = [Answer(mute=True)] * 2
    with pytest.raises(UserError, match=r"failed 2 times.*0 of 300000"):
        get(server, tmp_path, timeout_s=0.1)


def test_offline_says_how_to_place_the_file_by_hand(server: Server, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UserError) as refused:
        get(server, tmp_path, url=f"http://127.0.0.1:{port}/tiny.onnx")
    assert "Connection refused" in str(refused.value)
    assert str(tmp_path / "tiny.onnx") in str(refused.value)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "file:///etc/passwd",
        "host/x",
        "http://",
        "http://[",
        "http://h:99999/x",
        "http://h/a b",
        "http://h/ä",
    ],
)
def test_address_that_cannot_be_used(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match="http or https"):
        fetch(MODEL, tmp_path / "cache", url=url)
    assert not (tmp_path / "cache").exists()


def test_no_secret_of_an_address_is_shown(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        fetch(MODEL, tmp_path, url="http://anna:geheim@host/x")
    assert "geheim" not in str(refused.value)
    server.answers = [Answer(status=404)]
    with pytest.raises(UserError) as refused:
        get(server, tmp_path, url=server.url + "?token=geheim")
    assert "geheim" not in str(refused.value)
    assert shown("https://u:geheim@h:8080/p?q=geheim#geheim") == "https://h:8080/p"


def test_model_that_comes_with_campipe_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="install it again"):
        fetch(MODEL, tmp_path)


def test_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        get(server, tmp_path / "file" / "models")
    assert server.ranges_asked == []


def test_target_that_is_a_folder(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").mkdir()
    with pytest.raises(UserError, match="can't write"):
        get(server, tmp_path)


def test_too_little_room_is_told_before_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=299_000))
    with pytest.raises(UserError, match=r"299000 bytes free.*needs 300000"):
        get(server, tmp_path)
    assert server.ranges_asked == []
    (tmp_path / PART).write_bytes(CONTENT[:2000])  # the rest fits
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_write_that_fails_midway_leaves_no_part(server: Server, tmp_path: Path) -> None:
    """A limit on file sizes fails like a full disk: at a write, with some of it done."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(UserError, match=r"can't write to .*make room"):
            get(server, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert left(tmp_path) == set()


@pytest.mark.parametrize("by", ["origin of the description", "--url"])
def test_command_fetches_into_the_cache(
    server: Server, tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CAMPIPE_MODELS", str(tmp_path))
    origin = server.url if by != "--url" else "https://models.example/tiny.onnx"
    pins = f"sha256: {MODEL.sha256}\nsize_bytes: {MODEL.size_bytes}\norigin: {origin}\n"
    (tmp_path / "tiny.yaml").write_text(f"file: tiny.onnx\n{pins}")
    path = tmp_path / "campipe" / "models" / "tiny.onnx"
    assert cli.main(["models", "path", "tiny"]) == 2
    assert cli.main(["models", "fetch", "tiny", *(["--url", server.url] if by == "--url" else [])]) == 0
    out, err = capsys.readouterr()
    assert out == f"{path}\n"
    assert "tiny: 0.0 of 0.3 MB\n" in err
    assert "tiny: 0.3 of 0.3 MB\n" in err
    assert cli.main(["models", "path", "tiny"]) == 0
    assert capsys.readouterr().out == f"{path}\n"


FETCHER = """
import sys
from pathlib import Path
from pipeline.models.fetch import fetch
from pipeline.models.known import KnownModel
name, file, sha256, size, url, folder = sys.argv[1:]
model = KnownModel(name, file, sha256, int(size), url)
fetch(model, Path(folder), say=print, progress=lambda *_: print("p", flush=True))
"""


def start(server: Server, folder: Path) -> subprocess.Popen[str]:
    parameters = [MODEL.name, MODEL.file, MODEL.sha256, str(MODEL.size_bytes), server.url, str(folder)]
    return subprocess.Popen(
        [sys.executable, "-c", FETCHER, *parameters],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(fetch_module.__file__).parents[2],
        env={**os.environ, "no_proxy": "*"},
    )


def test_two_processes_at_once_download_once(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(delay_s=0.03)]
    first, second = start(server, tmp_path), start(server, tmp_path)
    out = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert server.ranges_asked == [None]
    assert (tmp_path / "tiny.onnx").read_bytes() == CONTENT
    assert sum("another process is fetching tiny" in text for text in out) <= 1
    assert left(tmp_path) == {"tiny.onnx"}


def test_killed_fetcher_leaves_a_part_that_the_waiting_one_resumes(server: Server, tmp_path: Path) -> None:
    server.answers = [Answer(delay_s=0.05, hold_at=3)]
    first = start(server, tmp_path)
    assert first.stdout is not None
    for _ in range(2):
        assert first.stdout.readline() == "p\n"
    second = start(server, tmp_path)
    assert second.stdout is not None
    assert "another process" in second.stdout.readline()
    first.kill()
    server.go_on.set()
    first.communicate(timeout=30)
    second.communicate(timeout=30)
    assert second.returncode == 0
    assert (tmp_path / "tiny.onnx").read_bytes() == CONTENT
    assert len(server.ranges_asked) == 2
    assert server.ranges_asked[1] is not None


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(
            Answer,
            cut=st.one_of(st.none(), st.integers(0, len(CONTENT))),
            ranges=st.booleans(),
            status=st.sampled_from([200, 200, 200, 500, 503]),
            wrong_place=st.booleans(),
            chunked=st.booleans(),
        ),
        max_size=fetch_module.ATTEMPTS - 1,
    ),
    st.integers(0, len(CONTENT)),
)
def test_whatever_a_server_does_the_file_is_whole(server: Server, answers: list[Answer], kept: int) -> None:
    server.answers = list(answers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / PART).write_bytes(CONTENT[:kept])
        assert get(server, folder).read_bytes() == CONTENT
        assert left(folder) == {"tiny.onnx"}
