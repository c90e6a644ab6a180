"""What a power cut leaves: files that were synced, and what the journal says of them.

The death of a process loses nothing that the system was given. A power cut does, and in any order. So a journal says
now and then that all before has been synced; after the machine was started anew it is believed up to there.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.errors import StoreError

__all__ = ["believable", "boot", "is_of_disk", "kept", "put_whole", "store_error", "sync"]

_KEPT = "hint: what was finished is kept; the same call goes on from there once the cause is gone"

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot() -> str:
    """What tells this start of the machine from others."""
    return f"{_BOOT.read_text().strip()} on {os.uname().nodename}"


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk.

    Raises:
        StoreError: if that cannot be done.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise store_error(path, error) from None


def put_whole(path: Path, data: bytes, aside: Path) -> None:
    """Writes a file so that it is there whole or not at all.

    Args:
        path: where it goes.
        data: its bytes.
        aside: where they are written first, on the same disk.

    Raises:
        StoreError: if it cannot be written.
    """
    try:
        aside.write_bytes(data)
        sync(aside)
        aside.replace(path)
    except OSError as error:
        raise store_error(path, error) from None


def believable(lines: Sequence[Any], now: str) -> tuple[Sequence[Any], int | None]:
    """The lines of a journal that hold, and how many blocks of the spool do; None if all do.

    Args:
        lines: its first line, and all others; those of each start of the machine follow one with ``boot``.
        now: this start.
    """
    boots = [line["boot"] for line in lines if "boot" in line]
    if not lines or boots[-1] == now or "whole" in lines[-1]:
        return lines, None
    for number in range(len(lines) - 1, 0, -1):
        if "synced" in lines[number]:
            return lines[: number + 1], lines[number]["synced"]
    return lines[:1], 0


def store_error(path: Path | str, error: OSError) -> StoreError:
    """The error for a file that could not be written, which says what becomes of what was."""
    if isinstance(error, StoreError):
        # It says all that already.
        return error
    if isinstance(error, FileNotFoundError):
        # The folders that it lies in were there when the run began.
        return StoreError(f"{path}: the folder was removed, or its disk unmounted, while it was in use")
    return StoreError(f"{path}: {error.strerror or error}\n{_KEPT}")


def is_of_disk(error: Exception) -> bool:
    """Whether a disk is full, or takes nothing: no input is to blame for that."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def kept(error: StoreError) -> StoreError:
    """The same error of a store, which says what becomes of what was written."""
    return error if _KEPT in str(error) else StoreError(f"{error}\n{_KEPT}")
