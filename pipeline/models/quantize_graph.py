"""Owns the making of an INT8 model: which of its nodes, with which ranges. Does not own frames or the judgement.

Static quantisation as ONNX Runtime has it (QDQ, activations uint8 per tensor, weights int8 per channel, MinMax), with
two parts of the graph left in float:

- what is done to pixels before the first convolution, for the pictures' range is known to be 0..255 already;
- everything after the head convolutions: boxes in pixels and scores in 0..1 would come to share one scale, which leaves
  nothing of the scores.

Weights use 7 of their 8 bits. Without VNNI or its like, processors add two products of uint8 and int8 in 16 bits, and
with 8 bits of weight that sum saturates. COCO-SSD on such a processor (EPYC, Zen 3), 50 frames each of two streets,
confident objects after NMS that are lost, mean size of score change: 8 bits 72 of 429, 0.091 and 20 of 363, 0.095;
7 bits 6 of 429, 0.033 and 4 of 363, 0.027. Without saturation there is one cause less for processors to differ.
"""

from __future__ import annotations

import importlib
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.onnx_session import reason, runtime
from stages.accelerators.pixels import PixelWriter
from stages.errors import UserError
from stages.model import ModelSpec

LEARNT = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})  # what holds weights; in between is the backbone
QUANTISED = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}
    | {"ConvInteger", "MatMulInteger", "QGemm", "DynamicQuantizeMatMul"}
)
LEAST_OPSET = 13  # DequantizeLinear per channel
PREPARED = "onnx.quant.pre_process"  # how ONNX Runtime notes that a file went through its optimiser


@dataclass(frozen=True, slots=True)
class Regions:
    """Names of the nodes that stay in float: before the first convolution, and after the last ones."""

    front: frozenset[str]
    tail: frozenset[str]


def onnx_package() -> Any:
    """The module ``onnx``. Raises UserError with the remedy when it is not installed."""
    try:
        import onnx
    except ImportError:
        raise UserError(
            "quantising needs the package onnx, which is not installed; "
            "`pip install 'campipe[quantize]'` gets it, in a checkout `pip install -e '.[quantize]'`"
        ) from None
    return onnx


def check_float(model: ModelSpec) -> None:
    """Raise UserError unless the file is a float32 network that has something to quantise."""
    onnx = onnx_package()
    where = f"model {model.name}"
    try:
        graph = onnx.load(model.path).graph
    except Exception as error:
        raise UserError(f"{where}: {model.path} can't be read as ONNX ({reason(error)}); export it again") from error
    found = sorted({node.op_type for node in graph.node} & QUANTISED)
    if found:
        raise UserError(
            f"{where} is quantised already (it has {', '.join(found)}); give the float model that it was made of"
        )
    weights = {tensor.name: tensor for tensor in graph.initializer}
    half = onnx.TensorProto.FLOAT16
    learnt = [node for node in graph.node if node.op_type in LEARNT]
    direct = [weights[name] for node in learnt for name in node.input if name in weights]
    if model.input_dtype == "float16" or any(tensor.data_type == half for tensor in direct):
        raise UserError(f"{where} computes in float16; quantising starts from float32: export it with float32 weights")
    if not learnt:
        raise UserError(f"{where} has no convolution or matrix product: there is nothing to quantise")


def regions(onnx_model: Any) -> Regions:
    """What of the graph stays in float. All nodes have names."""
    graph = onnx_model.graph
    producer = {name: node for node in graph.node for name in node.output}
    consumers: dict[str, list[Any]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            consumers[name].append(node)
    constants = {tensor.name for tensor in graph.initializer}
    fixed = _fixed_convolutions(onnx_model)

    def walk(names: Sequence[str], step: Callable[[str], Sequence[Any]], onwards: str) -> frozenset[str]:
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            for node in step(waiting.pop()):
                if node.name in seen or (node.op_type in LEARNT and node.name not in fixed):
                    continue
                seen.add(node.name)
                waiting += getattr(node, onwards)
        return frozenset(seen)

    inputs = [each.name for each in graph.input if each.name not in constants]
    front = walk(inputs, lambda name: consumers[name], "output")
    tail = walk(
        [each.name for each in graph.output], lambda name: [producer[name]] if name in producer else [], "input"
    )
    return Regions(front, tail)


def _fixed_convolutions(onnx_model: Any) -> frozenset[str]:
    """Convolutions that learnt nothing: with weights 0, 1, 2 … they take an expectation, which is part of the decoding.

    (Distribution focal loss, arXiv 2006.04388, as YOLOv8 and its successors export it.)
    """
    onnx = onnx_package()
    weights = {tensor.name: tensor for tensor in onnx_model.graph.initializer}
    found = set()
    for node in onnx_model.graph.node:
        tensor = weights.get(node.input[1]) if node.op_type == "Conv" and len(node.input) > 1 else None
        if tensor is not None and len(tensor.dims) == 4 and tensor.dims[0] == 1 and 1 < tensor.dims[1] <= 64:
            values = onnx.numpy_helper.to_array(tensor).reshape(-1)
            if (values == np.arange(len(values))).all():
                found.add(node.name)
    return frozenset(found)


def quantised(model: ModelSpec, pictures: Sequence[NDArray[np.uint8]], progress: Callable[[int, int], None]) -> bytes:
    """The content of the INT8 file, calibrated with letterboxed ``pictures``; the same for the same.

    Raises UserError when the file can't be quantised.
    """
    onnx = onnx_package()
    runtime()  # first: it says what ONNX Runtime is told before it is loaded
    try:
        quantization = importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        raise UserError(
            f"ONNX Runtime's quantisation can't be imported ({error}); `pip install 'campipe[quantize]'` mends that"
        ) from error
    with tempfile.TemporaryDirectory(prefix="campipe-quantize-") as folder:
        prepared, out = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        try:
            source = _prepared(onnx, model, prepared)
            keep = regions(source)
            onnx.save(source, prepared)
            quantization.quantize_static(
                str(prepared),
                str(out),
                _reader(quantization.CalibrationDataReader, model, _input_name(source), pictures, progress),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                reduce_range=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                nodes_to_exclude=sorted(keep.front | keep.tail),
                calibrate_method=quantization.CalibrationMethod.MinMax,
            )
            made = onnx.load(out)
        except (UserError, OSError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise UserError(
                f"model {model.name} can't be quantised: {reason(error)}; export it again, with opset 13 or later"
            ) from error
    _keep_metadata(made, onnx.load(model.path, load_external_data=False))
    content: bytes = made.SerializeToString(deterministic=True)
    return content


def _prepared(onnx: Any, model: ModelSpec, path: Path) -> Any:
    """The model with constants folded and normalisation in its convolutions, by ONNX Runtime; every node has a name."""
    onnxruntime = runtime()
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    prepared = onnx.load(path)
    opset = max((each.version for each in prepared.opset_import if each.domain in {"", "ai.onnx"}), default=0)
    if opset < LEAST_OPSET:
        prepared = onnx.version_converter.convert_version(prepared, LEAST_OPSET)
    names: set[str] = set()
    for index, node in enumerate(prepared.graph.node):
        if not node.name or node.name in names:
            node.name = f"{node.op_type}.{index}"
        names.add(node.name)
    note = prepared.metadata_props.add()
    note.key, note.value = PREPARED, "onnxruntime.quant"
    return prepared


def _input_name(onnx_model: Any) -> str:
    constants = {tensor.name for tensor in onnx_model.graph.initializer}
    return next(str(each.name) for each in onnx_model.graph.input if each.name not in constants)


def _reader(base: type[Any], model: ModelSpec, name: str, pictures: Sequence[NDArray[np.uint8]], progress: Any) -> Any:
    """What ONNX Runtime asks for inputs: one run after the other, None at the end."""
    feeds = _feeds(model, pictures)
    done = 0

    class Reader(base):  # type: ignore[misc]  # the base comes with an optional package
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            nonlocal done
            batch = next(feeds, None)
            if batch is None:
                return None
            progress(done := min(done + len(batch), len(pictures)), len(pictures))
            return {name: batch}

    return Reader()


def _feeds(model: ModelSpec, pictures: Sequence[NDArray[np.uint8]]) -> Iterator[NDArray[Any]]:
    """Inputs of the model, as many frames at a time as it takes; the last is repeated to fill a fixed batch."""
    writer = PixelWriter(model)
    step = model.fixed_batch or 1
    for start in range(0, len(pictures), step):
        batch = np.zeros((step, *writer.input_shape), writer.dtype)
        for row in range(step):
            writer.write(pictures[min(start + row, len(pictures) - 1)], batch[row])
        yield batch


def _keep_metadata(made: Any, source: Any) -> None:
    """The notes of the source (class names, stride, licence …), and none that the tools left."""
    del made.metadata_props[:]
    for each in source.metadata_props:
        made.metadata_props.add().CopyFrom(each)
