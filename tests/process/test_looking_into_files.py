"""What looks into a file that never lets go of it ends with whoever asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from leaks import family, left_after

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import multiprocessing, sys, threading, time
from pipeline.runtime.isolated import call_in_process

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    asking = threading.Thread(target=call_in_process, args=(context, 60, time.sleep, 60), daemon=True)
    asking.start()
    while not (children := multiprocessing.active_children()):
        time.sleep(0.01)
    print(children[0].pid, flush=True)
    asking.join()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_model_that_is_looked_at_for_ever_leaves_no_process_when_campipe_is_killed(method: str) -> None:
    asker = subprocess.Popen(
        [sys.executable, "-c", ASK, method],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert asker.stdout is not None
    with asker:
        assert asker.stdout.readline()
        started = family(asker.pid)
        asker.send_signal(signal.SIGKILL)
    assert started
    assert not left_after(started, 10)
