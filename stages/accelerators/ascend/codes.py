"""Owns what the vendor's return codes mean and what helps. Does not own raising them (``errors``).

Names without the vendor's prefixes. Source: documentation of aclError, headers rt_error_codes.h and ge_error_codes.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """One return code. ``remedy``: what a user can do, empty where nothing general is known."""

    code: int
    name: str
    meaning: str
    remedy: str = ""


_SET_ENV = "source CANN's set_env.sh, and let driver, firmware and CANN be of releases that belong together"
_OM = "convert the model again with atc for this chip (--soc_version) and with a CANN that is not newer than this one"
_MEMORY = "use fewer executors or lanes, a smaller batch, or end what else uses the device (npu-smi info)"
_RESTART = "the process is restarted; if it comes again look at npu-smi info and at ~/ascend/log"
_VISIBLE = "devices are numbered from 0 among the visible ones; look at npu-smi info and ASCEND_RT_VISIBLE_DEVICES"

_TABLE: Final[tuple[tuple[int, str, str] | tuple[int, str, str, str], ...]] = (
    # wrong use, of the module itself
    (100000, "INVALID_PARAM", "a parameter is not valid"),
    (100001, "UNINITIALIZE", "the runtime is not initialised"),
    (100002, "REPEAT_INITIALIZE", "the runtime was initialised before in this process"),
    (100003, "INVALID_FILE", "the file can't be used", "check that the file is there and can be read"),
    (100004, "WRITE_FILE", "the file can't be written"),
    (100005, "INVALID_FILE_SIZE", "the file is of an impossible size", "get the file again, it may be cut off"),
    (100006, "PARSE_FILE", "the file can't be parsed"),
    (100007, "FILE_MISSING_ATTR", "an attribute is missing in the file"),
    (100008, "FILE_ATTR_INVALID", "an attribute of the file is not valid"),
    (100009, "INVALID_DUMP_CONFIG", "the dump settings are not valid"),
    (100010, "INVALID_PROFILING_CONFIG", "the profiling settings are not valid"),
    (100011, "INVALID_MODEL_ID", "there is no model of this id"),
    (100012, "DESERIALIZE_MODEL", "the model can't be read", _OM),
    (100013, "PARSE_MODEL", "the model can't be parsed", _OM),
    (100014, "READ_MODEL_FAILURE", "the model's file can't be read", _OM),
    (100015, "MODEL_SIZE_INVALID", "the model is of an impossible size", "get the file again, it may be cut off"),
    (100016, "MODEL_MISSING_ATTR", "the model lacks an attribute", _OM),
    (100017, "MODEL_INPUT_NOT_MATCH", "the inputs do not fit the model"),
    (100018, "MODEL_OUTPUT_NOT_MATCH", "the outputs do not fit the model"),
    (100019, "MODEL_NOT_DYNAMIC", "the model has no dynamic shape"),
    (100020, "OP_TYPE_NOT_MATCH", "the operator's type does not fit"),
    (100021, "OP_INPUT_NOT_MATCH", "the operator's inputs do not fit"),
    (100022, "OP_OUTPUT_NOT_MATCH", "the operator's outputs do not fit"),
    (100023, "OP_ATTR_NOT_MATCH", "the operator's attributes do not fit"),
    (100024, "OP_NOT_FOUND", "the operator is not there", "install the operator package (kernels) of this chip"),
    (100025, "OP_LOAD_FAILED", "the operator can't be loaded", "install the operator package (kernels) of this chip"),
    (100026, "UNSUPPORTED_DATA_TYPE", "the data type is not supported"),
    (100027, "FORMAT_NOT_MATCH", "the format does not fit"),
    (100028, "BIN_SELECTOR_NOT_REGISTERED", "no selector of kernels is registered"),
    (100029, "KERNEL_NOT_FOUND", "the kernel is not there"),
    (100030, "BIN_SELECTOR_ALREADY_REGISTERED", "the selector of kernels is registered already"),
    (100031, "KERNEL_ALREADY_REGISTERED", "the kernel is registered already"),
    (100032, "INVALID_QUEUE_ID", "there is no queue of this id"),
    (100033, "REPEAT_SUBSCRIBE", "the stream is subscribed already"),
    (100034, "STREAM_NOT_SUBSCRIBE", "the stream is not subscribed"),
    (100035, "THREAD_NOT_SUBSCRIBE", "the thread is not subscribed"),
    (100036, "WAIT_CALLBACK_TIMEOUT", "no callback came in time"),
    (100037, "REPEAT_FINALIZE", "the runtime was finalised before"),
    (100038, "NOT_STATIC_AIPP", "the model has no static AIPP"),
    (100039, "COMPILING_STUB_MODE", "a stub library is loaded instead of the runtime", _SET_ENV),
    (100040, "GROUP_NOT_SET", "no group is set"),
    (100041, "GROUP_NOT_CREATE", "the group does not exist"),
    (100042, "PROF_ALREADY_RUN", "profiling runs already"),
    (100043, "PROF_NOT_RUN", "profiling does not run"),
    (100044, "DUMP_ALREADY_RUN", "dumping runs already"),
    (100045, "DUMP_NOT_RUN", "dumping does not run"),
    (148046, "PROF_REPEAT_SUBSCRIBE", "profiling is subscribed already"),
    (148047, "PROF_API_CONFLICT", "two ways of profiling exclude one another"),
    (148048, "INVALID_MAX_OPQUEUE_NUM_CONFIG", "the operator queue's setting is not valid"),
    (148049, "INVALID_OPP_PATH", "the operator packages are not where ASCEND_OPP_PATH says", _SET_ENV),
    (148050, "OP_UNSUPPORTED_DYNAMIC", "the operator takes no dynamic shape"),
    (148051, "RELATIVE_RESOURCE_NOT_CLEARED", "something that depends on it is still there"),
    (148052, "UNSUPPORTED_JPEG", "the JPEG is progressive or arithmetic"),
    (148053, "INVALID_BUNDLE_MODEL_ID", "there is no bundle of models of this id"),
    # out of resources, unsupported
    (200000, "BAD_ALLOC", "memory is used up", _MEMORY),
    (200001, "API_NOT_SUPPORT", "this CANN does not have the function on this product"),
    (200002, "INVALID_DEVICE", "the device can't be used", _VISIBLE),
    (200003, "MEMORY_ADDRESS_UNALIGNED", "the address is not aligned"),
    (200004, "RESOURCE_NOT_MATCH", "the resource does not fit"),
    (200005, "INVALID_RESOURCE_HANDLE", "the handle is not valid"),
    (200006, "FEATURE_UNSUPPORTED", "this product does not have the feature"),
    (200007, "PROF_MODULES_UNSUPPORTED", "this can't be profiled"),
    (300000, "STORAGE_OVER_LIMIT", "storage is over its limit"),
    (500000, "INTERNAL_ERROR", "an internal error", "look at ~/ascend/log; the device may be in use or at fault"),
    (500001, "FAILURE", "an internal failure", "look at ~/ascend/log"),
    (500002, "GE_FAILURE", "a failure in the graph engine", _OM),
    (500003, "RT_FAILURE", "a failure in the runtime", "look at ~/ascend/log"),
    (500004, "DRV_FAILURE", "a failure in the driver", "look at dmesg and npu-smi info"),
    (500005, "PROFILING_FAILURE", "a failure in profiling"),
    # runtime, wrong use
    (107000, "PARAM_INVALID", "a parameter is not valid"),
    (107001, "INVALID_DEVICEID", "there is no device of this number", _VISIBLE),
    (107002, "CONTEXT_NULL", "the thread has no context, or its device was reset"),
    (107003, "STREAM_CONTEXT", "the stream is not of the current context"),
    (107004, "MODEL_CONTEXT", "the model is not of the current context"),
    (107005, "STREAM_MODEL", "the stream is not of this model"),
    (107006, "EVENT_TIMESTAMP_INVALID", "the event has no time yet"),
    (107007, "EVENT_TIMESTAMP_REVERSAL", "the events are in the other order"),
    (107008, "ADDR_UNALIGNED", "the address is not aligned"),
    (107009, "FILE_OPEN", "the file can't be opened"),
    (107010, "FILE_WRITE", "the file can't be written"),
    (107011, "STREAM_SUBSCRIBE", "the stream is subscribed already or not at all"),
    (107012, "THREAD_SUBSCRIBE", "the thread is subscribed already or not at all"),
    (107013, "GROUP_NOT_SET", "no group is set"),
    (107014, "GROUP_NOT_CREATE", "the group does not exist"),
    (107015, "STREAM_NO_CB_REG", "nobody takes the callbacks of this stream"),
    (107016, "INVALID_MEMORY_TYPE", "the memory is of another type"),
    (107017, "INVALID_HANDLE", "the handle is not valid"),
    (107018, "INVALID_MALLOC_TYPE", "the kind of allocation is not valid"),
    (107019, "WAIT_TIMEOUT", "waiting took too long", _RESTART),
    (107020, "TASK_TIMEOUT", "a task took too long", _RESTART),
    (107021, "SYSPARAMOPT_NOT_SET", "a parameter of the system is not set"),
    (107022, "DEVICE_TASK_ABORT", "tasks of the device are being given up"),
    (107023, "STREAM_ABORT", "the stream was given up"),
    (107037, "MODEL_RUNNING", "the model is running"),
    # runtime, out of resources
    (207000, "FEATURE_NOT_SUPPORT", "this product or this CANN does not have the feature"),
    (207001, "MEMORY_ALLOCATION", "the device's memory is used up", _MEMORY),
    (207002, "MEMORY_FREE", "memory can't be freed"),
    (207003, "AICORE_OVER_FLOW", "a value is too large for its type"),
    (207004, "NO_DEVICE", "no device can be used or is visible", _VISIBLE),
    (207005, "RESOURCE_ALLOC_FAIL", "a resource is used up"),
    (207006, "NO_PERMISSION", "the process may not do this", "let the user be in the group of HwHiAiUser"),
    (207007, "NO_EVENT_RESOURCE", "the device's events are used up (1023)", "use fewer executors or lanes"),
    (207008, "NO_STREAM_RESOURCE", "the device's streams are used up (1024)", "use fewer executors or processes"),
    (207009, "NO_NOTIFY_RESOURCE", "notifications are used up"),
    (207010, "NO_MODEL_RESOURCE", "models are used up", "load fewer models"),
    (207011, "NO_CDQ_RESOURCE", "queues are used up"),
    (207012, "OVER_LIMIT", "a limit is exceeded"),
    (207013, "QUEUE_EMPTY", "the queue is empty"),
    (207014, "QUEUE_FULL", "the queue is full"),
    (207015, "REPEATED_INIT", "it was initialised before"),
    (207018, "DEVICE_OOM", "the device's memory was used up while running", _MEMORY),
    # runtime, faults of the device
    (507000, "INTERNAL_ERROR", "an internal error of the runtime", _RESTART),
    (507001, "TS_ERROR", "an error of the device's task scheduler", _RESTART),
    (507002, "STREAM_TASK_FULL", "the stream's queue is full"),
    (507003, "STREAM_TASK_EMPTY", "the stream's queue is empty"),
    (507004, "STREAM_NOT_COMPLETE", "the stream has not ended"),
    (507005, "STREAM_SYNC", "the stream can't be waited for"),
    (507006, "EVENT_NOT_COMPLETE", "the event has not happened"),
    (507007, "CONTEXT_RELEASE_ERROR", "the context can't be released", _RESTART),
    (507008, "SOC_VERSION", "the chip is of another version", _OM),
    (507009, "TASK_TYPE_NOT_SUPPORT", "the chip has no such task", _OM),
    (507010, "LOST_HEARTBEAT", "the device hangs or its PCIe link is lost", _RESTART),
    (507011, "MODEL_EXECUTE", "a task of the model failed on the device", "look at ~/ascend/log for the operator"),
    (507012, "REPORT_TIMEOUT", "no callback came in time"),
    (507013, "SYS_DMA", "a copy failed in the DMA engine", _RESTART),
    (507014, "AICORE_TIMEOUT", "an operator took too long on the AI cores", _RESTART),
    (507015, "AICORE_EXCEPTION", "an operator failed on the AI cores", _RESTART),
    (507016, "AICORE_TRAP_EXCEPTION", "an operator trapped on the AI cores", _RESTART),
    (507017, "AICPU_TIMEOUT", "an operator took too long on the AI CPUs", _RESTART),
    (507018, "AICPU_EXCEPTION", "an operator failed on the AI CPUs (NMS, TopK, Where and the like)", _RESTART),
    (507023, "MODEL_ABORT_NORMAL", "the model was given up"),
    (507033, "DEV_SETUP_ERROR", "the device can't be set up: driver, firmware and CANN do not fit", _SET_ENV),
    (507034, "VECTOR_CORE_TIMEOUT", "an operator took too long on the vector cores", _RESTART),
    (507035, "VECTOR_CORE_EXCEPTION", "an operator failed on the vector cores", _RESTART),
    (507036, "VECTOR_CORE_TRAP_EXCEPTION", "an operator trapped on the vector cores", _RESTART),
    (507042, "AICORE_TRAP_READ_OVERFLOW", "an operator read beyond its memory", _RESTART),
    (507043, "AICORE_TRAP_WRITE_OVERFLOW", "an operator wrote beyond its memory", _RESTART),
    (507044, "VECTOR_CORE_TRAP_READ_OVERFLOW", "an operator read beyond its memory", _RESTART),
    (507045, "VECTOR_CORE_TRAP_WRITE_OVERFLOW", "an operator wrote beyond its memory", _RESTART),
    (507046, "STREAM_SYNC_TIMEOUT", "the stream did not end in time", _RESTART),
    (507047, "EVENT_SYNC_TIMEOUT", "the event did not happen in time", _RESTART),
    (507053, "DEVICE_MEM_ERROR", "the device's memory failed", "reset the device; if it comes again change the card"),
    (507054, "HBM_MULTI_BIT_ECC_ERROR", "memory failed beyond repair", "reset the device, or change the card"),
    (507055, "SUSPECT_DEVICE_MEM_ERROR", "the device's memory may have failed", "reset the device"),
    (507899, "DRV_INTERNAL_ERROR", "an internal error of the driver", _RESTART),
    (507900, "AICPU_INTERNAL_ERROR", "an internal error of the AI CPUs", _RESTART),
    (507901, "SOCKET_CLOSE", "the connection to the device is closed", _RESTART),
    # models
    (145000, "PARAM_INVALID", "a parameter is not valid for the model"),
    (145001, "EXEC_NOT_INIT", "the model's executor is not initialised"),
    (145002, "EXEC_MODEL_PATH_INVALID", "the model's path can't be used", "check that the file is there"),
    (145003, "EXEC_MODEL_ID_INVALID", "there is no model of this id"),
    (145006, "EXEC_MODEL_DATA_SIZE_INVALID", "the model's data are of an impossible size", _OM),
    (145007, "MODEL_ADDR_INVALID", "the model's address is not valid"),
    (145008, "MODEL_QUEUE_ID_INVALID", "there is no queue of this id"),
    (145009, "EXEC_LOAD_MODEL_REPEATED", "the model is loaded already"),
    (145011, "DYNAMIC_INPUT_ADDR_INVALID", "the input that carries the shape is not there"),
    (145012, "DYNAMIC_INPUT_LENGTH_INVALID", "the input that carries the shape is too small"),
    (145013, "DYNAMIC_BATCH_SIZE_INVALID", "the batch is none of those that the model was converted for"),
    (145014, "AIPP_BATCH_EMPTY", "the AIPP parameters have no batch"),
    (145015, "AIPP_NOT_EXIST", "the model has no AIPP"),
    (145016, "AIPP_MODE_INVALID", "the model's AIPP is of the other kind"),
    (145017, "OP_TYPE_INVALID", "an operator's type is not valid", _OM),
    (145018, "OP_KERNEL_TYPE_INVALID", "a kernel's type is not valid", _OM),
    (145019, "PLUGIN_PATH_INVALID", "a plug-in's path is not valid", _SET_ENV),
    (145020, "FORMAT_INVALID", "a format is not valid"),
    (145021, "SHAPE_INVALID", "a shape is not valid"),
    (145022, "DATATYPE_INVALID", "a data type is not valid"),
    (245000, "MEMORY_ALLOCATION", "memory for the model is used up", _MEMORY),
    (245001, "MEMORY_OPERATE_FAILED", "memory of the model can't be worked on"),
    (245002, "DEVICE_MEMORY_ALLOCATION_FAILED", "the device's memory for the model is used up", _MEMORY),
    (545000, "INTERNAL_ERROR", "an internal error of the model"),
    (545001, "LOAD_MODEL", "the model can't be loaded", _OM),
    (545002, "EXEC_LOAD_MODEL_PARTITION_FAILED", "a part of the model can't be loaded", _OM),
    (545003, "EXEC_LOAD_WEIGHT_PARTITION_FAILED", "the model's weights can't be loaded", _OM),
    (545004, "EXEC_LOAD_TASK_PARTITION_FAILED", "the model's tasks can't be loaded", _OM),
    (545005, "EXEC_LOAD_KERNEL_PARTITION_FAILED", "the model's kernels can't be loaded", _OM),
    (545006, "EXEC_RELEASE_MODEL_DATA", "the model's data can't be released"),
    (545007, "COMMAND_HANDLE", "a command of the model failed"),
    (545008, "GET_TENSOR_INFO", "the model's inputs and outputs can't be read", _OM),
    (545009, "UNLOAD_MODEL", "the model can't be unloaded"),
    (545601, "MODEL_EXECUTE_TIMEOUT", "the model took too long", _RESTART),
)

CODES: Final[dict[int, Code]] = {row[0]: Code(*row) for row in _TABLE}

_FAMILIES: Final = {
    1: "wrong use",
    2: "out of resources, or not supported",
    3: "a condition of the business",
    5: "a fault in the software or the hardware",
}


def code_facts(code: int) -> Code:
    """What is known of a code; for one that is not in the table, what its family says."""
    known = CODES.get(code)
    if known is not None:
        return known
    family = _FAMILIES.get(code // 100_000, "of no known family")
    return Code(code, "UNKNOWN", f"a code that is not documented ({family})", "look at ~/ascend/log")
