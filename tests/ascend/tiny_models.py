"""Owns the small model files of these tests: a tiny ONNX file, and descriptions of OMs made of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FILES = ("fixed.om", "gears.om", "aipp.om", "half.om")  # sys.argv[1:] of the programs in misuse/


def write_tiny_models(folder: Path) -> list[str]:
    """(n, 3, 8, 8) floats to (n, 16) floats: batch 1, gears 1, 2 and 4, batch 1 with AIPP, batch 1 with half outputs."""
    weights = np.random.default_rng(3).normal(0, 0.1, (192, 16)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["images"], ["flat"]), helper.make_node("MatMul", ["flat", "weights"], ["rows"])],
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "tiny.onnx").write_bytes(model.SerializeToString())
    common = {"campipe_om": 1, "onnx": "tiny.onnx", "soc": "Ascend310P3", "aipp": None, "output_dtype": "FP32"}
    aipp = {"input": "RGB888_U8", "mean": [0, 0, 0], "var_reci": [1 / 255] * 3, "rbuv_swap": False}
    variants = [{"batch": 1}, {"batch": {"gears": [1, 2, 4]}}, {"batch": 1, "aipp": aipp}]
    variants.append({"batch": 1, "output_dtype": "FP16"})
    for name, variant in zip(FILES, variants, strict=True):
        (folder / name).write_text(json.dumps({**common, **variant}), encoding="utf-8")
    return [str(folder / name) for name in FILES]
