"""What a machine with a card may lack before the first batch, and how it is told: module, driver, files, permission."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pipeline.preflight.trial import no_answer
from pipeline.runtime.worker import _last_words
from stages.accelerators.ascend.binding import SIGNALS, bind
from stages.accelerators.ascend.errors import error_of
from stages.accelerators.ascend.importing import foreign_module, import_problem, set_env_files
from stages.accelerators.ascend.options import AscendOptions
from stages.accelerators.ascend.surroundings import MANAGING, missing_here, versions_here
from stages.errors import UserError

NO_MODULE = ModuleNotFoundError("No module named 'acl'", name="acl")
NUMPY = ImportError("numpy.core.multiarray failed to import")
LIBRARY = "libascendcl.so: cannot open shared object file: No such file or directory"
DRIVER = "libascend_hal.so: cannot open shared object file: No such file or directory"


def installed(root: Path, *names: str) -> Path:
    for name in names:
        file = root / "usr/local/Ascend" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("Version=24.1.rc3\n")
    return root


@pytest.mark.parametrize(
    ("error", "environ", "says"),
    [
        pytest.param(NO_MODULE, {}, "`source {root}/usr/local/Ascend/nnrt/set_env.sh`", id="not sourced"),
        pytest.param(
            NO_MODULE, {"ASCEND_TOOLKIT_HOME": "/opt/cann"}, "CANN is in /opt/cann", id="sourced, without pyACL"
        ),
        pytest.param(ImportError(LIBRARY), {}, "LD_LIBRARY_PATH: `source", id="libraries"),
        pytest.param(ImportError(DRIVER), {}, "mount /usr/local/Ascend/driver into the container", id="driver"),
        pytest.param(ImportError(f"libpython3.11.so.1.0: {LIBRARY}"), {}, "--enable-shared", id="no libpython"),
        pytest.param(NUMPY, {}, "pip install 'numpy<2' 'opencv-python<4.12'", id="numpy"),
        pytest.param(AttributeError("_ARRAY_API not found"), {}, "another numpy than 2.3.1", id="numpy, other words"),
        pytest.param(ImportError("undefined symbol: _PyLong_AsInt"), {}, "8.0 takes Python 3.7 to 3.11", id="python"),
        pytest.param(SystemError("error return without exception set"), {}, "CANN 8.0 takes", id="any other"),
    ],
)
def test_why_the_module_can_not_be_imported_is_told_with_what_helps(
    error: Exception, environ: dict[str, str], says: str, tmp_path: Path
) -> None:
    root = installed(tmp_path, "nnrt/set_env.sh")
    text = import_problem(error, environ, "2.3.1", root)
    assert says.format(root=root) in text
    assert str(error) in text
    assert text.endswith("or use ascend-sim:0, the simulator")
    assert "\n" not in text


def test_where_nothing_is_installed_it_is_to_be_installed(tmp_path: Path) -> None:
    assert "install CANN (nnrt or toolkit, 8.0 or newer) and `source set_env.sh`" in import_problem(
        NO_MODULE, {}, "1.26.4", tmp_path
    )


def test_what_is_installed_is_found_for_all_users_and_for_this_one(tmp_path: Path) -> None:
    root = installed(tmp_path, "ascend-toolkit/set_env.sh", "cann/set_env.sh", "driver/version.info")
    own = tmp_path / "home/me/Ascend/nnrt/set_env.sh"
    own.parent.mkdir(parents=True)
    own.write_text("")
    found = set_env_files({"HOME": str(tmp_path / "home/me")}, root)
    assert [file.parent.name for file in found] == ["ascend-toolkit", "cann", "nnrt"]


def test_another_module_of_that_name_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = SimpleNamespace(init=1, rt=2, mdl=3)
    assert foreign_module(good) == ""
    folder = ModuleType("acl")
    folder.__path__ = [str(tmp_path / "acl")]
    assert f"({tmp_path}/acl) is not the vendor's" in foreign_module(folder)
    monkeypatch.setitem(sys.modules, "acl", folder)
    with pytest.raises(UserError, match="is not the vendor's"):
        bind("vendor", AscendOptions())


@pytest.mark.parametrize(("before", "after"), [(None, "none"), ("all", "all")])
def test_the_vendor_does_not_take_the_signals_of_workers(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handlers stood over SIG_IGN: Ctrl-C, which reaches the whole group, then ended executors in the middle."""
    monkeypatch.setenv(SIGNALS, before or "")
    if before is None:
        monkeypatch.delenv(SIGNALS)
    monkeypatch.setitem(sys.modules, "acl", SimpleNamespace(init=1, rt=2, mdl=3))
    bind("vendor", AscendOptions()).close()
    assert os.environ[SIGNALS] == after
    monkeypatch.setenv(SIGNALS, after)  # so that it is put back


def devices(root: Path, *names: str) -> Path:
    (root / "dev").mkdir(exist_ok=True)
    for name in names:
        (root / "dev" / name).touch()
    return root


def test_what_a_card_needs_is_there(tmp_path: Path) -> None:
    root = devices(installed(tmp_path, "driver/version.info"), "davinci0", "davinci1", *MANAGING, "null")
    assert missing_here(root) == []
    assert missing_here(tmp_path / "nothing") == []
    assert versions_here({"ASCEND_HOME_PATH": "/opt/cann/8.0"}, root) == "driver 24.1.rc3, CANN in /opt/cann/8.0"
    assert versions_here({}, tmp_path / "nothing") == ""


def test_what_a_card_needs_is_missing(tmp_path: Path) -> None:
    (problem,) = missing_here(devices(tmp_path, "null", "davinci_manager"))
    assert "there is no /dev/davinci0 here" in problem
    assert "--device for /dev/davinci0, /dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc" in problem
    files, driver = missing_here(devices(tmp_path, "davinci3"))
    assert files.startswith("/dev/devmm_svm, /dev/hisi_hdc is not here: start the container with --device")
    assert "no /usr/local/Ascend/driver here" in driver
    root = devices(installed(tmp_path, "driver/version.info"), *MANAGING)
    (barred,) = missing_here(root, lambda file: file.name == "hisi_hdc")
    assert barred.startswith("this user may not use /dev/davinci3, /dev/davinci_manager, /dev/devmm_svm: ")
    assert "usermod -aG" in barred


def test_a_runtime_that_crashes_is_not_told_as_a_damaged_file() -> None:
    died = "looking into it ended its process (status -11); is the file whole?"
    assert "(status -11), in the vendor's runtime: an acl that was built for another numpy" in no_answer(
        "ascend:0", died
    )
    assert no_answer("cpu", died) == "looking into it ended its process (status -11); is its model's file whole?"


@pytest.mark.parametrize(
    ("code", "begins"),
    [
        (507899, "DeviceFailed: acl.mdl.execute_async returned 507899"),
        (507010, "DeviceFailed: "),
        (507053, "DeviceFailed: "),
        (507018, "DeviceLost: "),
        (507047, "DeviceHung: "),
    ],
)
def test_a_fault_of_the_card_itself_is_not_blamed_on_the_frames_that_it_had(code: int, begins: str) -> None:
    """Under the name of its own class it was: two faults in a row cost the frames of both."""
    assert _last_words(error_of(code, "mdl.execute_async")).error.startswith(begins)
