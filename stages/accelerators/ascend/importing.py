"""Owns why the vendor's module can't be used from this Python, and what helps. Imports nothing, asks no device.

Sources: CANN's lists of runtime dependencies (Python 3.7 to 3.10 up to 8.0.RC2, to 3.11 from 8.0, to 3.13 from 8.5, to
3.14 from 9.1; numpy below 2 up to 8.5), and the layout of its installation (``set_env.sh`` in ``ascend-toolkit``,
``nnrt``, ``nnae`` or ``cann``; the driver's libraries in ``driver/lib64``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

INSTALLED: Final = "usr/local/Ascend"  # below the root, and below the home folder as Ascend
HOMES: Final = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_NNRT_HOME", "ASCEND_NNAE_HOME")  # by set_env.sh
_PYTHONS: Final = (
    "CANN 8.0 takes Python 3.7 to 3.11, 8.5 to 3.13, 9.1 to 3.14, older ones to 3.10, below campipe's 3.11"
)
_DRIVER_LIBRARIES: Final = ("libascend_hal", "libdrv", "libdcmi", "libmmpa", "libc_sec")
_SIMULATOR: Final = "or use ascend-sim:0, the simulator"


def import_problem(error: BaseException, environ: Mapping[str, str], numpy_version: str, root: Path = Path("/")) -> str:
    """A sentence on why ``import acl`` failed and what to do. ``root``: of the file system, for tests."""
    text = " ".join(str(error).split())
    why = f"the module acl can't be imported ({type(error).__name__}: {text[:300]})"
    return f"{why}; {_remedy(error, text, environ, numpy_version, root)}, {_SIMULATOR}"


def _remedy(error: BaseException, text: str, environ: Mapping[str, str], numpy_version: str, root: Path) -> str:
    home = next((environ[name] for name in HOMES if environ.get(name)), "")
    if isinstance(error, ModuleNotFoundError) and (error.name in (None, "acl")):
        if home:
            return (
                f"set_env.sh was sourced (CANN is in {home}), but its python/site-packages is not in PYTHONPATH or has "
                "no acl: source set_env.sh in the shell that starts campipe, or install the toolkit or nnrt with pyACL"
            )
        return f"{_sourcing(environ, root)} in the shell that starts campipe, or in its service"
    if "numpy" in text or "multiarray" in text or "_ARRAY_API" in text:
        return (
            f"this CANN's acl was built for another numpy than {numpy_version}: CANN up to 8.5 wants one below 2, so "
            "`pip install 'numpy<2' 'opencv-python<4.12'` beside campipe, or install a newer CANN"
        )
    if "libpython" in text:
        return "this Python has no shared library, which acl needs: install one that was built with --enable-shared"
    if "cannot open shared object file" in text:
        if any(name in text for name in _DRIVER_LIBRARIES):
            return (
                f"install the driver, or mount /{INSTALLED}/driver into the container, and have its lib64/driver and "
                f"lib64/common in LD_LIBRARY_PATH: {_sourcing(environ, root)}"
            )
        return f"CANN's libraries are not in LD_LIBRARY_PATH: {_sourcing(environ, root)}"
    python = ".".join(map(str, sys.version_info[:2]))
    return f"this is Python {python} with numpy {numpy_version}: {_PYTHONS}; {_sourcing(environ, root)}"


def _sourcing(environ: Mapping[str, str], root: Path) -> str:
    """How set_env.sh is sourced here, with the files that there are."""
    found = set_env_files(environ, root)
    if not found:
        return "install CANN (nnrt or toolkit, 8.0 or newer) and `source set_env.sh`"
    return " or ".join(f"`source {file}`" for file in found)


def set_env_files(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """The set_env.sh of what is installed: for all users, and for this one."""
    folders = [root / INSTALLED, *([Path(environ["HOME"]) / "Ascend"] if environ.get("HOME") else [])]
    found: list[Path] = []
    for folder in folders:
        try:
            found += sorted(file for file in folder.glob("*/set_env.sh") if file.is_file())
        except OSError:  # a folder that may not be read has nothing for us
            continue
    return found


def foreign_module(module: Any) -> str:
    """What is wrong with a module that is called acl and is not the vendor's; empty for the vendor's."""
    if all(hasattr(module, name) for name in ("init", "rt", "mdl")):
        return ""
    where = getattr(module, "__file__", None) or ", ".join(map(str, getattr(module, "__path__", ()))) or "no file"
    return (
        f"the module acl that Python finds ({where}) is not the vendor's; move it away, or source CANN's set_env.sh "
        f"after whatever put it into PYTHONPATH, {_SIMULATOR}"
    )
