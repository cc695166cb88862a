"""Owns which functions of the vendor's module are called, and the one check of every return code. Calls none itself.

``CALLS`` is the whole contract: a name that is not in it can't be called. A call gives what the vendor's function gives
without the return code, and raises an ``AclError`` for every code but 0, with the text that ``get_recent_err_msg``
has for this thread, fetched at once, for the next call of any kind may clear it. A function of another version that
takes or gives something else than is documented is told by its name, as DeviceFailed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from stages.accelerators.ascend.errors import error_of
from stages.errors import DeviceFailed, UserError


class Gives(enum.Enum):
    """The shape of what a function returns."""

    CODE = enum.auto()  # ret
    VALUE = enum.auto()  # (value, ret)
    PAIR = enum.auto()  # (value, value, ret)
    HANDLE = enum.auto()  # a handle, 0 for failure, no code
    PLAIN = enum.auto()  # a value, no code


CALLS: Final[dict[str, Gives]] = {
    "init": Gives.CODE,
    "finalize": Gives.CODE,
    "get_soc_name": Gives.PLAIN,
    "create_data_buffer": Gives.HANDLE,
    "destroy_data_buffer": Gives.CODE,
    "rt.get_device_count": Gives.VALUE,
    "rt.set_device": Gives.CODE,
    "rt.reset_device": Gives.CODE,
    "rt.create_context": Gives.VALUE,
    "rt.set_context": Gives.CODE,
    "rt.destroy_context": Gives.CODE,
    "rt.create_stream": Gives.VALUE,
    "rt.destroy_stream": Gives.CODE,
    "rt.synchronize_stream_with_timeout": Gives.CODE,
    "rt.stream_query": Gives.VALUE,
    "rt.stream_wait_event": Gives.CODE,
    "rt.set_stream_failure_mode": Gives.CODE,
    "rt.create_event_with_flag": Gives.VALUE,
    "rt.destroy_event": Gives.CODE,
    "rt.record_event": Gives.CODE,
    "rt.reset_event": Gives.CODE,
    "rt.query_event_status": Gives.VALUE,
    "rt.synchronize_event_with_timeout": Gives.CODE,
    "rt.malloc": Gives.VALUE,
    "rt.free": Gives.CODE,
    "rt.malloc_host": Gives.VALUE,
    "rt.free_host": Gives.CODE,
    "rt.memset": Gives.CODE,
    "rt.memcpy": Gives.CODE,
    "rt.memcpy_async": Gives.CODE,
    "rt.get_mem_info": Gives.PAIR,
    "mdl.query_size": Gives.PAIR,
    "mdl.load_from_file": Gives.VALUE,
    "mdl.load_from_file_with_mem": Gives.VALUE,
    "mdl.unload": Gives.CODE,
    "mdl.create_desc": Gives.HANDLE,
    "mdl.get_desc": Gives.CODE,
    "mdl.destroy_desc": Gives.CODE,
    "mdl.get_num_inputs": Gives.PLAIN,
    "mdl.get_num_outputs": Gives.PLAIN,
    "mdl.get_input_name_by_index": Gives.PLAIN,
    "mdl.get_output_name_by_index": Gives.PLAIN,
    "mdl.get_input_size_by_index": Gives.PLAIN,
    "mdl.get_output_size_by_index": Gives.PLAIN,
    "mdl.get_input_data_type": Gives.PLAIN,
    "mdl.get_output_data_type": Gives.PLAIN,
    "mdl.get_input_dims": Gives.VALUE,
    "mdl.get_output_dims": Gives.VALUE,
    "mdl.get_dynamic_batch": Gives.VALUE,
    "mdl.get_aipp_type": Gives.PAIR,
    "mdl.get_first_aipp_info": Gives.VALUE,
    "mdl.set_dynamic_batch_size": Gives.CODE,
    "mdl.create_dataset": Gives.HANDLE,
    "mdl.destroy_dataset": Gives.CODE,
    "mdl.add_dataset_buffer": Gives.VALUE,
    "mdl.execute": Gives.CODE,
    "mdl.execute_async": Gives.CODE,
}
# not in every CANN: None where missing
OPTIONAL: Final = frozenset(
    {
        "rt.set_stream_failure_mode",
        "rt.stream_query",
        "rt.synchronize_event_with_timeout",
        "mdl.get_first_aipp_info",
    }
)
RECENT_TEXT: Final = "get_recent_err_msg"
NULL_HANDLE: Final = 500001  # what a create_* that gave no handle is told as: it has no code of its own


class Acl:
    """The functions of ``CALLS`` by their own names (``acl.rt.malloc``), each with its return code checked."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.rt: Any = SimpleNamespace()
        self.mdl: Any = SimpleNamespace()
        self._recent: Callable[[], str | None] = getattr(module, RECENT_TEXT, lambda: None)
        missing = []
        for name, gives in CALLS.items():
            group, _, last = name.rpartition(".")
            function = getattr(getattr(module, group, None) if group else module, last, None)
            if function is None and name not in OPTIONAL:
                missing.append(name)
            owner = getattr(self, group) if group else self
            setattr(owner, last, self._checked(name, function, gives) if function is not None else None)
        if missing:
            raise UserError(
                f"the module acl has no {', '.join(missing)}; install CANN 6.0 or newer (8.0 is the first that takes "
                "Python 3.11) and source its set_env.sh"
            )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"acl.{name} is not in the table of calls")

    def _checked(self, name: str, function: Any, gives: Gives) -> Callable[..., Any]:
        # The vendor's functions take positional arguments only. ``__tracebackhide__``: who looks for the place of a
        # call finds it one frame further up.
        def code(*args: object) -> None:
            __tracebackhide__ = True
            try:
                ret = function(*args)
            except (TypeError, ValueError, OverflowError) as error:
                raise _strange(name, error) from error
            if ret:
                self._fail(name, ret)

        def value(*args: object) -> Any:
            __tracebackhide__ = True
            try:
                first, ret = function(*args)
            except (TypeError, ValueError, OverflowError) as error:
                raise _strange(name, error) from error
            if ret:
                self._fail(name, ret)
            return first

        def pair(*args: object) -> Any:
            __tracebackhide__ = True
            try:
                first, second, ret = function(*args)
            except (TypeError, ValueError, OverflowError) as error:
                raise _strange(name, error) from error
            if ret:
                self._fail(name, ret)
            return first, second

        def handle(*args: object) -> Any:
            __tracebackhide__ = True
            created = function(*args)
            if not created:
                self._fail(name, NULL_HANDLE)
            return created

        table: dict[Gives, Callable[..., Any]] = {
            Gives.CODE: code,
            Gives.VALUE: value,
            Gives.PAIR: pair,
            Gives.HANDLE: handle,
            Gives.PLAIN: function,
        }
        return table[gives]

    def _fail(self, name: str, ret: int) -> None:
        raise error_of(ret, name, self._recent() or "")


def _strange(name: str, error: Exception) -> DeviceFailed:
    """No code: the function of this version takes other arguments or gives another tuple."""
    return DeviceFailed(
        f"acl.{name} takes or gives something else than is documented ({type(error).__name__}: {error}); this version "
        "of CANN is not known: report it, with what CAMPIPE_ACL=vendor+checked says"
    )
