"""Owns the command by which environment.sh has a virtual environment prepared. Finds no Python itself.

It is run with the Python that the environment is to be made from, and has only that Python's standard library.
Exit status: 0 the environment is ready; 2 the machine lacks something, and the last lines say what and the remedy;
130 or 143 when stopped by SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from installer import Installer
from report import Refused, say
from venv_state import VenvState


def _stop(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """Prepares the environment that the arguments describe."""
    parser = argparse.ArgumentParser(prog="environment")
    parser.add_argument("--checkout", type=Path, required=True, help="the folder of pyproject.toml")
    parser.add_argument("--venv", type=Path, required=True, help="the folder of the virtual environment")
    parser.add_argument("--extras", default="", help="of pyproject.toml, with commas between")
    parser.add_argument("--insist", action="store_true", help="make it anew if another Python made it")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, _stop)
    extras = [extra for extra in given.extras.split(",") if extra]
    try:
        Installer(VenvState(given.checkout, given.venv, extras, insist=given.insist)).prepare()
    except Refused as refused:
        say(str(refused))
        return 2
    except KeyboardInterrupt:
        say("stopped; the next start begins anew")
        return 130
    except OSError as error:
        say(f"cannot prepare {given.venv}: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
