"""Owns where the data that comes with campipe lies, in a checkout and in an installed wheel. Opens none of it."""

from __future__ import annotations

from pathlib import Path

from stages.errors import UserError

PACKAGE = Path(__file__).resolve().parent


def models_folder() -> Path:
    """The folder with descriptions (YAML) and files (ONNX) of the models that come with campipe."""
    return _find("models", "configs/models")


def demo_folder() -> Path:
    """The folder with the site that ``campipe demo`` runs."""
    return _find("demo", "configs/demo")


def street_clip() -> Path:
    """The recording of a street that ``campipe demo`` plays."""
    return _find("media/street.mp4", "tests/media/street.mp4")


def _find(installed: str, checked_out: str) -> Path:
    """``pyproject.toml`` says what the wheel puts where (sources); a checkout is used in place."""
    packaged = PACKAGE / "assets_data"
    path = packaged / installed if packaged.is_dir() else PACKAGE.parent / checked_out
    if not path.exists():
        raise UserError(f"campipe is not installed completely: {path} is missing; install it again")
    return path
