"""Section ``om`` of a model's description, and what it decides: which files must be there, the batch of a plan."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import load_site, resolve
from pipeline.planning import draft_plan
from stages.errors import UserError
from stages.model import ModelSpec, OmSpec

MODEL = """\
file: m.onnx
input: {width: 64, height: 32}
layout: yolov8
labels: [a, b]
outputs: [{name: boxes, shape: [6, 42]}]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CAMPIPE_MODELS", raising=False)
    for name in ("clip.mp4", "m.onnx", "m.om"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def site_of(
    here: Path, om: str, device: str = "ascend:0", more: str = "", model: str = MODEL, lanes: str = "auto"
) -> Any:
    (here / "m.yaml").write_text(f"{model}om: {om}\n" if om else model)
    text = f"models: {{m: m.yaml}}\ndevices: {{device: '{device}', lanes: {lanes}}}\n"
    text += "cameras: [{name: a, source: {url: clip.mp4}, "
    (here / "site.yaml").write_text(f"{text}model: m}}]\n{more}")
    return load_site(here / "site.yaml")


def model_of(here: Path, om: str, **changes: str) -> ModelSpec:
    (model,) = resolve(site_of(here, om, **changes)).models
    return model


def test_everything_stated_arrives(here: Path) -> None:
    digest = hashlib.sha256(b"m.om").hexdigest()
    om = f"{{file: m.om, sha256: '{digest}', batch: [1, 2, 8], aipp: bgr, soc: Ascend310P3}}"
    assert model_of(here, om).om == OmSpec(str(here / "m.om"), digest, (1, 2, 8), "bgr", "Ascend310P3")
    assert model_of(here, "{file: m.om, batch: 4}").om == OmSpec(str(here / "m.om"), "", 4)
    assert model_of(here, "").om is None


@pytest.mark.parametrize("device", ["ascend:0", "ascend-sim:0"])
def test_a_card_and_its_simulator_need_the_file_that_is_named(here: Path, device: str) -> None:
    with pytest.raises(UserError, match=r"m\.yaml:6:.*om\.file: model file other\.om is not here.*\(atc\)"):
        model_of(here, "{file: other.om, batch: 4}", device=device)
    with pytest.raises(UserError, match="has sha256"):
        model_of(here, f"{{file: m.om, batch: 4, sha256: '{'0' * 64}'}}", device=device)


@pytest.mark.parametrize("device", ["cpu", "canned:0"])
def test_others_do_without(here: Path, device: str) -> None:
    om = model_of(here, "{file: other.om, batch: 4}", device=device).om
    assert om == OmSpec("", "", 4)


@pytest.mark.parametrize(
    ("om", "says"),
    [
        ("{batch: 4}", "om.file: is missing"),
        ("{file: m.om}", "om.batch: is missing"),
        ("{file: m.om, batch: 0}", "om.batch: 0: "),
        ("{file: m.om, batch: [4]}", "om.batch"),
        ("{file: m.om, batch: [4, 2]}", "ascending"),
        ("{file: m.om, batch: [1, 1]}", "ascending"),
        ("{file: m.om, batch: dynamic}", "om.batch"),
        ("{file: m.om, batch: 4, aipp: yuv}", "om.aipp"),
        ("{file: m.om, batch: 4, aip: rgb}", "did you mean 'aipp'?"),
        ("m.om", "should be a map of keys, not text"),
    ],
)
def test_mistakes_are_told_with_their_remedy(here: Path, om: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        site_of(here, om)
    assert says in str(caught.value)


def test_nv12_of_an_odd_size_is_refused(here: Path) -> None:
    with pytest.raises(UserError, match="NV12 needs even ones"):
        site_of(here, "{file: m.om, batch: 1, aipp: nv12}", model=MODEL.replace("64", "65"))


@pytest.mark.parametrize(
    ("om", "device", "more", "model", "batch"),
    [
        ("{file: m.om, batch: 4}", "ascend:0", "", "", 4),
        ("{file: m.om, batch: 4}", "ascend-sim:0", "batch: {max_batch: 16}", "", 4),
        ("{file: m.om, batch: 4}", "ascend:0", "batch: {max_batch: 2}", "", 4),
        ("{file: m.om, batch: [1, 4]}", "ascend:0", "", "", 4),
        ("{file: m.om, batch: [1, 4]}", "ascend:0", "batch: {max_batch: 2}", "", 2),
        ("{file: m.om, batch: [1, 4]}", "ascend:0", "batch: {max_batch: 16}", "", 4),
        ("{file: m.om, batch: 4}", "ascend:0", "", "batch: 1\n", 4),
        ("{file: m.om, batch: 4}", "cpu", "", "", 1),
        ("{file: m.om, batch: 4}", "cpu", "", "batch: 2\n", 2),
        ("", "ascend-sim:0", "", "", 8),
    ],
)
def test_the_om_decides_the_batch_where_it_runs(
    here: Path, om: str, device: str, more: str, model: str, batch: int
) -> None:
    plan = draft_plan(resolve(site_of(here, om, device, more, MODEL + model)))
    assert plan.batch["m"].max_batch == batch


@pytest.mark.parametrize(
    ("device", "more", "asked", "lanes"),
    [
        ("ascend:0", "batch: {max_batch: 1}", "auto", 3),
        ("ascend:0", "batch: {max_batch: 2}", "auto", 2),
        ("ascend:0", "", "auto", 2),
        ("cpu", "batch: {max_batch: 1}", "auto", 2),
        ("ascend:0", "batch: {max_batch: 1}", "2", 2),
        ("ascend:0", "", "4", 4),
    ],
)
def test_batches_of_one_have_a_lane_more_for_what_is_copied_beside_what_is_computed(
    here: Path, device: str, more: str, asked: str, lanes: int
) -> None:
    plan = draft_plan(resolve(site_of(here, "{file: m.om, batch: [1, 2, 4]}", device, more, lanes=asked)))
    (device_plan,), under_way = plan.devices, lanes * plan.devices[0].executors
    assert device_plan.lanes == lanes
    assert plan.output_slots == {"m": under_way + plan.nms_workers + 1}
    assert plan.frame_slots == {"a": under_way * plan.batch["m"].max_batch + 2}


@pytest.mark.parametrize(
    ("device", "limits", "start_ms"),
    [("cpu", "", 30_000), ("ascend-sim:0", "", 30_000), ("ascend:0", "", 180_000), ("ascend:0", "20000", 20_000)],
)
def test_a_card_may_take_longer_to_start(here: Path, device: str, limits: str, start_ms: int) -> None:
    """Its first use in a process ships operators, and models are loaded and warmed up: often more than 30 s."""
    more = f"limits: {{start_ms: {limits}}}\n" if limits else ""
    assert resolve(site_of(here, "{file: m.om, batch: 4}", device, more)).limits.start_ms == start_ms
