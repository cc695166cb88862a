"""The simulated module: names, signatures, result tuples, codes, as the vendor's documents tell them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.aclsim_rig import D2H, H2D, Rig, good, write_om

from stages.accelerators.aclsim import SimOptions, Simulation, codes, simulate
from stages.accelerators.aclsim.contract import CONTRACT
from stages.accelerators.ascend.codes import CODES
from stages.errors import UserError


@pytest.fixture
def sim():
    with simulate(SimOptions(compute="canned", check=False, devices=2)) as simulation:
        good(simulation.acl.init())
        yield simulation


@pytest.fixture
def acl(sim: Simulation) -> Any:
    good(sim.acl.rt.set_device(0))
    return sim.acl


def test_the_backend_has_the_same_numbers() -> None:
    mine = {name: value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}
    for name, number in mine.items():
        if number >= 100000:
            assert CODES[number].name in {name, re.sub("^(RT|GE)_", "", name)}


@pytest.mark.parametrize("call", [c for c in CONTRACT.values() if c.simulated], ids=lambda c: c.name)
def test_signatures(sim: Simulation, call) -> None:
    part, _, name = call.name.rpartition(".")
    function = getattr(getattr(sim.acl, part) if part else sim.acl, name)
    with pytest.raises(TypeError, match="keyword"):
        function(unknown=1)
    with pytest.raises(TypeError, match=r"takes exactly|at most"):
        function(*[0] * (len(call.classes) + 1))
    for index, letter in enumerate(call.classes):
        args: list[Any] = ["x" if c == "s" else 0 for c in call.classes]
        for wrong in {"s": [b"x", Path("x")], "i": [None, 1.0, "x"], "O": []}.get(
            letter, [None, 1.0, np.int64(1), (1, 0)]
        ):
            args[index] = wrong
            with pytest.raises(TypeError, match=re.escape(call.arguments[index])):
                function(*args)


def test_parser_classes(acl: Any) -> None:
    with pytest.raises(OverflowError):
        acl.rt.malloc(64, 1 << 31)
    with pytest.raises(ValueError, match="null"):
        acl.mdl.load_from_file("a\0b")
    address = good(acl.rt.malloc(64, np.int32(0)))  # an enum takes whatever has an index
    good(acl.rt.free(address))
    assert acl.rt.malloc(True, 0)[1] == 0


@pytest.mark.parametrize(
    "name", ["GDDR_MEM", "ACL_MEMCPY_HOST_TO_DEVICE", "rt.register_mem", "rt.malloc_from_mem", "mdl.execute_v2"]
)
def test_names_that_do_not_exist(sim: Simulation, name: str) -> None:
    part, _, last = name.rpartition(".")
    with pytest.raises(AttributeError, match=last):
        getattr(getattr(sim.acl, part) if part else sim.acl, last)


def test_newer_names_can_be_missing() -> None:
    with simulate(SimOptions(missing=("rt.create_event_ex_with_flag",))) as old:
        assert not hasattr(old.acl.rt, "create_event_ex_with_flag")
        assert hasattr(old.acl.rt, "create_event_with_flag")
        assert not old.checker.violations


def test_life_of_the_process(sim: Simulation) -> None:
    acl = sim.acl
    assert acl.init() == 100002
    assert acl.finalize_reference() == (1, 0)
    assert acl.finalize() == 0
    assert acl.finalize() == 100037
    assert acl.init() == 0
    assert acl.init("/no/such/acl.json") == 100003
    assert acl.rt.get_device_count() == (2, 0)
    assert acl.rt.get_run_mode() == (1, 0)
    assert acl.get_soc_name() == "Ascend310P3"


@pytest.mark.parametrize(
    ("text", "devices", "count"), [("1,0", 2, 2), ("1", 2, 1), ("0,7,1", 2, 1), ("0,0", 2, 1), ("", 2, 0)]
)
def test_visible_devices(monkeypatch: pytest.MonkeyPatch, text: str, devices: int, count: int) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", text)
    with simulate(SimOptions(devices=devices, check=False)) as sim:
        assert sim.acl.rt.get_device_count()[0] == count
        assert sim.acl.rt.set_device(count) == (107001 if count else 207004)
        if text == "1,0":
            assert sim.machine.devices[0].physical == 1


def test_contexts(sim: Simulation) -> None:
    acl = sim.acl
    assert acl.rt.get_context() == (0, 107002)
    assert acl.rt.malloc(1, 0) == (0, 107002)
    assert acl.rt.set_device(7) == 107001
    good(acl.rt.set_device(0))
    default = good(acl.rt.get_context())
    stream = good(acl.rt.create_stream())
    own = good(acl.rt.create_context(1))
    assert acl.rt.get_context() == (own, 0)
    assert acl.rt.get_device() == (1, 0)
    assert acl.rt.synchronize_stream(stream) == 107003
    assert acl.rt.destroy_context(default) == 107000
    good(acl.rt.destroy_context(own))
    assert acl.rt.get_context() == (0, 107002)
    assert acl.rt.set_context(own) == 107002
    good(acl.rt.set_context(default))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(acl.rt.get_context()))
    thread.start()
    thread.join()
    assert seen == [(0, 107002)]
    good(acl.rt.set_device(0))
    good(acl.rt.reset_device(0))
    good(acl.rt.synchronize_stream(stream))  # counted: the device is still set
    good(acl.rt.reset_device(0))
    assert acl.rt.synchronize_stream(stream) == 107002
    assert acl.rt.reset_device(0) == 107001


def test_streams_run_out(acl: Any) -> None:
    streams = []
    while (result := acl.rt.create_stream())[1] == 0:
        streams.append(result[0])
    assert result == (0, 207008)
    assert len(streams) == 1024 - 2  # a context takes two
    assert acl.rt.get_stream_available_num() == (0, 0)
    for stream in streams:
        good(acl.rt.destroy_stream(stream))


def test_events_run_out(acl: Any) -> None:
    events = [good(acl.rt.create_event_with_flag(1)) for _ in range(1023)]
    assert acl.rt.create_event_with_flag(1) == (0, 207007)
    good(acl.rt.create_event())  # takes its place when it is recorded
    for event in events:
        good(acl.rt.destroy_event(event))


def test_events(acl: Any) -> None:
    stream, other = good(acl.rt.create_stream()), good(acl.rt.create_stream())
    memory = good(acl.rt.malloc(1 << 20, 0))
    plain, timed, ex = (
        good(acl.rt.create_event()),
        good(acl.rt.create_event()),
        good(acl.rt.create_event_ex_with_flag(1)),
    )
    assert acl.rt.query_event_status(ex) == (1, 0)
    assert acl.rt.query_event_status(plain) == (0, 0)
    assert acl.rt.query_event(ex)[1] == 107000
    assert acl.rt.reset_event(ex, stream) == 107000
    assert acl.rt.event_elapsed_time(plain, timed)[1] == 107006
    good(acl.rt.record_event(plain, stream))
    good(acl.rt.memset_async(memory, 1 << 20, 0, 1 << 20, stream))
    good(acl.rt.record_event(timed, stream))
    good(acl.rt.record_event(ex, other))
    assert acl.rt.query_event_status(timed) == (0, 0)
    assert acl.rt.query_event(timed) == (1, 0)
    assert acl.rt.event_elapsed_time(plain, timed) == (0.0, 507006)
    good(acl.rt.synchronize_event(timed))
    good(acl.rt.synchronize_event(ex))
    assert acl.rt.query_event_status(timed) == (1, 0)
    assert acl.rt.query_event(timed) == (0, 0)
    assert acl.rt.event_elapsed_time(plain, ex)[1] == 107006
    assert acl.rt.event_elapsed_time(timed, plain)[1] == 107007
    assert good(acl.rt.event_elapsed_time(plain, timed)) == pytest.approx((1 << 20) / 60e6, abs=0.006)
    assert acl.rt.stream_wait_event(stream, good(acl.rt.create_event_with_flag(8))) == 107000


def test_a_flag_event_is_a_bit(acl: Any) -> None:
    """Recorded again without a reset, it lets the wait pass at once: what comes behind it reads poison."""
    up, compute = good(acl.rt.create_stream()), good(acl.rt.create_stream())
    event = good(acl.rt.create_event_with_flag(1))
    memory, pinned = good(acl.rt.malloc(64, 0)), good(acl.rt.malloc_host(64))
    target = good(acl.rt.malloc_host(64))
    view, seen = acl.util.ptr_to_numpy(pinned, (16,), 11), acl.util.ptr_to_numpy(target, (16,), 11)
    good(acl.rt.record_event(event, up))
    good(acl.rt.synchronize_stream(up))
    view[:] = 3
    good(acl.rt.memcpy_async(memory, 64, pinned, 64, H2D, up))
    good(acl.rt.record_event(event, up))
    good(acl.rt.stream_wait_event(compute, event))
    good(acl.rt.memcpy_async(target, 64, memory, 64, D2H, compute))
    good(acl.rt.synchronize_stream(compute))
    assert np.isnan(seen).all()


def test_copies(acl: Any) -> None:
    stream = good(acl.rt.create_stream())
    memory, pinned = good(acl.rt.malloc(256, 0)), good(acl.rt.malloc_host(256))
    assert acl.rt.memcpy(memory, 10, pinned, 20, H2D) == 107000
    assert acl.rt.memcpy(0, 10, pinned, 10, H2D) == 100000
    assert acl.rt.memcpy(memory, 256, pinned, 0, H2D) == 0
    assert acl.rt.memcpy(memory, 256, pinned, 256, D2H) == 107000
    assert acl.rt.memcpy_async(pinned, 256, pinned, 256, 0, stream) == 207000
    assert acl.rt.host_register(pinned, 256, 0) == (0, 207000)
    data = bytes(range(256))
    good(acl.rt.memcpy(memory, 256, acl.util.bytes_to_ptr(data), 256, H2D))
    good(acl.rt.memcpy(pinned, 256, memory + 16, 128, D2H))
    assert acl.util.ptr_to_bytes(pinned, 128) == data[16:144]
    array = np.zeros(64, np.float32)
    pointer, kept = acl.util.numpy_contiguous_to_ptr(array)
    good(acl.rt.memset(memory, 256, 0, 256))
    good(acl.rt.memcpy(pointer, 256, memory, 256, D2H))
    assert not kept.any()
    assert acl.util.numpy_to_ptr(array) == pointer
    for call in (lambda: acl.util.ptr_to_bytes(memory, 4), lambda: acl.util.ptr_to_numpy(memory, (1,), 2)):
        with pytest.raises(ValueError, match="host address"):
            call()
    assert acl.rt.free(memory + 64) == 107000
    assert acl.rt.free(pinned) == 107000
    assert acl.rt.free_host(memory) == 107000


def test_a_pageable_copy_acts_at_once(acl: Any) -> None:
    stream, memory = good(acl.rt.create_stream()), good(acl.rt.malloc(64, 0))
    array = np.full(16, 2, np.float32)
    good(acl.rt.memcpy_async(memory, 64, acl.util.numpy_to_ptr(array), 64, H2D, stream))
    array[:] = 0
    back = np.zeros(16, np.float32)
    good(acl.rt.memcpy_async(acl.util.numpy_to_ptr(back), 64, memory, 64, D2H, stream))
    assert (back == 2).all()


def test_a_pinned_buffer_may_be_read_and_written_in_one_stream(acl: Any) -> None:
    """Poison must not hit what an earlier queued copy has still to read."""
    stream, memory = good(acl.rt.create_stream()), good(acl.rt.malloc(64, 0))
    pinned = good(acl.rt.malloc_host(64))
    view = acl.util.ptr_to_numpy(pinned, (16,), 11)
    view[:] = 9
    good(acl.rt.memcpy_async(memory, 64, pinned, 64, H2D, stream))
    good(acl.rt.memcpy_async(pinned, 64, memory, 64, D2H, stream))
    good(acl.rt.synchronize_stream(stream))
    assert (view == 9).all()


def test_models(acl: Any, tmp_path: Path) -> None:
    assert acl.mdl.load_from_file(str(tmp_path / "none.om")) == (0, 145002)
    assert "no such file" in acl.get_recent_err_msg()
    (tmp_path / "bad.om").write_text("{}")
    assert acl.mdl.load_from_file(str(tmp_path / "bad.om")) == (0, 100013)
    other = write_om(tmp_path, "other.om", soc="Ascend910B1")
    assert acl.mdl.load_from_file(other) == (0, 545001)
    rig = Rig(acl, write_om(tmp_path))
    slot = rig.slot()
    assert acl.mdl.execute(99, slot.inputs, slot.outputs) == 145003
    assert acl.mdl.get_desc(rig.desc, 99) == 145003
    assert acl.mdl.get_input_dims(rig.desc, 4) == ({}, 100000)
    assert acl.mdl.get_input_size_by_index(rig.desc, 4) == 0
    assert acl.mdl.set_dynamic_batch_size(rig.model, slot.inputs, 0, 1) == 100019
    assert acl.mdl.get_first_aipp_info(rig.model, 0) == (None, 100038)
    empty = acl.mdl.create_dataset()
    assert acl.mdl.execute(rig.model, empty, slot.outputs) == 100017
    assert acl.mdl.execute(rig.model, slot.inputs, empty) == 100018
    small = acl.create_data_buffer(slot.fed[0][0], 16)
    good(acl.mdl.add_dataset_buffer(empty, small))
    assert acl.mdl.execute(rig.model, empty, slot.outputs) == 145006
    good(acl.update_data_buffer(small, slot.pinned_in, slot.fed[0][1]))
    assert acl.mdl.execute(rig.model, empty, slot.outputs) == 145011
    good(acl.mdl.execute_async(rig.model, slot.inputs, slot.outputs, rig.streams[1]))
    assert acl.mdl.unload(rig.model) == 107037
    good(acl.rt.synchronize_stream(rig.streams[1]))
    rig.close()
    assert acl.mdl.unload(rig.model) == 145003


def test_outputs_that_the_system_allocates(acl: Any, tmp_path: Path) -> None:
    rig = Rig(acl, write_om(tmp_path))
    slot = rig.slot()
    dataset, buffer = acl.mdl.create_dataset(), acl.create_data_buffer(0, 0)
    good(acl.mdl.add_dataset_buffer(dataset, buffer))
    good(acl.mdl.execute(rig.model, slot.inputs, dataset))
    address = acl.get_data_buffer_addr(buffer)
    assert acl.get_data_buffer_size_v2(buffer) == slot.made[0][1]
    good(acl.rt.free(address))


def test_shared_weights_and_own_work_memory(acl: Any, tmp_path: Path) -> None:
    path = write_om(tmp_path, work_bytes=1 << 20, weights_bytes=4 << 20)
    assert acl.mdl.query_size(path) == (1 << 20, 4 << 20, 0)
    weights, work = good(acl.rt.malloc(4 << 20, 0)), good(acl.rt.malloc(1 << 20, 0))
    before = acl.rt.get_mem_info(0)[0]
    first = good(acl.mdl.load_from_file_with_mem(path, work, 1 << 20, weights, 4 << 20))
    assert acl.rt.get_mem_info(0)[0] == before
    assert acl.mdl.load_from_file_with_mem(path, work, 10, weights, 4 << 20)[1] == 145000
    second = good(acl.mdl.load_from_file_with_mem(path, 0, 0, weights, 4 << 20))
    assert before - acl.rt.get_mem_info(0)[0] == (1 << 20) + 4096
    good(acl.mdl.unload(first))
    good(acl.mdl.unload(second))
    assert acl.rt.get_mem_info(0)[0] == before


def test_dynamic_batch(acl: Any, tmp_path: Path) -> None:
    rig = Rig(acl, write_om(tmp_path, batch=(1, 2, 4)))
    slot = rig.slot()
    assert good(acl.mdl.get_dynamic_batch(rig.desc)) == {"batchCount": 3, "batch": [1, 2, 4]}
    assert good(acl.mdl.get_input_index_by_name(rig.desc, "ascend_mbatch_shape_data")) == 1
    for batch, code in ((3, 145013), (0, 100000), (2, 0)):
        assert acl.mdl.set_dynamic_batch_size(rig.model, slot.inputs, 1, batch) == code
    assert acl.mdl.set_dynamic_batch_size(rig.model, slot.inputs, 7, 2) == 100000
    assert good(acl.mdl.get_cur_output_dims(rig.desc, 0))["dims"] == [2, 5, 4]
    assert good(acl.mdl.get_output_dims(rig.desc, 0))["dims"] == [4, 5, 4]
    assert good(acl.mdl.get_input_dims(rig.desc, 0))["dims"] == [-1, 3, 8, 8]


def test_callbacks(acl: Any) -> None:
    stream, memory = good(acl.rt.create_stream()), good(acl.rt.malloc(64, 0))
    context, told, stopping = good(acl.rt.get_context()), [], threading.Event()

    def report() -> None:
        good(acl.rt.set_context(context))
        while not stopping.is_set():
            assert acl.rt.process_report(10) in (0, 507012)

    thread = threading.Thread(target=report)
    thread.start()
    assert acl.rt.launch_callback(told.append, 1, 1, stream) == 107015
    good(acl.rt.subscribe_report(thread.ident, stream))
    assert acl.rt.subscribe_report(thread.ident, stream) == 107011
    for n in range(3):
        good(acl.rt.memset_async(memory, 64, n, 64, stream))
        good(acl.rt.launch_callback(told.append, n, n % 2, stream))
    good(acl.rt.synchronize_stream(stream))
    stopping.set()
    thread.join()
    assert told == [0, 1, 2]
    good(acl.rt.unsubscribe_report(thread.ident, stream))


def test_threads_of_the_module(acl: Any) -> None:
    told: list[Any] = []
    good(acl.util.stop_thread(good(acl.util.start_thread(told.append, ["x"]))))
    assert told == [["x"]]
    failing = good(acl.util.start_thread(lambda: 1 / 0, None))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        acl.util.stop_thread(failing)


@pytest.mark.parametrize(
    "wrong",
    [{"devices": 0}, {"memory_bytes": 1}, {"pcie_gb_s": 0}, {"service": {1: -1.0}}, {"clock": "x"}, {"compute": "x"}],
)
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        simulate(SimOptions(**wrong))
