"""The whole graph, top to bottom: who works, who talks to whom, how much may wait where. Starts nothing.

``build`` is what the engine starts its workers from (``runtime.crew``) and what ``campipe graph`` prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.plan import NMS_CAPACITY, OUTBOUND_LIMIT, RunPlan


@dataclass(frozen=True, slots=True)
class Node:
    """A stage. ``workers`` are process names; empty: it runs in the engine's own process."""

    name: str
    does: str
    workers: tuple[str, ...] = ()
    start: Literal["engine", "forkserver", "spawn"] = "engine"
    notes: tuple[str, ...] = ()  # one per worker, if they differ


@dataclass(frozen=True, slots=True)
class Edge:
    """A channel. ``bound`` says what keeps it from growing, ``on_loss`` what the death of its reader leads to."""

    source: str
    target: str
    carries: str
    bound: str
    on_loss: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and edges of one plan."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def render(self) -> str:
        """The graph as text, one line per node and edge."""
        lines: list[str] = []
        for node in self.nodes:
            where = f"{len(node.workers)} x {node.start}" if node.workers else "in the engine"
            lines.append(f"{node.name:<9} {where:<28} {node.does}")
            notes = node.notes or ("",) * len(node.workers)
            listed = list(zip(node.workers, notes, strict=True))[:8]
            lines += [f"          - {worker} {note}".rstrip() for worker, note in listed]
            if len(node.workers) > 8:
                lines.append(f"          - ... and {len(node.workers) - 8} more")
            for edge in self.edges:
                if edge.source == node.name:
                    lines.append(f"    |  {edge.carries} -> {edge.target}")
                    lines.append(f"    |      bound: {edge.bound}; if {edge.target} dies: {edge.on_loss}")
        return "\n".join(lines)

    __str__ = render


def build(plan: RunPlan, control: str = "") -> Graph:
    """The graph of a plan. ``control``: how cameras are changed while it runs; empty: not at all."""
    cameras = tuple(f"decode/{camera.name}" for camera in plan.cameras)
    executors = tuple(f"executor/{device.device}" for device in plan.devices)
    nms = tuple(f"nms/{index}" for index in range(plan.nms_workers))
    notes = tuple(f"({d.executors} executors of {d.lanes} lanes, {d.threads} threads each)" for d in plan.devices)
    lanes = sum(device.executors * device.lanes for device in plan.devices)
    slots = sum(plan.frame_slots.values())
    outputs = sum(plan.output_slots.values())
    sinks = [f"publish {plan.publish.bind}"] if plan.publish else []
    sinks += [f"jsonl {jsonl.path}" for jsonl in plan.jsonl]

    observe = ("observe",) if plan.observe else ()
    changes = (control,) if control else ()
    page = f"figures -> http://{plan.observe}/metrics, /healthz, /livez"

    return Graph(
        nodes=(
            Node("decode", "source -> upright RGB/BGR -> letterbox into a frame slot", cameras, "forkserver"),
            Node("batcher", "frames of all cameras -> batches by model, fair, pulled by free lanes"),
            Node(
                "executor",
                "batch -> raw outputs in an output slot; copies overlap compute",
                executors,
                "spawn",
                notes,
            ),
            Node("nms", "raw outputs -> candidates -> NMS -> boxes in source pixels", nms, "forkserver"),
            Node("reorder", "results of each camera back in order; counts every frame in the ledger"),
            Node("publish", "detections, status, heartbeat -> " + (", ".join(sinks) or "nowhere")),
            *(Node("observe", page, (worker,), "forkserver") for worker in observe),
            *(Node("control", f"cameras added, removed, paused, resumed: {how}") for how in changes),
        ),
        edges=(
            Edge("decode", "batcher", "FrameReady", f"{slots} frame slots in shared memory", "the run ends"),
            Edge("batcher", "executor", "BatchReady", f"{lanes} lanes", "batch is put back, given to another"),
            Edge("executor", "nms", "RawOutput, PostTask", f"{outputs} output slots", "task is given to another"),
            Edge("nms", "reorder", "PostDone", f"{NMS_CAPACITY} tasks per worker", "the run ends"),
            Edge(
                "reorder",
                "publish",
                "Detections, Status",
                f"{OUTBOUND_LIMIT} messages, then batches wait",
                "the run ends",
            ),
            *(
                Edge("publish", worker, "Figures", "one a second, the newest counts", "it is started again")
                for worker in observe
            ),
            *(
                Edge("control", "decode", "cameras to start and to stop", "one change at a time", "it is started again")
                for _ in changes
            ),
            Edge("executor", "decode", "SlotsFreed", "the same frame slots", "another resumes at the next frame"),
        ),
    )
