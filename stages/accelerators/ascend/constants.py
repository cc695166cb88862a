"""Owns the vendor's constants: the module ``acl`` exports functions only. Does not own error codes (``codes``).

Source: headers of the CANN runtime and graph engine (acl_rt.h, acl_base.h, acl_mdl.h).
"""

from __future__ import annotations

from typing import Final

# memory
MALLOC_HUGE_FIRST: Final = 0
HOST_TO_DEVICE: Final = 1
DEVICE_TO_HOST: Final = 2
DDR_MEM: Final = 0  # the attribute of get_mem_info on cards with LPDDR, such as the Atlas 300V Pro
MEMORY_ALIGN_BYTES: Final = 64  # start of everything that is copied asynchronously
PIECE_ALIGN_BYTES: Final = 32  # length of a piece cut out of a block, and its distance to the next
PIECE_PAD_BYTES: Final = 32

# streams and events
EVENT_SYNC: Final = 0x1  # an event that streams may wait for and that may be reset
EVENT_COMPLETE: Final = 1  # of query_event_status; the deprecated query_event answers the other way round
STOP_ON_FAILURE: Final = 1

# models
DYNAMIC_TENSOR_NAME: Final = "ascend_mbatch_shape_data"
DYNAMIC_AIPP_NAME: Final = "ascend_dynamic_aipp_data"
SHAPE_BYTES: Final = 8  # written by set_dynamic_batch_size where there is room
AIPP_NONE: Final = 0
AIPP_STATIC: Final = 1
AIPP_YUV420SP: Final = 1
AIPP_RGB888: Final = 3

DTYPES: Final[dict[int, str]] = {  # numpy's names by aclDataType; there is no 5
    0: "float32",
    1: "float16",
    2: "int8",
    3: "int32",
    4: "uint8",
    6: "int16",
    7: "uint16",
    8: "uint32",
    9: "int64",
    10: "uint64",
    11: "float64",
    12: "bool",
}
