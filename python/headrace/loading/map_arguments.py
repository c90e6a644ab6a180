"""The arguments of a loader as they are meant for objects that are not headrace's: PyTorch's rules and defaults."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, SupportsIndex

from headrace._units import as_int

from .arguments import UNSET, Arguments, optional_int
from .collate import default_collate

__all__ = ["MapArguments", "is_iterable", "resolve", "seed_of"]

_NO_MEANING: Final = ("window", "lanes", "memory", "epochs", "remainder", "on_error", "exclude")


@dataclass(frozen=True, kw_only=True)
class MapArguments:
    """Checked arguments."""

    iterable: bool
    batched: bool
    batch_size: int
    """Of this rank; 1 if not `batched`."""
    global_batch: int | None
    shuffle: bool | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    workers: int
    collate: Callable[[Any], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float | None
    init: Callable[[int], object] | None
    seed: int | None
    seed_counts: bool
    """False if the seed was drawn: then a loaded state has its own."""
    prefetch: int
    rank: SupportsIndex | None
    world_size: SupportsIndex | None
    worker_type: Literal["thread", "process", "auto"]
    items_in_parallel: int
    allow_empty: bool
    shown: tuple[tuple[str, Any], ...]
    """What was given, for `repr`."""


def resolve(dataset: Any, given: Arguments) -> MapArguments:
    """Checks arguments as PyTorch's DataLoader does.

    Raises:
        TypeError: if the dataset is of no kind that can be loaded, or an argument of a wrong type.
        ValueError: if arguments do not go together.
    """
    iterable = is_iterable(dataset)
    given.refuse("an object that is not headrace's", _NO_MEANING)
    batched = given.batch_size is not None
    _check_together(given, iterable, batched)
    workers = 0 if given.num_workers is None else as_int(given.num_workers, "num_workers", least=0, most=1024)
    if given.timeout and not workers:
        raise ValueError(
            f"timeout needs workers: without them the calling thread makes the batches, got {given.timeout!r}"
        )
    if iterable and given.worker_type == "process":
        raise ValueError(
            'worker_type="process" needs a dataset with __getitem__: an iterable is read by one thread\n'
            'hint: worker_type="thread"'
        )
    seed = optional_int(given.seed, "seed", 0, 2**64 - 1)
    if given.generator is not None:
        if seed is not None:
            raise ValueError("give seed or generator, not both")
        seed = seed_of(given.generator)
    batch_size = 1 if given.batch_size in (None, UNSET) else as_int(given.batch_size, "batch_size", least=1)
    return MapArguments(
        iterable=iterable,
        batched=batched,
        batch_size=batch_size,
        global_batch=_global_batch(given.global_batch_size),
        shuffle=given.shuffle,
        sampler=given.sampler,
        batch_sampler=given.batch_sampler,
        workers=workers,
        collate=given.collate_fn or (default_collate if batched else None),
        pin_memory=given.pin_memory,
        drop_last=given.drop_last,
        timeout=given.seconds,
        init=given.worker_init_fn,
        seed=seed,
        seed_counts=not hasattr(given.generator, "integers"),
        prefetch=2 if given.prefetch_factor is None else as_int(given.prefetch_factor, "prefetch_factor", least=1),
        rank=given.rank,
        world_size=given.world_size,
        worker_type=given.worker_type,
        items_in_parallel=as_int(given.items_in_parallel, "items_in_parallel", least=1, most=1024),
        allow_empty=given.allow_empty,
        shown=tuple(
            (name, value) for name, value in vars(given).items() if not _is_default(value) and name not in _NO_MEANING
        ),
    )


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is read in its own order, rather than by keys.

    Raises:
        TypeError: if it can be read in neither way.
    """
    # PyTorch's IterableDataset has a __getitem__ that does not work. It can only be one if somebody imported torch.
    base: Any = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    if base is not None and isinstance(dataset, base):
        return True
    if hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"):
        return False
    if hasattr(dataset, "__iter__"):
        return True
    raise TypeError(
        f"expected a dataset: what headrace.open gives, or an object with __len__ and __getitem__, or with __iter__; "
        f"got {type(dataset).__name__}"
    )


def seed_of(generator: Any) -> int:
    """A seed from a torch.Generator (its initial seed), a NumPy Generator (a number drawn), or an integer.

    Raises:
        TypeError: if it is none of them.
    """
    if hasattr(generator, "initial_seed"):
        return int(generator.initial_seed()) % 2**64
    if hasattr(generator, "integers"):
        return int(generator.integers(0, 2**63))
    try:
        return as_int(generator, "generator") % 2**64
    except TypeError:
        raise TypeError(
            f"generator must be a torch.Generator, a NumPy Generator or an integer, got {generator!r}"
        ) from None


def _check_together(given: Arguments, iterable: bool, batched: bool) -> None:
    if given.collate_fn is not None and not callable(given.collate_fn):
        raise TypeError(f"collate_fn must be a function, got {given.collate_fn!r}")
    if iterable:
        for name, value in (
            ("shuffle", given.shuffle or None),
            ("sampler", given.sampler),
            ("batch_sampler", given.batch_sampler),
        ):
            if value is not None:
                raise ValueError(f"{name} has no meaning for an iterable dataset, got {value!r}")
    if given.sampler is not None and given.shuffle:
        raise ValueError("give sampler or shuffle=True, not both")
    if given.batch_sampler is not None:
        sizes = given.batch_size not in (1, UNSET) or given.global_batch_size is not None
        if sizes or given.shuffle or given.sampler is not None or given.drop_last:
            raise ValueError(
                "batch_sampler says all that batch_size, global_batch_size, shuffle, sampler and drop_last say: "
                "give it alone"
            )
    if not batched and given.global_batch_size is not None:
        raise ValueError("batch_size=None gives single samples: global_batch_size has no meaning with it")
    if not batched and given.drop_last:
        raise ValueError("drop_last has no meaning with batch_size=None, which gives single samples")
    if given.batch_sampler is not None and not hasattr(given.batch_sampler, "__iter__"):
        raise TypeError(f"batch_sampler must be iterable, got {given.batch_sampler!r}")
    if given.sampler is not None and not hasattr(given.sampler, "__iter__"):
        raise TypeError(f"sampler must be iterable, got {given.sampler!r}")


def _is_default(value: Any) -> bool:
    # By identity: a sampler may be an array.
    return value is None or value is UNSET or value is False or (type(value) is int and value == 0)


def _global_batch(value: SupportsIndex | Mapping[int, int] | None) -> int | None:
    if isinstance(value, Mapping):
        raise ValueError(
            f"a schedule of batch sizes needs a dataset of headrace, got {dict(value)!r}\n"
            "hint: give one global_batch_size, and load the state into a loader with another one to change it"
        )
    return None if value is None else as_int(value, "global_batch_size", least=1, most=2**32 - 1)
