"""What an OM must be for a model's description, how frames are fed to it, and what stands for it on the simulator."""

from __future__ import annotations

import shlex
import struct
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from made.specs import model_spec

from stages.accelerators.aclsim.om import OmDescription
from stages.accelerators.ascend.atc import aipp_config, atc_command, missing_om, no_om
from stages.accelerators.ascend.feeding import feeder_of
from stages.accelerators.ascend.om import OmFacts, OmTensor
from stages.accelerators.ascend.om_check import match_outputs, om_problems, taken_by_guess
from stages.accelerators.ascend.simulated_om import simulated_om
from stages.errors import BadItem, UserError
from stages.model import ModelSpec, OmSpec, TensorSpec

SPEC = model_spec(
    path="/models/m.onnx",
    height=32,
    std=(255.0, 255.0, 255.0),
    placement="stretch",
    layout="yolov8",
    labels=("a", "b"),
    outputs=(TensorSpec("boxes", (6, 42), "float32"), TensorSpec("more", (3,), "float16")),
)
PLAIN = OmTensor(0, "images", (4, 3, 32, 64), "float32", 4 * 3 * 32 * 64 * 4)
PICTURE = OmTensor(0, "images", (4, 32, 64, 3), "uint8", 4 * 32 * 64 * 3)
NV12 = OmTensor(0, "images", (4, 48, 64, 1), "uint8", 4 * 48 * 64)
OUTPUTS = (
    OmTensor(0, "Concat_5:0:boxes", (4, 6, 42), "float32", 4 * 6 * 42 * 4),
    OmTensor(1, "Relu:0:more", (4, 3), "float16", 4 * 3 * 2),
)
FACTS = OmFacts(PLAIN, OUTPUTS, (4,), 1, None, 0, None)
SCALE = {f"varReciChn{n}": 0.00392157 for n in range(3)}
AIPP = {"inputFormat": 3, "rbuvSwapSwitch": 0, "cscSwitch": 0, **SCALE}
CSC = {"matrixR0C0": 298, "matrixR0C1": 0, "matrixR1C0": 298, "matrixR1C1": -100, "matrixR1C2": -208, "inputBias0": 16,
       "inputBias1": 128, "inputBias2": 128}  # fmt: skip
AIPP_NV12 = {"inputFormat": 1, "cscSwitch": 1, **CSC, **SCALE}


def om(**changes: Any) -> OmSpec:
    return replace(OmSpec("/models/m.om", "", 4), **changes)


@pytest.mark.parametrize(
    ("spec", "told", "facts"),
    [
        pytest.param(SPEC, om(), FACTS, id="plain"),
        pytest.param(SPEC, om(soc="ascend310p3"), FACTS, id="soc by any case"),
        pytest.param(
            SPEC,
            om(batch=(1, 2, 4)),
            replace(FACTS, batches=(1, 2, 4), shape_index=1, inputs=2, picture=replace(PLAIN, dims=(-1, 3, 32, 64))),
            id="gears",
        ),
        pytest.param(SPEC, om(aipp="rgb"), replace(FACTS, picture=PICTURE, aipp=AIPP), id="aipp rgb"),
        pytest.param(
            SPEC, om(aipp="bgr"), replace(FACTS, picture=PICTURE, aipp={**AIPP, "rbuvSwapSwitch": 1}), id="aipp bgr"
        ),
        pytest.param(SPEC, om(aipp="nv12"), replace(FACTS, picture=NV12, aipp=AIPP_NV12), id="nv12"),
        pytest.param(
            replace(SPEC, channels="bgr"),
            om(aipp="nv12"),
            replace(FACTS, picture=NV12, aipp={**AIPP_NV12, "matrixR0C1": 516}),
            id="nv12 for a model of bgr",
        ),
        pytest.param(
            SPEC,
            om(aipp="nv12"),
            replace(FACTS, picture=replace(NV12, dims=(4, 32, 64, 1)), aipp=AIPP_NV12),
            id="nv12 shown as the picture",
        ),
        pytest.param(SPEC, om(aipp="rgb"), replace(FACTS, picture=PICTURE, aipp={}), id="parameters not told"),
        pytest.param(
            SPEC, om(aipp="nv12"), replace(FACTS, picture=NV12, aipp={"inputFormat": 1}), id="matrix and scale not told"
        ),
        pytest.param(
            SPEC,
            om(aipp="rgb"),
            replace(FACTS, picture=replace(PICTURE, dims=(4, 3, 32, 64), dtype="float32"), aipp=AIPP),
            id="aipp shown as the network's own input, with the size of the picture",
        ),
        pytest.param(
            SPEC,
            om(aipp="nv12"),
            replace(FACTS, picture=NV12, aipp={k.removeprefix("matrix"): v for k, v in AIPP_NV12.items()}),
            id="the matrix by its other names",
        ),
        pytest.param(
            replace(SPEC, mean=(123.675, 116.28, 103.53)),
            om(aipp="rgb"),
            replace(FACTS, picture=PICTURE, aipp={**AIPP, "minChn0": 123.6875, "minChn1": 116.25, "minChn2": 103.5}),
            id="means as float16 keeps them",
        ),
        pytest.param(
            SPEC,
            om(),
            replace(FACTS, outputs=(replace(OUTPUTS[0], dtype="float16", size_bytes=4 * 6 * 42 * 2), OUTPUTS[1])),
            id="half the bytes of an output",
        ),
        pytest.param(
            SPEC,
            om(),
            replace(FACTS, outputs=(replace(OUTPUTS[0], name="out_a"), replace(OUTPUTS[1], name="out_b"))),
            id="other names, same order",
        ),
    ],
)
def test_an_om_that_fits_is_taken(spec: ModelSpec, told: OmSpec, facts: OmFacts) -> None:
    assert om_problems(spec, told, facts, "Ascend310P3") == []


@pytest.mark.parametrize(
    ("told", "facts", "says"),
    [
        pytest.param(om(soc="Ascend910B"), FACTS, "--soc_version=Ascend310P3", id="soc"),
        pytest.param(om(batch=8), FACTS, "set `batch: 4`", id="batch"),
        pytest.param(om(batch=(1, 4)), FACTS, "set `batch: 4`", id="gears told, built in"),
        pytest.param(
            om(), replace(FACTS, batches=(1, 4), shape_index=1), "set `batch: [1, 4]`", id="built in told, gears"
        ),
        pytest.param(om(aipp="rgb"), FACTS, "set `aipp: none`", id="no aipp"),
        pytest.param(om(), replace(FACTS, picture=PICTURE, aipp=AIPP), "set `aipp: rgb`", id="aipp not told"),
        pytest.param(om(), replace(FACTS, picture=NV12, aipp=AIPP_NV12), "set `aipp: nv12`", id="nv12 not told"),
        pytest.param(om(aipp="nv12"), replace(FACTS, picture=PICTURE, aipp=AIPP), "takes RGB888_U8", id="other format"),
        pytest.param(
            om(aipp="rgb"), replace(FACTS, picture=PICTURE, aipp={**AIPP, "inputFormat": 2}), "XRGB8888", id="xrgb"
        ),
        pytest.param(
            om(aipp="bgr"), replace(FACTS, picture=PICTURE, aipp=AIPP), "rbuv_swap_switch: true", id="not swapped"
        ),
        pytest.param(
            om(aipp="rgb"),
            replace(FACTS, picture=PICTURE, aipp={**AIPP, "cscSwitch": 1}),
            "csc_switch: false",
            id="colours converted",
        ),
        pytest.param(
            om(aipp="nv12"),
            replace(FACTS, picture=NV12, aipp={**AIPP_NV12, "matrixR1C1": -55}),
            "BT.601",
            id="other matrix",
        ),
        pytest.param(
            om(aipp="rgb"), replace(FACTS, picture=PICTURE, aipp={**AIPP, "cropSwitch": 1}), "without", id="crop"
        ),
        pytest.param(
            om(aipp="rgb"),
            replace(FACTS, picture=PICTURE, aipp={**AIPP, "varReciChn1": 1.0}),
            "multiplies by 1 in channel 1",
            id="factor",
        ),
        pytest.param(
            om(aipp="rgb"),
            replace(FACTS, picture=PICTURE, aipp={**AIPP, "meanChn2": 104, "minChn2": 0.5}),
            "subtracts 104.5",
            id="mean",
        ),
        pytest.param(om(), replace(FACTS, picture=replace(PLAIN, dtype="float16")), "is float16", id="input type"),
        pytest.param(
            om(aipp="rgb"),
            replace(FACTS, picture=PLAIN, aipp=AIPP),
            "is float32",
            id="aipp, and not the picture's size",
        ),
        pytest.param(
            om(), replace(FACTS, picture=replace(PLAIN, dims=(4, 3, 64, 32))), "is 4x3x64x32", id="on its side"
        ),
        pytest.param(om(), replace(FACTS, outputs=OUTPUTS[:1]), "--out_nodes", id="one output only"),
        pytest.param(
            om(),
            replace(FACTS, outputs=(replace(OUTPUTS[0], dims=(4, 6, 43)), OUTPUTS[1])),
            "is 6x43 float32",
            id="output shape",
        ),
        pytest.param(
            om(), replace(FACTS, outputs=(replace(OUTPUTS[0], dtype="int32"), OUTPUTS[1])), "int32", id="output type"
        ),
    ],
)
def test_a_contradiction_is_refused_with_what_differs_and_the_remedy(told: OmSpec, facts: OmFacts, says: str) -> None:
    problems = om_problems(SPEC, told, facts, "Ascend310P3")
    assert any(says in problem for problem in problems), problems
    assert all(problem.startswith("model m: om: ") for problem in problems)


def test_outputs_are_found_by_name_whatever_their_order() -> None:
    swapped = replace(FACTS, outputs=(replace(OUTPUTS[1], index=0), replace(OUTPUTS[0], index=1)))
    found, problems = match_outputs(SPEC, swapped)
    assert problems == []
    assert [tensor.index for tensor in found] == [1, 0]


HEADS = tuple(TensorSpec(f"head{n}", (3, n, n, 7), "float32") for n in (8, 4, 2))


def heads(*names: str, sizes: tuple[int, ...] = (8, 4, 2)) -> OmFacts:
    shapes = [(4, 3, n, n, 7) for n in sizes]
    tensors = [
        OmTensor(index, name, shape, "float32", int(np.prod(shape)) * 4)
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True))
    ]
    return replace(FACTS, outputs=tuple(tensors))


@pytest.mark.parametrize(
    ("told", "names", "order"),
    [
        (("a", "b", "c"), ("Conv_3:0:c", "Conv_1:0:a", "Conv_2:0:b"), [1, 2, 0]),
        (("a:0", "b:0", "c:0"), ("Conv_3:0:c:0", "Conv_1:0:a:0", "Conv_2:0:b:0"), [1, 2, 0]),
        (("/m/Conv_1", "/m/Conv_2", "x"), ("/m/Conv_2:0", "x", "/m/Conv_1:0"), [2, 0, 1]),
        (("/m/Conv_output_0", "/m/Conv_1_output_0", "x"), ("x", "/m/Conv_1:0", "/m/Conv:0"), [2, 1, 0]),
        (("/m/Split_output_2", "x", "/m/Split_output_0"), ("/m/Split:0", "/m/Split:2", "N:0:x"), [1, 2, 0]),
        (("/m/Conv_2_output_0", "a", "b"), ("output_0_a_0", "output_1_b_0", "output_2_/m/Conv_2_0"), [2, 0, 1]),
    ],
)
def test_outputs_are_found_by_each_form_of_name_that_atc_gives(
    told: tuple[str, ...], names: tuple[str, ...], order: list[int]
) -> None:
    """Taken by position in place of by name, heads of one shape would change places unseen."""
    spec = replace(SPEC, outputs=tuple(TensorSpec(name, (3, 8, 8, 7), "float32") for name in told))
    facts = heads(*names, sizes=(8, 8, 8))
    found, problems = match_outputs(spec, facts)
    assert (problems, [tensor.index for tensor in found]) == ([], order)
    assert taken_by_guess(spec, facts, found) == ""


def test_outputs_of_other_names_and_another_order_are_found_by_their_shapes() -> None:
    spec = replace(SPEC, outputs=HEADS)
    found, problems = match_outputs(spec, heads("p", "q", "r", sizes=(2, 8, 4)))
    assert (problems, [tensor.index for tensor in found]) == ([], [1, 2, 0])
    _, problems = match_outputs(spec, heads("p", "q", "r", sizes=(2, 8, 8)))
    assert len(problems) == 3, "several ways"


def test_outputs_that_could_be_one_anothers_are_told() -> None:
    spec = replace(SPEC, outputs=(HEADS[0], replace(HEADS[0], name="other"), HEADS[2]))
    facts = heads("p", "q", "r", sizes=(8, 8, 2))
    found, problems = match_outputs(spec, facts)
    assert problems == []
    assert taken_by_guess(spec, facts, found) == "p as head8, q as other"


@pytest.mark.parametrize(("frames", "gear"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 4)])
def test_the_smallest_batch_that_holds_the_frames_is_run(frames: int, gear: int) -> None:
    assert replace(FACTS, batches=(1, 2, 4)).gear(frames) == gear


def picture() -> np.ndarray:
    small = np.random.default_rng(3).integers(60, 200, (2, 4, 3), np.uint8)
    return cv2.resize(small, (64, 32), interpolation=cv2.INTER_LINEAR)


def fed(spec: ModelSpec, aipp: str) -> np.ndarray:
    feeder = feeder_of(spec, om(aipp=aipp))
    out = np.zeros(feeder.input_shape, feeder.dtype)
    feeder.write(picture(), out)
    return out


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_pictures_are_fed_in_the_order_that_aipp_takes(channels: Any) -> None:
    spec = replace(SPEC, channels=channels)
    other = "bgr" if channels == "rgb" else "rgb"
    assert fed(spec, channels).tobytes() == picture().tobytes()
    assert fed(spec, other).tobytes() == np.ascontiguousarray(picture()[..., ::-1]).tobytes()


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_nv12_is_two_planes_of_which_the_picture_can_be_made_again(channels: Any) -> None:
    planes = fed(replace(SPEC, channels=channels), "nv12")
    assert planes.shape == (48, 64)
    back = cv2.cvtColor(planes, cv2.COLOR_YUV2RGB_NV12 if channels == "rgb" else cv2.COLOR_YUV2BGR_NV12)
    difference = np.abs(back.astype(int) - picture())
    assert difference.mean() < 4  # half the colour's resolution is lost
    # red, green, blue by the matrix of the documents: an oracle that is not cv2's
    y, u, v = (p.astype(int) for p in (planes[:32], planes[32:, 0::2], planes[32:, 1::2]))
    u, v = (np.repeat(np.repeat(plane, 2, 0), 2, 1) - 128 for plane in (u, v))
    red = np.clip((298 * (y - 16) + 409 * v) >> 8, 0, 255)
    assert np.abs(red - picture()[..., 0 if channels == "rgb" else 2]).mean() < 6


@pytest.mark.parametrize("aipp", ["rgb", "bgr", "nv12", "none"])
def test_frames_of_another_size_or_type_are_refused_before_anything_is_copied(aipp: str) -> None:
    feeder = feeder_of(SPEC, om(aipp=aipp))
    out = np.zeros(feeder.input_shape, feeder.dtype)
    for frame in (np.zeros((64, 32, 3), np.uint8), np.zeros((32, 64), np.uint8), np.zeros((32, 64, 3), np.float32)):
        with pytest.raises(BadItem):
            feeder.write(frame, out)
    assert not out.any()


def test_the_refusal_of_a_model_without_om_names_the_command() -> None:
    text = no_om(SPEC, "Ascend310P3")
    command = text.split("`")[3]
    words = shlex.split(command)
    assert words[0] == "atc"
    assert "--framework=5" in words
    assert "--model=/models/m.onnx" in words
    assert "--input_shape=images:8,3,32,64" in words
    assert "--soc_version=Ascend310P3" in words
    assert "om: {file: m.om, batch: 8}" in text
    command = atc_command(replace(SPEC, input_layout="nhwc", fixed_batch=2))
    assert "--input_shape=images:2,32,64,3" in command
    assert "--input_format=ND" in command, "for ONNX it is NCHW or ND"
    assert "om: {file: m.om, batch: [1, 4, 8], aipp: rgb}" in text
    assert "--dynamic_batch_size=1,4,8 --insert_op_conf=/models/m.aipp.cfg" in text


def test_an_om_that_is_described_and_missing_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    told = om(path=str(tmp_path / "dir/best.om"), batch=(1, 2, 4), aipp="bgr", soc="Ascend310P1")
    text = missing_om(SPEC, told)
    _, command, _, content, _, file, _ = text.split("`")
    words = shlex.split(command)
    assert f"--output={tmp_path}/dir/best" in words
    assert "--input_format=NCHW" in words
    assert "--input_shape=images:-1,3,32,64" in words
    assert "--dynamic_batch_size=1,2,4" in words
    assert f"--insert_op_conf={file}" in words
    assert "--soc_version=Ascend310P1" in words
    assert content.startswith("aipp_op { aipp_mode: static input_format: RGB888_U8 src_image_size_w: 64 ")
    assert "insert_op_conf" not in missing_om(SPEC, om(path="/no/m.om"))
    assert "set `aipp: none`" in missing_om(replace(SPEC, input_layout="nhwc"), om(path="/no/m.om", aipp="rgb"))
    assert missing_om(SPEC, om(path="")).startswith("model m: its OM file is not there; correct om.file, or convert")
    (tmp_path / "best_linux_aarch64.om").touch()
    assert missing_om(SPEC, om(path=str(tmp_path / "best.om"))).endswith(
        "correct om.file: best_linux_aarch64.om is (atc appends system and processor)"
    )


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize("aipp", ["rgb", "bgr", "nv12"])
@pytest.mark.parametrize(("mean", "std"), [((0.0,) * 3, (255.0,) * 3), ((123.675, 116.28, 103.53), (58.4, 57.1, 57.4))])
def test_the_aipp_file_that_is_printed_makes_an_om_that_is_taken(channels: Any, aipp: Any, mean: Any, std: Any) -> None:
    spec = replace(SPEC, channels=channels, mean=mean, std=std)
    told = om(aipp=aipp)
    words = aipp_config(spec, told).removeprefix("aipp_op { ").removesuffix(" }").split()
    file = {key.removesuffix(":"): value for key, value in zip(words[::2], words[1::2], strict=True)}
    made: dict[str, float] = {
        "inputFormat": {"YUV420SP_U8": 1, "RGB888_U8": 3}[file["input_format"]],
        "cscSwitch": file["csc_switch"] == "true",
        "rbuvSwapSwitch": file["rbuv_swap_switch"] == "true",
    }
    for n in range(3):
        assert file[f"mean_chn_{n}"].isdecimal(), "a byte"
        made[f"meanChn{n}"] = int(file[f"mean_chn_{n}"])
        made[f"minChn{n}"] = float(np.float16(file[f"min_chn_{n}"]))
        made[f"varReciChn{n}"] = float(np.float16(file[f"var_reci_chn_{n}"]))
        assert made[f"meanChn{n}"] + made[f"minChn{n}"] == pytest.approx(mean[n], abs=1e-3)
        for c in range(3) if aipp == "nv12" else ():
            made[f"matrixR{n}C{c}"] = int(file[f"matrix_r{n}c{c}"])
        if aipp == "nv12":
            made[f"inputBias{n}"] = int(file[f"input_bias_{n}"])
    facts = replace(FACTS, picture=NV12 if aipp == "nv12" else PICTURE, aipp=made)
    assert om_problems(spec, told, facts, "Ascend310P3") == []


@pytest.mark.parametrize(
    ("fixed", "most", "batch"),
    [(None, 8, (1, 2, 4, 8)), (None, 1, 1), (None, 2, (1, 2)), (None, 6, (1, 2, 4, 6)), (4, 4, 4), (3, 8, 3)],
)
def test_what_stands_for_an_om_has_the_batches_of_the_model(fixed: int | None, most: int, batch: Any) -> None:
    with ExitStack() as stack:
        told = simulated_om(replace(SPEC, fixed_batch=fixed), most, stack, canned=True)
        written = OmDescription.read(told.path)
    assert told.batch == batch
    assert written.batch == batch
    assert written.onnx == SPEC.path


def vendors_om(body: bytes, length: int | None = None) -> bytes:
    """The beginning of the vendor's form: magic, size of the header, version, checksum, bytes that follow."""
    header = b"IMOD" + struct.pack("<II64xI", 256, 0x10000000, len(body) if length is None else length)
    return header.ljust(256, b"\0") + body


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty; correct om.file"),
        (b"\x08\x07onnx", r"is no OM: it starts with b'\\x08\\x07on'"),
        (b"IMOD\x00\x01cut", "is damaged: it has 9 bytes"),
        (vendors_om(b"half of it", 20), "is damaged: it has 266 bytes, and its header speaks of 276; copy it again"),
        (b"{}", '"campipe_om": 1 is missing'),
        (b'{"campipe_om": 1, "onnx": "a", "batch": "4"}', "batch is '4'; give a whole number"),
        (b'{"campipe_om": 1, "onnx"', "is no description of a simulated OM"),
        (b"{\xff", "can't be read as text"),
        (None, "is not there; correct om.file"),
    ],
)
def test_an_om_that_is_damaged_or_missing_is_refused_and_not_replaced_by_the_onnx_file(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "m.om"
    if content is not None:
        file.write_bytes(content)
    spec = replace(SPEC, om=OmSpec(str(file), "", 4))
    with ExitStack() as stack, pytest.raises(UserError, match=says) as caught:
        simulated_om(spec, 4, stack, canned=True)
    assert f"model {SPEC.name}: om: OM {file}" in str(caught.value)


def test_what_stands_for_an_om_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack, caplog.at_level("INFO"):
        simulated_om(SPEC, 4, stack, canned=True)
    (line,) = caplog.messages
    assert "simulated from its ONNX file, with batch (1, 2, 4): its description names no OM" in line


def test_a_real_om_is_simulated_from_what_its_description_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    real = tmp_path / "m.om"
    real.write_bytes(vendors_om(b"binary"))
    spec = replace(SPEC, om=OmSpec(str(real), "", (1, 4), "bgr", "Ascend310P1"))
    with ExitStack() as stack, caplog.at_level("INFO"):
        told = simulated_om(spec, 4, stack, canned=True)
        written = OmDescription.read(told.path)
    assert not Path(told.path).exists(), "nothing is left"
    assert (written.batch, written.soc) == ((1, 4), "Ascend310P1")
    assert written.aipp is not None
    assert (written.aipp.input, written.aipp.rbuv_swap) == ("RGB888_U8", True)
    assert told.aipp == "bgr"
    (line,) = caplog.messages
    assert "is for a card, and only what its description says of it is simulated" in line
