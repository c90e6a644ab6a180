"""Memory: how much of it there is, and room in it for threads that cannot say beforehand how much they need."""

import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["Room", "memory_size"]

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


@cache
def memory_size() -> int:
    """Bytes of memory that this process may use: the machine's, or fewer where a limit is set for the process or for
    its control group. Found out once.
    """  # noqa: D205
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_process_limits(), *cgroup_limits(_OWN_CGROUPS, _CGROUPS)])


def _process_limits() -> Iterator[int]:
    import resource  # Not where there is no such thing as limits.

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit


def cgroup_limits(own: Path, root: Path) -> Iterator[int]:
    """The limits of the control groups that a process is in, of both versions; nothing where there are none.

    Args:
        own: names the groups, a line ``number:controllers:path`` for each hierarchy.
        root: where hierarchies are mounted.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "memory"):
            top, name = (root, "memory.max") if not controllers else (root / "memory", "memory.limit_in_bytes")
            # A group is held to the limits of those around it. In a container, its own one is the top.
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                yield from _number(folder / name)
                if folder == top:
                    break


def _number(file: Path) -> Iterator[int]:
    try:
        yield int(file.read_text())
    except (OSError, ValueError):  # "max" is no limit.
        return


class Room:
    """Memory that several threads take for a while, piece by piece.

    The one that came first never waits, so that one of them always goes on. The others wait where they would together
    hold more than half as much as one may. All hold at most one and a half times `most`, if each keeps below that.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """Bytes that one may hold."""
        self._held: dict[object, int] = {}
        """By whom, in the order in which they came."""
        self._changed = threading.Condition()

    @contextmanager
    def entered(self) -> Generator[Callable[[int], None]]:
        """Gives a function that says how many bytes are held now, which may wait; at the end they are given back."""
        me = object()

        def hold(count: int) -> None:
            with self._changed:
                while self._must_wait(me, count):
                    self._changed.wait()
                self._held[me] = count

        with self._changed:
            self._held[me] = 0
        try:
            yield hold
        finally:
            with self._changed:
                del self._held[me]
                self._changed.notify_all()

    def _must_wait(self, me: object, count: int) -> bool:
        first, *others = self._held
        return (
            me is not first and sum(self._held[other] for other in others if other is not me) + count > self.most // 2
        )
