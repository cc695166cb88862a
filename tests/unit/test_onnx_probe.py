"""What a file tells of itself, on files of all kinds."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from stages.accelerators.probe import describe
from stages.errors import UserError
from stages.model import TensorSpec

ROOT = Path(__file__).resolve().parents[2]
Size = int | str | None


def save(path: Path, shape: list[Size], outputs: dict[str, list[Size]], to: list[int], dtype: Any = None) -> Path:
    kind = TensorProto.FLOAT if dtype is None else dtype
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["images", "to"], [name]) for name in outputs],
        "g",
        [helper.make_tensor_value_info("images", kind, shape)],
        [helper.make_tensor_value_info(name, kind, sizes) for name, sizes in outputs.items()],
        [numpy_helper.from_array(np.array(to, np.int64), "to")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("shape", "declared", "to", "batch", "found"),
    [
        pytest.param(["n", 3, 4, 6], ["n", 72], [0, 72], None, (72,), id="any batch"),
        pytest.param(["n", 3, 4, 6], ["n", "rows", "cols"], [0, 12, 6], None, (12, 6), id="sizes left open"),
        pytest.param([1, 3, 4, 6], [1, 72], [1, 72], 1, (72,), id="batch 1"),
        pytest.param([4, 3, 4, 6], [4, 72], [4, 72], 4, (72,), id="batch 4"),
        pytest.param(["n", 3, 4, 6], ["n", "k"], [1, -1], 1, (72,), id="claims any, has 1 built in"),
        pytest.param(["n", 3, "h", "w"], ["n", "k"], [0, -1], None, (72,), id="any picture size"),
        pytest.param(["n", 4, 6, 3], ["n", 72], [0, 72], None, (72,), id="nhwc"),
        pytest.param([None, "h", "w", 3], ["n", "k"], [0, -1], None, (72,), id="nhwc, any picture size"),
    ],
)
def test_sizes_are_found_out(
    tmp_path: Path, shape: list[Size], declared: list[Size], to: list[int], batch: int | None, found: tuple[int, ...]
) -> None:
    facts = describe(str(save(tmp_path / "m.onnx", shape, {"rows": declared}, to)), width=6, height=4)
    assert facts.batch == batch
    assert facts.output_specs() == (TensorSpec("rows", found, "float32"),)
    assert facts.inputs[0].shape[0] == batch
    assert None not in facts.inputs[0].shape[1:]
    assert pickle.loads(pickle.dumps(facts)) == facts


def test_outputs_keep_the_files_order_and_types(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", ["n", 3, 4, 6], {"z": ["n", 72], "a": ["n", 72]}, [0, 72], TensorProto.FLOAT16)
    assert [(t.name, t.dtype) for t in describe(str(path)).output_specs()] == [("z", "float16"), ("a", "float16")]


def test_a_size_that_cannot_be_found_out_is_said(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", ["n", 3, "h", "w"], {"rows": ["n", "k"]}, [0, -1])
    facts = describe(str(path))
    assert facts.inputs[0].shape == (None, 3, None, None)
    with pytest.raises(UserError, match=r"output rows is \?x\?.*list the outputs"):
        facts.output_specs()


def test_a_model_that_does_not_run_at_this_size_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", ["n", 3, "h", "w"], {"rows": ["n", "k"]}, [0, 72])
    assert describe(str(path), width=6, height=4).output_specs()[0].shape == (72,)
    with pytest.raises(UserError, match="can't be run on a picture of 3x5x7"):
        describe(str(path), width=7, height=5)


@pytest.mark.parametrize("shape", [["n", 72], ["n", 3, 2, 2, 6]])
def test_what_takes_no_picture_is_described_as_declared(tmp_path: Path, shape: list[Size]) -> None:
    facts = describe(str(save(tmp_path / "m.onnx", shape, {"rows": ["n", 72]}, [0, 72])))
    assert facts.inputs[0].shape == (None, *shape[1:])
    assert facts.output_specs()[0].shape == (72,)


@pytest.mark.parametrize(
    ("name", "batch", "outputs"),
    [
        ("yolox_nano", 1, [("output", (3549, 85), "float32")]),
        ("yolov8n_int8", 1, [("output0", (84, 8400), "float32")]),
        ("yolov5n_concat_fp16", None, [("output", (25200, 85), "float16")]),
        (
            "yolov5n_three_heads_fp16",
            None,
            [(f"/model/model.24/m.{i}/Conv_output_0", (255, n, n), "float16") for i, n in enumerate((80, 40, 20))],
        ),
    ],
)
def test_real_files(shared_dir: Path, name: str, batch: int | None, outputs: list[tuple[Any, ...]]) -> None:
    facts = describe(str(shared_dir / f"models/{name}.onnx"), width=640, height=640)
    assert facts.batch == batch
    assert facts.output_specs() == tuple(TensorSpec(*o) for o in outputs)


def test_the_default_model() -> None:
    facts = describe(str(ROOT / "configs/models/coco-ssd.onnx"))
    assert facts.batch is None
    assert facts.output_specs() == (TensorSpec("output0", (1917, 84), "float32"),)
