"""Owns the calls of apt-get: installing packages as root, unpacking single ones as anybody. Decides nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # what Debian's pip trusts, and nothing else
WHEELS = Path("/usr/share/python-wheels")  # where Debian keeps the pip that its ensurepip installs

# A mirror that does not answer must not hold up the rest, and another apt-get at work is waited for.
OPTIONS = ("-q", "-y", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=300")


def can_install() -> bool:
    """Whether this process may install Debian packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: list[str], log: Path) -> bool:
    """Installs packages; True if apt-get did. For root only, see `can_install`."""
    _run(["apt-get", *OPTIONS, "update"], log)  # slim images come without lists, old ones with stale lists
    return _run(["apt-get", *OPTIONS, "--no-install-recommends", "install", *packages], log)


def is_known(package: str) -> bool:
    """Whether the release has a package, by the lists that the last ``apt-get update`` brought."""
    found = subprocess.run(
        ["apt-cache", "policy", package], capture_output=True, text=True, check=False, env=_settings()
    )
    return "Candidate: " in found.stdout and "Candidate: (none)" not in found.stdout


def unpack(packages: list[str], folder: Path, log: Path) -> bool:
    """Fetches packages and unpacks them into a folder, as any user and without installing them; True if it worked."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    places = ("-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}")
    _run(["apt-get", *OPTIONS, *places, "-o", "Acquire::Languages=none", "update"], log, folder)
    fetched = _run(["apt-get", *OPTIONS, *places, "download", *packages], log, folder)
    shutil.rmtree(folder / "lists", ignore_errors=True)  # 100 MB
    return fetched and all(_run(["dpkg-deb", "-x", str(deb), str(folder)], log, folder) for deb in folder.glob("*.deb"))


def _run(command: list[str], log: Path, folder: Path | None = None) -> bool:
    with log.open("ab") as stream:
        stream.write(f"$ {' '.join(command)}\n".encode())
        stream.flush()
        run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            check=False,
            env=_settings(),
            cwd=folder,
            close_fds=False,  # it inherits the installer's lock
        )
    return run.returncode == 0


def _settings() -> dict[str, str]:
    system = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8"}
    return os.environ | system | {"PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}
