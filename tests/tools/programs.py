"""The programs of other people's servers that tests run against, installed once for all checkouts of this machine.

    python tests/tools/programs.py      # installs all of them

They lie in `$XDG_CACHE_HOME/headrace-tests` (or below `~/.cache`), each under its version: a new version is installed
beside the old one. Two test runs may want a program at once: one installs it, the other waits.

Needs nothing but the standard library, and `go` or `npm` for what is not there yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AZURITE", "FAKE_GCS", "VERSITYGW", "Program", "bin_folder", "cache_folder"]

# Seconds: the longest build takes four minutes on two cores.
INSTALL_TIMEOUT = 900


def cache_folder() -> Path:
    """Where all of it is kept: outside of the checkout."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "headrace-tests"


def bin_folder() -> Path:
    """Where programs that are one file are kept."""
    return cache_folder() / "bin"


@dataclass(frozen=True)
class Program:
    """A program of one version."""

    name: str
    version: str
    needs: str
    """The installer: `go` or `npm`."""
    package: str
    """What it is called there."""

    @property
    def path(self) -> Path:
        """Where it is, or will be."""
        if self.needs == "go":
            return bin_folder() / f"{self.name}-{self.version}"
        return cache_folder() / f"{self.package}-{self.version}" / "node_modules" / ".bin" / self.name

    def ensure(self) -> Path:
        """Installs it if it is not there.

        Returns:
            Its path.

        Raises:
            RuntimeError: The installer is missing or failed; says what to do.
        """
        if self.path.exists():
            return self.path
        wanted = f"{self.package}@{self.version}"
        installer = shutil.which(self.needs)
        if installer is None:
            title = {"go": "Go", "npm": "Node.js with npm"}[self.needs]
            raise RuntimeError(
                f"the tests need {self.name}: it is not at {self.path}, and there is no `{self.needs}` to install it\n"
                f"hint: install {title}, or put the program of {wanted} there"
            )
        with self._locked():
            if not self.path.exists():
                {"go": self._build, "npm": self._unpack}[self.needs](installer, wanted)
        return self.path

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        bin_folder().mkdir(parents=True, exist_ok=True)
        with (bin_folder() / f".lock-{self.name}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _build(self, go: str, wanted: str) -> None:
        with tempfile.TemporaryDirectory(dir=bin_folder()) as folder:
            _install([go, "install", wanted], GOBIN=folder, GOFLAGS="-buildvcs=false")
            (Path(folder) / self.name).replace(self.path)

    def _unpack(self, npm: str, wanted: str) -> None:
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            whole = Path(folder) / "whole"
            _install([npm, "install", "--prefix", str(whole), "--no-audit", "--no-fund", wanted])
            whole.replace(self.path.parents[2])


def _install(command: list[str], **variables: str) -> None:
    text = " ".join(command)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"{text} did not end in {INSTALL_TIMEOUT} s\nhint: is the registry reachable? Run it by hand to see"
        ) from None
    if done.returncode != 0:
        raise RuntimeError(
            f"{text} failed with exit code {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}\n"
            "hint: it needs the registry (or a proxy of it); once it was installed, tests need no network"
        )


# Checks signatures; its posix backend keeps objects as files.
VERSITYGW = Program("versitygw", "v1.8.0", "go", "github.com/versity/versitygw/cmd/versitygw")
FAKE_GCS = Program("fake-gcs-server", "v1.56.1", "go", "github.com/fsouza/fake-gcs-server")
# The last version that runs under Node.js 18 and 20.
AZURITE = Program("azurite-blob", "3.35.0", "npm", "azurite")

if __name__ == "__main__":
    for each in (VERSITYGW, FAKE_GCS, AZURITE):
        try:
            print(each.ensure(), flush=True)
        except RuntimeError as error:
            sys.exit(str(error))
