"""Every detection of every frame against a straight program: PyAV, OpenCV, ONNX Runtime and a naive NMS, no campipe."""

from __future__ import annotations

from pathlib import Path

import av
import cv2
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from pipeline.testing import replay

ROOT = Path(__file__).resolve().parents[2]
BOX_PX = 0.5
SCORE = 1e-3
Found = tuple[float, float, float, float, float, int]


def pictures(clip: Path, colours: str) -> list[NDArray[np.uint8]]:
    with av.open(str(clip)) as container:
        return [frame.to_ndarray(format=colours) for frame in container.decode(video=0)]


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def overlap(a: Found, b: Found) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    inter = width * height
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)


def naive_nms(found: list[Found], iou: float) -> list[Found]:
    kept: list[Found] = []
    for candidate in sorted(found, key=lambda f: -f[4]):
        if all(other[5] != candidate[5] or overlap(other, candidate) <= iou for other in kept):
            kept.append(candidate)
    return kept


def coco_ssd(picture: NDArray[np.uint8], run: onnxruntime.InferenceSession) -> list[Found]:
    height, width = picture.shape[:2]
    small = cv2.resize(picture, (300, 300), interpolation=cv2.INTER_LINEAR)
    rows = run.run(None, {"images": small.astype(np.float32).transpose(2, 0, 1)[None]})[0][0]
    found = []
    for row in rows:
        class_id = int(row[4:].argmax())
        score = float(row[4 + class_id])
        if score >= 0.35:
            cx, cy, w, h = (float(v) for v in row[:4])
            sx, sy = width / 300, height / 300
            box = ((cx - w / 2) * sx, (cy - h / 2) * sy, (cx + w / 2) * sx, (cy + h / 2) * sy)
            found.append((*box, score, class_id))
    return clipped(naive_nms(found, 0.35), width, height)


def yolox(picture: NDArray[np.uint8], run: onnxruntime.InferenceSession, confidence: float, iou: float) -> list[Found]:
    height, width = picture.shape[:2]
    scale = min(416 / height, 416 / width)
    new_w, new_h = round(width * scale), round(height * scale)
    canvas = np.full((416, 416, 3), 114, np.uint8)
    canvas[:new_h, :new_w] = cv2.resize(picture, (new_w, new_h), interpolation=cv2.INTER_LINEAR)
    rows = run.run(None, {run.get_inputs()[0].name: canvas.astype(np.float32).transpose(2, 0, 1)[None]})[0][0]
    found = []
    index = 0
    for stride in (8, 16, 32):
        for gy in range(416 // stride):
            for gx in range(416 // stride):
                row = rows[index]
                index += 1
                class_id = int(row[5:].argmax())
                score = float(row[4] * row[5 + class_id])
                if score < confidence:
                    continue
                cx, cy = (float(row[0]) + gx) * stride, (float(row[1]) + gy) * stride
                w, h = float(np.exp(row[2])) * stride, float(np.exp(row[3])) * stride
                sx, sy = width / new_w, height / new_h
                box = ((cx - w / 2) * sx, (cy - h / 2) * sy, (cx + w / 2) * sx, (cy + h / 2) * sy)
                found.append((*box, score, class_id))
    return clipped(naive_nms(found, iou), width, height)


def clipped(found: list[Found], width: int, height: int) -> list[Found]:
    return [
        (max(0.0, f[0]), max(0.0, f[1]), min(float(width), f[2]), min(float(height), f[3]), f[4], f[5]) for f in found
    ]


def assert_same(ours: list[Found], reference: list[Found], where: str, borderline: float) -> None:
    """One to one by class and nearest box. A score within rounding of the threshold may fall on either side."""
    left = list(ours)
    for want in reference:
        same = [f for f in left if f[5] == want[5] and max(abs(f[i] - want[i]) for i in range(4)) <= BOX_PX]
        if not same:
            assert abs(want[4] - borderline) < SCORE, f"{where}: missing {want}"
            continue
        best = min(same, key=lambda f: abs(f[4] - want[4]))
        assert abs(best[4] - want[4]) <= SCORE, f"{where}: {best} against {want}"
        left.remove(best)
    assert all(abs(f[4] - borderline) < SCORE for f in left), f"{where}: not in the reference: {left}"


def ours_of(result: object, camera: str) -> list[list[Found]]:
    messages = result.detections[camera]  # type: ignore[attr-defined]
    return [[(*o.box, o.score, o.class_id) for o in m.objects] for m in messages]  # type: ignore[misc]


def test_default_model_on_every_frame_of_the_clip(media_dir: Path) -> None:
    clip = media_dir / "street.mp4"
    result = replay([clip])
    ours = ours_of(result, "street")
    run = session(ROOT / "configs" / "models" / "coco-ssd.onnx")
    expected = [coco_ssd(picture, run) for picture in pictures(clip, "rgb24")]
    assert len(ours) == len(expected) == 100
    for number, (got, want) in enumerate(zip(ours, expected, strict=True)):
        assert_same(got, want, f"frame {number}", 0.35)
    people = sum(any(f[5] == 0 for f in frame) for frame in ours)
    assert people >= 90, "people walk through nearly every frame of this clip"


@pytest.mark.slow
def test_yolox_nano_on_every_frame_of_the_clip(media_dir: Path, shared_dir: Path, tmp_path: Path) -> None:
    clip = media_dir / "street.mp4"
    description = tmp_path / "yolox.yaml"
    description.write_text(
        "name: yolox\n"
        f"file: {shared_dir / 'models' / 'yolox_nano.onnx'}\n"
        "input: {width: 416, height: 416, channels: bgr, placement: top_left, pad_value: 114}\n"
        "layout: yolox\nlabels: coco\nconfidence: 0.3\niou: 0.45\nbatch: 1\n"
    )
    result = replay([clip], model=str(description))
    ours = ours_of(result, "street")
    run = session(shared_dir / "models" / "yolox_nano.onnx")
    expected = [yolox(picture, run, 0.3, 0.45) for picture in pictures(clip, "bgr24")]
    assert len(ours) == len(expected) == 100
    for number, (got, want) in enumerate(zip(ours, expected, strict=True)):
        assert_same(got, want, f"frame {number}", 0.3)
    assert sum(len(frame) for frame in ours) > 200


def test_bus_picture_has_one_bus_and_three_people(shared_dir: Path) -> None:
    result = replay([shared_dir / "images" / "bus.jpg"])
    ((message,),) = result.detections.values()
    labels = [o.label for o in message.objects]
    assert (message.width, message.height) == (810, 1080)
    assert labels.count("bus") == 1
    assert labels.count("person") >= 3
    assert any(
        max(abs(a - b) for a, b in zip(o.box, [51, 397, 213, 906], strict=True)) < 25
        for o in message.objects
        if o.label == "person"
    )
