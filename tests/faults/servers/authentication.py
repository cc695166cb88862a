"""Owns whether a request carries the right user and password: Basic and Digest, RFC 7617 and 7616. Not the answer."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from dataclasses import dataclass, field

_PAIR = re.compile(r'(\w+)=(?:"([^"]*)"|([^,\s]*))')


@dataclass
class Gatekeeper:
    """``scheme``: none, basic, digest, or both (the client chooses)."""

    scheme: str = "none"
    user: str = ""
    password: str = field(default="", repr=False)
    realm: str = "camera"
    nonce: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    refused: int = 0

    def admits(self, method: str, header: str | None) -> bool:
        """Whether the header ``Authorization`` of this request is right."""
        right = self.scheme == "none" or (header is not None and self._right(method, header))
        self.refused += not right
        return right

    def challenges(self) -> list[str]:
        """Values of ``WWW-Authenticate``."""
        digest = f'Digest realm="{self.realm}", nonce="{self.nonce}", algorithm=MD5, qop="auth"'
        offered = {"basic": [f'Basic realm="{self.realm}"'], "digest": [digest]}
        return offered["basic"] + offered["digest"] if self.scheme == "both" else offered.get(self.scheme, [])

    def _right(self, method: str, header: str) -> bool:
        scheme, _, rest = header.partition(" ")
        scheme = scheme.lower()
        if self.scheme not in (scheme, "both"):
            return False
        if scheme == "basic":
            try:
                return base64.b64decode(rest, validate=True) == f"{self.user}:{self.password}".encode()
            except binascii.Error:
                return False
        said = {name: quoted or plain for name, quoted, plain in _PAIR.findall(rest)}
        if (said.get("username"), said.get("realm"), said.get("nonce")) != (self.user, self.realm, self.nonce):
            return False
        who = _md5(f"{self.user}:{self.realm}:{self.password}")
        what = _md5(f"{method}:{said.get('uri', '')}")
        middle = f"{self.nonce}:{said.get('nc')}:{said.get('cnonce')}:{said['qop']}" if "qop" in said else self.nonce
        return said.get("response") == _md5(f"{who}:{middle}:{what}")


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
