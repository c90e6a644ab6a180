"""What a process and its children have used, as Linux counts it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

__all__ = ["cpu_seconds", "family", "memory_bytes"]

_TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds


def cpu_seconds() -> float:
    """CPU time of this process, of its children that ended, and of those that live, in user and system mode.

    That of live children comes in steps of 10 ms.
    """
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    living = sum(_cpu_of(process) for process in family(os.getpid())[1:])
    return sum(usage.ru_utime + usage.ru_stime for usage in ended) + living


def memory_bytes(root: int) -> int:
    """Memory of a process and its descendants that no file backs: anonymous and shared memory.

    A page that several of them share counts once (PSS). Files that are mapped, and with them the page cache, do not
    count: the kernel can drop those.
    """
    total = 0
    for process in family(root):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        for line in text.splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(line.split()[1]) * 1024
    return total


def family(root: int) -> list[int]:
    """A process and its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for process in found:  # grows while it is walked
        found += children.get(process, [])
    return found


def _cpu_of(process: int) -> float:
    # utime, stime, and both of its ended children. A process that is gone is counted by its parent.
    return sum(map(int, _stat(process)[11:15])) * _TICK


def _stat(process: int) -> list[str]:
    """The fields of a process from the third on, its state; none if there is no such process."""
    try:
        # Behind the name, which may hold anything.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
