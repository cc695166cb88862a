"""Owns telling files from cameras, and what can be said of a file without opening it. Decodes nothing."""

from __future__ import annotations

import difflib
import os
import re
import stat
from pathlib import Path

from pipeline.config.problems import did_you_mean, show_key
from pipeline.yaml import Place
from stages.errors import UserError

CAMERA_SCHEMES = ("rtsp", "rtsps", "http", "https", "udp")
ASSET = "asset:"
NOT_UTF8 = "has a name, or lies in a folder with one, that is not UTF-8; rename it, or make a link to it"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_DEVICE = re.compile(r"/dev/video[0-9]{1,4}")
_HOST = re.compile(r"([A-Za-z0-9_.-]{1,255}|\[[0-9a-fA-F:.]{2,64}\])(:([0-9]{1,5}))?")


def is_camera(url: str) -> bool:
    """Whether ``url`` names a camera (or a USB one by its device); everything else is a file."""
    if _DEVICE.fullmatch(url):
        return True
    found = _SCHEME.match(url)
    return found is not None and found[1].lower() in CAMERA_SCHEMES


def absolute(text: str, folder: Path) -> Path:
    """``text`` as a path: absolute, ``~`` the home folder, else relative to ``folder``. Needs not exist."""
    path = Path(text)
    if text.startswith("~"):
        try:
            path = path.expanduser()
        except RuntimeError:  # no such user: then it's a file called so
            path = Path(text)
    path = folder / path
    try:
        short = os.path.normpath(path)
        # `..` may only be cut out where no symbolic link is before it
        return Path(short) if os.path.realpath(short) == os.path.realpath(path) else path
    except (OSError, ValueError):
        return path


def display_path(place: Place, text: str) -> str:
    """``text``, a path stated at ``place``, as the user would write it from where campipe was started."""
    if not place.label or place.label.startswith("--") or text.startswith("~"):
        return text
    return str(Path(place.label).parent / text)


def locate(url: str, place: Place) -> tuple[str, str | None]:
    """What ``url``, stated at ``place``, stands for: an absolute path or a camera's URL; and what is wrong with it."""
    if found := _SCHEME.match(url):
        return url, _camera_problem(found[1].lower(), found[2])
    if url.startswith(ASSET):
        return _asset(url)
    if _DEVICE.fullmatch(url):  # may be plugged in later
        return url, None
    path = absolute(url, place.folder)
    if not is_utf8(path):
        return str(path), NOT_UTF8
    return str(path), file_problem(path, "video file", _relative_to(url, place))


def is_utf8(path: Path) -> bool:
    """Whether ``path`` is text: messages, reports and the libraries that open files know no other names."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _relative_to(text: str, place: Place) -> str:
    stated_in_file = place.line is not None
    return "" if Path(text).is_absolute() or not stated_in_file else " (paths count from the file that states them)"


def _camera_problem(scheme: str, rest: str) -> str | None:
    if scheme not in CAMERA_SCHEMES:
        likely = did_you_mean(scheme, CAMERA_SCHEMES)
        remedy = f"did you mean '{likely}://'?" if likely else "write the path of a file, or rtsp://HOST/PATH"
        return f"'{show_key(scheme)}://' is not a kind of source; {remedy}"
    host = _HOST.fullmatch(re.split(r"[/?#]", rest, maxsplit=1)[0])
    if host is None or re.search(r"\s", rest):
        return "is not a camera's address; write rtsp://HOST:PORT/PATH"
    if host[3] and not 1 <= int(host[3]) <= 65_535:
        return "has a port that is not from 1 to 65535; write rtsp://HOST:PORT/PATH"
    return None


def _asset(url: str) -> tuple[str, str | None]:
    from pipeline import assets

    known = {"street.mp4": assets.street_clip}
    name = url.removeprefix(ASSET)
    if name not in known:
        likely = did_you_mean(name, known) or "street.mp4"
        return url, f"is not a clip that comes with campipe; did you mean '{ASSET}{likely}'?"
    try:
        return str(known[name]()), None
    except UserError as error:
        return url, "; ".join(error.problems)


def is_there(path: Path, *, folder: bool = False) -> bool:
    """Whether there is anything at ``path`` (with ``folder``: a folder); what can't be looked at is not there."""
    try:
        return path.is_dir() if folder else path.exists()
    except (OSError, ValueError):
        return False


def file_problem(path: Path, what: str, hint: str = "") -> str | None:
    """Why ``path`` can't be read as ``what``, with the remedy; None if nothing is against it."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        near = _near(path)
        return f"no such file; {f'did you mean {near}?' if near else f'check the path{hint}'}"
    except (OSError, ValueError) as error:
        return f"can't be read ({getattr(error, 'strerror', None) or 'not a path'}); check the path"
    if stat.S_ISDIR(status.st_mode):
        return f"is a folder; name a {what} in it"
    if not stat.S_ISREG(status.st_mode):
        return f"is not a regular file; name a {what}"
    if status.st_size == 0:
        return f"is an empty file (0 bytes); name a {what} with content"
    if not os.access(path, os.R_OK):
        return "can't be read (Permission denied); change its permissions"
    return None


def _near(path: Path) -> str | None:
    """The file beside ``path`` that was probably meant."""
    if len(path.name) > 100:
        return None
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry, _ in zip(entries, range(1000), strict=False) if entry.is_file()]
    except (OSError, ValueError):
        return None
    found = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"'{show_key(found[0])}'" if found else None
