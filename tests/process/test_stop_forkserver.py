"""multiprocessing's helper processes end when asked to, whoever else still holds on to them."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from pipeline.runtime import starting

PROGRAM = """
import multiprocessing, os, subprocess, sys, time
from multiprocessing import resource_tracker
from pipeline.runtime import starting
starting.STOP_S = 0.5
resource_tracker.ensure_running()
tracker = resource_tracker._resource_tracker
# a process that inherits the tracker's pipe, and goes on
holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[tracker._fd])
pid = tracker._pid
starting.stop_forkserver()
holder.kill()
holder.wait()
print(pid)
"""


@pytest.mark.timeout(60)
def test_a_resource_tracker_that_others_keep_alive_does_not_hold_up_the_end() -> None:
    assert starting.STOP_S < 30
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert not psutil.pid_exists(int(done.stdout))
