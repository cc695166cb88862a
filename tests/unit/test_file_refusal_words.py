"""What a path that can't be made is said to lack."""

from __future__ import annotations

import errno
from pathlib import Path

from stages.sinks.file_refusal import explain

MISSING = FileNotFoundError(errno.ENOENT, "No such file or directory")


def test_a_folder_that_is_there_is_not_said_to_be_missing() -> None:
    assert explain(MISSING, Path("/proc/a.png")) == "no file can be made in /proc; choose another path"


def test_of_a_link_to_nowhere_the_folder_that_it_names_is_missing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "a")
    assert explain(MISSING, tmp_path / "link").startswith(f"there is no folder {tmp_path}/nowhere;")
