"""A CPython without a GIL for tests.

    python free_threaded.py --install             # says where its program is, built if there is none
    python free_threaded.py --install ARCHIVE     # of these sources of CPython, 3.13 or newer

A program `python3.14t` or `python3.13t` of this machine is taken if there is one. Otherwise one is built, in minutes,
into `$XDG_CACHE_HOME/headrace-tests/free-threaded` (or below `~/.cache`), which all clones share. Its sources are
Debian's, which apt fetches and checks; elsewhere they must be given.

Needs nothing but the standard library, a C compiler, and the headers of OpenSSL, libffi and zlib.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

__all__ = ["ensure_program", "find_program"]

NAMES = ("python3.14t", "python3.13t")

# The newest that a stable Debian has. Its fixes of security are no matter here: the sources are taken as published.
SUITE = "trixie"
PACKAGE = "python3.13"

# Seconds: configuring and building takes five minutes on two cores.
BUILD_TIMEOUT = 1800


def root() -> Path:
    """Where one is built: outside of the clone, shared by all clones."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "headrace-tests" / "free-threaded"


def find_program() -> Path | None:
    """The interpreter, if there is one."""
    found = [shutil.which(name, path=f"{root() / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}") for name in NAMES]
    return next((Path(program) for program in found if program is not None), None)


def ensure_program(archive: Path | None = None) -> Path:
    """The interpreter, built if there is none.

    Args:
        archive: sources of CPython to build it of, rather than Debian's.

    Returns:
        Its path.

    Raises:
        RuntimeError: there are no sources, or the build failed; says what to do.
    """
    if (program := find_program()) is not None:
        return program
    root().mkdir(parents=True, exist_ok=True)
    # Two runs may want it at once: one builds, the other waits for it.
    with (root() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (program := find_program()) is not None:
            return program
        with tempfile.TemporaryDirectory(prefix="headrace-cpython-") as folder:
            _build(archive or _from_debian(Path(folder)), Path(folder) / "build")
    if (program := find_program()) is None:
        raise RuntimeError(f"the sources made none of {', '.join(NAMES)}\nhint: give those of CPython 3.13 or 3.14")
    return program


def _from_debian(folder: Path) -> Path:
    """Has apt fetch the sources, by lists of its own: the machine's may be of another release, and stay as they are."""
    if shutil.which("apt-get") is None:
        raise RuntimeError("there is no CPython without a GIL, and no apt-get that could fetch its sources\n" + _HINT)
    sites = _run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian"], folder)
    if not sites:
        raise RuntimeError("apt-get knows no site of Debian to fetch the sources of CPython from\n" + _HINT)
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb-src [signed-by={keys}] {sites.split()[0]} {SUITE} main\n")
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={folder / 'sources.list'}", "-o", "Dir::Etc::sourceparts=-"]
    apt += ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]
    _run([*apt, "update"], folder)
    _run([*apt, "source", "--download-only", "--tar-only", PACKAGE], folder)
    return next(folder.glob(f"{PACKAGE}_*.orig.tar.*"))


def _build(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    options = ["--disable-gil", "--disable-test-modules", "--without-static-libpython", f"--prefix={root()}"]
    _run(["./configure", "--quiet", *options], top)
    _run(["make", "-s", f"-j{os.cpu_count() or 1}"], top)
    _run(["make", "-s", "install"], top)


_HINT = "hint: install python3.14t, or say --install ARCHIVE with the sources of CPython"


def _run(command: list[str], folder: Path) -> str:
    """What a command says."""
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_TIMEOUT
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}\n{_HINT}")
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:2] == ["--install"] and len(sys.argv) <= 3:
        print(ensure_program(*(Path(name) for name in sys.argv[2:])))
    else:
        sys.exit("usage: free_threaded.py --install [ARCHIVE]")
