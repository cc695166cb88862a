"""The backend on modules that differ as versions of CANN do: what they lack, refuse, count, or read more strictly."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ascend.driving import in_threads, run_batches, tiny_spec
from ascend.plain_vendor import PlainVendor

from stages.accelerators import aclsim
from stages.accelerators.accelerator import RunTimes
from stages.accelerators.ascend import device as device_module
from stages.accelerators.ascend.device import AscendDevice
from stages.accelerators.ascend.options import ascend_options
from stages.errors import DeviceFailed, UserError
from stages.model import ModelSpec, OmSpec


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainVendor]:
    made = PlainVendor(at_once=True)
    monkeypatch.setitem(sys.modules, "acl", made.acl)
    monkeypatch.setenv("ASCEND_COREDUMP_SIGNAL", "none")
    yield made
    made.close()


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    onnx = tiny_spec(tmp_path)
    om = tmp_path / "tiny.om"
    aclsim.describe(onnx.path, batch=(1, 4)).write(om)
    return tiny_spec(tmp_path, OmSpec(str(om), "", (1, 4)))


def open_card(executors: int = 1) -> AscendDevice:
    options = ascend_options("ascend:0", {}, simulated=False)
    device = AscendDevice("ascend:0", options, executors, 2, time.monotonic_ns, {})
    device.open()
    return device


def play(spec: ModelSpec, executors: int = 1) -> None:
    """Open, load, some batches on each executor in a thread of its own, close."""
    device = open_card(executors)

    def work() -> None:
        lanes = device.lanes(2)
        try:
            told = run_batches(lanes, spec, 6, 3, 2)
            assert all(isinstance(outcome, RunTimes) for _, outcome in told), told
            assert all(np.isfinite(output).all() for outputs, _ in told for output in outputs)
        finally:
            lanes.close()

    try:
        device.load(spec, 4)
        assert in_threads([work] * executors) == []
    finally:
        device.close()


def test_the_device_is_reset_once_by_whoever_opened_it_and_no_default_context_is_used(
    vendor: PlainVendor, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where resets are not counted against sets, an executor that ended first took the device from the others."""
    calls: Counter[str] = Counter()
    order: list[str] = []
    made: set[int] = set()
    opener = threading.get_ident()
    rt = vendor.acl.rt

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls[name] += 1
            order.append(name)
            if name in ("set_device", "reset_device"):
                assert threading.get_ident() == opener
            if name == "set_context":
                assert args[0] in made, "the default context may not be set"
            answer = real(*args)
            if name == "create_context":
                made.add(answer[0])
            return answer

        return call

    for name in ("set_device", "reset_device", "get_context", "set_context", "create_context", "destroy_context"):
        monkeypatch.setattr(rt, name, watched(name, getattr(rt, name)))
    play(spec, executors=3)
    assert (calls["set_device"], calls["reset_device"], calls["get_context"]) == (1, 1, 0)
    assert calls["create_context"] == calls["destroy_context"] == 4
    assert order[-1] == "reset_device"
    assert not vendor.blocks


@pytest.mark.parametrize(
    ("group", "name", "answer"),
    [
        ("mdl", "get_aipp_type", (0, 0, 145015)),
        ("rt", "set_stream_failure_mode", 207000),
        ("rt", "get_mem_info", (0, 0, 207000)),
    ],
)
def test_what_a_version_refuses_to_tell_or_to_set_does_not_keep_it_from_running(
    vendor: PlainVendor,
    spec: ModelSpec,
    group: str,
    name: str,
    answer: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(getattr(vendor.acl, group), name, lambda *_: answer, raising=False)
    play(spec)
    if name != "get_mem_info":
        assert f"acl.{group}.{name} returned" in caplog.text, "it is told"
    device = open_card()
    assert device.facts()[0].startswith("ascend:0: Ascend310P3")
    device.close()


def test_free_memory_that_can_not_be_read_is_told_once_not_for_months(
    vendor: PlainVendor, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vendor.acl.rt, "get_mem_info", lambda *_: (0, 0, 207000))
    options = ascend_options("ascend:0", {"sample_every": "1"}, simulated=False)
    device = AscendDevice("ascend:0", options, 1, 2, time.monotonic_ns, {})
    device.open()
    try:
        device.load(spec, 4)
        lanes = device.lanes(2)
        run_batches(lanes, spec, 6, 3, 2)
        lanes.close()
    finally:
        device.close()
    assert caplog.text.count("its free memory can't be read") == 1


def test_where_a_model_of_several_batches_takes_no_memory_of_ours_the_loader_manages_it(
    vendor: PlainVendor, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ "Open shapes" are documented to be refused, and whether these are of them is not."""
    mdl = vendor.acl.mdl
    loaded: list[str] = []
    load = mdl.load_from_file
    monkeypatch.setattr(mdl, "load_from_file_with_mem", lambda *_: loaded.append("with") or (0, 145000))
    monkeypatch.setattr(mdl, "load_from_file", lambda path: loaded.append("without") or load(path))
    device = open_card()
    device.load(spec, 4)
    assert not any("weights" in each.name or "work" in each.name for each in device.runtime.register.held())
    device.close()
    assert loaded == ["with", "without", "without"], "the second set is not tried again"
    assert "acl.mdl.load_from_file_with_mem returned 145000" in caplog.text
    play(spec)
    assert not vendor.blocks
    monkeypatch.setattr(mdl, "load_from_file_with_mem", lambda *_: (0, 207001))
    with pytest.raises(UserError, match="207001"):
        play(spec)


def test_a_static_model_is_not_asked_for_gears_and_longer_lists_than_counts_are_cut(
    vendor: PlainVendor, spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mdl = vendor.acl.mdl
    for name in ("get_input_dims", "get_output_dims"):
        real = getattr(mdl, name)

        def padded(desc: int, index: int, real: Callable[..., Any] = real) -> Any:
            dims, code = real(desc, index)
            return {**dims, "dims": dims["dims"] + [0] * (128 - dims["dimCount"])}, code

        monkeypatch.setattr(mdl, name, padded)
    real_gears = mdl.get_dynamic_batch
    monkeypatch.setattr(
        mdl,
        "get_dynamic_batch",
        lambda desc: ({"batchCount": 2, "batch": real_gears(desc)[0]["batch"] + [0] * 126}, 0),
    )
    play(spec)
    om = tmp_path / "static.om"
    aclsim.describe(spec.path, batch=4).write(om)
    monkeypatch.setattr(mdl, "get_dynamic_batch", lambda desc: ({}, 100019))
    play(tiny_spec(tmp_path, OmSpec(str(om), "", 4)))


def test_another_tuple_than_documented_is_told_by_the_functions_name(
    vendor: PlainVendor, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor.acl.mdl, "get_input_dims", lambda *_: {"dimCount": 0})
    with pytest.raises(
        DeviceFailed, match=r"acl\.mdl\.get_input_dims takes or gives something else than is documented"
    ):
        play(spec)
    monkeypatch.setattr(vendor.acl.rt, "malloc_host", lambda size, flag, /: (0, 0))
    device = open_card()
    with pytest.raises(DeviceFailed, match=r"acl\.rt\.malloc_host takes or gives"), device.owner.pinned_memory("p", 64):
        pass
    device.close()


@pytest.mark.parametrize("missing", [[], ["there is no /dev/davinci0 here: the driver is not loaded"]])
def test_no_device_at_all_is_told_as_that(
    vendor: PlainVendor, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "numbered from 0 to -1; use ascend:-1 or less"."""
    monkeypatch.setattr(device_module, "missing_here", lambda: missing)
    monkeypatch.setattr(vendor.acl.rt, "get_device_count", lambda: (0, 0))
    with pytest.raises(UserError, match="no device can be used: ") as caught:
        open_card()
    assert ("/dev/davinci0" if missing else "npu-smi info") in str(caught.value)


def test_a_device_that_can_not_be_opened_is_told_with_what_is_seen_to_be_missing(
    vendor: PlainVendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code of the driver alone made the engine start process after process."""
    monkeypatch.setattr(vendor.acl.rt, "get_device_count", lambda: (0, 507899))
    monkeypatch.setattr(device_module, "missing_here", lambda: ["this user may not use /dev/davinci0: let it be"])
    with pytest.raises(UserError, match=r"may not use /dev/davinci0.*507899 DRV_INTERNAL_ERROR"):
        open_card()
    monkeypatch.setattr(device_module, "missing_here", list)
    with pytest.raises(DeviceFailed, match="507899"):
        open_card()
    monkeypatch.setattr(device_module, "versions_here", lambda environ: "driver 23.0, CANN in /opt/cann")
    monkeypatch.setattr(vendor.acl.rt, "get_device_count", lambda: (1, 0))
    monkeypatch.setattr(vendor.acl.rt, "set_device", lambda device: 507033)
    with pytest.raises(UserError, match=r"507033 DEV_SETUP_ERROR.*\(here: driver 23\.0, CANN in /opt/cann\)"):
        open_card()
