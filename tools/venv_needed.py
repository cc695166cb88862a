"""Owns that a tool which needs campipe's virtual environment says so. Runs on any Python 3."""

import importlib.util
import os
import shlex
import sys
from pathlib import Path

MODULES = ("numpy", "cv2", "av", "zmq", "msgpack", "msgspec", "pydantic", "ruamel", "onnxruntime")


def need_environment(script, *more):
    """End this program with status 2 and the command to use, if it can't import what campipe (and ``more``) imports."""
    missing = [name for name in (*MODULES, *more) if importlib.util.find_spec(name) is None]
    if sys.version_info >= (3, 11) and not missing:
        return
    root = Path(__file__).resolve().parents[1]
    tool = Path(script).resolve().relative_to(root)
    why = f"{', '.join(missing)} missing" if missing else f"this is Python {sys.version_info[0]}.{sys.version_info[1]}"
    sys.stderr.write(f"campipe: {tool} needs campipe's virtual environment ({why}). Use:\n")
    sys.stderr.write(f"  {root}/.venv/bin/python {root}/{tool} {' '.join(sys.argv[1:])}".rstrip() + "\n")
    if not (root / ".venv" / "bin" / "python").exists():
        sys.stderr.write("There is none yet: `tools/test --help` says how it is made, `tools/demo` makes one.\n")
    sys.exit(2)


def remedy(root, command):
    """What to do when ``command`` lacks a package of the extra `test`: use the environment, or put that into it."""
    python = Path(os.environ.get("CAMPIPE_VENV") or root / ".venv") / "bin" / "python"
    again = shlex.join([str(python), *command])
    if not python.exists():
        return f"Use:  {again}  (tools/test makes that environment)"
    if Path(sys.prefix) != python.parents[1]:
        return f"Use:  {again}"
    extra = shlex.join([str(python), "-m", "pip", "install", "-e", f"{root}[test]"])
    return f"Install the extra test first:  {extra}"
