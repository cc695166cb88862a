"""Simulated OM files, and what AIPP and runs make of pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from oracles.aclsim_rig import IMAGE, ROWS, Rig, good, write_om

from stages.accelerators.aclsim import Aipp, OmDescription, SimOptions, describe, simulate
from stages.accelerators.aclsim.machine.aipp import apply_aipp
from stages.errors import UserError
from stages.model import TensorSpec


def identity(folder: Path, batch: int | str, dtype: int = TensorProto.FLOAT) -> Path:
    """(batch, 3, 4, 4) to itself, times two."""
    shape = [batch, 3, 4, 4]
    graph = helper.make_graph(
        [helper.make_node("Add", ["images", "images"], ["twice"])],
        "twice",
        [helper.make_tensor_value_info("images", dtype, shape)],
        [helper.make_tensor_value_info("twice", dtype, shape)],
    )
    path = folder / f"twice{batch}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    "om",
    [
        OmDescription("model.onnx"),
        OmDescription("model.onnx", (1, 2, 8), service_ms={1: 5.2}, weights_bytes=100, output_dtype="FP16"),
        OmDescription("model.onnx", 4, aipp=Aipp("YUV420SP_U8", (1, 2, 3), (0.5, 0.5, 0.5), rbuv_swap=True)),
        OmDescription("model.onnx", input=IMAGE, outputs=(ROWS,), onnx_batch=1),
    ],
)
def test_files_hold_what_was_written(tmp_path: Path, om: OmDescription) -> None:
    from dataclasses import replace

    absolute = replace(om, onnx=str(tmp_path / om.onnx))
    path = absolute.write(tmp_path / "model.om")
    assert json.loads(path.read_text())["onnx"] == "model.onnx"
    assert OmDescription.read(path) == absolute


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no description"),
        ("[]", "campipe_om"),
        ('{"campipe_om": 1}', "onnx"),
        ('{"campipe_om": 1, "onnx": "a", "bacth": 1}', "bacth is unknown; leave it out"),
        ('{"campipe_om": 1, "onnx": "a", "batch": 0}', "batch is 0"),
        ('{"campipe_om": 1, "onnx": "a", "batch": {"gears": [4, 2]}}', "ascending"),
        ('{"campipe_om": 1, "onnx": "a", "batch": {"gears": [4]}}', "two or more"),
        ('{"campipe_om": 1, "onnx": "a", "output_dtype": "INT8"}', "FP16"),
        ('{"campipe_om": 1, "onnx": "a", "aipp": {"input": "BGR888_U8"}}', "rbuv_swap"),
        ('{"campipe_om": 1, "onnx": "a", "aipp": {"input": "PNG"}}', "RGB888_U8"),
    ],
)
def test_wrong_files(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "model.om").write_text(content)
    with pytest.raises(UserError, match=says):
        OmDescription.read(tmp_path / "model.om")


TENSOR = {"name": "o", "shape": [4], "dtype": "float32"}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("onnx", 3, "onnx is 3; give the path"),
        ("onnx", "", "onnx is ''; give the path"),
        ("soc", 310, "soc is 310; give a chip"),
        ("batch", "4", "batch is '4'; give a whole number"),
        ("batch", True, "batch is True"),
        ("batch", 2.5, "batch is 2.5"),
        ("batch", None, "batch is None"),
        ("batch", {"gears": "14"}, r"batch is \{'gears': '14'\}"),
        ("batch", {"gears": [1, "4"]}, "batch is "),
        ("weights_bytes", "much", "weights_bytes is 'much'; give a whole number of 0 or more, or null"),
        ("work_bytes", -1, "work_bytes is -1"),
        ("work_bytes", 1e9, "work_bytes is 1000000000.0"),
        ("onnx_batch", "n", "onnx_batch is 'n'"),
        ("service_ms", [5], r"service_ms is \[5\]; give milliseconds"),
        ("service_ms", {"1": "fast"}, "service_ms is "),
        ("service_ms", {"one": 1}, "service_ms is "),
        ("service_ms", {"1": float("nan")}, "service_ms is "),
        ("service_ms", {"0": 1}, "service_ms is "),
        ("aipp", "rgb", "aipp is 'rgb'; give an object, or null"),
        ("aipp", {"mean": 3}, "aipp.mean is 3; give a list"),
        ("aipp", {"mean": ["0", 0, 0]}, "aipp.mean is "),
        ("aipp", {"rbuv_swap": "yes"}, "aipp.rbuv_swap is 'yes'; give true or false"),
        ("aipp", {"crop": 1}, "aipp.crop is unknown"),
        ("output_dtype", [], r"output_dtype is \[\]"),
        ("input", [], r"input is \[\]; give an object"),
        ("input", {**TENSOR, "shape": 4}, "input.shape is 4"),
        ("input", {**TENSOR, "shape": [0]}, r"input.shape is \[0\]"),
        ("input", {"name": "o"}, "input.shape is missing"),
        ("outputs", TENSOR, "outputs is "),
        ("outputs", [TENSOR, 3], "outputs.1 is 3; give an object"),
        ("outputs", [{**TENSOR, "dtype": "object"}], "outputs.0.dtype is 'object'; give a numpy type"),
        ("outputs", [{**TENSOR, "dtype": "float33"}], "outputs.0.dtype is 'float33'"),
        ("outputs", [{**TENSOR, "name": 1}], "outputs.0.name is 1"),
    ],
)
def test_a_wrong_type_in_the_file_is_told_by_key_and_value_when_it_is_read(key: str, value: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        OmDescription.parse(json.dumps({"campipe_om": 1, "onnx": "a.onnx", key: value}), "m.om")


def test_a_file_of_brackets_alone_is_refused() -> None:
    with pytest.raises(UserError, match="is no description of a simulated OM"):
        OmDescription.parse("[" * 100_000, "m.om")


def test_describe_finds_shapes(tmp_path: Path) -> None:
    om = describe(identity(tmp_path, "n"), batch=[1, 2])
    assert om.input == TensorSpec("images", (3, 4, 4), "float32")
    assert om.outputs == (TensorSpec("twice", (3, 4, 4), "float32"),)
    assert om.onnx_batch is None
    assert describe(identity(tmp_path, 2), batch=4).onnx_batch == 2


def run_once(path: str, pixels: np.ndarray, out_dtype: str = "float32", gear: int = 0, **options) -> np.ndarray:
    """The output of one run, through device memory."""
    with simulate(SimOptions(**options)) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, path)
        slot = rig.slot(gear)
        size = slot.made[0][1]
        acl.util.ptr_to_numpy(slot.pinned_in, (pixels.nbytes,), 2)[:] = pixels.reshape(-1).view(np.uint8)
        events = rig.events()
        rig.submit(slot, events)
        good(acl.rt.synchronize_event(events["out"]))
        output = np.frombuffer(acl.util.ptr_to_bytes(slot.pinned_out, size), out_dtype).copy()
        rig.close(events)
        good(acl.finalize())
        assert not sim.checker.violations, sim.checker.report()
    return output


@pytest.mark.parametrize(("baked", "batch"), [("n", 1), ("n", 4), (1, 4), (2, 4), (3, 4)])
@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_the_model_runs_whatever_its_own_batch(tmp_path: Path, baked: int | str, batch: int, clock: str) -> None:
    path = describe(identity(tmp_path, baked), batch=batch).write(tmp_path / "twice.om")
    pixels = np.random.default_rng(1).normal(size=(batch, 3, 4, 4)).astype(np.float32)
    assert (run_once(str(path), pixels, clock=clock) == 2 * pixels.ravel()).all()


def test_half_precision_outputs(tmp_path: Path) -> None:
    path = describe(identity(tmp_path, "n"), output_dtype="FP16").write(tmp_path / "twice.om")
    pixels = np.full((1, 3, 4, 4), 0.1, np.float32)
    assert (run_once(str(path), pixels, "float16") == np.float16(0.2)).all()


def test_a_gear_runs_its_rows_only(tmp_path: Path) -> None:
    path = describe(identity(tmp_path, "n"), batch=(1, 2, 4)).write(tmp_path / "twice.om")
    pixels = np.ones((4, 3, 4, 4), np.float32)
    output = run_once(str(path), pixels, gear=2).reshape(4, -1)
    assert (output[:2] == 2).all()
    assert np.isnan(output[2:]).all()


def test_a_callable_answers_in_place_of_the_model(tmp_path: Path) -> None:
    seen = []

    def answer(inputs, batch):
        seen.append((inputs[0].shape, batch))
        return [np.full((batch, 5, 4), 7)]

    output = run_once(write_om(tmp_path, batch=2), np.zeros((2, 3, 8, 8), np.float32), compute=answer)
    assert (output == 7).all()
    assert seen == [((2, 3, 8, 8), 2)]


@pytest.mark.parametrize("swap", [False, True])
def test_static_aipp_of_rgb(tmp_path: Path, swap: bool) -> None:
    aipp = Aipp("RGB888_U8", (10, 20, 30), (0.5, 0.25, 0.125), rbuv_swap=swap)
    path = describe(identity(tmp_path, "n"), aipp=aipp).write(tmp_path / "twice.om")
    pixels = np.random.default_rng(2).integers(0, 256, (1, 4, 4, 3), np.uint8)
    fed = pixels[..., ::-1] if swap else pixels
    wanted = ((fed.astype(np.float32) - [10, 20, 30]) * [0.5, 0.25, 0.125]).astype(np.float16).transpose(0, 3, 1, 2)
    assert (run_once(str(path), pixels) == 2 * wanted.astype(np.float32).ravel()).all()


def test_static_aipp_of_nv12() -> None:
    om = OmDescription("x", aipp=Aipp("YUV420SP_U8"), input=TensorSpec("images", (3, 4, 4), "float32"))
    assert om.picture.shape == (6, 4, 1)
    picture = np.full((1, 6, 4, 1), 128, np.uint8)
    picture[:, :4] = 16
    assert (apply_aipp(om, picture) == 0).all()  # black
    picture[:, :4] = 235
    assert (apply_aipp(om, picture) == 254).all()  # white: (298 * 219) >> 8
    picture[:, 4:, 0::2] = 90  # U of red
    picture[:, 4:, 1::2] = 240  # V of red
    picture[:, :4] = 81
    red, green, blue = apply_aipp(om, picture)[0, :, 0, 0]
    assert red >= 250
    assert green <= 5
    assert blue <= 5


def test_aipp_is_told(tmp_path: Path) -> None:
    with simulate(SimOptions(compute="canned", check=False)) as sim:
        acl = sim.acl
        good(acl.init())
        rig = Rig(acl, write_om(tmp_path, aipp=Aipp("YUV420SP_U8", rbuv_swap=True)))
        assert acl.mdl.get_aipp_type(rig.model, 0) == (1, 0, 0)
        info = good(acl.mdl.get_first_aipp_info(rig.model, 0))
        assert info["inputFormat"] == 1
        assert info["rbuvSwapSwitch"] == 1
        assert (info["matrixR0C0"], info["R1C1"], info["R2C2"]) == (298, -100, 0)
        assert info["outDims"][0]["srcSize"] == 8 * 8 * 3 // 2
        assert good(acl.mdl.get_input_dims_v2(rig.desc, 0))["dims"] == [1, 12, 8, 1]
        assert acl.mdl.get_input_data_type(rig.desc, 0) == 4
        slot = rig.slot()
        buffer = acl.create_data_buffer(slot.fed[0][0], slot.fed[0][1] + 64)
        dataset = acl.mdl.create_dataset()
        good(acl.mdl.add_dataset_buffer(dataset, buffer))
        assert acl.mdl.execute(rig.model, dataset, slot.outputs) == 145006
