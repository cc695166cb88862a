"""Owns the changes to a virtual environment: making it, giving it pip, installing into it. Judging it is VenvState's.

One process at a time works on an environment; others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import debian
from report import Refused, clear_progress, explain_pip, last_lines, say, show_progress
from venv_state import RECORD, VenvState, loads

# What campipe imports from other projects' wheels: a system library that one of them lacks shows here, not in a run.
IMPORTS = "numpy, av, onnxruntime, zmq, msgpack, msgspec, pydantic, ruamel.yaml, rich"

# What opencv-python needs to be imported and slim images lack; opencv-python-headless needs none of them.
VISION_LIBRARIES = ("libGL.so.1", "libxcb.so.1", "libglib-2.0.so.0", "libgthread-2.0.so.0")

# Settings for the user's other installations, each of which would lead this one astray.
FOREIGN_SETTINGS = {
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_PYTHON",
    "PIP_DRY_RUN",
    "PIP_REQUIREMENT",
    "PIP_EDITABLE",
}
FOREIGN_SETTINGS |= {"PIP_NO_DEPS", "PIP_QUIET", "PIP_LOG"}

# Runs the pip of a wheel with certificates of one's choice: Debian's does not even start without those of the system.
PIP_WITH_CERTIFICATES = """
import runpy, sys
bundle, wheel = sys.argv[1:3]
del sys.argv[1:3]
sys.path.insert(0, wheel)
from pip._vendor import certifi
certifi.where = lambda: bundle
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


class Installer:
    """Brings a virtual environment to the state that is wanted."""

    def __init__(self, state: VenvState) -> None:
        self.state = state
        self.venv = state.venv
        self.log = state.venv / "install.log"

    def prepare(self) -> None:
        """Makes the environment ready, and does nothing if it is; Refused if the machine does not allow it."""
        state = self.state
        if state.is_ready():
            return
        with self._alone():
            if state.is_ready():
                return
            started = time.monotonic()
            state.check_place()
            kept = self._clear_or_keep()
            try:
                if not state.python.exists():
                    self._make()
                self._provide_pip()
                self._install()
            except Refused:
                if not self._has_begun_to_install():
                    state.write_record(kept)  # nothing is broken: the next start goes on from here
                raise
            self._check_imports(IMPORTS, "the installed packages cannot be imported on this machine")
            libraries = self._make_vision_importable()
            # A folder of these names among the installed packages would hide the checkout's.
            found = "pipeline, stages; pipeline.__file__ + stages.__file__"
            self._check_imports(found, f"campipe was installed but is not found; remove {self.venv} and start again")
            state.write_record(kept | dict.fromkeys(state.parts, state.fingerprint()), libraries)
            say(f"installed in {time.monotonic() - started:.0f} s")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds a lock on the folder around the environment; a command that a kill left behind keeps it."""
        try:
            self.venv.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot make {self.venv.parent} ({error.strerror}); name another place with CAMPIPE_VENV=/folder"
            raise Refused(message) from None
        lock = os.open(self.venv.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.set_inheritable(lock, True)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another installation is at work here; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:  # network file systems may have no locks
                say(f"{self.venv.parent} cannot be locked ({error.strerror}): do not install twice at once")
            yield
        finally:
            os.close(lock)

    def _clear_or_keep(self) -> dict[str, str]:
        """Empties the folder if what is there cannot be kept; returns what is installed in it. Marks it unfinished."""
        state = self.state
        fault = state.fault() if state.venv.exists() and any(state.venv.iterdir()) else "new"
        record = state.read_record() or {}
        self.venv.mkdir(exist_ok=True)
        self.log.unlink(missing_ok=True)
        state.write_record(None)
        if fault is None:
            return dict(record.get("installed") or {})
        if fault != "new":
            say(f"making {self.venv} anew: {fault}")
        for path in self.venv.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != RECORD:
                path.unlink()
        return {}

    def _make(self) -> None:
        say(f"making {self.venv} with {sys.executable} (Python {platform.python_version()})")
        code = self._run([sys.executable, "-I", "-m", "venv", "--without-pip", str(self.venv)])
        if code != 0:
            raise Refused(f"{sys.executable} cannot make a virtual environment:\n{last_lines(self._read_log())}")

    # --- pip ---------------------------------------------------------------------------------------------------------

    def _provide_pip(self) -> None:
        """Puts pip into the environment, by the first way that this machine has."""
        if self._has_pip():
            return
        own = "python{}.{}-venv".format(*sys.version_info)
        of_debian = sys.base_prefix == "/usr" and shutil.which("apt-get") is not None
        if importlib.util.find_spec("ensurepip") is None and of_debian and debian.can_install():
            say(f"Python's ensurepip is missing: apt-get install {own}")
            debian.install([own], self.log)
        ways = (self._pip_by_ensurepip, self._pip_by_other_pip, self._pip_by_wheels_here, self._pip_by_wheels_of_debian)
        for way in ways:
            if way() and self._has_pip():
                return
        remedy = f"sudo apt-get install {own}" if of_debian else f"install pip or ensurepip for {sys.executable}"
        log = self._read_log(whole=True)
        errors = "\n".join(re.findall(r"^(?:E|ERROR): .*", log, re.MULTILINE))
        raise Refused(
            f"{sys.executable} comes without pip and ensurepip, and none could be had here; remedy:  {remedy}\n"
            + last_lines(self._explain(log) or errors, 3)
        )

    def _has_pip(self) -> bool:
        return self._run([str(self.state.python), "-I", "-m", "pip", "--version"]) == 0

    def _pip_by_ensurepip(self) -> bool:
        return self._run([str(self.state.python), "-I", "-m", "ensurepip", "--default-pip"]) == 0

    def _pip_by_other_pip(self) -> bool:
        """The base Python's pip installs one of its kind; --target is allowed where Debian forbids plain installs."""
        place = next(self.venv.glob("lib/python*/site-packages"))
        return self._pip("install", "--target", str(place), "pip", python=sys.executable) == 0

    def _pip_by_wheels_here(self, folder: Path = debian.WHEELS) -> bool:
        """A wheel of pip can install itself; Debian's fits Debian's Python and trusts Debian's certificates."""
        wheels = sorted(folder.glob("pip-*.whl"))
        if not wheels or sys.base_prefix != "/usr" or not debian.CERTIFICATES.exists():
            return False
        return self._pip("install", "--no-index", str(wheels[-1]), program=[f"{wheels[-1]}/pip"]) == 0

    def _pip_by_wheels_of_debian(self) -> bool:
        """The package that ensurepip would take pip from, and if need be the one with the certificates, unpacked."""
        if sys.base_prefix != "/usr":
            return False
        say("Python's ensurepip is missing: unpacking pip from the package python3-pip-whl")
        bare = not debian.CERTIFICATES.exists()
        folder = self.venv / "debian"
        unpacked = debian.unpack(["python3-pip-whl", *["ca-certificates"] * bare], folder, self.log)
        wheels = folder / str(debian.WHEELS).lstrip("/")
        found = unpacked and (self._pip_by_registry(folder, wheels) if bare else self._pip_by_wheels_here(wheels))
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _pip_by_registry(self, folder: Path, wheels: Path) -> bool:
        """Debian's pip, shown unpacked certificates, fetches the registry's, which brings its own."""
        parts = sorted(folder.glob("usr/share/ca-certificates/mozilla/*.crt"))
        bundle = folder / "certificates.crt"
        bundle.write_bytes(b"\n".join(part.read_bytes() for part in parts))
        program = ["-c", PIP_WITH_CERTIFICATES, str(bundle), *map(str, wheels.glob("pip-*.whl"))]
        return self._pip("install", "--ignore-installed", "pip", program=program) == 0

    # --- packages ----------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        extras = ",".join(sorted(self.state.parts - {"campipe"}))
        what = f".[{extras}]" if extras else "."
        say(f"pip install -e '{what}'  (fetches up to 250 MB; log: {self.log})")
        # Wheels only: a build of OpenCV or ONNX Runtime would need compilers and hours.
        if self._pip("install", "--only-binary", ":all:", "-e", what) != 0:
            self._refuse_pip()

    def _has_begun_to_install(self) -> bool:
        return "Installing collected packages: " in self._read_log()

    def _make_vision_importable(self) -> Sequence[str]:
        """Remedies the lack of libraries that opencv-python needs; returns those that it now uses of the system."""
        trouble = self._import_error("cv2")
        if trouble is None:
            headless = any(name.startswith("opencv_python_headless-") for name in self.state.distributions())
            return [] if headless else [library for library in VISION_LIBRARIES if loads(library)]
        missing = ", ".join(library for library in VISION_LIBRARIES if not loads(library))
        if missing and debian.can_install():
            say(f"opencv-python needs {missing}: apt-get install libgl1 and GLib")
            debian.install(["libgl1", "libxcb1"], self.log)
            glib = "libglib2.0-0t64" if debian.is_known("libglib2.0-0t64") else "libglib2.0-0"
            debian.install([glib], self.log)
            if self._import_error("cv2") is None:
                return [library for library in VISION_LIBRARIES if loads(library)]
        version = next(name.split("-")[1] for name in self.state.distributions() if name.startswith("opencv_python-"))
        say(f"opencv-python cannot be imported ({missing or trouble}): putting opencv-python-headless over it")
        # Over it rather than instead of it: the same files, and pip still finds what campipe asks for.
        package = f"opencv-python-headless=={version.removesuffix('.dist')}"
        if self._pip("install", "--only-binary", ":all:", "--no-deps", "--force-reinstall", package) != 0:
            self._refuse_pip()
        trouble = self._import_error("cv2")
        if trouble is not None:
            raise Refused(f"OpenCV cannot be imported: {trouble}; remedy:  sudo apt-get install libgl1 libglib2.0-0")
        return []

    def _check_imports(self, modules: str, meaning: str) -> None:
        trouble = self._import_error(modules)
        if trouble is not None:
            raise Refused(f"{meaning}: {trouble}")

    def _import_error(self, modules: str) -> str | None:
        command = [str(self.state.python), "-I", "-c", f"import {modules}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if run.returncode == 0:
            return None
        return run.stderr.strip().rpartition("\n")[2] or f"Python ended with status {run.returncode}"

    def _refuse_pip(self) -> NoReturn:
        log = self._read_log()
        if (meaning := self._explain(log)) is None:
            raise Refused(f"pip could not install what is needed; the end of {self.log}:\n{last_lines(log)}")
        raise Refused(f"pip could not install what is needed: {meaning}.  (log: {self.log})")

    def _explain(self, log: str) -> str | None:
        return explain_pip(log, str(self.venv), platform.python_version(), platform.machine())

    # --- commands ----------------------------------------------------------------------------------------------------

    def _pip(self, *arguments: str, python: str = "", program: Sequence[str] = ("-P", "-m", "pip")) -> int:
        settings = {key: value for key, value in os.environ.items() if key not in FOREIGN_SETTINGS}
        settings |= {
            "PIP_USER": "0",
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
        }
        return self._run([python or str(self.state.python), *program, *arguments], settings)

    def _run(self, command: list[str], settings: dict[str, str] | None = None) -> int:
        """Runs a command in the checkout, its output into the log and its steps on the terminal; returns its status."""
        with (
            self.log.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=self.state.checkout,
                env=settings,
                close_fds=False,  # it inherits the lock
            ) as process,
        ):
            try:
                log.write(f"$ {' '.join(command)}\n")
                for line in process.stdout or ():
                    log.write(line)
                    log.flush()
                    show_progress(line)
            except BaseException:
                process.terminate()
                raise
            finally:
                clear_progress()
        return process.returncode

    def _read_log(self, *, whole: bool = False) -> str:
        """What the last command said, or all commands of this installation."""
        log = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return log if whole else log.rpartition("\n$ ")[2]
