"""The search for the password finds it in every form: otherwise finding nothing would mean nothing."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from faults.canary import CANARY, USER, credentials, found_in

FORMS = {
    "as it is": CANARY,
    "in a URL": f"rtsp://{credentials()}@127.0.0.1/gate",
    "in a URL, as others escape it": f"rtsp://{USER}:{quote_plus(CANARY)}@127.0.0.1/gate",
    "in JSON": json.dumps({"password": CANARY}),
    "in a repr": repr({"password": CANARY}),
    "in a header": base64.b64encode(f"{USER}:{CANARY}".encode()).decode(),
    "its beginning": CANARY[:12],
    "its end": CANARY[-8:],
    "after an @": quote(CANARY, safe="@"),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_canary_is_found(form: str) -> None:
    assert found_in(f"2026-05-01 ERROR {FORMS[form]}: refused")
    assert found_in(f"2026-05-01 ERROR {FORMS[form]}: refused".encode())


def test_what_is_harmless_is_not_found() -> None:
    assert not found_in("rtsp://127.0.0.1:554/gate: user and password are refused; viewer")
