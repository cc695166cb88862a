"""Owns what the person reads while an environment is made: lines, progress, refusals. Runs nothing itself."""

from __future__ import annotations

import re
import shutil
import sys


class Refused(Exception):
    """The machine lacks something that cannot be remedied from here; the text says what and the remedy."""


def say(text: str) -> None:
    """One line for the person; standard output belongs to what is run afterwards."""
    clear_progress()
    print(f"campipe: {text}", file=sys.stderr, flush=True)


def show_progress(line: str) -> None:
    """On a terminal, one line in place that tells which package is being fetched; elsewhere nothing."""
    step = re.match(r"\s*(Collecting|Downloading|Building|Installing)\b.*", line)
    if step and sys.stderr.isatty():
        text = re.sub(r"https?://\S*/|[-\s]*\(from [^)]*\)", "", step.group().strip())
        print(f"\r\033[K  {text[: shutil.get_terminal_size().columns - 4]}", end="", file=sys.stderr, flush=True)


def clear_progress() -> None:
    """Takes that line away again."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


# Patterns of pip's lines. In this order: a registry that cannot be reached also "has no matching distribution".
PIP_EXPLANATIONS = {
    r"No space left on device": "the disk is full: 1 GB must be free for {venv}, and as much for temporary files",
    r"invalid path: /etc/ssl|No such file or directory: \S*ca-certificates": (
        "the package registry's certificate cannot be checked; remedy, as root: apt-get install ca-certificates"
    ),
    r"CERTIFICATE_VERIFY_FAILED": (
        "the package registry's certificate is not trusted here; if a proxy replaces it, name the proxy's certificate "
        "file with PIP_CERT=/file"
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure (in name|resolving)|Name or service not known"
        r"|Network is unreachable|No route to host|Connection refused|ProxyError|Connection reset|RemoteDisconnected"
        r"|Could not (connect to|resolve)|Unable to connect to|timed out"
    ): (
        "the package registry cannot be reached; check the network, or name a registry with PIP_INDEX_URL or a proxy "
        "with HTTPS_PROXY"
    ),
    r"No matching distribution found for (?P<name>[\w.-]+)": (
        "the package registry has no ready-built {name} that fits campipe, Python {python} and {machine}; another "
        "Python may do: CAMPIPE_PYTHON=python3.11, or 3.12, or 3.13"
    ),
    r"Permission denied|Read-only file system": "{venv} cannot be written to; name another place with CAMPIPE_VENV",
}


def explain_pip(log: str, venv: str, python: str, machine: str) -> str | None:
    """What a failed pip's log means and the remedy, or None if it is nothing known."""
    for pattern, text in PIP_EXPLANATIONS.items():
        if found := re.search(pattern, log):
            return text.format(venv=venv, python=python, machine=machine, **found.groupdict())
    return None


def last_lines(log: str, count: int = 12) -> str:
    """The end of a log, indented, without the lines that say nothing."""
    lines = [line.rstrip()[:300] for line in log.splitlines() if line.strip() and "[notice]" not in line]
    return "\n".join(f"  | {line}" for line in lines[-count:])
