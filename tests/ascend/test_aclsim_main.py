"""``python -m stages.accelerators.aclsim script.py``: the report, the status, what the script sees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.accelerators.aclsim.__main__ import main, service_table

ROOT = Path(__file__).resolve().parents[2]
CLEAN = "import acl\nacl.init()\nacl.rt.set_device(0)\n{}acl.rt.reset_device(0)\nacl.finalize()\n"
TWICE = CLEAN.format("p, _ = acl.rt.malloc(64, 0)\nacl.rt.free(p)\nacl.rt.free(p)\n")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(text, *options, arguments=())``: the text as a script in a folder of its own."""

    def start(text: str | None, *options: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        if text is not None:
            script.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "stages.accelerators.aclsim", *options, str(script), *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    return start


def test_a_clean_script(run: Run) -> None:
    done = run(CLEAN.format("print(acl.get_soc_name())\n"))
    assert (done.returncode, done.stdout) == (0, "Ascend310P3\n")
    assert "nothing found" in done.stderr


def test_a_violation_ends_the_script_and_is_its_status(run: Run, tmp_path: Path) -> None:
    done = run(TWICE + "print('not reached')\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "DoubleFree" in done.stderr
    assert f"{tmp_path / 'script.py'}:6" in done.stderr
    assert "Traceback" not in done.stderr


def test_collect_goes_on(run: Run) -> None:
    done = run(TWICE + "print('reached')\n", "--collect")
    assert done.returncode == 1
    assert done.stdout == "reached\n"
    assert "DoubleFree" in done.stderr


def test_a_violation_that_the_script_swallows_is_told_all_the_same(run: Run) -> None:
    done = run(
        CLEAN.format("p, _ = acl.rt.malloc(64, 0)\nacl.rt.free(p)\ntry:\n acl.rt.free(p)\nexcept Exception: pass\n")
    )
    assert done.returncode == 1
    assert "DoubleFree" in done.stderr


def test_json_is_the_last_line_of_stdout(run: Run) -> None:
    done = run("print('before')\n" + TWICE, "--json")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "before"
    told = json.loads(lines[-1])
    assert [violation["kind"] for violation in told["violations"]] == ["DoubleFree"]
    assert told["violations"][0]["where"].endswith("script.py:7")


@pytest.mark.parametrize(
    ("end", "status"),
    [("sys.exit(7)", 7), ("sys.exit()", 0), ("sys.exit('no camera')", 1), ("raise ValueError('mine')", 1)],
)
def test_the_scripts_own_status(run: Run, end: str, status: int) -> None:
    done = run(f"import sys\n{CLEAN.format('')}{end}\n")
    assert done.returncode == status
    assert "nothing found" in done.stderr
    if "ValueError" in end:
        assert "ValueError: mine" in done.stderr
        assert "__main__.py" not in done.stderr  # the user's frames only
    if "camera" in end:
        assert "no camera" in done.stderr


def test_what_the_script_sees(run: Run, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import acl\nNAME = acl.__name__\n", encoding="utf-8")
    text = CLEAN.format("import sys, beside\nprint(__name__, sys.argv[1:], beside.NAME, sys.modules['__main__'].x)\n")
    done = run("x = 5\n" + text, arguments=("a", "--devices", "9"))
    assert done.stdout == "__main__ ['a', '--devices', '9'] acl 5\n", done.stderr


def test_threads_and_exit_hooks_run_before_the_report(run: Run) -> None:
    text = (
        "import atexit, threading, time, acl\nacl.init()\nacl.rt.set_device(0)\n"
        "@atexit.register\ndef end():\n    acl.rt.reset_device(0)\n    acl.finalize()\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
    )
    done = run(text)
    assert (done.returncode, done.stdout) == (0, "thread\n"), done.stderr


def test_faults_and_devices(run: Run) -> None:
    text = CLEAN.format("print(acl.rt.get_device_count()[0], acl.rt.malloc(64, 0)[1], acl.rt.malloc(64, 0)[1])\n")
    done = run(text, "--devices", "3", "--fault", "out of memory at malloc 2", "--collect")
    assert done.stdout == "3 0 207001\n"


def test_a_trace_is_written(run: Run, tmp_path: Path) -> None:
    body = "s, _ = acl.rt.create_stream()\np, _ = acl.rt.malloc(64, 0)\nacl.rt.memset_async(p, 64, 0, 64, s)\n"
    end = "acl.rt.synchronize_stream(s)\nacl.rt.free(p)\nacl.rt.destroy_stream(s)\n"
    done = run(CLEAN.format(body + end), "--trace", str(tmp_path / "trace.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--devices", "many"), "many"),
        (("--devices", "0"), "devices is 0"),
        (("--fault", "break it"), "break it"),
        (("--service", "fast"), "1=5.2,4=12.8"),
        (("--unknown",), "--unknown"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    options: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(CLEAN.format(""), encoding="utf-8")
    assert refused([*options, str(script)]) == 2
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert told in err
    assert not out


@pytest.mark.parametrize("text", [None, "import acl\ndef broken(:\n"], ids=["missing", "no-python"])
def test_a_script_that_can_not_be_run_is_told_in_one_line(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    if text is not None:
        script.write_text(text, encoding="utf-8")
    assert refused([str(script)]) == 2
    _, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert "script.py" in err


def refused(arguments: list[str]) -> int:
    """The status with which a command line is refused, before anything of this process is touched."""
    try:
        status = main(arguments)
    except SystemExit as error:
        status = int(error.code or 0)
    assert "acl" not in sys.modules
    return status


@pytest.mark.parametrize(
    "table", ["1=nan", "1=inf", "1=-5", "0=5", "-1=5", "1=5,1=6", "1=1e300", "nan=1", "", "1", "1=5=6", "1=5,"]
)
def test_a_table_of_times_that_no_card_can_have_is_refused(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"--service={table}", "script.py"])
    assert ended.value.code == 2
    assert "is no table; give each batch of 1 or more once, with milliseconds from 0" in capsys.readouterr().err


def test_a_table_of_times_is_read() -> None:
    assert service_table("1=5.2,4=0") == {1: 5.2, 4: 0}
