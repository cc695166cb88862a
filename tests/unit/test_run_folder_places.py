"""Where a run's sockets may lie when no folder for temporary files can be written."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pipeline.transport import channel
from stages.errors import UserError


@pytest.fixture(autouse=True)
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    del tmp_path  # pytest makes it first, with the real one

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def test_a_read_only_container_is_told_what_to_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(parent: Path) -> tuple[Path, int]:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(channel, "_locked_folder", refuse)
    with pytest.raises(UserError, match=r"no folder for this run's sockets.*--tmpfs /tmp"), channel.run_folder():
        pass


def test_the_runtime_folder_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_LONGEST_IPC_PATH", 4096)  # the folders of tests may be longer
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with channel.run_folder() as folder:
        assert folder.parent == tmp_path
        assert channel.run_folders()[0].count(folder) == 1
