"""What tests of mistakes in YAML files have in common; the fixture ``refusal`` is in ``unit/conftest.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Refusal: TypeAlias = Callable[..., list[str]]
"""Gets files by name, overrides, ``env``; gives the lines with which site.yaml was refused."""

GOOD_CAMERA = "source: ../clip.mp4\n"
