"""Owns remedies for codes and for names that do not exist. Does not own when they are told."""

from __future__ import annotations

import difflib

from stages.accelerators.aclsim.contract import CONTRACT

_CODES = {
    100000: "a size, address or handle is 0, or an index is out of range",
    100002: "call init once per process",
    100017: "give a data buffer for each input, in order",
    100018: "give a data buffer for each output, in order",
    107000: "an argument is out of its range",
    107001: "count devices with rt.get_device_count; ids are those that ASCEND_RT_VISIBLE_DEVICES leaves visible",
    107002: "call rt.set_device or rt.set_context in this thread",
    107003: "make the stream's context current",
    107015: "call rt.subscribe_report for the stream first, with a thread that loops on rt.process_report",
    145003: "give an id that a load returned",
    145006: "take sizes from the description",
    145013: "pad up to the next gear; mdl.get_dynamic_batch tells them",
    207000: "this product does not have the function",
    207001: "free device memory, or take less of it: allocate once, before the loop",
    507011: "a task of the model failed on the device; read get_recent_err_msg and the device's log",
    507018: "an AI CPU operator failed; end the process and start a new one",
    507046: "the work takes longer than the timeout, or hangs",
    507047: "the work takes longer than the timeout, or hangs",
    507899: "the driver failed; end the process and start a new one",
}
_NAMES = {
    "GDDR_MEM": "the module has no constants; malloc takes a policy: 0 (huge pages first)",
    "HOST_TO_DEVICE": "the module has no constants; host to device is 1",
    "DEVICE_TO_HOST": "the module has no constants; device to host is 2",
    "register_mem": "there are no external pools: cut one rt.malloc up by address arithmetic",
    "malloc_from_mem": "there are no external pools: cut one rt.malloc up by address arithmetic",
    "ACL_ERROR_RT_MEMORY_ALLOC_FAILED": "the code is 207001, ACL_ERROR_RT_MEMORY_ALLOCATION; define it yourself",
}


def hint_for(what: int | str) -> str:
    """A remedy for a code or a name; "" when none is known."""
    if isinstance(what, int):
        return _CODES.get(what, "")
    if what in _NAMES:
        return _NAMES[what]
    if what.isupper():
        return "the module exports functions only: define constants in your own file"
    close = difflib.get_close_matches(what, [name.rpartition(".")[2] for name in CONTRACT], 1)
    found = next((name for name in CONTRACT if close and name.rpartition(".")[2] == close[0]), "")
    return f"did you mean acl.{found}?" if found else "see the list of functions in the vendor's reference"
