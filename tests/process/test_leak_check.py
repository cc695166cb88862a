"""The leak check itself: what is a living process, and whose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from leaks import family, left_after, living, started_under, unread

SLEEPS = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
ORPHANS = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-I", "-S", "-c", *sys.argv[1:]], stdout=subprocess.DEVNULL).pid)
"""


def test_a_zombie_does_not_live() -> None:
    with subprocess.Popen(SLEEPS) as child:
        process = psutil.Process(child.pid)
        assert living([process]) == [process]
        assert family(os.getpid()) >= {process}
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its row is still there
        assert psutil.pid_exists(child.pid)
        assert process.is_running()
        assert living([process]) == left_after([process], within_s=0) == []
        assert process not in family(os.getpid())
        assert unread(os.getpid()) == {process}


def test_another_process_of_the_same_number_is_not_the_one_that_lived() -> None:
    with subprocess.Popen(SLEEPS) as child:
        before = psutil.Process(child.pid)
        # as if the machine had counted through all numbers since: the same one, started at another time
        before._ident = (child.pid, before.create_time() - 1000)
        assert living([before]) == []
        child.kill()


def test_a_process_whose_parent_died_is_found_by_its_environment(run_folder: Path) -> None:
    made = subprocess.run([sys.executable, "-c", ORPHANS, SLEEPS[-1]], stdout=subprocess.PIPE, text=True, check=True)
    (orphan,) = started_under(str(run_folder))
    assert orphan.pid == int(made.stdout)
    assert orphan not in family(os.getpid())
    orphan.kill()
    assert not left_after([orphan], within_s=20)
    assert started_under(str(run_folder)) == set()
