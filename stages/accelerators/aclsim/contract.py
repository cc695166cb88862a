"""Owns the table of the vendor's functions: name, arguments, results, who holds the GIL. Does not own what they do.

One line per function: ``name | arguments | results | notes``. An argument is ``name:class``, the class being the letter
of CPython's argument parser that the vendor's binding uses: ``k`` handles, addresses and sizes, ``i`` enums, ``I`` and
``K`` unsigned 32 and 64 bits, ``s`` text, ``f`` floats, ``O`` any object; a ``?`` behind it: may be left out. Results:
``ret`` is the code; several make a tuple. Notes: ``free`` the GIL is released while the call runs; ``newer`` missing in
older versions of CANN; ``absent`` not simulated (asking for it is an AttributeError that says so).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_TABLE = """
init | config_path:s? | ret
finalize | | ret
finalize_reference | | ref_count ret | newer
get_version | | major minor patch ret
get_soc_name | | text
get_recent_err_msg | | text
app_log | level:i message:s | none
data_type_size | dtype:i | int
create_data_buffer | ptr:k size:k | handle
destroy_data_buffer | buffer:k | ret
get_data_buffer_addr | buffer:k | int
get_data_buffer_size | buffer:k | int
get_data_buffer_size_v2 | buffer:k | int
update_data_buffer | buffer:k ptr:k size:k | ret
get_cann_version | package:i | dict ret | newer absent
get_version_str | package:s | text ret | newer absent
create_tensor_desc | dtype:i dims:O format:i | handle | absent
destroy_tensor_desc | desc:k | none | absent
get_device_capability | device:i feature:i | value ret | absent

rt.set_device | device:i | ret
rt.reset_device | device:i | ret
rt.reset_device_force | device:i | ret | newer
rt.get_device | | device ret
rt.get_run_mode | | mode ret
rt.get_device_count | | count ret
rt.get_device_utilization_rate | device:i | dict ret
rt.query_device_status | device:i | status ret
rt.get_device_info | device:I attr:i | value ret | newer absent
rt.set_ts_device | ts:i | ret
rt.device_can_access_peer | device:i peer:i | flag ret
rt.synchronize_device | | ret | free
rt.synchronize_device_with_timeout | timeout_ms:i | ret | newer
rt.create_context | device:i | context ret
rt.destroy_context | context:k | ret
rt.set_context | context:k | ret
rt.get_context | | context ret
rt.ctx_get_current_default_stream | | stream ret | newer
rt.get_primary_ctx_state | device:i | active flags ret | newer
rt.create_stream | | stream ret
rt.create_stream_with_config | priority:I flag:I | stream ret
rt.destroy_stream | stream:k | ret
rt.destroy_stream_force | stream:k | ret | newer
rt.synchronize_stream | stream:k | ret | free
rt.synchronize_stream_with_timeout | stream:k timeout_ms:i | ret | free
rt.stream_query | stream:k | status ret
rt.set_stream_failure_mode | stream:k mode:K | ret
rt.stream_abort | stream:k | ret | newer
rt.stream_get_id | stream:k | id ret
rt.get_stream_available_num | | count ret
rt.stream_wait_event | stream:k event:k | ret | free
rt.create_event | | event ret
rt.create_event_with_flag | flag:I | event ret
rt.create_event_ex_with_flag | flag:I | event ret | newer
rt.destroy_event | event:k | ret
rt.record_event | event:k stream:k | ret
rt.reset_event | event:k stream:k | ret
rt.query_event_status | event:k | status ret
rt.query_event | event:k | status ret
rt.query_event_wait_status | event:k | status ret
rt.synchronize_event | event:k | ret | free
rt.synchronize_event_with_timeout | event:k timeout_ms:i | ret | free
rt.event_elapsed_time | start:k end:k | ms ret
rt.event_get_timestamp | event:k | us ret
rt.get_event_avail_num | | count ret
rt.malloc | size:k policy:i | ptr ret
rt.malloc_align32 | size:k policy:i | ptr ret
rt.malloc_cached | size:k policy:i | ptr ret
rt.malloc_with_cfg | size:k policy:i config:O | ptr ret | newer absent
rt.free | ptr:k | ret
rt.malloc_host | size:k | ptr ret
rt.free_host | ptr:k | ret
rt.memset | ptr:k max_count:k value:i count:k | ret
rt.memset_async | ptr:k max_count:k value:i count:k stream:k | ret
rt.memcpy | dst:k dest_max:k src:k count:k kind:i | ret
rt.memcpy_async | dst:k dest_max:k src:k count:k kind:i stream:k | ret
rt.memcpy2d | dst:k dpitch:k src:k spitch:k width:k height:k kind:i | ret | absent
rt.memcpy2d_async | dst:k dpitch:k src:k spitch:k width:k height:k kind:i stream:k | ret | absent
rt.get_mem_info | attr:i | free total ret
rt.host_register | ptr:k size:k type:i | ptr ret
rt.host_unregister | ptr:k | ret
rt.pointer_get_attributes | ptr:k | dict ret | newer
rt.subscribe_report | thread:k stream:k | ret
rt.unsubscribe_report | thread:k stream:k | ret
rt.process_report | timeout_ms:i | ret | free
rt.launch_callback | function:O user_data:O block:i stream:k | ret
rt.set_exception_info_callback | function:O | ret
rt.get_task_id_from_exception_info | info:k | int
rt.get_stream_id_from_exception_info | info:k | int
rt.get_thread_id_from_exception_info | info:k | int
rt.get_device_id_from_exception_info | info:k | int
rt.get_error_code_from_exception_info | info:k | int
rt.set_op_wait_timeout | seconds:I | ret
rt.set_op_execute_timeout | seconds:I | ret
rt.peek_at_last_error | level:i | int | newer
rt.get_last_error | level:i | int | newer

mdl.load_from_file | path:s | model_id ret
mdl.load_from_mem | ptr:k size:k | model_id ret
mdl.load_from_file_with_mem | path:s work:k work_size:k weight:k weight_size:k | model_id ret
mdl.load_from_mem_with_mem | ptr:k size:k work:k work_size:k weight:k weight_size:k | model_id ret
mdl.create_config_handle | | handle | absent
mdl.set_config_opt | handle:k attr:i value:O | ret | absent
mdl.load_with_config | handle:k | model_id ret | absent
mdl.destroy_config_handle | handle:k | ret | absent
mdl.unload | model_id:I | ret
mdl.query_size | path:s | work weight ret
mdl.query_size_from_mem | ptr:k size:k | work weight ret
mdl.create_desc | | handle
mdl.get_desc | desc:k model_id:I | ret
mdl.get_desc_from_file | desc:k path:s | ret | newer
mdl.get_desc_from_mem | desc:k ptr:k size:k | ret | newer
mdl.destroy_desc | desc:k | ret
mdl.get_num_inputs | desc:k | int
mdl.get_num_outputs | desc:k | int
mdl.get_input_size_by_index | desc:k index:k | int
mdl.get_output_size_by_index | desc:k index:k | int
mdl.get_input_dims | desc:k index:k | dict ret
mdl.get_input_dims_v2 | desc:k index:k | dict ret
mdl.get_output_dims | desc:k index:k | dict ret
mdl.get_cur_output_dims | desc:k index:k | dict ret
mdl.get_input_name_by_index | desc:k index:k | str
mdl.get_output_name_by_index | desc:k index:k | str
mdl.get_input_data_type | desc:k index:k | int
mdl.get_output_data_type | desc:k index:k | int
mdl.get_input_format | desc:k index:k | int
mdl.get_output_format | desc:k index:k | int
mdl.get_input_index_by_name | desc:k name:s | index ret
mdl.get_output_index_by_name | desc:k name:s | index ret
mdl.get_dynamic_batch | desc:k | dict ret
mdl.get_dynamic_hw | desc:k index:i | dict ret
mdl.get_input_dynamic_gear_count | desc:k index:i | count ret
mdl.get_input_dynamic_dims | desc:k index:i count:k | list ret | absent
mdl.set_dynamic_batch_size | model_id:I dataset:k index:k batch:K | ret
mdl.set_dynamic_hw_size | model_id:I dataset:k index:k height:K width:K | ret | absent
mdl.set_input_dynamic_dims | model_id:I dataset:k index:k dims:O | ret | absent
mdl.create_dataset | | handle
mdl.destroy_dataset | dataset:k | ret
mdl.add_dataset_buffer | dataset:k buffer:k | dataset ret
mdl.get_dataset_num_buffers | dataset:k | int
mdl.get_dataset_buffer | dataset:k index:k | int
mdl.set_dataset_tensor_desc | dataset:k desc:k index:k | dataset ret | absent
mdl.execute | model_id:I input:k output:k | ret
mdl.execute_async | model_id:I input:k output:k stream:k | ret
mdl.execute_v2 | model_id:I input:k output:k stream:k config:k | ret | newer absent
mdl.get_aipp_type | model_id:I index:k | type attached ret
mdl.get_first_aipp_info | model_id:I index:k | dict ret
mdl.init_dump | | ret | absent
mdl.set_dump | path:s? | ret | absent
mdl.finalize_dump | | ret | absent
mdl.create_aipp | batch:K | handle | absent
mdl.destroy_aipp | aipp:k | ret | absent
mdl.set_input_aipp | model_id:I dataset:k index:k aipp:k | ret | absent
mdl.set_aipp_by_input_index | model_id:I dataset:k index:k aipp:k | ret | absent

util.bytes_to_ptr | data:O | int
util.ptr_to_bytes | ptr:k size:k | bytes
util.numpy_to_ptr | array:O | int
util.numpy_contiguous_to_ptr | array:O | ptr array
util.ptr_to_numpy | ptr:k shape:O npy_type:i | array
util.start_thread | function:O arguments:O | thread ret | free
util.stop_thread | thread:k | ret | free

media.dvpp_malloc | size:k | ptr ret
media.dvpp_free | ptr:k | ret
himpi.dvpp_malloc | device:i size:k | ptr ret
himpi.dvpp_free | ptr:k | ret
himpi.sys_init | | ret
himpi.sys_exit | | ret

prof.init | path:s | ret
prof.finalize | | ret
prof.create_config | devices:O metrics:i events:k mask:K | handle
prof.set_config | type:i value:s | ret
prof.start | config:k | ret
prof.stop | config:k | ret
prof.destroy_config | config:k | ret
"""

SUBMODULES = ("rt", "mdl", "util", "media", "himpi", "prof", "op", "blas", "fv")
_INTS = frozenset("kIK")


@dataclass(frozen=True, slots=True)
class Call:
    """One function of the vendor's module. ``name`` with its submodule, as ``rt.malloc``."""

    name: str
    arguments: tuple[str, ...]
    classes: str  # a letter per argument
    required: int
    results: tuple[str, ...]
    gil_free: bool = False
    newer: bool = False
    simulated: bool = True

    @property
    def code_last(self) -> bool:
        """Whether a code is returned, alone or as the last of a tuple."""
        return self.results[-1] == "ret"

    def failed(self, code: int) -> Any:
        """What the function returns when it fails with this code."""
        if self.results == ("ret",):
            return code
        if self.code_last:
            return (*(_EMPTY.get(r, 0) for r in self.results[:-1]), code)
        return _EMPTY.get(self.results[0], 0)

    def code_of(self, result: Any) -> int:
        """The code in what the function returned, 0 when it returns none."""
        if self.results == ("ret",):
            return int(result)
        return int(result[-1]) if self.code_last else 0

    def problem(self, args: tuple[Any, ...], keywords: Any) -> Exception | None:
        """What the vendor's binding raises for these arguments, None when it takes them."""
        if keywords:
            return TypeError(f"{self.name}() takes no keyword arguments")
        if not self.required <= len(args) <= len(self.classes):
            wanted = str(self.required) if self.required == len(self.classes) else f"at most {len(self.classes)}"
            return TypeError(f"{self.name}() takes exactly {wanted} arguments ({len(args)} given)")
        for value, letter, argument in zip(args, self.classes, self.arguments, strict=False):
            if letter in _INTS:
                if type(value) is not int and not isinstance(value, int):
                    return self._wrong(argument, "an int", value)
            elif letter != "O" and (problem := self._other(argument, letter, value)):
                return problem
        return None

    def _other(self, argument: str, letter: str, value: Any) -> Exception | None:
        if letter == "s":
            if not isinstance(value, str):
                return self._wrong(argument, "str", value)
            return ValueError(f"{self.name}(): embedded null character in {argument}") if "\0" in value else None
        if letter == "f":
            return None if isinstance(value, int | float) else self._wrong(argument, "a number", value)
        try:
            number = operator.index(value)
        except TypeError:
            return self._wrong(argument, "an int", value)
        if not -(2**31) <= number < 2**31:
            return OverflowError(f"{self.name}(): {argument} {number} does not fit 32 bits")
        return None

    def _wrong(self, argument: str, wanted: str, value: Any) -> TypeError:
        return TypeError(f"{self.name}(): {argument} must be {wanted}, not {type(value).__module__}."
                         f"{type(value).__name__}")  # fmt: skip


_EMPTY: dict[str, Any] = {"dict": {}, "list": [], "str": "", "text": None, "none": None, "bytes": b"", "ms": 0.0}


def _parse(line: str) -> Call:
    name, arguments, results, *notes = (part.strip() for part in line.split("|"))
    flags = set(notes[0].split()) if notes else set()
    pairs = [argument.split(":") for argument in arguments.split()]
    return Call(
        name,
        tuple(n for n, _ in pairs),
        "".join(letter[0] for _, letter in pairs),
        sum(not letter.endswith("?") for _, letter in pairs),
        tuple(results.split()),
        gil_free="free" in flags,
        newer="newer" in flags,
        simulated="absent" not in flags,
    )


CONTRACT: dict[str, Call] = {call.name: call for call in map(_parse, filter(str.strip, _TABLE.splitlines()))}


def quick_test(call: Call) -> Callable[[tuple[Any, ...]], bool]:
    """A fast test of arguments: True when they are right. False says nothing: ask ``Call.problem``."""
    count = len(call.classes)
    if call.required != count or not set(call.classes) <= set("kIKi"):
        return lambda args: False
    narrow = tuple(index for index, letter in enumerate(call.classes) if letter == "i")

    def quick(args: tuple[Any, ...]) -> bool:
        if len(args) != count:
            return False
        for value in args:  # loops: this is asked with every call
            if type(value) is not int:
                return False
        for index in narrow:  # noqa: SIM110  a generator takes longer than the rest of the call
            if not -(2**31) <= args[index] < 2**31:
                return False
        return True

    return quick


def positional(call: Call, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` behind the argument parser of the vendor's binding: what that refuses raises."""
    quick = quick_test(call)

    def checked(*args: Any, **keywords: Any) -> Any:
        if keywords or not quick(args):
            problem = call.problem(args, keywords)
            if problem is not None:
                raise problem
        return function(*args)

    checked.__name__ = checked.__qualname__ = call.name.rpartition(".")[2]
    checked.__doc__ = f"acl.{call.name}({', '.join(call.arguments)}) -> {', '.join(call.results)}"
    return checked
