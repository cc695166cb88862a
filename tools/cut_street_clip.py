#!/usr/bin/env python3
"""Owns the cut of tests/media/street.mp4 out of OpenCV's vtest.avi. Does not download the recording.

::

    tools/cut_street_clip.py vtest.avi tests/media/street.mp4

The recording is OpenCV's ``samples/data/vtest.avi``; Debian's ``opencv-doc`` has it among its examples. The clip keeps
the pictures (768x576, 10 frames per second), not the codec: H.264 with B-frames, so that the order of
packets differs from the order of presentation, as with most cameras and recordings; index first, so that it streams.
Needs only PyAV, whose wheel carries the encoder. One PyAV version gives the same bytes each time.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from fractions import Fraction
from pathlib import Path

import av
import av.error

SOURCE_SHA256 = "45cddc9490be69345cbdab64ca583be65987e864ca408038e648db99e10516cf"
FIRST, COUNT = 654, 100  # the hundred frames with the most pedestrians in sight: 7 on average, 3 at least
FPS = 10
KEYFRAME_EVERY = 25  # frames: four places to seek to and to resume from

ENCODER = {
    "preset": "slow",
    "crf": "25",
    "bf": "3",
    "x264-params": f"keyint={KEYFRAME_EVERY}:scenecut=0:open-gop=0:threads=1:cpu-independent=1",
}
# bitexact: neither the date nor the library's version is written
CONTAINER = {"movflags": "+faststart", "fflags": "+bitexact"}


def cut(source: Path, out: Path) -> int:
    """Decode ``source`` from the start, re-encode the chosen frames to ``out``; returns how many were written."""
    written = 0
    with av.open(str(source)) as recording, av.open(str(out), "w", format="mp4", options=CONTAINER) as clip:
        video = recording.streams.video[0]
        encoder = clip.add_stream("libx264", rate=FPS, options=ENCODER)
        encoder.width, encoder.height, encoder.pix_fmt = video.width, video.height, "yuv420p"
        encoder.codec_context.thread_count = 1  # else the frame threads' count, a machine's, decides about bits
        for index, frame in enumerate(recording.decode(video)):
            if index < FIRST:
                continue
            if written == COUNT:
                break
            frame.pts, frame.time_base = written, Fraction(1, FPS)
            frame.pict_type = av.video.frame.PictureType.NONE  # the encoder chooses, not the recording
            clip.mux(encoder.encode(frame))
            written += 1
        clip.mux(encoder.encode(None))
    return written


def main(arguments: list[str] | None = None) -> int:
    """Cut; 0 done, 2 refused."""
    parser = argparse.ArgumentParser(description="Cut the street clip of the tests and the demo out of vtest.avi.")
    parser.add_argument("source", metavar="vtest.avi", type=Path)
    parser.add_argument("out", metavar="OUT.mp4", type=Path)
    options = parser.parse_args(arguments)
    try:
        digest = hashlib.sha256(options.source.read_bytes()).hexdigest()
        if digest != SOURCE_SHA256:
            print(f"cut_street_clip: {options.source} has sha256 {digest}, not {SOURCE_SHA256}", file=sys.stderr)
            return 2
        written = cut(options.source, options.out)
        data = options.out.read_bytes()
    except (OSError, av.error.FFmpegError) as error:
        print(f"cut_street_clip: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {written} frames, {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
