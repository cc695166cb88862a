"""The merged order depends on what cameras say, never on when: against sorting everything at the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stages.messages import Detections, Status
from stages.sinks.merge import Merge

CAMERAS = ["c", "a", "b"]


def detections(camera: str, epoch: int, seq: int, pts_ns: int) -> Detections:
    return Detections(
        camera=camera,
        epoch=epoch,
        seq=seq,
        pts_ns=pts_ns,
        captured_ns=0,
        clock="file",
        width=1,
        height=1,
        model="m",
        objects=[],
    )


def ended(camera: str, epoch: int) -> Status:
    return Status(camera=camera, epoch=epoch, state="ended", cause="ended", detail="", time_ns=0)


@st.composite
def streams(draw: st.DrawFn) -> dict[str, list[Detections | Status]]:
    result: dict[str, list[Detections | Status]] = {}
    for camera in CAMERAS:
        messages: list[Detections | Status] = []
        epochs = draw(st.integers(0, 2))
        for epoch in range(epochs):
            stamps = sorted(draw(st.lists(st.integers(0, 8), max_size=8)))
            messages += [detections(camera, epoch, seq, pts) for seq, pts in enumerate(stamps)]
        messages.append(ended(camera, epochs))
        result[camera] = messages
    return result


def interleaved(data: st.DataObject, streams: dict[str, list[Detections | Status]]) -> list[Detections | Status]:
    order = data.draw(st.permutations([camera for camera, messages in streams.items() for _ in messages]))
    at = dict.fromkeys(streams, 0)
    result = []
    for camera in order:
        result.append(streams[camera][at[camera]])
        at[camera] += 1
    return result


@given(streams(), st.data())
def test_any_interleaving_gives_the_sorted_order(
    streams: dict[str, list[Detections | Status]], data: st.DataObject
) -> None:
    merge: Merge[Detections] = Merge(CAMERAS)
    out: list[Detections] = []
    for message in interleaved(data, streams):
        merge.put(message, message if isinstance(message, Detections) else None)
        out += merge.ready()
    everything = [m for messages in streams.values() for m in messages if isinstance(m, Detections)]
    assert merge.held == 0, "every camera has ended"
    assert out == sorted(everything, key=lambda m: (m.epoch, m.pts_ns, CAMERAS.index(m.camera), m.seq))


@given(streams(), st.data())
def test_what_leaves_early_is_the_beginning_of_the_whole(
    streams: dict[str, list[Detections | Status]], data: st.DataObject
) -> None:
    messages = interleaved(data, streams)
    cut = data.draw(st.integers(0, len(messages)))
    outs = []
    for part in (messages[:cut], messages):
        merge: Merge[Detections] = Merge(CAMERAS)
        out: list[Detections] = []
        for message in part:
            merge.put(message, message if isinstance(message, Detections) else None)
            out += merge.ready()
        outs.append(out)
        assert merge.held == sum(isinstance(m, Detections) for m in part) - len(out)
    assert outs[1][: len(outs[0])] == outs[0]


def test_rest_gives_what_is_held_as_if_all_had_ended() -> None:
    merge: Merge[str] = Merge(["a", "b"])
    merge.put(detections("b", 0, 0, 5), "b5")
    merge.put(detections("b", 0, 1, 9), "b9")
    merge.put(detections("a", 1, 0, 0), "a1:0")
    assert list(merge.ready()) == ["b5", "b9"]
    assert list(merge.rest()) == ["a1:0"]
    assert merge.held == 0


def test_statuses_stand_where_their_camera_is() -> None:
    merge: Merge[str] = Merge(["a", "b"])
    started = Status(camera="a", epoch=0, state="started", cause="started", detail="", time_ns=0)
    gap = Status(camera="a", epoch=0, state="gap", cause="bad_frame", detail="", time_ns=0, from_seq=1, to_seq=1)
    merge.put(started, "a started")
    merge.put(detections("a", 0, 0, 10), "a10")
    merge.put(gap, "a gap")
    merge.put(detections("a", 0, 2, 30), "a30")
    merge.put(detections("b", 0, 0, 0), "b0")
    merge.put(detections("b", 0, 1, 20), "b20")
    merge.put(ended("b", 0), "b ended")
    merge.put(ended("a", 0), "a ended")
    assert list(merge.ready()) == ["a started", "b0", "a10", "a gap", "b20", "b ended", "a30", "a ended"]
