"""Finding descriptions and files of models, checking files, and ``campipe models``."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import assets, cli
from pipeline.config.model import ModelConfig
from pipeline.models import store
from pipeline.models.known import KNOWN
from pipeline.yaml import read_yaml
from stages.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
Campipe = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user's cache and no folder of one's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CAMPIPE_MODELS", raising=False)
    folder = tmp_path / "cache" / "campipe" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def own(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own models, next to an empty cache."""
    assert cache.is_dir()
    folder = tmp_path / "my models"
    folder.mkdir()
    monkeypatch.setenv("CAMPIPE_MODELS", str(folder))
    return folder


@pytest.fixture
def campipe(capsys: pytest.CaptureFixture[str]) -> Campipe:
    """Run ``campipe models …`` in this process: status, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        status = cli.main(["models", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def describe(folder: Path, name: str, **values: object) -> Path:
    lines = {"file": f"{name}.onnx", "licence": "MIT", "input": "{width: 32, height: 16}", **values}
    path = folder / f"{name}.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


# --- what comes with campipe ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_known_model_and_its_description_say_the_same(name: str) -> None:
    summary = store.summarise(ROOT / "configs" / "models" / f"{name}.yaml")
    known = KNOWN[name]
    assert (summary.name, summary.file, summary.sha256, summary.size_bytes, summary.licence, summary.problem) == (
        *(known.name, known.file, known.sha256, known.size_bytes),
        *("Apache-2.0", ""),
    )


def test_every_description_that_comes_along_is_known() -> None:
    assert {path.stem for path in (ROOT / "configs" / "models").glob("*.yaml")} == set(KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_description_has_no_key_that_the_configuration_refuses(name: str) -> None:
    node, faults = read_yaml(assets.models_folder() / f"{name}.yaml")
    assert node is not None
    assert not faults
    values = {**node.plain(), "labels": ["person"]}  # `coco` is resolved later
    assert ModelConfig.model_validate(values).name == name


def test_assets_in_a_checkout() -> None:
    assert assets.models_folder() == ROOT / "configs" / "models"
    assert assets.street_clip() == ROOT / "tests" / "media" / "street.mp4"


def test_assets_in_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "PACKAGE", tmp_path / "pipeline")
    packaged = tmp_path / "pipeline" / "assets_data"
    for folder in ("models", "demo", "media"):
        (packaged / folder).mkdir(parents=True)
    (packaged / "media" / "street.mp4").touch()
    assert assets.models_folder() == packaged / "models"
    assert assets.demo_folder() == packaged / "demo"
    assert assets.street_clip() == packaged / "media" / "street.mp4"


def test_wheel_puts_the_assets_where_they_are_looked_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    places = dict(re.findall(r'^"([^"]+)" = "pipeline/assets_data/([^"]+)"$', text, re.MULTILINE))
    assert places == {"configs/models": "models", "configs/demo": "demo", "tests/media": "media"}


def test_incomplete_installation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "PACKAGE", tmp_path / "pipeline")
    for find in (assets.models_folder, assets.demo_folder, assets.street_clip):
        with pytest.raises(UserError, match="install it again"):
            find()


# --- descriptions -----------------------------------------------------------------------------------------------------


def test_description_by_name(cache: Path) -> None:
    assert cache.is_dir()
    assert store.find_description("coco-ssd") == ROOT / "configs" / "models" / "coco-ssd.yaml"


def test_own_description_wins(own: Path) -> None:
    mine = describe(own, "coco-ssd")
    (own / "second.yml").write_text("file: second.onnx\n")
    assert store.find_description("coco-ssd") == mine
    assert store.find_description("second") == own / "second.yml"
    assert list(store.descriptions()) == ["coco-ssd", "second", "yolox-nano"]


def test_description_by_path(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.is_dir()
    path = describe(tmp_path, "gates")
    monkeypatch.chdir(tmp_path)
    for text in (path, str(path), "gates.yaml", "./gates.yaml", Path("gates.yaml")):
        assert store.find_description(text) == path


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("coco-sdd", "'coco-sdd' is not known (did you mean 'coco-ssd'?); there are: coco-ssd, yolox-nano"),
        ("yolox_nano", "did you mean 'yolox-nano'?"),
        ("resnet", "'resnet' is not known; there are: coco-ssd, yolox-nano"),
        ("", "model '' is not known"),
        ("coco-ssd.yaml", "there is no such file; check the path (did you mean 'coco-ssd'?)"),
        ("nowhere/gates.yaml", "'nowhere/gates.yaml': there is no such file"),
        ("/tmp", "'/tmp' is neither the name of a model nor a description"),
        ("yolox_nano.onnx", "name the YAML that describes it"),
        ("n" * 5000, "is not known"),
        ("a/" + "n" * 5000, "is neither the name of a model nor a description"),
        ("a\0b", "is not known"),
        ("../models/coco-ssd", "path ends in .yaml or .yml (did you mean 'coco-ssd'?)"),
        ("../models/coco-ssd.yaml", "there is no such file"),
    ],
)
def test_unknown_model_gets_a_suggestion(cache: Path, name: str, says: str) -> None:
    assert cache.is_dir()
    with pytest.raises(UserError) as refused:
        store.find_description(name)
    assert says in str(refused.value)


@pytest.mark.parametrize("value", ["/nowhere/at/all", "file"])
def test_own_folder_that_is_none(value: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.is_dir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAMPIPE_MODELS", value)
    with pytest.raises(UserError, match=f"CAMPIPE_MODELS is '{value}', which is not a folder"):
        store.find_description("coco-ssd")


# --- files ------------------------------------------------------------------------------------------------------------


def test_file_is_looked_for_beside_then_in_own_then_in_cache(own: Path, cache: Path, tmp_path: Path) -> None:
    beside = tmp_path / "site"
    beside.mkdir()
    for folder in (cache, own, beside):
        (folder / "m.onnx").touch()
        assert store.find_file("m.onnx", beside) == folder / "m.onnx"
    assert store.find_file(str(own / "m.onnx"), beside) == own / "m.onnx"
    assert store.find_file("../my models/m.onnx", beside).samefile(own / "m.onnx")


def test_missing_file_of_a_known_model_says_how_to_fetch_it(cache: Path) -> None:
    with pytest.raises(UserError) as refused:
        store.find_file("yolox_nano.onnx", assets.models_folder())
    assert "`campipe models fetch yolox-nano`" in str(refused.value)
    assert str(cache / "yolox_nano.onnx") in str(refused.value)


def test_missing_file_of_ones_own_says_where_it_is_looked_for(own: Path) -> None:
    with pytest.raises(UserError) as refused:
        store.find_file("gates.onnx", own)
    assert str(refused.value).count(str(own / "gates.onnx")) == 1
    assert "CAMPIPE_MODELS" in str(refused.value)
    with pytest.raises(UserError, match=r"/nowhere/m\.onnx does not exist"):
        store.find_file("/nowhere/m.onnx", own)


def test_relative_xdg_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("HOME", "/home/anna")
        assert store.models_cache() == Path("/home/anna/.cache/campipe/models")


def test_verify_gives_both_values_and_a_remedy(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"model")
    right, wrong = hashlib.sha256(b"model").hexdigest(), hashlib.sha256(b"other").hexdigest()
    store.verify(file, right, 5)
    store.verify(file, right.upper())
    store.verify(file, "")
    with pytest.raises(UserError, match=r"m\.onnx has 5 bytes, expected 6; .*correct sha256 and size_bytes"):
        store.verify(file, right, 6)
    with pytest.raises(UserError, match=f"m.onnx has sha256 {right}, expected {wrong}; "):
        store.verify(file, wrong, 5)
    with pytest.raises(UserError, match="can't be read"):
        store.verify(tmp_path / "none.onnx", right)
    with pytest.raises(UserError, match="can't be read"):
        store.verify(tmp_path, right)
    fetched = cache / "yolox_nano.onnx"
    fetched.write_bytes(b"half")
    with pytest.raises(UserError, match="`campipe models fetch yolox-nano` gets it again"):
        store.verify(fetched, KNOWN["yolox-nano"].sha256, KNOWN["yolox-nano"].size_bytes)


def test_verify_of_a_damaged_installation(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.is_dir()
    monkeypatch.setattr(assets, "PACKAGE", tmp_path / "pipeline")
    folder = tmp_path / "pipeline" / "assets_data" / "models"
    folder.mkdir(parents=True)
    (folder / "coco-ssd.onnx").touch()
    with pytest.raises(UserError, match="install campipe again"):
        store.verify(folder / "coco-ssd.onnx", KNOWN["coco-ssd"].sha256, KNOWN["coco-ssd"].size_bytes)


# --- campipe models ---------------------------------------------------------------------------------------------------


def test_list_shows_name_licence_input_and_where(own: Path, campipe: Campipe) -> None:
    describe(own, "gates", size_bytes=4, sha256=hashlib.sha256(b"good").hexdigest())
    (own / "gates.onnx").write_bytes(b"good")
    describe(own, "lost")
    describe(own, "bad", size_bytes=4)
    (own / "bad.onnx").write_bytes(b"longer")
    (own / "tab.yaml").write_text("file:\n\tx.onnx\n")
    (own / "empty.yaml").touch()
    address = "https://models.example/far.onnx"
    describe(own, "far", size_bytes=4, sha256=hashlib.sha256(b"good").hexdigest(), origin=address)
    status, out, _ = campipe("list")
    assert status == 0
    header, *lines = out.splitlines()
    assert header.split() == ["NAME", "LICENCE", "INPUT", "FILE"]
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines}
    assert list(rows) == sorted(rows)
    assert rows["coco-ssd"] == ["Apache-2.0", "300x300", str(ROOT / "configs/models/coco-ssd.onnx")]
    assert rows["yolox-nano"] == ["Apache-2.0", "416x416", "not fetched (campipe models fetch yolox-nano)"]
    assert rows["gates"] == ["MIT", "32x16", str(own / "gates.onnx")]
    assert rows["lost"] == ["MIT", "32x16", "missing: lost.onnx"]
    assert rows["far"] == ["MIT", "32x16", "not fetched (campipe models fetch far)"]
    assert rows["bad"][2] == f"{own / 'bad.onnx'} (has 6 bytes, expected 4)"
    assert rows["tab"][2].startswith("unreadable: tab.yaml:2: ")
    assert rows["empty"][2].startswith("unreadable: empty.yaml: no file is named")


def test_path_prints_the_path_alone(campipe: Campipe, cache: Path) -> None:
    assert campipe("path", "coco-ssd") == (0, f"{assets.models_folder() / 'coco-ssd.onnx'}\n", "")
    status, out, err = campipe("path", "yolox-nano")
    assert (status, out) == (2, "")
    assert "campipe models fetch yolox-nano" in err
    (cache / "yolox_nano.onnx").write_bytes(b"half")
    status, out, err = campipe("path", "yolox-nano")
    assert (status, out) == (2, "")
    assert "has 4 bytes, expected 3659407" in err


def test_fetch_of_what_is_there_prints_its_path(campipe: Campipe, own: Path) -> None:
    assert campipe("fetch", "coco-ssd")[:2] == (0, f"{assets.models_folder() / 'coco-ssd.onnx'}\n")
    describe(own, "gates")
    shutil.copy(describe(own, "lost"), own / "gates.onnx")
    assert campipe("fetch", "gates")[:2] == (0, f"{own / 'gates.onnx'}\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fetch", "yolox-nan"], "did you mean 'yolox-nano'?"),
        (["fetch", "lost"], "states no `origin`"),
        (["fetch", "tab"], "tab.yaml:2: "),
        (["fetch", "yolox-nano", "--url", "ftp://host/x"], "http or https"),
        (["path", "resnet"], "there are: coco-ssd"),
        (["fetsh", "x"], "invalid choice"),
        ([], "required"),
        (["fetch"], "required"),
    ],
)
def test_refusals_of_the_command(campipe: Campipe, own: Path, arguments: list[str], says: str) -> None:
    describe(own, "lost")
    (own / "tab.yaml").write_text("file:\n\tx.onnx\n")
    status, out, err = campipe(*arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
