"""Owns the knowledge of what a virtual environment is: its record, its Python, its faults. Changes only the record.

The record lies in the environment and says which ``pyproject.toml``, Python and folders it was made for. It is
"unfinished" before anything is changed and "ready" at the end, so an installation that was cut short is recognised.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from report import Refused

RECORD = "campipe-environment.json"
PARTS_OF_A_VENV = {"bin", "include", "lib", "lib64", "share", ".gitignore"}
OLDEST = (3, 11)

_DESCRIBE_PYTHON = (
    "import sys, json; i = sys.implementation; print(json.dumps(dict("
    "version=sys.version_info[:2], prefix=sys.prefix, base=getattr(sys, '_base_executable', ''),"
    "abi=i.cache_tag + sys.abiflags + getattr(i, '_multiarch', ''))))"
)


def loads(library: str) -> bool:
    """Whether the system has a shared library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class VenvState:
    """What is in the folder of a checkout's virtual environment, and whether it will do."""

    def __init__(self, checkout: Path, venv: Path, extras: Iterable[str], *, insist: bool) -> None:
        self.checkout = checkout
        self.venv = venv.resolve()  # a link to a folder elsewhere stays one
        self.parts = {"campipe", *extras}
        self.insist = insist  # on the Python that runs this, rather than on any that will do
        self.python = self.venv / "bin" / "python"

    def fingerprint(self) -> str:
        """What the installed packages depend on, beside the Python."""
        return hashlib.sha256((self.checkout / "pyproject.toml").read_bytes()).hexdigest()

    def read_record(self) -> dict[str, Any] | None:
        """What the last installation wrote; None if none ever wrote here, empty if it cannot be read."""
        try:
            record = json.loads((self.venv / RECORD).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def write_record(self, installed: dict[str, str] | None, libraries: Iterable[str] = ()) -> None:
        """Notes which parts are installed, by fingerprint, and which system libraries they need; None: work goes on."""
        found = self.describe_python() or {}
        record = {
            "state": "unfinished" if installed is None else "ready",
            "place": [str(self.checkout), str(self.venv)],
            "abi": found.get("abi"),
            "installed": installed or {},
            "distributions": self.distributions(),
            "libraries": list(libraries),
        }
        new = self.venv / f"{RECORD}.new"
        new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        new.replace(self.venv / RECORD)

    def distributions(self) -> list[str]:
        """The installed packages, by the folders that bear their names and versions."""
        return sorted(folder.name for folder in self.venv.glob("lib/python*/site-packages/*.dist-info"))

    def describe_python(self) -> dict[str, Any] | None:
        """What the environment's Python says of itself; None if it does not run or belongs to another environment."""
        try:
            run = subprocess.run(
                [self.python, "-I", "-c", _DESCRIBE_PYTHON], capture_output=True, timeout=60, check=True
            )
            found: dict[str, Any] = json.loads(run.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        library = self.venv / "lib" / "python{}.{}".format(*found["version"])
        return found if Path(found["prefix"]).resolve() == self.venv.resolve() and library.is_dir() else None

    def fault(self) -> str | None:
        """Why the environment cannot be kept, in words; None if it can."""
        record = self.read_record()
        if record is not None and record.get("state") != "ready":
            return "an earlier installation was cut short"
        if record is not None and record.get("place") != [str(self.checkout), str(self.venv)]:
            return "it was made in another folder"
        found = self.describe_python()
        if found is None:
            return "its Python does not run"
        if tuple(found["version"]) < OLDEST:
            return "its Python is too old: {}.{}".format(*found["version"])
        if record is not None and record.get("abi") != found["abi"]:
            return "its Python has become another one"
        if self.insist and os.path.realpath(found["base"]) != os.path.realpath(sys.executable):
            return f"CAMPIPE_PYTHON is not {found['base']}, with which it was made"
        return None

    def is_ready(self) -> bool:
        """Whether all that is wanted is there."""
        record = self.read_record()
        if not record or record.get("state") != "ready" or not (self.venv / "bin" / "campipe").exists():
            return False
        wanted, installed = self.fingerprint(), record.get("installed", {})
        return (
            all(installed.get(part) == wanted for part in self.parts)
            and set(record.get("distributions", ())) <= set(self.distributions())
            and all(map(loads, record.get("libraries", ())))
            and self.fault() is None
        )

    def check_place(self) -> None:
        """Refuses to write where that is not allowed, and to clear what is no virtual environment."""
        if not self.venv.exists():
            if not os.access(self.venv.parent, os.W_OK | os.X_OK):
                raise Refused(
                    f"this user cannot write to {self.venv.parent}; name another place with CAMPIPE_VENV=/folder"
                )
            return
        if not self.venv.is_dir():
            raise Refused(f"{self.venv} is a file where the virtual environment's folder goes; move it away")
        if not os.access(self.venv, os.W_OK | os.X_OK):
            raise Refused(
                f"{self.venv} needs work, but this user cannot write to it; remove it as its owner, "
                "or name another place with CAMPIPE_VENV=/folder"
            )
        names = {path.name for path in self.venv.iterdir()}
        begun = self.venv == self.checkout / ".venv" and names <= PARTS_OF_A_VENV
        if names and not begun and RECORD not in names and "pyvenv.cfg" not in names:
            raise Refused(f"{self.venv} holds something other than a virtual environment; move it away")
