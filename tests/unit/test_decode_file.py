"""Recordings of every kind, whole, odd and broken: what frames come, at what times, and how each is said to end."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from itertools import pairwise

import av
import numpy as np
import pytest
from av.error import FFmpegError
from media.odd.making import encode, picture, scene
from media.odd.odd_inputs import OddInputs

from stages.camera import CameraSpec
from stages.decode import file as file_module
from stages.decode.choose import source_of
from stages.decode.file import READ_ERRORS_IN_A_ROW, FileSource
from stages.decode.matroska import missing_bytes
from stages.decode.probe import probe
from stages.decode.source import Ending
from stages.decode.upright import PictureConverter, upright_size
from stages.errors import BadItem, SourceRefused

MS = 1_000_000


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return OddInputs(tmp_path_factory.getbasetemp() / "odd_inputs")


def camera(path, **more) -> CameraSpec:
    return CameraSpec(name="gate", url=str(path), model="m", **more)


class Played:
    """A file from its start to its end."""

    def __init__(self, path, look=None) -> None:
        source = FileSource(camera(path))
        self.facts = source.open()
        self.pts = []
        self.corrupt = 0
        self.sizes = []
        while (frame := source.read()) is not None:
            self.pts.append(frame.pts_ns)
            self.corrupt += frame.corrupt
            if (size := upright_size(frame.frame)) not in self.sizes:
                self.sizes.append(size)
            if look is not None:
                look(len(self.pts) - 1, frame.frame)
        assert source.read() is None
        self.ending = source.ending()
        self.errors = source.decode_errors
        source.close()
        source.close()

    @property
    def steps_ms(self):
        return sorted({(b - a) / MS for a, b in pairwise(self.pts)})


# --- whole files: they must not be said to be broken, and their times are right ---------------------------------------

EVERY_40_MS = [40.0]


@pytest.mark.parametrize(
    ("name", "frames", "steps_ms"),
    [
        ("good.mp4", 100, EVERY_40_MS),
        ("faststart.mp4", 100, EVERY_40_MS),
        ("frag.mp4", 100, EVERY_40_MS),
        ("good.mkv", 100, EVERY_40_MS),
        ("live.mkv", 100, EVERY_40_MS),  # no duration, no index
        ("good.ts", 100, EVERY_40_MS),
        ("good.flv", 100, EVERY_40_MS),
        ("mjpeg.avi", 100, EVERY_40_MS),
        ("mpeg2.mpg", 100, EVERY_40_MS),  # its estimated duration is wrong
        ("long_audio.mkv", 100, EVERY_40_MS),  # the container lasts 7 s, the pictures 4 s
        ("long_audio.mp4", 100, EVERY_40_MS),
        ("short_audio.mkv", 100, EVERY_40_MS),
        ("two_video.mkv", 100, EVERY_40_MS),
        ("one_frame.mp4", 1, []),
        ("still.jpg", 1, []),
        ("raw.h264", 100, EVERY_40_MS),  # no timestamps at all
        ("raw_bframes.h264", 100, EVERY_40_MS),
        ("bframes.avi", 100, [40.0, 120.0]),  # shuffled timestamps, 24 empty chunks per frame
        ("start_at_100s.mkv", 100, EVERY_40_MS),
        ("wrap33.ts", 100, EVERY_40_MS),
        ("jump_forward.ts", 200, EVERY_40_MS),
        ("jump_back.ts", 200, EVERY_40_MS),
        ("twice.ts", 200, EVERY_40_MS),
        ("cut_start.mp4", 87, EVERY_40_MS),  # an edit list hides 13 of 100
        ("fps1000.mp4", 200, [1.0]),
        ("vfr.mp4", 100, [40.0, 440.0, 840.0]),
        ("vfr.mkv", 100, [40.0, 440.0, 840.0]),
        ("timelapse.mp4", 20, [30_000.0]),
        ("dropped_packets.mkv", 86, [40.0, 80.0]),
        ("anim.gif", 10, [100.0]),
    ],
)
def test_whole_files_end_with_ended(odd, name, frames, steps_ms) -> None:
    played = Played(odd.path(name))
    assert (played.ending.cause, played.ending.detail) == ("ended", "")
    assert len(played.pts) == frames
    assert played.pts[0] == 0
    assert played.steps_ms == steps_ms
    assert played.errors == 0


def test_avi_with_b_frames_keeps_time_even_if_its_rate_is_wrong(odd, monkeypatch) -> None:
    monkeypatch.setattr(file_module, "nominal_ns", lambda rate: 10 * MS)
    played = Played(odd.path("bframes.avi"))
    assert [b - a for a, b in pairwise(played.pts[5:97])] == [40 * MS] * 91


@pytest.mark.parametrize(
    ("name", "frames", "size", "first_ms", "recorded"),
    [
        ("vtest.avi", 795, (768, 576), 100, None),
        ("bikes.mp4", 250, (640, 272), 40, None),
        ("car-detection.mp4", 377, (768, 432), 80, 1_524_177_960_000_000_000),
        ("one-by-one-person-detection.mp4", 1394, (768, 432), 100, 1_506_445_069_000_000_000),
    ],
)
def test_real_recordings(shared_dir, name, frames, size, first_ms, recorded) -> None:
    played = Played(shared_dir / "video" / name)
    assert played.ending.cause == "ended"
    assert len(played.pts) == played.facts.frames == frames
    assert played.sizes == [size] == [(played.facts.width, played.facts.height)]
    assert played.steps_ms == [first_ms]
    assert played.facts.recorded_at_ns == recorded


def test_frames_come_in_the_order_of_presentation(odd) -> None:
    """The bright square of the scene moves two pixels per frame; with B-frames packets come in another order."""
    found = []

    def look(_number, frame) -> None:
        row = frame.to_ndarray(format="gray")[70].astype(int)
        found.append(int(np.argmax(np.convolve(row, np.ones(20), "valid"))))

    Played(odd.path("good.mp4"), look)
    expected = [number * 2 % 140 for number in range(100)]
    assert sum(abs(a - b) <= 3 for a, b in zip(found, expected, strict=True)) >= 95


# --- cut files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trunc_faststart.mp4", r"the file stops after (\d+) of 100 frames"),
        ("trunc_last_byte.mp4", r"the file stops after (99) of 100 frames"),
        ("trunc.avi", r"the file stops after (\d+) of 100 frames"),
        ("wrong_index.avi", r"the file stops after (100) of 444 frames"),
        ("trunc.mkv", r"the file stops at \d\.\d\d s of 4\.00 s, after (\d+) frames"),
        ("trunc_long_audio.mkv", r"the file stops at \d\.\d\d s of 4\.00 s, after (\d+) frames"),
        ("trunc.flv", r"the file stops at \d\.\d\d s of 4\.08 s, after (\d+) frames"),
        ("trunc_frag.mp4", r"the file stops .* after (\d+) frames"),
    ],
)
def test_cut_files_play_to_the_cut_and_say_so(odd, name, said) -> None:
    played = Played(odd.path(name))
    assert played.ending.cause == "truncated"
    match = re.fullmatch(said, played.ending.detail)
    assert match, played.ending.detail
    assert int(match[1]) == len(played.pts) > 0
    assert played.errors <= 1  # the half of a packet at the cut


@pytest.mark.parametrize("packets", [20, 60, 90, 97])
@pytest.mark.parametrize("whole", ["faststart.mp4", "cut_start_index_first.mp4", "start_at_100s_index_first.mp4"])
def test_a_file_cut_between_two_packets_holds_no_broken_packet_and_is_told_all_the_same(
    odd, tmp_path, whole, packets
) -> None:
    with av.open(str(odd.path(whole))) as container:
        ends = [packet.pos + packet.size for packet in container.demux(video=0) if packet.size]
    assert Played(odd.path(whole)).ending.cause == "ended"
    target = tmp_path / whole
    target.write_bytes(odd.path(whole).read_bytes()[: ends[packets - 1]])
    played = Played(target)
    assert played.errors == 0
    assert played.ending == Ending("truncated", f"the file stops after {len(played.pts)} of 100 frames")


def test_a_whole_file_with_only_its_seek_table_cut_says_so(odd, tmp_path) -> None:
    target = tmp_path / "good.mkv"
    target.write_bytes(odd.path("good.mkv").read_bytes()[:-10])
    played = Played(target)
    assert len(played.pts) == 100
    assert played.ending == Ending("truncated", "the end of the file is missing, after 100 frames")


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        (b"", 0),
        (b"RIFF", 0),
        (b"\x1a\x45\xdf\xa3", 0),
        (b"\x1a\x45\xdf\xa3\x82ab", 0),
        (b"\x1a\x45\xdf\xa3\x82ab\x18\x53\x80\x67\x85abcde", 0),
        (b"\x1a\x45\xdf\xa3\x82ab\x18\x53\x80\x67\x85abcdefgh", 0),
        (b"\x1a\x45\xdf\xa3\x82ab\x18\x53\x80\x67\x85abc", 2),
        (b"\x1a\x45\xdf\xa3\x82ab\x18\x53\x80\x67\x01\x00\x00\x00\x00\x00\x00\x05abc", 2),
        (b"\x1a\x45\xdf\xa3\x40\x02ab\x18\x53\x80\x67\x40\x05abc", 2),
        (b"\x1a\x45\xdf\xa3\x82ab\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xffabc", 0),  # unknown size
        (b"\x1a\x45\xdf\xa3\x82ab\x18\x53\x80\x67\xffabc", 0),
        (b"\x1a\x45\xdf\xa3\x82ab\x18\x53\x80\x67\x00abc", 0),
    ],
)
def test_missing_bytes_of_matroska(tmp_path, data, missing) -> None:
    path = tmp_path / "x.mkv"
    path.write_bytes(data)
    assert missing_bytes(str(path)) == missing


@pytest.mark.parametrize("part", [0.3, 0.5, 0.75, 0.9, 0.97, 0.995])
@pytest.mark.parametrize("whole", ["faststart.mp4", "good.mkv", "mjpeg.avi", "good.flv"])
def test_wherever_a_file_is_cut_it_is_told(odd, tmp_path, whole, part) -> None:
    data = odd.path(whole).read_bytes()
    target = tmp_path / whole
    target.write_bytes(data[: int(len(data) * part)])
    played = Played(target)
    if len(played.pts) < 99:  # a cut behind the last frame but one may leave everything there
        assert played.ending.cause == "truncated", (len(played.pts), played.ending)


# --- damaged files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["corrupt_light.mp4", "corrupt_heavy.mp4", "corrupt_start.avi"])
def test_damaged_packets_are_counted_and_the_rest_is_played(odd, name) -> None:
    played = Played(odd.path(name))
    assert played.ending.cause == "ended"
    assert played.errors > 0
    assert len(played.pts) + played.errors == 100
    if name != "corrupt_start.avi":
        assert 0 < played.corrupt < len(played.pts)


def test_the_plain_decode_loop_would_have_stopped_early(odd) -> None:
    """Why each packet is decoded in a ``try`` of its own."""
    container = av.open(str(odd.path("corrupt_heavy.mp4")))
    frames = []
    with pytest.raises(FFmpegError):
        frames.extend(frame.pts for frame in container.decode(video=0))
    container.close()
    assert len(frames) < len(Played(odd.path("corrupt_heavy.mp4")).pts)


def test_damaged_files_decode_alike_every_time(odd) -> None:
    def pixels() -> list[bytes]:
        found = []
        Played(odd.path("corrupt_heavy.mp4"), lambda _, frame: found.append(frame.to_ndarray().tobytes()))
        return found

    assert pixels() == pixels()


def test_a_stream_that_starts_between_key_frames(odd) -> None:
    played = Played(odd.path("mid_start.ts"))
    assert played.ending.cause == "ended"
    assert 50 <= len(played.pts) < 100
    assert played.pts[0] == 0


class FailingContainer:
    """A container whose reads fail ``times`` times (None: for ever) at packet ``after`` and each ``after`` on."""

    def __init__(self, container, after, times, error) -> None:
        self._container, self._after, self._times, self._error = container, after, times, error
        self._demux = container.demux()
        self._seen = self._failed = 0

    def __getattr__(self, name):
        return getattr(self._container, name)

    def demux(self):
        while True:
            if self._seen and self._seen % self._after == 0 and (self._times is None or self._failed < self._times):
                self._failed += 1
                raise self._error
            packet = next(self._demux, None)
            if packet is None:
                return
            self._seen += 1
            self._failed = 0
            yield packet

    def close(self) -> None:
        self._demux.close()
        self._container.close()


def failing(monkeypatch, odd, after, times, code):
    odd.path("plain.mp4")  # made before nothing can be opened any more
    real = av.open
    try:
        av.error.err_check(-code)
    except FFmpegError as found:
        error = found
    monkeypatch.setattr(file_module.av, "open", lambda *a, **k: FailingContainer(real(*a, **k), after, times, error))


def test_a_read_error_in_passing_is_counted(odd, monkeypatch) -> None:
    failing(monkeypatch, odd, 15, READ_ERRORS_IN_A_ROW - 1, errno.EIO)
    played = Played(odd.path("plain.mp4"))
    assert len(played.pts) == 100
    assert played.errors == 6 * (READ_ERRORS_IN_A_ROW - 1)
    assert played.ending.cause == "ended"


@pytest.mark.parametrize(("code", "cause"), [(errno.EIO, "unreadable"), (errno.EINVAL, "corrupt")])
def test_a_disk_that_fails_for_good_ends_the_stream_with_a_reason(odd, monkeypatch, code, cause) -> None:
    failing(monkeypatch, odd, 30, None, code)
    played = Played(odd.path("plain.mp4"))
    assert len(played.pts) == 30
    assert played.errors == READ_ERRORS_IN_A_ROW
    assert played.ending.cause == cause
    assert "after 30 frames" in played.ending.detail


# --- refused files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("empty.mp4", "not_video", "is empty (0 bytes)"),
        ("text.mp4", "not_video", "is not a video file"),
        ("text.txt", "not_video", "is not a video file"),  # FFmpeg would draw it as a terminal's picture
        ("source.py", "not_video", "is not a video file"),
        ("random.mp4", "not_video", "is not a video file"),
        ("folder.mp4", "not_video", "is a folder"),
        ("audio_only.m4a", "no_frames", "has no video track, only audio"),
        ("cover_art.m4a", "no_frames", "has no video track, only audio and a cover picture"),
        ("unsupported.avi", "unsupported", "no decoder for its video codec"),
        ("trunc_moov_at_end.mp4", "corrupt", "its index (the moov box) is missing"),
        ("trunc_before_first_frame.mp4", "truncated", "the file stops after 0 of 100 frames"),
        ("all_corrupt.avi", "corrupt", "not one frame of it can be decoded (damaged packets: 100)"),
    ],
)
def test_refusals_name_file_fault_and_remedy(odd, name, cause, words) -> None:
    path = odd.path(name)
    with pytest.raises(SourceRefused) as refused:
        probe(camera(path))
    (sentence,) = refused.value.problems
    assert refused.value.cause == cause
    assert words in sentence
    assert str(path) in sentence
    assert ";" in sentence, "a remedy follows"
    assert "Errno" not in sentence


@pytest.mark.parametrize(
    "path", ["/nowhere/clip.mp4", "/nowhere/" + "a" * 5000, "/dev/zero/clip.mp4", "/tmp/nul\0l.mp4"]
)
def test_paths_that_lead_nowhere(path) -> None:
    with pytest.raises(SourceRefused) as refused:
        probe(camera(path))
    assert refused.value.cause == "not_found"


def test_pipes_and_devices_are_not_opened(tmp_path) -> None:
    """Opening a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe.mp4")
    for path, kind in ((tmp_path / "pipe.mp4", "a pipe"), ("/dev/null", "a device")):
        with pytest.raises(SourceRefused, match=f"is {kind}, not a file") as refused:
            probe(camera(path))
        assert refused.value.cause == "unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(odd, tmp_path) -> None:
    path = tmp_path / "secret.mp4"
    shutil.copy(odd.path("plain.mp4"), path)
    path.chmod(0)
    with pytest.raises(SourceRefused, match="permission denied") as refused:
        probe(camera(path))
    assert refused.value.cause == "unreadable"


def test_a_playlist_must_not_reach_out_to_the_network(tmp_path) -> None:
    path = tmp_path / "list.m3u8"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"
        path.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{address}\n#EXT-X-ENDLIST\n")
        with pytest.raises(SourceRefused):
            probe(camera(path))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody called
            server.accept()


LISTS = {
    "never-ends.m3u8": ("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\npart.ts\n", "an HLS playlist"),
    "waits.m3u8": ("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\npipe.ts\n#EXT-X-ENDLIST\n", "an HLS playlist"),
    "loses.m3u8": (
        "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\npart.ts\n#EXTINF:2,\ngone.ts\n#EXT-X-ENDLIST\n",
        "an HLS",
    ),
    "named-like-a-clip.mp4": ("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\npart.ts\n", "an HLS playlist"),
    "list.mp4": ("ffconcat version 1.0\nfile 'part.ts'\nfile 'part.ts'\n", "a list for FFmpeg"),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_files_is_no_recording_that_waits_for_ever_or_loses_parts_untold(odd, tmp_path, name: str) -> None:
    shutil.copy(odd.path("plain.ts"), tmp_path / "part.ts")
    os.mkfifo(tmp_path / "pipe.ts")
    text, kind = LISTS[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceRefused, match=rf"is {kind}.*make one recording of them"):
        probe(camera(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "container_format"),
    [
        ("phone.3gp", "h263", "yuv420p", None),
        ("camera.wmv", "wmv2", "yuv420p", None),
        ("disc.m2ts", "libx264", "yuv420p", None),
        ("disc.vob", "mpeg2video", "yuv420p", None),
        ("raw.mjpeg", "mjpeg", "yuvj420p", None),
        ("raw.hevc", "libx265", "yuv420p", None),
        ("raw.y4m", "wrapped_avframe", "yuv420p", None),
        ("any.nut", "mpeg4", "yuv420p", None),
        ("moving.gif", "gif", "rgb8", None),
        ("parts.mjpg", "mjpeg", "yuvj420p", "mpjpeg"),
        ("archive.mxf", "mpeg2video", "yuv420p", None),
        ("no-suffix", "libx264", "yuv420p", "mpegts"),
    ],
)
def test_every_format_that_holds_pictures_itself_is_a_recording(
    tmp_path, name: str, codec: str, pix_fmt: str, container_format: str | None
) -> None:
    options = {"x265-params": "log-level=none:pools=1"} if codec == "libx265" else None
    encode(
        tmp_path / name, scene(3, 176, 144), codec=codec, pix_fmt=pix_fmt, options=options,
        container_format=container_format,
    )  # fmt: skip
    assert len(Played(tmp_path / name).pts) == 3


def test_formats_are_refused_by_their_names_alone(monkeypatch) -> None:
    """Whatever a later FFmpeg has is a recording, unless it is known to name other files."""
    file_module._formats.cache_clear()
    monkeypatch.setattr(file_module.av, "formats_available", {"new", "mov,mp4", "hls,applehttp", "concat", "dash"})
    assert file_module._formats() == "mov,mp4,new"
    file_module._formats.cache_clear()


def test_a_live_source_is_no_recording_and_is_refused_without_showing_its_address() -> None:
    with pytest.raises(SourceRefused, match="is a live source, not a recording") as refused:
        source_of(camera("rtsp://user:s3cret@127.0.0.1/x"))
    assert refused.value.cause == "unsupported"
    assert "s3cret" not in str(refused.value)


def test_a_path_with_blanks_and_other_letters(odd, tmp_path) -> None:
    path = tmp_path / "Einfahrt Süd + 25%d.mp4"
    shutil.copy(odd.path("plain.mp4"), path)
    assert len(Played(path).pts) == 100


def test_close_before_and_after_open_and_twice(odd) -> None:
    source = FileSource(camera(odd.path("plain.mp4")))
    source.close()
    source.open()
    source.close()
    source.close()
    assert source.read() is None


def test_opened_again_it_starts_anew(odd) -> None:
    source = FileSource(camera(odd.path("corrupt_light.mp4")))
    runs = []
    for _ in range(2):
        source.open()
        pts = []
        while (frame := source.read()) is not None:
            pts.append((frame.pts_ns, frame.corrupt))
        runs.append((pts, source.decode_errors, source.ending()))
        source.close()
    assert runs[0] == runs[1]


# --- facts ------------------------------------------------------------------------------------------------------------


def test_probe_tells_what_a_file_is(odd) -> None:
    facts = probe(camera(odd.path("rotated90.mp4")))
    assert (facts.width, facts.height, facts.rotation) == (120, 160, 90)
    assert (facts.codec, facts.pixel_format, facts.container) == ("h264", "yuv420p", "mov")
    assert (facts.fps, facts.frames, facts.duration_s) == (25.0, 100, 4.0)
    assert facts.nominal_ns == 40 * MS


@pytest.mark.parametrize(
    ("name", "fps", "frames", "duration_s"),
    [
        ("vfr.mp4", 100 / 8.8, 100, 8.8),
        ("bframes.avi", 25.0, 100, 4.0),  # 600 and 2400 according to the header, which counts empty chunks
        ("trunc.avi", 25.0, 100, None),
        ("good.mkv", 25.0, None, 4.0),
        ("raw.h264", 25.0, None, None),
        ("timelapse.mp4", 1 / 30, 20, 570.04),
    ],
)
def test_rates_and_counts(odd, name, fps, frames, duration_s) -> None:
    facts = probe(camera(odd.path(name)))
    assert facts.fps == pytest.approx(fps, rel=3e-3)
    assert facts.frames == frames
    if duration_s is not None:
        assert facts.duration_s == pytest.approx(duration_s)


# --- pictures ---------------------------------------------------------------------------------------------------------

FORMATS = [
    "good.mp4", "mjpeg.avi", "mpeg2.mpg", "still.jpg", "odd_321x241.avi", "odd_321x241_444.mp4", "vp9_321x241.webm",
    "gray_ffv1.mkv", "gray_h264.mp4", "ten_bit.mp4", "ten_bit_422.mp4", "full_range.mp4", "alpha.mov",
    "rgb_lossless.mkv", "anim.gif", "two_by_two.mp4", "one_pixel.mkv", "wide_1px.mkv", "size_change.h264",
    "size_change.ts", "rotated90.mp4", "rotated180.mp4", "rotated-90.mp4", "corrupt_heavy.mp4",
]  # fmt: skip


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize("name", FORMATS)
def test_pictures_equal_those_of_a_fresh_conversion(odd, name, channels) -> None:
    """The kept context, the single thread and the view without a copy change no pixel."""
    converter = PictureConverter(channels)

    def look(number, frame) -> None:
        if number % 7 == 0 or number in {49, 50, 51}:
            expected = np.rot90(frame.to_ndarray(format=channels + "24"), frame.rotation // 90)
            picture_ = converter.convert(frame)
            assert (picture_.shape[1], picture_.shape[0]) == upright_size(frame)
            np.testing.assert_array_equal(picture_, expected)

    Played(odd.path(name), look)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_lossless_pictures_come_back_exactly(odd, channels) -> None:
    converter = PictureConverter(channels)

    def look(number, frame) -> None:
        expected = picture(number)[..., :: 1 if channels == "rgb" else -1]
        np.testing.assert_array_equal(converter.convert(frame), expected)

    Played(odd.path("rgb_lossless.mkv"), look)


@pytest.mark.parametrize(
    ("name", "corner"),  # where the dark corner of the scene, encoded top left, must be seen
    [("plain.mp4", (0, 0)), ("rotated90.mp4", (-1, 0)), ("rotated180.mp4", (-1, -1)), ("rotated-90.mp4", (0, -1))],
)
def test_rotation_metadata_is_honoured(odd, name, corner) -> None:
    source = FileSource(camera(odd.path(name)))
    source.open()
    frame = source.read()
    picture_ = PictureConverter("rgb").convert(frame.frame).astype(int)
    height, width = picture_.shape[:2]
    quarters = {
        (y, x): picture_[(0 if y == 0 else height - 12) :, (0 if x == 0 else width - 12) :][:12, :12].mean()
        for y in (0, -1)
        for x in (0, -1)
    }
    assert min(quarters, key=quarters.get) == corner
    source.close()


def test_a_size_change_in_the_stream(odd) -> None:
    assert Played(odd.path("size_change.ts")).sizes == [(160, 120), (320, 240)]


def test_an_8k_picture(odd) -> None:
    shapes = []
    converter = PictureConverter("bgr")
    Played(odd.path("eight_k.mp4"), lambda _, frame: shapes.append(converter.convert(frame).shape))
    assert shapes == [(4320, 7680, 3)] * 2


def test_pictures_that_cannot_be_are_bad_items() -> None:
    converter = PictureConverter("rgb")
    with pytest.raises(BadItem, match="bad_frame: 0x0 pixels"):
        converter.convert(av.VideoFrame())
    with pytest.raises(BadItem, match="bad_frame: 16384x8192 pixels"):
        converter.convert(av.VideoFrame(16384, 8192, "gray"))


def test_the_track_that_the_camera_names_is_played(odd: OddInputs) -> None:
    sizes = []
    for track in (0, 1):
        source = FileSource(CameraSpec("a", odd.path("two_video.mkv"), "m", track=track))
        facts = source.open()
        sizes.append((facts.width, facts.height))
        source.close()
    assert sizes[0] != sizes[1]
    assert sizes[1] == (321, 241)


def test_a_track_that_is_not_there_is_refused_with_the_number_of_those_that_are(odd: OddInputs) -> None:
    with pytest.raises(
        SourceRefused, match=r"2 video tracks, numbered from 0: there is no track 2; change source\.track"
    ):
        FileSource(CameraSpec("a", odd.path("two_video.mkv"), "m", track=2)).open()
