"""Owns finding model descriptions and model files, and checking files. Fetches none, and reads no more than a summary.

A model is described by ``NAME.yaml``; the description names an ONNX file. Both are looked for first where they are said
to be (an explicit path; beside the description), then in the folder that the environment variable ``CAMPIPE_MODELS``
names; last, descriptions among those that come with campipe, files in the user's cache.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from pipeline import assets
from pipeline.models.known import KNOWN, KnownModel, by_file
from pipeline.yaml import read_yaml
from stages.errors import UserError

VARIABLE = "CAMPIPE_MODELS"
SUFFIXES = (".yaml", ".yml")
SHOWN = 200  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Summary:
    """What a description says of its model, as far as a list needs it; ``problem`` is set if it can't be read."""

    name: str
    description: Path
    file: str = ""
    sha256: str = ""
    size_bytes: int | None = None
    licence: str = ""
    origin: str = ""
    input_px: tuple[int, int] | None = None  # width, height
    problem: str = ""


def own_folder() -> Path | None:
    """The folder that ``CAMPIPE_MODELS`` names, None if it is not set; UserError if it names no folder."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return None
    try:
        folder = Path(value).expanduser().absolute()
        if folder.is_dir():
            return folder
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such user, no permission, no current folder
        pass
    shown = repr(value if len(value) <= SHOWN else f"{value[:SHOWN]}…")
    raise UserError(f"{VARIABLE} is {shown}, which is not a folder; name one with your models, or unset it")


def models_cache() -> Path:
    """The folder in the user's cache that fetched model files lie in; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(cache).is_absolute():  # the XDG specification: a relative path is invalid and ignored
        try:
            cache = str(Path.home() / ".cache")
        except RuntimeError:
            raise UserError("there is no home folder to keep models in; set XDG_CACHE_HOME to a folder") from None
    return Path(cache) / "campipe" / "models"


def description_folders() -> list[Path]:
    """The folders that descriptions are looked for in by name, first wins."""
    own = own_folder()
    return [*([own] if own else []), assets.models_folder()]


def descriptions() -> dict[str, Path]:
    """All models that can be named, with their descriptions, sorted by name."""
    found: dict[str, Path] = {}
    for folder in description_folders():
        for suffix in SUFFIXES:
            for path in sorted(folder.glob(f"[!.]*{suffix}")):
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find_description(name_or_path: str | Path) -> Path:
    """The YAML file that describes a model, absolute; UserError if there is none.

    Text ending in ``.yaml`` or ``.yml`` is a path, relative to the current folder; other is a name.
    """
    text = str(name_or_path)
    if text.lower().endswith(".onnx"):
        raise UserError(
            f"model {text!r} is a model file; name the YAML that describes it instead (labels, scaling, layout); "
            "`campipe models inspect` writes one. "
            f"A model that campipe knows needs only its name: {', '.join(descriptions())}"
        )
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(SUFFIXES):
        if not text.endswith(SUFFIXES):
            remedy = f"a description's path ends in .yaml or .yml{_did_you_mean(Path(text).name)}"
            raise UserError(f"model {text[:SHOWN]!r} is neither the name of a model nor a description; {remedy}")
        try:
            path = Path(text).expanduser().absolute()
        except RuntimeError:  # no such user: then it's a file called so
            path = Path(text).absolute()
        if _is_file(path):
            return path
        raise UserError(f"model {text!r}: there is no such file; check the path{_did_you_mean(path.stem)}")
    for folder in description_folders():
        for suffix in SUFFIXES:
            if _is_file(folder / f"{text}{suffix}"):
                return folder / f"{text}{suffix}"
    known = descriptions()
    raise UserError(f"model {text!r} is not known{_did_you_mean(text)}; there are: {', '.join(known)}")


def find_file(file: str | Path, folder: Path) -> Path:
    """The model file that a description in ``folder`` names, absolute; UserError with the remedy if it is nowhere."""
    named = Path(file).expanduser()
    places = [folder / named]
    if not named.is_absolute():
        own = own_folder()
        places += [*([own / named] if own else []), models_cache() / named]
    for path in places:
        if _is_file(path):
            if os.fsencode(path.absolute()).decode(errors="replace") != str(path.absolute()):
                raise UserError(
                    f"model file {path} has a name, or a folder, that is not UTF-8; rename it or link to it"
                )
            return path.absolute()
    if named.is_absolute():
        raise UserError(f"model file {file} does not exist; check `file` in its description")
    known = by_file(named.name)
    if known and known.url:
        remedy = f"`campipe models fetch {known.name}` gets it once, or place it there by hand"
    else:
        remedy = f"place it there, or in a folder that {VARIABLE} names"
    raise UserError(f"model file {file} is not here; looked at {', '.join(map(str, dict.fromkeys(places)))}. {remedy}")


def check(path: Path, sha256: str, size_bytes: int | None = None) -> str:
    """What is wrong with the content of ``path``, with both values; empty if nothing is.

    An empty ``sha256`` or a ``size_bytes`` of None is not checked. The whole file is hashed each time: 10 ms for 10 MB.
    """
    try:
        size = path.stat().st_size
        if size_bytes is not None and size != size_bytes:
            return f"has {size} bytes, expected {size_bytes}"
        if sha256:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != sha256.lower():
                return f"has sha256 {digest}, expected {sha256.lower()}"
    except OSError as error:
        return f"can't be read ({error.strerror})"
    return ""


def verify(path: Path, sha256: str, size_bytes: int | None = None) -> None:
    """Raise UserError, with the remedy, unless ``path`` has this content (see ``check``)."""
    wrong = check(path, sha256, size_bytes)
    if not wrong:
        return
    known = by_file(path.name)
    if path.parent == models_cache() and known and known.url:
        remedy = f"it is damaged: `campipe models fetch {known.name}` gets it again"
    elif path.parent == assets.models_folder():
        remedy = "it is damaged: install campipe again"
    else:
        remedy = "it is damaged or another version: replace it, or correct sha256 and size_bytes in its description"
    raise UserError(f"model file {path} {wrong}; {remedy}")


def summarise(description: Path) -> Summary:
    """What ``description`` says; never raises, so that one bad file does not hide the others in a list."""
    name = description.stem
    node, faults = read_yaml(description, description.name)
    if node is None or faults:
        fault = faults[0] if faults else None
        return Summary(name, description, problem=f"{fault.place}: {fault.text}" if fault else "is empty")

    def text(key: str) -> str:
        found = node.get(key)
        return found.value if found and isinstance(found.value, str) else ""

    size, width, height = (
        found.value if (found := node.get(*keys)) and isinstance(found.value, int) else None
        for keys in (("size_bytes",), ("input", "width"), ("input", "height"))
    )
    if not text("file"):
        return Summary(name, description, problem=f"{description.name}: no file is named; add `file: MODEL.onnx`")
    pixels = (width, height) if width is not None and height is not None else None
    return Summary(name, description, text("file"), text("sha256"), size, text("licence"), text("origin"), pixels)


def fetchable(summary: Summary) -> KnownModel | None:
    """What ``campipe models fetch`` can get for this model: pinned by campipe, or by the user's own description.

    The latter needs an ``origin`` that is an address, ``sha256``, ``size_bytes``, and a ``file`` without folders.
    """
    known = KNOWN.get(summary.name)
    if known and known.file == summary.file:
        return known if known.url else None
    address = summary.origin.startswith(("https://", "http://"))
    if address and summary.sha256 and summary.size_bytes and Path(summary.file).name == summary.file:
        return KnownModel(summary.name, summary.file, summary.sha256.lower(), summary.size_bytes, summary.origin)
    return None


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, {*descriptions(), *KNOWN}, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False
