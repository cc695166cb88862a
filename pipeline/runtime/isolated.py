"""Owns calling one function in a short-lived process: its result, or its UserError, within a deadline."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, ParamSpec, TypeVar

from pipeline.runtime.parent_death import signal_at_parents_death
from pipeline.runtime.starting import let_forkserver_go, starting_processes
from stages.errors import UserError


class NoAnswer(UserError):
    """The process died or took too long: what went wrong is in native code, or in what it waits for."""


P = ParamSpec("P")
T = TypeVar("T")


def call_in_process(
    context: SpawnContext | ForkServerContext,
    timeout_s: float,
    function: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """``function(*args, **kwargs)`` in a new process; all of it must be picklable.

    Raises the function's UserError; NoAnswer, one too, when the process dies or the deadline passes, for that is what a
    file that crashes native code looks like from outside.
    """
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, function, args, kwargs), daemon=True)
    with starting_processes():
        process.start()
    there.close()
    try:
        if not here.poll(timeout_s):
            raise NoAnswer(f"looking into it took more than {timeout_s:g} s; is the file whole?")
        answer = here.recv()
    except EOFError:
        process.join()
        raise NoAnswer(f"looking into it ended its process (status {process.exitcode}); is the file whole?") from None
    finally:
        here.close()
        process.kill()
        process.join()
        process.close()
    if isinstance(answer, UserError):
        raise answer
    result: T = answer
    return result


def _answer(there: Connection, function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # whoever asked may be killed meanwhile, and a file can keep native code busy for ever
    let_forkserver_go()
    signal_at_parents_death(signal.SIGKILL)
    asking = multiprocessing.parent_process()
    if asking is None or not asking.is_alive():
        return
    answer: object
    try:
        answer = function(*args, **kwargs)
    except UserError as error:
        answer = error
    except Exception as error:  # noqa: BLE001  a user's file, whatever it does
        answer = UserError(f"{type(error).__name__}: {error}")
    there.send(answer)
    there.close()
