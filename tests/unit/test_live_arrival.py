"""When a live frame's data came: its own packet's time, not that of the one which released it from the decoder."""

from __future__ import annotations

import itertools

import av
import pytest
from media.odd.making import scene

from stages.camera import CameraSpec
from stages.decode.network import ARRIVALS_KEPT, NetworkSource

MS = 1_000_000
SECOND = 1000 * MS


def make_clip(path: str, frames: int, b_frames: int) -> None:
    with av.open(path, "w", format="mpegts") as out:
        options = {"preset": "veryfast", "threads": "1", "bf": str(b_frames), "x264-params": "b-adapt=0:keyint=24"}
        stream = out.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for image in scene(frames, 64, 48):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode(None))


@pytest.mark.parametrize("b_frames", [0, 3])
def test_the_age_of_b_frames_is_not_off_by_the_reorder_delay(tmp_path, b_frames) -> None:
    path = str(tmp_path / "clip.ts")
    make_clip(path, 60, b_frames)
    with av.open(path) as whole:
        stamps = [packet.pts for packet in whole.demux(video=0) if packet.size]
    assert (sorted(stamps) != stamps) == bool(b_frames)

    now_ns = 500 * SECOND
    source = NetworkSource(CameraSpec("gate", "rtsp://cam/x", "m", network=True), lambda: now_ns, lambda: now_ns + 7)
    source._container = av.open(path)
    source._begin(source._container)
    told: dict[int, tuple[int, int]] = {}
    for _ in stamps:
        now_ns += 40 * MS
        for live in source.read():
            told[live.frame.pts] = live.arrived_at_ns, live.captured_ns
    source.close()
    first_ns = 500 * SECOND + 40 * MS
    # the stream's clock shows that a packet which is read later than others by its own time has waited
    best_ns = [n * 40 * MS - (stamp - stamps[0]) * SECOND // 90_000 for n, stamp in enumerate(stamps)]
    least_ns = list(itertools.accumulate(best_ns, min))
    expected = {stamp: first_ns + n * 40 * MS - (best_ns[n] - least_ns[n]) for n, stamp in enumerate(stamps)}
    assert len(told) > 50
    for stamp, (arrived_at_ns, captured_ns) in told.items():
        assert abs(arrived_at_ns - expected[stamp]) <= 3 * MS  # 1.2 % of drift is nothing
        assert captured_ns == arrived_at_ns + 7
    assert len(source._arrivals) <= ARRIVALS_KEPT
