"""ONNX files made for tests, and descriptions of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def constants(
    path: Path,
    outputs: Mapping[str, np.ndarray],
    size: int,
    *,
    scales: Mapping[str, tuple[float, int, str]] | None = None,
    batch: int | str = "N",
) -> Path:
    """A file that gives these outputs for every picture of ``size`` squared, for any batch or a fixed one.

    float16 stays float16, anything else is float32. ``scales``: scale, zero point and type of outputs that are to end
    in a ``QuantizeLinear``.
    """
    nodes = [helper.make_node("ReduceMean", ["images", "axes"], ["mean"], keepdims=0)]
    nodes.append(helper.make_node("Mul", ["mean", "zero"], ["nothing"]))
    initializers = [
        numpy_helper.from_array(np.array([1, 2, 3], np.int64), "axes"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    infos = []
    for name, values in outputs.items():
        half = values.dtype == np.float16
        scale = (scales or {}).get(name)
        last = f"{name}.float" if half or scale else name
        axes = np.arange(1, values.ndim + 1)
        initializers.append(numpy_helper.from_array(axes, f"{name}.axes"))
        initializers.append(numpy_helper.from_array(values.astype(np.float32)[None], f"{name}.values"))
        nodes.append(helper.make_node("Unsqueeze", ["nothing", f"{name}.axes"], [f"{name}.nothing"]))
        nodes.append(helper.make_node("Add", [f"{name}.nothing", f"{name}.values"], [last]))
        kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        if scale:
            kind = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}[scale[2]]
            initializers.append(numpy_helper.from_array(np.float32(scale[0]), f"{name}.scale"))
            initializers.append(numpy_helper.from_array(np.array(scale[1], scale[2]), f"{name}.zero_point"))
            nodes.append(helper.make_node("QuantizeLinear", [last, f"{name}.scale", f"{name}.zero_point"], [name]))
        elif half:
            nodes.append(helper.make_node("Cast", [last], [name], to=TensorProto.FLOAT16))
        infos.append(helper.make_tensor_value_info(name, kind, [batch, *values.shape]))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, size, size])
    graph = helper.make_graph(nodes, "constants", [images], infos, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, str(path))
    return path


def described(folder: Path, file: Path, layout: str, size: int, labels: str = "coco", extra: str = "") -> Path:
    """A description of a model that pictures are stretched for."""
    path = folder / "model.yaml"
    path.write_text(
        f"file: {file}\nlayout: {layout}\nlabels: {labels}\n{extra}\n"
        f"input: {{width: {size}, height: {size}, placement: stretch, std: 1}}\n"
    )
    return path
