"""Owns what a file called an OM is by its first bytes: the vendor's, the simulator's, or none. Loads nothing.

The vendor's form: a header of 256 bytes that starts with ``IMOD``; at 76 the number of bytes that follow it
(``ModelFileHeader`` in the CANN Graph Engine's public headers).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, Literal

from stages.errors import UserError

MAGIC: Final = b"IMOD"
HEADER_BYTES: Final = 256
_LENGTH_AT: Final = 76


def kind_of_om(label: str, path: str) -> Literal["vendor", "simulated"]:
    """What the file is. Raises UserError, which begins with ``label``, when it is not there, damaged or something else.

    Of a simulated one only the beginning is looked at: ``aclsim.om`` reads it.
    """
    file = Path(path)
    try:
        size = file.stat().st_size if file.is_file() else -1
        start = b""
        if size >= 0:
            with file.open("rb") as stream:
                start = stream.read(HEADER_BYTES)
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or error
        raise UserError(f"{label}: OM {path} can't be read ({told}); correct om.file") from None
    if size < 0:
        raise UserError(f"{label}: OM {path} is not there; correct om.file, or convert it")
    if start.lstrip()[:1] == b"{":
        return "simulated"
    if not start.startswith(MAGIC):
        found = "is empty" if not start else f"is no OM: it starts with {start[:4]!r}, not with {MAGIC!r}"
        raise UserError(f"{label}: OM {path} {found}; correct om.file, or convert the model again with atc")
    body = struct.unpack_from("<I", start, _LENGTH_AT)[0] if len(start) == HEADER_BYTES else 0
    if len(start) < HEADER_BYTES or size - HEADER_BYTES < body:
        raise UserError(
            f"{label}: OM {path} is damaged: it has {size} bytes, and its header speaks of {HEADER_BYTES + body}; copy "
            "it again, or convert the model again with atc"
        )
    return "vendor"
