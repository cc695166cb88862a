"""Return codes: what they mean, which error they become, and the one place that checks them."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from stages.accelerators.aclsim import codes as simulated
from stages.accelerators.ascend import errors
from stages.accelerators.ascend.calls import CALLS, OPTIONAL, Acl, Gives
from stages.accelerators.ascend.codes import CODES, code_facts
from stages.errors import DeviceFailed, UserError


def test_the_simulator_and_the_backend_mean_the_same_by_each_code() -> None:
    prefixes = ("RT_", "GE_")
    compared = 0
    for name, value in vars(simulated).items():
        if not name.isupper() or not isinstance(value, int) or not 100_000 <= value < 600_000:
            continue
        bare = next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)
        assert value in CODES, f"{name} = {value} has no meaning here"
        told = CODES[value].name
        assert bare in told or told in bare, f"{value}: {name} there, {told} here"
        compared += 1
    assert compared > 40


@pytest.mark.parametrize(
    ("code", "call", "kind", "users", "new_process"),
    [
        (107002, "rt.malloc", errors.ContextMissing, False, False),
        (100001, "rt.set_device", errors.ContextMissing, False, False),
        (100002, "init", errors.RepeatedInit, False, False),
        (207001, "rt.malloc", errors.OutOfMemory, True, False),
        (245002, "mdl.load_from_file", errors.OutOfMemory, True, False),
        (207008, "rt.create_stream", errors.NothingLeft, True, False),
        (107001, "rt.set_device", errors.WrongDevice, True, False),
        (207004, "rt.get_device_count", errors.WrongDevice, True, False),
        (545001, "mdl.load_from_file", errors.WrongModel, True, False),
        (500002, "mdl.load_from_file_with_mem", errors.WrongModel, True, False),
        (500002, "mdl.execute_async", errors.AclError, False, False),
        (507033, "rt.set_device", errors.VersionMismatch, True, True),
        (507018, "rt.stream_query", errors.DeviceLost, False, True),
        (507899, "rt.memcpy_async", errors.DeviceLost, False, True),
        (507047, "rt.query_event_status", errors.DeviceHung, False, True),
        (507011, "rt.stream_query", errors.AclError, False, False),
        (999999, "rt.free", errors.AclError, False, False),
    ],
)
def test_each_code_becomes_its_named_error(
    code: int, call: str, kind: type[errors.AclError], users: bool, new_process: bool
) -> None:
    error = errors.error_of(code, call, "the device's\n own  words")
    assert type(error) is kind
    assert isinstance(error, DeviceFailed)
    assert (error.users, error.needs_new_process) == (users, new_process)
    text = str(error)
    assert text.startswith(f"acl.{call} returned {code} {code_facts(code).name}: {code_facts(code).meaning}")
    assert "(the device's own words)" in text
    assert "\n" not in text
    if code_facts(code).remedy:
        assert text.endswith(code_facts(code).remedy)
    assert isinstance(errors.mendable(error, "device ascend:0"), UserError) is users
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), text)


def fake(**returns: Any) -> SimpleNamespace:
    """A module whose functions succeed, or give what ``returns`` says, by their last names."""
    good = {Gives.CODE: 0, Gives.VALUE: (1, 0), Gives.PAIR: (1, 2, 0), Gives.HANDLE: 5, Gives.PLAIN: "x"}
    module = SimpleNamespace(rt=SimpleNamespace(), mdl=SimpleNamespace(), get_recent_err_msg=lambda: "said before")
    for name, gives in CALLS.items():
        group, _, last = name.rpartition(".")
        value = returns.get(last, good[gives])
        setattr(getattr(module, group) if group else module, last, lambda *args, value=value: value)
    return module


def test_a_call_gives_what_the_vendor_gives_without_the_code() -> None:
    acl = Acl(fake())
    assert acl.init() is None
    assert acl.rt.malloc(1, 0) == 1
    assert acl.rt.get_mem_info(0) == (1, 2)
    assert acl.mdl.create_desc() == 5
    assert acl.get_soc_name() == "x"


@pytest.mark.parametrize(
    ("returns", "call", "code"),
    [
        ({"init": 100002}, lambda acl: acl.init(), 100002),
        ({"malloc": (0, 207001)}, lambda acl: acl.rt.malloc(1, 0), 207001),
        ({"get_mem_info": (0, 0, 107002)}, lambda acl: acl.rt.get_mem_info(0), 107002),
        ({"create_dataset": 0}, lambda acl: acl.mdl.create_dataset(), 500001),
    ],
)
def test_every_shape_of_result_is_checked_and_told_with_the_recent_text(
    returns: dict[str, Any], call: Any, code: int
) -> None:
    with pytest.raises(errors.AclError, match="said before") as caught:
        call(Acl(fake(**returns)))
    assert caught.value.code == code


def test_a_name_that_is_not_in_the_table_can_not_be_called() -> None:
    acl = Acl(fake())
    with pytest.raises(AttributeError, match="set_dump"):
        acl.set_dump()
    with pytest.raises(AttributeError):
        acl.rt.host_register(1, 2, 3)


def test_a_module_that_is_too_old_is_refused_by_the_names_that_it_lacks() -> None:
    module = fake()
    del module.rt.query_event_status
    with pytest.raises(UserError, match=r"no rt\.query_event_status; install CANN"):
        Acl(module)
    module = fake()
    for name in OPTIONAL:
        group, _, last = name.rpartition(".")
        delattr(getattr(module, group), last)
    assert Acl(module).rt.stream_query is None
