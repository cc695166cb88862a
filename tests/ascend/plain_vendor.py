"""Owns a plain stand-in for the vendor's module: right names and tuples, no checks, no codes, no clock.

It shows that the checker needs nothing of the simulator: memory is memory of this process, queued work runs at once in
the calling thread (``at_once``) or on one thread per stream, a model is a JSON file of the simulator's format whose run
fills the outputs with a mean of the inputs. Whatever is called with whatever handles, the answer is 0; wrong addresses
are used as they are, as a card would.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ALIGN_BYTES = 64
TYPES = {np.dtype(name).num: np.dtype(name) for name in ("u1", "i1", "i4", "f2", "f4", "i8", "f8")}
_handles = itertools.count(0x5500_0000_0000, 0x100)


class PlainVendor:
    """``acl`` is the module-like object. ``at_once``: queued work runs in the call that queues it."""

    def __init__(self, at_once: bool = True) -> None:
        self.at_once = at_once
        self.blocks: dict[int, Any] = {}  # by address: what keeps the memory alive
        self.objects: dict[int, Any] = {}  # buffers, datasets, descriptions, events by handle
        self.models: dict[int, dict[str, Any]] = {}
        self.lines: dict[int, _Line] = {}
        self.acl = SimpleNamespace(
            **self._top(), rt=self._rt(), mdl=self._mdl(), util=self._util(), media=self._media()
        )

    def close(self) -> None:
        """End the threads of streams that were not destroyed."""
        for line in self.lines.values():
            line.end()

    def _made(self, value: Any) -> int:
        handle = next(_handles)
        self.objects[handle] = value
        return handle

    def _malloc(self, size: int, policy: int = 0, /) -> tuple[int, int]:
        raw = np.empty(size + ALIGN_BYTES, np.uint8)
        address = -(-raw.ctypes.data // ALIGN_BYTES) * ALIGN_BYTES
        self.blocks[address] = raw
        return address, 0

    def _free(self, address: int, /) -> int:
        self.blocks.pop(address, None)
        return 0

    def _queue(self, stream: int, work: Callable[[], object]) -> int:
        if self.at_once:
            work()
        else:
            if stream not in self.lines:
                self.lines[stream] = _Line()
            self.lines[stream].put(work)
        return 0

    def _wait(self, stream: int) -> int:
        if stream in self.lines:
            self.lines[stream].wait()
        return 0

    def _top(self) -> dict[str, Any]:
        def update(buffer: int, address: int, size: int, /) -> int:
            self.objects[buffer] = (address, size)
            return 0

        return {
            "init": lambda path="", /: 0,
            "finalize": lambda: 0,
            "get_version": lambda: (1, 0, 0, 0),
            "get_soc_name": lambda: "Ascend310P3",
            "get_recent_err_msg": lambda: None,
            "create_data_buffer": lambda address, size, /: self._made((address, size)),
            "destroy_data_buffer": lambda buffer, /: self._forget(buffer),
            "get_data_buffer_addr": lambda buffer, /: self.objects[buffer][0],
            "get_data_buffer_size_v2": lambda buffer, /: self.objects[buffer][1],
            "update_data_buffer": update,
        }

    def _forget(self, handle: int) -> int:
        self.objects.pop(handle, None)
        return 0

    def _rt(self) -> SimpleNamespace:
        local = threading.local()
        default = self._made("context")

        def get_context() -> tuple[int, int]:
            return getattr(local, "context", default), 0

        def set_context(context: int, /) -> int:
            local.context = context
            return 0

        def create_context(device: int, /) -> tuple[int, int]:
            local.context = self._made("context")
            return local.context, 0

        def destroy_stream(stream: int, /) -> int:
            if line := self.lines.pop(stream, None):
                line.end()
            return self._forget(stream)

        def move(dst: int, dst_max: int, src: int, count: int, kind: int, /) -> int:
            ctypes.memmove(dst, src, count)
            return 0

        def fill(address: int, most: int, value: int, count: int, /) -> int:
            ctypes.memset(address, value, count)
            return 0

        def record(event: int, stream: int, /) -> int:
            self.objects[event] = done = threading.Event()
            return self._queue(stream, done.set)

        def wait_for(done: object) -> int:
            if isinstance(done, threading.Event):
                done.wait(30)
            return 0

        def wait_event(event: int) -> int:
            return wait_for(self.objects.get(event))

        def stream_waits(stream: int, event: int, /) -> int:
            record = self.objects.get(event)  # the last record of now, not one that is made until the stream gets here
            return self._queue(stream, lambda: wait_for(record))

        def is_done(event: int) -> bool:
            done = self.objects.get(event)
            return not isinstance(done, threading.Event) or done.is_set()

        def synchronize_device() -> int:
            for line in list(self.lines.values()):
                line.wait()
            return 0

        return SimpleNamespace(
            set_device=lambda device, /: set_context(default),
            reset_device=lambda device, /: 0,
            get_device=lambda: (0, 0),
            get_device_count=lambda: (1, 0),
            get_run_mode=lambda: (1, 0),
            create_context=create_context,
            destroy_context=lambda context, /: self._forget(context),
            set_context=set_context,
            get_context=get_context,
            create_stream=lambda: (self._made("stream"), 0),
            create_stream_with_config=lambda priority, flag, /: (self._made("stream"), 0),
            destroy_stream=destroy_stream,
            synchronize_stream=lambda stream, /: self._wait(stream),
            synchronize_stream_with_timeout=lambda stream, timeout_ms, /: self._wait(stream),
            set_stream_failure_mode=lambda stream, mode, /: 0,
            stream_query=lambda stream, /: (self._wait(stream), 0),
            synchronize_device=synchronize_device,
            stream_wait_event=stream_waits,
            create_event=lambda: (self._made("event"), 0),
            create_event_with_flag=lambda flag, /: (self._made("event"), 0),
            create_event_ex_with_flag=lambda flag, /: (self._made("event"), 0),
            destroy_event=lambda event, /: self._forget(event),
            record_event=record,
            reset_event=lambda event, stream, /: 0,
            query_event_status=lambda event, /: (int(is_done(event)), 0),
            query_event=lambda event, /: (int(not is_done(event)), 0),
            query_event_wait_status=lambda event, /: (0, 0),
            synchronize_event=lambda event, /: wait_event(event),
            synchronize_event_with_timeout=lambda event, timeout_ms, /: wait_event(event),
            event_elapsed_time=lambda start, end, /: (0.0, 0),
            malloc=self._malloc,
            free=self._free,
            malloc_host=self._malloc,
            free_host=self._free,
            memcpy=move,
            memcpy_async=lambda *of: self._queue(of[5], lambda: move(*of[:5])),
            memset=fill,
            memset_async=lambda *of: self._queue(of[4], lambda: fill(*of[:4])),
            get_mem_info=lambda attribute, /: (20 << 30, 21_527 << 20, 0),
            subscribe_report=lambda thread, stream, /: 0,
            unsubscribe_report=lambda thread, stream, /: 0,
            process_report=lambda timeout_ms, /: (threading.Event().wait(timeout_ms / 1000) and 0) or 507012,
            launch_callback=lambda work, data, block, stream, /: self._queue(stream, lambda: work(data)),
            set_op_wait_timeout=lambda timeout_s, /: 0,
            set_op_execute_timeout=lambda timeout_s, /: 0,
        )

    def _media(self) -> SimpleNamespace:
        return SimpleNamespace(dvpp_malloc=self._malloc, dvpp_free=self._free)

    def _util(self) -> SimpleNamespace:
        def address_of(data: bytes, /) -> int:
            return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

        def view(address: int, shape: tuple[int, ...], number: int, /) -> Any:
            dtype = TYPES[number]
            raw = (ctypes.c_char * (int(np.prod(shape)) * dtype.itemsize)).from_address(address)
            return np.frombuffer(raw, dtype).reshape(shape)

        return SimpleNamespace(
            bytes_to_ptr=address_of,
            numpy_to_ptr=lambda array, /: array.ctypes.data,
            numpy_contiguous_to_ptr=lambda array, /: ((kept := np.ascontiguousarray(array)).ctypes.data, kept),
            ptr_to_bytes=lambda address, size, /: ctypes.string_at(address, size),
            ptr_to_numpy=view,
        )

    def _mdl(self) -> SimpleNamespace:
        def load(path: str, *_memory: int) -> tuple[int, int]:
            model = len(self.models) + 1
            self.models[model] = _tensors(path)
            return model, 0

        def get_desc(desc: int, model: int, /) -> int:
            self.objects[desc] = self.models[model]
            return 0

        def add(dataset: int, buffer: int, /) -> tuple[int, int]:
            self.objects[dataset].append(buffer)
            return dataset, 0

        def gear(model: int, dataset: int, index: int, batch: int, /) -> int:
            self.models[model]["gear"] = batch
            return 0

        def prepared(inputs: int, outputs: int) -> Callable[[], None]:
            taken = [self.objects[buffer] for buffer in self.objects[inputs]]  # the addresses of now, as a card does
            given = [self.objects[buffer] for buffer in self.objects[outputs]]

            def work() -> None:
                total = sum(np.frombuffer(ctypes.string_at(address, size), np.uint8).mean() for address, size in taken)
                for address, size in given:
                    ctypes.memset(address, int(total) % 256, size)

            return work

        def execute(model: int, inputs: int, outputs: int, /) -> int:
            prepared(inputs, outputs)()
            return 0

        def execute_async(model: int, inputs: int, outputs: int, stream: int, /) -> int:
            return self._queue(stream, prepared(inputs, outputs))

        def dims(side: str) -> Callable[..., Any]:
            return lambda desc, index, /: (dict(self.objects[desc][side][index]["dims"]), 0)

        def of(side: str, key: str) -> Callable[..., Any]:
            return lambda desc, index, /: self.objects[desc][side][index][key]

        def index_of(side: str) -> Callable[..., Any]:
            return lambda desc, name, /: ([t["name"] for t in self.objects[desc][side]].index(name), 0)

        return SimpleNamespace(
            load_from_file=load,
            load_from_file_with_mem=load,
            unload=lambda model, /: 0,
            query_size=lambda path, /: (1 << 16, 1 << 16, 0),
            create_desc=lambda: self._made({}),
            get_desc=get_desc,
            destroy_desc=lambda desc, /: self._forget(desc),
            get_num_inputs=lambda desc, /: len(self.objects[desc]["inputs"]),
            get_num_outputs=lambda desc, /: len(self.objects[desc]["outputs"]),
            get_input_size_by_index=of("inputs", "bytes"),
            get_output_size_by_index=of("outputs", "bytes"),
            get_input_dims=dims("inputs"),
            get_input_dims_v2=dims("inputs"),
            get_output_dims=dims("outputs"),
            get_cur_output_dims=dims("outputs"),
            get_input_name_by_index=of("inputs", "name"),
            get_output_name_by_index=of("outputs", "name"),
            get_input_data_type=of("inputs", "dtype"),
            get_output_data_type=of("outputs", "dtype"),
            get_input_format=lambda desc, index, /: 0,
            get_output_format=lambda desc, index, /: 0,
            get_input_index_by_name=index_of("inputs"),
            get_output_index_by_name=index_of("outputs"),
            get_dynamic_batch=lambda desc, /: (dict(self.objects[desc]["gears"]), 0),
            set_dynamic_batch_size=gear,
            create_dataset=lambda: self._made([]),
            destroy_dataset=lambda dataset, /: self._forget(dataset),
            add_dataset_buffer=add,
            get_dataset_num_buffers=lambda dataset, /: len(self.objects[dataset]),
            get_dataset_buffer=lambda dataset, index, /: self.objects[dataset][index],
            execute=execute,
            execute_async=execute_async,
            get_dynamic_hw=lambda desc, index, /: ({"hwCount": 0, "hw": []}, 0),
            get_first_aipp_info=lambda model, index, /: (None, 100038),
            get_aipp_type=lambda model, index, /: (int(self.models[model]["aipp"]), -1, 0),
        )


class _Line:
    """The thread of one stream."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def wait(self) -> None:
        reached = threading.Event()
        self._work.put(reached.set)
        reached.wait(30)

    def end(self) -> None:
        self._work.put(None)
        self._thread.join(5)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            with contextlib.suppress(Exception):  # of a callback; the stream goes on
                work()


def _tensors(path: str) -> dict[str, Any]:
    """What a model's file says of its tensors, read without the simulator's code."""
    import onnx

    om = json.loads(Path(path).read_text(encoding="utf-8"))
    graph = onnx.load(str(Path(path).parent / om["onnx"])).graph
    gears = om["batch"]["gears"] if isinstance(om["batch"], dict) else []
    largest = max(gears) if gears else om["batch"]
    aipp = om.get("aipp")

    def tensor(value: Any, width: int, dtype: int) -> dict[str, Any]:
        shape = [largest, *[d.dim_value for d in value.type.tensor_type.shape.dim][1:]]
        if width == 1:  # AIPP: the picture itself
            shape = [largest, shape[2], shape[3], 3]
        shown = [-1, *shape[1:]] if gears else shape
        dims = {"name": value.name, "dimCount": len(shown), "dims": shown}
        return {"name": value.name, "bytes": int(np.prod(shape)) * width, "dtype": dtype, "dims": dims}

    halves = om.get("output_dtype") == "FP16"
    inputs = [tensor(value, 1 if aipp else 4, 4 if aipp else 0) for value in graph.input]
    if gears:
        name = "ascend_mbatch_shape_data"
        inputs.append({"name": name, "bytes": 8, "dtype": 3, "dims": {"name": name, "dimCount": 1, "dims": [1]}})
    outputs = [tensor(value, 2 if halves else 4, int(halves)) for value in graph.output]
    return {
        "inputs": inputs,
        "outputs": outputs,
        "gears": {"batchCount": len(gears), "batch": gears},
        "aipp": bool(aipp),
    }
