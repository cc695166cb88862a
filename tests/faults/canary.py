"""Owns a password that must never be seen, and finding it in every form in which it might be. Knows no camera."""

from __future__ import annotations

import base64
from typing import Final
from urllib.parse import quote

USER: Final = "viewer"
CANARY: Final = "cnry:Zq7@/%?#&+ w-91x"  # every kind of symbol that a URL, a header or a log might change
_FORMS: Final = frozenset(
    form.encode()
    for form in (
        CANARY,
        quote(CANARY),
        quote(CANARY, safe=""),
        quote(CANARY, safe="").lower(),
        CANARY.replace("/", "\\/"),
        base64.b64encode(f"{USER}:{CANARY}".encode()).decode(),
        base64.b64encode(CANARY.encode()).decode(),
        "Zq7@/",  # parts, as left by what cuts at a symbol
        "w-91x",
        "cnry:",
        "cnry%3A",
    )
)


def credentials() -> str:
    """``user:password`` as it stands in a URL."""
    return f"{USER}:{quote(CANARY, safe='')}"


def found_in(data: bytes | str) -> list[str]:
    """The forms of the canary that ``data`` holds."""
    data = data.encode(errors="surrogateescape") if isinstance(data, str) else data
    return sorted(form.decode() for form in _FORMS if form in data)
