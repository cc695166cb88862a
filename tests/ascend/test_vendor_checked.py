"""The backend on a module like the vendor's that checks nothing, with the sanitizer around it: ``vendor+checked``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ascend.driving import room, run_batches, tiny_spec
from ascend.plain_vendor import PlainVendor

from stages.accelerators import aclsim
from stages.accelerators.accelerator import RunTimes
from stages.accelerators.ascend.device import AscendDevice
from stages.accelerators.ascend.options import ascend_options
from stages.errors import UserError
from stages.model import OmSpec


@pytest.fixture(params=[True, False], ids=["at-once", "threads"])
def vendor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlainVendor]:
    made = PlainVendor(request.param)
    monkeypatch.setitem(sys.modules, "acl", made.acl)
    yield made
    made.close()


@pytest.mark.parametrize("batch", [4, (1, 2, 4, 8)], ids=["fixed", "gears"])
@pytest.mark.parametrize("variant", ["A", "B"])
def test_the_backend_passes(
    vendor: PlainVendor,
    variant: str,
    batch: int | tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = tiny_spec(tmp_path)
    om = tmp_path / "tiny.om"
    aclsim.describe(spec.path, batch=batch).write(om)
    spec = tiny_spec(tmp_path, OmSpec(str(om), "", batch))
    checked: list[aclsim.CheckedModule] = []
    make = aclsim.check

    def check(*args: object, **keywords: object) -> aclsim.CheckedModule:
        checked.append(make(*args, **keywords))  # type: ignore[arg-type]
        return checked[-1]

    monkeypatch.setattr(aclsim, "check", check)
    options = ascend_options("ascend:0", {"variant": variant}, simulated=False)
    device = AscendDevice("ascend:0", options, 1, 2, time.monotonic_ns, {"CAMPIPE_ACL": "vendor+checked"})
    device.open()
    device.load(spec, 8)
    lanes = device.lanes(2)
    told = run_batches(lanes, spec, 30, 7, 2)
    lanes.close()
    device.close()
    assert all(isinstance(outcome, RunTimes) for _, outcome in told), told
    assert all(np.isfinite(output).all() for outputs, _ in told for output in outputs)
    assert len(told[0][0]) == len(room(spec, 7))
    assert len(checked) == 1  # the sanitizer was there
    assert not checked[0].violations, checked[0].report()
    assert "sanitizer" not in caplog.text
    assert not vendor.blocks, "memory is left"


def test_without_the_module_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "acl", None)
    options = ascend_options("ascend:0", {}, simulated=False)
    with pytest.raises(UserError, match=r"set_env\.sh"):
        AscendDevice("ascend:0", options, 1, 2, time.monotonic_ns, {}).open()
