"""Owns the small model files of these tests: a tiny ONNX file, and descriptions of OMs made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from stages.accelerators.aclsim.om import Aipp, describe

FILES = ("fixed.om", "gears.om", "aipp.om", "half.om")  # sys.argv[1:] of the programs in misuse/


def write_tiny_models(folder: Path) -> list[str]:
    """(n, 3, 8, 8) floats to (n, 16): batch 1; gears 1, 2 and 4; batch 1 with AIPP; batch 1 with half outputs."""
    write_tiny_onnx(folder / "tiny.onnx", columns=16)
    aipp = Aipp(var_reci=(1 / 255,) * 3)
    variants: list[dict[str, Any]] = [{}, {"batch": (1, 2, 4)}, {"aipp": aipp}, {"output_dtype": "FP16"}]
    return [
        str(describe(folder / "tiny.onnx", **variant).write(folder / name))
        for name, variant in zip(FILES, variants, strict=True)
    ]


def write_tiny_onnx(path: Path, columns: int, rows: int = 0) -> None:
    """(n, 3, 8, 8) floats to (n, columns), or to (n, rows, columns / rows)."""
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 0.0005, (192, columns)).astype(np.float32)
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["columns"]),
        helper.make_node("Reshape", ["columns", "shape"], ["rows"]),
    ]
    shape = [rows, columns // rows] if rows else [columns]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", *shape])],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([-1, *shape], np.int64), "shape"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
