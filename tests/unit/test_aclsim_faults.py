"""Failures on demand: how scripts are read, what they strike, where they surface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.aclsim_rig import Rig, good, write_om

from stages.accelerators.aclsim import SimOptions, Simulation, simulate
from stages.accelerators.aclsim.contract import CONTRACT
from stages.accelerators.aclsim.machine.faults import read_fault
from stages.errors import UserError


@pytest.mark.parametrize(
    ("text", "kind", "call", "nth", "after", "code"),
    [
        ("fail the 7th execute_async with 507018", "fail", "mdl.execute_async", 7, 0, 507018),
        ("fail the 1st init with 500000", "fail", "init", 1, 0, 500000),
        ("fail every memcpy_async with 507899 after 100", "fail", "rt.memcpy_async", 0, 100, 507899),
        ("fail  each\tmalloc with 207001", "fail", "rt.malloc", 0, 0, 207001),
        ("hang the 3rd execute_async", "hang", "mdl.execute_async", 3, 0, 207001),
        ("slow execute_async by 3", "slow", "mdl.execute_async", 0, 0, 207001),
        ("out of memory at malloc 5", "fail", "rt.malloc", 5, 0, 207001),
        ("fail the 2nd media.dvpp_malloc with 207001", "fail", "media.dvpp_malloc", 2, 0, 207001),
        ("fail the 22nd create_data_buffer with 1", "fail", "create_data_buffer", 22, 0, 1),
    ],
)
def test_scripts(text: str, kind: str, call: str, nth: int, after: int, code: int) -> None:
    fault = read_fault(text)
    assert (fault.kind, fault.call, fault.nth, fault.after, fault.code) == (kind, call, nth, after, code)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fail execute_async", "write fail the 7th CALL"),
        ("fail the 7th exceute_async with 507018", "did you mean execute_async"),
        ("fail the 0th execute_async with 507018", "counted from 1"),
        ("hang the 3rd malloc", "does no work"),
        ("fail the 1st execute_async with 507018 once", "state_path"),
        ("", "write fail"),
    ],
)
def test_wrong_scripts_name_the_remedy(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        simulate(SimOptions(faults=(text,)))


def rig_with(tmp_path: Path, *faults: str, **options: object) -> tuple[Simulation, Rig]:
    sim = simulate(SimOptions(compute="canned", faults=faults, lenient=True, **options))
    good(sim.acl.init())
    return sim, Rig(sim.acl, write_om(tmp_path, service_ms={1: 2.0}))


def test_work_fails_where_it_is_waited_for(tmp_path: Path) -> None:
    sim, rig = rig_with(tmp_path, "fail the 2nd execute_async with 507011")
    slot = rig.slot()
    compute = rig.streams[1]
    for code in (0, 507011, 0):
        assert sim.acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, compute) == 0
        assert sim.acl.rt.synchronize_stream(compute) == code
        assert sim.acl.rt.synchronize_stream(rig.streams[0]) == 0
    message = sim.acl.get_recent_err_msg()
    assert message
    assert "507011" in message
    assert sim.acl.get_recent_err_msg() is None
    sim.close()


def test_the_outputs_of_a_failed_run_stay_poison(tmp_path: Path) -> None:
    sim, rig = rig_with(tmp_path, "fail every execute_async with 507011")
    acl, slot = sim.acl, rig.slot()
    size = slot.made[0][1]
    good(acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]))
    assert acl.rt.synchronize_stream(rig.streams[1]) == 507011
    good(acl.rt.memcpy(slot.pinned_out, size, slot.made[0][0], size, 2))
    assert np.isnan(np.frombuffer(acl.util.ptr_to_bytes(slot.pinned_out, size), np.float32)).all()
    sim.close()


@pytest.mark.parametrize("code", [507018, 507899, 507010])
def test_a_lost_device_answers_with_its_code_until_it_is_reset(tmp_path: Path, code: int) -> None:
    sim, rig = rig_with(tmp_path, f"fail the 1st execute_async with {code}")
    acl, slot = sim.acl, rig.slot()
    good(acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]))
    assert acl.rt.synchronize_stream(rig.streams[1]) == code
    assert acl.rt.synchronize_stream(rig.streams[0]) == code
    assert acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]) == code
    assert acl.rt.query_device_status(0) == (1, 0)
    good(acl.rt.free(slot.fed[0][0]))
    good(acl.rt.reset_device_force(0))
    good(acl.rt.set_device(0))
    good(acl.rt.create_stream())
    assert acl.rt.query_device_status(0) == (0, 0)
    sim.close()


def test_refusals_come_at_once(tmp_path: Path) -> None:
    sim, rig = rig_with(
        tmp_path, "fail the 2nd execute_async with 207005", "fail the 3rd execute_async with 507011 on submit"
    )
    slot = rig.slot()
    codes = [sim.acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]) for _ in range(4)]
    assert codes == [0, 207005, 507011, 0]
    sim.close()


def test_slow_is_slow(tmp_path: Path) -> None:
    sim, rig = rig_with(tmp_path, "slow execute_async by 3")
    slot = rig.slot()
    good(sim.acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]))
    good(sim.acl.rt.synchronize_stream(rig.streams[1]))
    (interval,) = sim.machine.trace.intervals()
    assert interval.end_ns - interval.start_ns == 6_000_000
    sim.close()


def test_stop_on_failure_drops_what_follows(tmp_path: Path) -> None:
    sim, rig = rig_with(tmp_path, "fail the 1st execute_async with 507011")
    acl, slot = sim.acl, rig.slot()
    good(acl.rt.set_stream_failure_mode(rig.streams[1], 1))
    good(acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]))
    assert acl.rt.synchronize_stream(rig.streams[1]) == 507011
    assert acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]) == 507011
    sim.close()


def test_the_exception_callback_is_told(tmp_path: Path) -> None:
    sim, rig = rig_with(tmp_path, "fail the 1st execute_async with 507011")
    acl, slot, told = sim.acl, rig.slot(), []
    good(acl.rt.set_exception_info_callback(lambda info: told.append(acl.rt.get_error_code_from_exception_info(info))))
    good(acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]))
    acl.rt.synchronize_stream(rig.streams[1])
    assert told == [507011]
    sim.close()


def test_once_is_remembered_across_processes(tmp_path: Path) -> None:
    state = str(tmp_path / "state.json")
    codes = []
    for _ in range(2):
        with simulate(
            SimOptions(faults=("fail the 1st set_device with 507033 once",), state_path=state, lenient=True)
        ) as sim:
            good(sim.acl.init())
            codes.append(sim.acl.rt.set_device(0))
    assert codes == [507033, 0]


ARGUMENTS = {"k": 0, "i": 0, "I": 0, "K": 0, "s": "x", "O": None, "f": 0.0}


@pytest.mark.parametrize("call", [c for c in CONTRACT.values() if c.simulated and c.code_last], ids=lambda c: c.name)
def test_every_call_can_fail(call) -> None:
    with simulate(
        SimOptions(
            faults=(f"fail the 1st {call.name} with 500000",)
            if "." not in call.name or call.name.split(".")[0] in ("media", "himpi", "prof")
            else (f"fail the 1st {call.name.split('.')[1]} with 500000 on submit",),
            check=False,
        )
    ) as sim:
        part, _, name = call.name.rpartition(".")
        function = getattr(getattr(sim.acl, part) if part else sim.acl, name)
        result = function(*(ARGUMENTS[letter] for letter in call.classes[: call.required]))
        assert call.code_of(result) == 500000
        if len(call.results) > 1:
            assert len(result) == len(call.results)
