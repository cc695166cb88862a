"""The simulator replaces its own files of an earlier run, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.accelerators.aclsim.own_files import check_state, check_trace
from stages.accelerators.registry import open_device
from stages.errors import UserError


@pytest.mark.parametrize("option", ["trace", "state_path"])
def test_a_users_file_is_never_replaced(option: str, tmp_path: Path) -> None:
    mine = tmp_path / "clip.mp4"
    mine.write_bytes(b"\0\0\0\x18ftypmp42")
    with pytest.raises(UserError, match="name a file that may be replaced"):
        open_device("ascend-sim:0", 1, {option: str(mine)})
    assert mine.read_bytes() == b"\0\0\0\x18ftypmp42"


@pytest.mark.parametrize(("name", "says"), [("no/such/folder/x", "there is no folder"), (".", "no regular file")])
def test_places_that_can_not_be_written_are_refused(name: str, says: str, tmp_path: Path) -> None:
    for check in (check_trace, check_state):
        with pytest.raises(UserError, match=says):
            check(f"{tmp_path}/{name}", "option")


def test_what_was_written_before_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "state.json").write_text('{"spent": ["fail the 1st malloc"]}')
    check_trace(str(tmp_path / "trace.json"), "trace")
    check_state(str(tmp_path / "state.json"), "state_path")
    check_trace(str(tmp_path / "new.json"), "trace")


def run(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stages.accelerators.aclsim", *options, str(script)]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_trace_does_not_replace_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import acl\n")
    done = run(script, "--trace", str(script))
    assert (done.returncode, script.read_text()) == (2, "import acl\n")
    assert "name a file that may be replaced" in done.stderr


@pytest.mark.parametrize("where", ["thread", "main"])
def test_a_violation_ends_a_script_whose_other_thread_waits(where: str, tmp_path: Path) -> None:
    wrong = "acl.init()\n    acl.rt.set_device(0)\n    acl.rt.free(77)"
    waits = "queue.Queue().get()"
    in_thread, in_main = (wrong, waits) if where == "thread" else (waits, wrong)
    script = tmp_path / "script.py"
    script.write_text(
        f"import acl, queue, threading\ndef work():\n    {in_thread}\nthreading.Thread(target=work).start()\n"
        f"def rest():\n    {in_main}\nrest()\n"
    )
    done = run(script)
    assert done.returncode == 1, done.stderr
    assert "script.py" in done.stderr
    assert "remedy" in done.stderr
