"""Which rank this process is: given, known to PyTorch, or in the environment. headrace never makes a process group."""

import os
import sys
from typing import Any, SupportsIndex

from ._units import as_int

_GIVEN = object()
_ALONE = object()
"""Values of `rank_key`: ranks that are arguments, and those of a process that nobody launched as one of several."""


def resolve_rank(rank: SupportsIndex | None, world_size: SupportsIndex | None) -> tuple[int, int]:
    """(rank, ranks): the arguments, else torch.distributed if it is initialised, else RANK and WORLD_SIZE, else (0, 1).

    Raises:
        ValueError: if only one of the two is given or in the environment, or the rank is not in ``range(world_size)``.
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank and world_size go together, got rank={rank}, world_size={world_size}")
    if rank is not None and world_size is not None:
        return _checked(as_int(rank, "rank"), as_int(world_size, "world_size"), "arguments")
    # Looked up, not imported: a process group can only be there if somebody imported torch.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return _checked(int(distributed.get_rank()), int(distributed.get_world_size()), "torch.distributed")
    has_rank, has_size = "RANK" in os.environ, "WORLD_SIZE" in os.environ
    if has_rank != has_size:
        found, missing = ("RANK", "WORLD_SIZE") if has_rank else ("WORLD_SIZE", "RANK")
        raise ValueError(f"the environment has {found} and not {missing}: they go together")
    if has_rank:
        return _checked(_from_environment("RANK"), _from_environment("WORLD_SIZE"), "environment variables")
    return 0, 1


def rank_key(rank: SupportsIndex | None, world_size: SupportsIndex | None, *, before: object = None) -> object:
    """A value that is another one where `resolve_rank` gives other ranks, for who asks before each batch.

    Args:
        rank: as for `resolve_rank`.
        world_size: likewise.
        before: what it was before. If there was no RANK, none is looked for: a variable that is not there costs an
            exception. And that WORLD_SIZE alone changed is not seen.
    """
    if rank is not None and world_size is not None:
        return _GIVEN
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return _ALONE if before is _ALONE else os.environ.get("RANK", _ALONE)


def all_gather(value: Any, group: Any, ranks: int) -> list[Any]:
    """What each rank has, on all of them, by torch.distributed.

    Args:
        value: of this rank; it has to pickle.
        group: of processes; None for all of them.
        ranks: how many there are.

    Raises:
        RuntimeError: if there is no process group of so many ranks.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    found: int | None = None
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found = distributed.get_world_size(group)
    if distributed is None or found != ranks:
        what = "found none" if found is None else f"found one of {found}"
        raise RuntimeError(
            f"gather_state: expected a process group of {ranks} ranks in torch.distributed, {what}\n"
            "hint: save the state_dict() of each rank; State.merge, or load_state_dict with a list, puts them together"
        )
    parts: list[Any] = [None] * ranks
    distributed.all_gather_object(parts, value, group=group)
    return parts


def default_workers() -> int:
    """Threads for one rank: the CPUs that this process may use, shared out among the ranks of this machine."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local = _from_environment("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else 1
    return max(1, cpus // max(1, local))


def _from_environment(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment variable {name} must be an integer, got {text!r}") from None


def _checked(rank: int, world_size: int, origin: str) -> tuple[int, int]:
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in range(world_size), got rank={rank}, world_size={world_size} from {origin}")
    return rank, world_size
