"""Whatever is in the files, loading gives a Site or a UserError whose lines can be printed."""

from __future__ import annotations

import json
import re
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from searching import examples

from pipeline.config import Site, load_site, resolve
from pipeline.config.problems import escape, redact, shorten, show
from pipeline.config.replay import clip_name, replay_site, unique_names
from pipeline.config.secrets import expand, split_credentials
from pipeline.config.site import SiteSettings
from pipeline.yaml import Place, core_scalar, parse_yaml
from stages.errors import UserError

SECRET = "tr0ub4dor"

quick = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        (path / "clip.mp4").write_bytes(b"some bytes")
        (path / "cams").mkdir()
        (path / "cams" / "a.yaml").write_text("source: ../clip.mp4\n")
        yield path


def load_or_refuse(path: Path, *overrides: str) -> Site | None:
    """The site, or None after checking that the refusal reads as promised."""
    try:
        return load_site(path, overrides, env={"SECRET": SECRET})
    except UserError as error:
        refusal = error
    reads_as_promised(refusal)
    return None


def reads_as_promised(refusal: UserError) -> None:
    assert refusal.problems
    assert refusal.__context__ is None  # a chained error would hold the values
    for line in refusal.problems:
        assert line.isprintable(), line
        assert len(line) < 1000, line
        assert SECRET not in line, line


# --- bytes and texts --------------------------------------------------------------------------------------------------

FRAGMENTS = [
    *(
        "cameras:",
        "name:",
        "source:",
        "models:",
        "a: b",
        "- ",
        "  ",
        "\n",
        "\n  ",
        "\t",
        "&x ",
        "*x",
        "!!str ",
        "!",
        "%YAML 1.1\n",
    ),
    *(
        "---\n",
        "...\n",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "?",
        "|",
        ">",
        "'",
        '"',
        "\\u0000",
        "\\UFFFFFFFF",
        "#",
        "~",
        "null",
    ),
    *("1e999", ".nan", "0x_", "0o7", "<<: *x", "password: ", "${SECRET}", "${", "$$", "\x1b[2J", "\u2028", "\ufeff"),
    *(
        "confidence: 0.4\n",
        "roi: [0,0,1,1]\n",
        "publish: off\n",
        "devices: {device: cpu}\n",
        "url: rtsp://u:p@h/\n",
        "é",
        "😀",
    ),
]


@quick
@given(data=st.binary(max_size=200))
def test_any_bytes(folder: Path, data: bytes) -> None:
    path = folder / "bytes.yaml"
    path.write_bytes(data)
    assert load_or_refuse(path) is None


@settings(quick, max_examples=examples(200))
@given(parts=st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=30))
def test_any_text_as_yaml(parts: list[str]) -> None:
    node, faults = parse_yaml("".join(parts), Place("x.yaml"))
    assert node is not None or faults
    if node is not None:
        node.plain()


@quick
@given(parts=st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=20))
def test_any_text_as_site_and_camera(folder: Path, parts: list[str]) -> None:
    text = "".join(parts)
    (folder / "text.yaml").write_text("cameras: cams\n" + text, encoding="utf-8", errors="surrogatepass", newline="")
    load_or_refuse(folder / "text.yaml")
    inline = folder / "inline"
    inline.mkdir(exist_ok=True)
    (inline / "x.yaml").write_text("source: ../clip.mp4\n" + text, encoding="utf-8", errors="surrogatepass", newline="")
    (folder / "site.yaml").write_text("cameras: inline\n")
    load_or_refuse(folder / "site.yaml")


# --- trees that look like configuration -------------------------------------------------------------------------------

KEYS = sorted(
    {
        "cameras",
        "models",
        "camera",
        "jsonl",
        "source",
        "url",
        "user",
        "password",
        "sampling",
        "fps",
        "every",
        "roi",
        "live",
    }
    | {"name", "model", "confidence", "classes", "labels", "input", "layout", "file", "outputs", "shape", "mean", "std"}
    | {"policy", "batch", "device", "executors", "options", "bind", "path", "recorded_at", "track", "width", "height"}
    | set(SiteSettings.model_fields)
)
scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2000)
    | st.floats()
    | st.sampled_from(
        ["auto", "off", "coco", "coco-ssd", "cams", "clip.mp4", "person", f"rtsp://u:{SECRET}@h/", "${SECRET}"]
    )
    | st.text(max_size=8)
)
trees: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)


def write_yaml(path: Path, tree: Any) -> None:
    yaml = YAML(typ="safe", pure=True)
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(tree, file)


@settings(quick, max_examples=examples(70))
@given(tree=st.dictionaries(st.sampled_from(KEYS), trees, max_size=6))
def test_any_tree(folder: Path, tree: dict[str, Any]) -> None:
    try:
        write_yaml(folder / "tree.yaml", tree)
        write_yaml(folder / "tree2.yaml", {"cameras": [tree], "models": {"m": tree}})
    except Exception:  # what the dumper can't write need not be read
        return
    load_or_refuse(folder / "tree.yaml")
    load_or_refuse(folder / "tree2.yaml")


@settings(quick, max_examples=examples(70))
@given(
    key=st.lists(st.sampled_from([*KEYS, "a", "0", "1", "camera", ""]) | st.text(max_size=4), min_size=1, max_size=5),
    value=st.sampled_from(["", "1", "0.5", "auto", "off", "null", "[1, 2]", "{a: 1}", "*x", "a: b: c", "${SECRET}"])
    | st.text(max_size=6),
)
def test_any_override(folder: Path, key: list[str], value: str) -> None:
    (folder / "plain.yaml").write_text("cameras: cams\n")
    load_or_refuse(folder / "plain.yaml", ".".join(key) + "=" + value)


# --- what is valid comes back the same --------------------------------------------------------------------------------

names = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12)
ms = st.integers(1_000, 60_000)
auto = st.just("auto") | st.integers(1, 64)
part = st.integers(0, 49).map(lambda n: n / 100)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


valid_camera = st.fixed_dictionaries(
    {
        "source": st.just("clip.mp4")
        | optional(
            loop=st.booleans(),
            max_frames=ms,
            track=auto.filter(lambda v: v != 64),
            pace=st.sampled_from(["fast", "realtime"]),
            transport=st.sampled_from(["auto", "tcp", "udp"]),
            recorded_at=st.sampled_from(["2026-05-01T12:00:00Z", "2026-05-01T12:00:00.25+02:00"]),
        ).map(lambda d: {**d, "url": "clip.mp4"})
    },
    optional={
        "sampling": optional(fps=st.floats(0.5, 30)) | optional(every=st.integers(1, 100)),
        "roi": st.tuples(part, part).map(lambda p: [p[0], p[1], p[0] + 0.5, p[1] + 0.5]),
        "confidence": st.floats(0, 1),
        "iou": st.floats(0, 1),
        "classes": st.lists(st.sampled_from(["person", "bus"]) | st.integers(0, 79), min_size=1, max_size=3),
        "class_agnostic": st.booleans(),
        "max_objects": st.integers(1, 1000),
        "live": optional(policy=st.sampled_from(["auto", "lossless", "newest"]), max_age_ms=ms),
    },
)
device = optional(
    executors=auto,
    threads=auto,
    lanes=st.integers(1, 8),
    options=st.dictionaries(names, st.text(string.ascii_letters, max_size=5), max_size=2),
)
valid_site = st.fixed_dictionaries(
    {
        "cameras": st.dictionaries(names, valid_camera, min_size=1, max_size=3).map(
            lambda d: [{**camera, "name": name} for name, camera in d.items()]
        )
    },
    optional={
        "devices": device.map(lambda d: [d, {"device": "canned:0"}]) | device,
        "batch": optional(max_batch=auto, max_wait_ms=st.floats(0, 100)),
        "nms": optional(workers=auto),
        "publish": st.just("off")
        | optional(bind=st.sampled_from(["tcp://*:5600", "ipc:///tmp/x", "ipc://x"]), hwm=ms, trace=st.booleans()),
        "sinks": st.lists(names, max_size=3, unique=True).map(
            lambda each: [{"jsonl": {"path": f"{n}.jsonl", "rotate_mb": 1.5}} for n in each]
        ),
        "limits": optional(shared_memory_mb=auto, stop_ms=ms, quarantine=names),
    },
)


@settings(quick, max_examples=examples(40))
@given(tree=valid_site)
def test_a_valid_site_comes_back_the_same_from_its_own_dump(folder: Path, tree: dict[str, Any]) -> None:
    write_yaml(folder / "valid.yaml", tree)
    site = load_site(folder / "valid.yaml")
    assert [camera.name for camera in site.cameras] == [camera["name"] for camera in tree["cameras"]]
    for camera, stated in zip(site.cameras, tree["cameras"], strict=True):
        for key in ("confidence", "iou", "class_agnostic", "max_objects"):
            if key in stated:
                assert getattr(camera, key) == stated[key]
    dumped = site.model_dump(mode="json", exclude_none=True)
    if site.publish is None:
        dumped["publish"] = "off"
    write_yaml(folder / "again.yaml", dumped)
    assert load_site(folder / "again.yaml").model_dump() == site.model_dump()


# --- pieces -----------------------------------------------------------------------------------------------------------


@quick
@given(text=st.text(max_size=200))
def test_what_is_shown_is_one_short_printable_line(text: str) -> None:
    assert show(text).isprintable()
    assert escape(text).isprintable()
    assert len(shorten(text)) <= 60


@quick
@given(user=names, password=st.text(string.ascii_letters + string.digits + "@:$!/?#%&", min_size=8, max_size=20))
def test_a_password_in_a_url_is_never_shown(user: str, password: str) -> None:
    assert password not in redact(f"rtsp://{user}:{password}@192.168.1.9:554/stream?x=1")


@quick
@given(user=names, password=st.text(string.printable.strip(), min_size=1, max_size=20))
def test_credentials_come_out_of_a_url_as_they_went_in(user: str, password: str) -> None:
    url = f"rtsp://{quote(user)}:{quote(password, safe='')}@cam:554/a?b=c#d"
    assert split_credentials(url) == ("rtsp://cam:554/a?b=c#d", user, password)


@quick
@given(text=st.text(max_size=30))
def test_a_dollar_written_twice_is_a_dollar(text: str) -> None:
    assert expand(text.replace("$", "$$"), {}) == text


@quick
@given(stems=st.lists(st.text(max_size=80), min_size=1, max_size=6), copies=st.integers(1, 4))
def test_names_made_from_clips_are_unique_and_fit_for_topics(stems: list[str], copies: int) -> None:
    made = unique_names([clip_name(stem.replace("/", "_") + ".mp4") for stem in stems for _ in range(copies)])
    assert len(set(made)) == len(made) == len(stems) * copies
    assert all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", name) for name in made)


@quick
@given(value=st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False))
def test_scalars_are_read_as_yaml_writes_them(value: Any) -> None:
    text = repr(value).replace("inf", ".inf") if type(value) in (int, float) else json.dumps(value)
    assert core_scalar(text) == value or len(text) > 40


@quick
@given(clips=st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_any_clip_name(clips: list[str]) -> None:
    refusal = None
    try:
        resolve(replay_site(clips))
    except UserError as error:
        refusal = error
    if refusal is not None:
        reads_as_promised(refusal)
