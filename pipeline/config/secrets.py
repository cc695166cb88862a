"""Owns filling secrets in: ``${NAME}`` from the environment, credentials out of URLs. Stores none and shows none.

Only ``source.url``, ``source.user`` and ``source.password`` are: variables everywhere would be a second language.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from urllib.parse import unquote

from pipeline.config.problems import HIDDEN, Problems, redact, show_key
from pipeline.yaml import Node

_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<open>\{))")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)


class Unset(Exception):
    """A text can't be filled in; the message says why and never holds a value."""


def expand(template: str, env: Mapping[str, str]) -> str:
    """``template`` with each ``${NAME}`` filled in and each ``$$`` as ``$``; Unset if that can't be done."""

    def one(found: re.Match[str]) -> str:
        if found["open"]:
            raise Unset("has a ${ that no NAME} follows; write ${NAME}, or $${ for these characters themselves")
        name = found["name"]
        if name is None:
            return "$"
        value = env.get(name)
        if not value:
            state = "not set" if value is None else "set but empty"
            raise Unset(f"the environment variable {show_key(name)} is {state}; set it where campipe is started")
        return value

    return _VARIABLE.sub(one, template)


def escape_variables(text: str) -> str:
    """``text`` as a template that stands for just this text."""
    return text.replace("$", "$$")


def split_credentials(template: str) -> tuple[str, str | None, str | None]:
    """A URL without its user and password, and those two, percent-decoded; a path comes back as it is.

    Works on the template, because a password that is filled in may hold any character.
    """
    found = _URL.fullmatch(template)
    if not found or "@" not in found["authority"]:
        return template, None, None
    userinfo, _, host = found["authority"].rpartition("@")
    user, colon, password = userinfo.partition(":")
    return f"{found['scheme']}{host}{found['rest']}", unquote(user) or None, unquote(password) if colon else None


def has_broken_credentials(template: str) -> bool:
    """Whether a password in a URL holds a character that ends the part before the host, such as a slash."""
    found = _URL.fullmatch(template)
    if not found or "@" in found["authority"] or "@" not in found["rest"] or "${" in found["authority"]:
        return False
    return ":" in found["authority"] and not re.fullmatch(r".*:[0-9]*", found["authority"], re.DOTALL)


def fill_source(camera: Node, key: str, env: Mapping[str, str], problems: Problems) -> tuple[Node, bool]:
    """``camera`` with its source as a map whose secrets are filled in, and whether its url can be looked at.

    ``key`` is what messages call the source.
    """
    source = camera.get("source")
    if source is None or source.blank:
        return camera, False
    if isinstance(source.value, str):
        source = Node({"url": Node(source.value, source.place)}, source.place)
    if not isinstance(source.value, Mapping):
        return camera, False
    entries = dict(source.value)
    usable = _split_url(entries, key, problems)
    for name in ("url", "user", "password"):
        node = entries.get(name)
        if node is None or node.blank:
            continue
        if name != "url":
            node = dataclasses.replace(node, shown=HIDDEN)
        if isinstance(node.value, str):
            try:
                node = dataclasses.replace(node, value=expand(node.value, env))
            except Unset as unset:
                problems.add(node.place, f"{key}.{name}", str(unset))
                usable = usable and name != "url"
        entries[name] = node
    return camera.put(("source",), dataclasses.replace(source, value=entries)), usable


def _split_url(entries: dict[str, Node], key: str, problems: Problems) -> bool:
    """Move user and password of the url, if it has any, into entries of their own; whether it can be looked at."""
    url = entries.get("url")
    if url is None or not isinstance(url.value, str):
        return False
    template, user, password = split_credentials(url.value)
    url = dataclasses.replace(url, value=template, shown=redact(url.value))
    usable = not has_broken_credentials(template)
    if not usable:
        remedy = "write user and password as keys of their own, or as %2F, %3F, %23 and %40 in the url"
        problems.add_node(url, f"{key}.url", f"the password holds one of / ? # @; {remedy}")
    for name, value in (("user", user), ("password", password)):
        if value is None:
            continue
        if name in entries and not entries[name].blank:
            problem = f"the {name} is stated in the url too (line {url.place.line}); keep one of them"
            problems.add(entries[name].place, f"{key}.{name}", problem)
        entries[name] = Node(value, url.place, shown=HIDDEN)
    entries["url"] = url
    return usable
