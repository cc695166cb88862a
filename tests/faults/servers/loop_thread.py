"""Owns an asyncio loop in a thread of its own, so that blocking tests can drive servers. Knows no server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
ANSWER_S = 20.0


class LoopThread:
    """Start with ``open``; ``run`` and ``call`` may be used from any other thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the thread, once."""
        if self._thread is not None:
            return
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
        self.loop = loop
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives, run in the loop."""
        assert self.loop is not None, "open comes first"
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(ANSWER_S)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let ``work`` run beside the caller."""
        assert self.loop is not None, "open comes first"
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Cancel what runs, end the thread; may be called twice."""
        loop, thread = self.loop, self._thread
        self.loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(ANSWER_S)
        loop.close()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
