"""A `headrace.DataLoader` in the form that PyTorch's own DataLoader takes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, SupportsIndex

from torch.utils.data import IterableDataset as _TorchIterableDataset
from torch.utils.data import get_worker_info

from headrace.loader import DataLoader
from headrace.loading.arguments import UNSET

from .tensors import tensors_of

__all__ = ["IterableDataset"]


_NO_WORKERS = (
    "headrace reads with threads of its own; each worker process would begin the whole run anew\n"
    "hint: pass num_workers=0 to PyTorch's DataLoader, and num_workers=... to headrace"
)


class IterableDataset(_TorchIterableDataset[dict[str, Any]]):
    """A `headrace.DataLoader` in the form that PyTorch's own DataLoader takes: whole batches as dicts of tensors.

    Pass ``batch_size=None`` and ``num_workers=0`` there: batches are made by threads of this process, and a worker
    process would begin the whole run anew. Tensors share memory with the batch. `state_dict` and `load_state_dict` are
    those of the loader, so that torchdata's StatefulDataLoader saves and resumes exactly.

    The arguments are those of `headrace.DataLoader`, by keyword, but for those that are accepted there for the sake of
    PyTorch's signature alone, and `pin_memory`: give that to PyTorch's DataLoader, which pins tensors itself.

    Attributes:
        loader: the `headrace.DataLoader` that gives the batches.

    Example:
        >>> from headrace.torch import IterableDataset
        >>> dataset = IterableDataset(packed, global_batch_size=4)
        >>> batches = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
        >>> next(iter(batches))["tokens"].shape
        torch.Size([4, 64])
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: SupportsIndex | None = UNSET,
        global_batch_size: SupportsIndex | Mapping[int, int] | None = None,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        worker_init_fn: Callable[[int], object] | None = None,
        generator: Any = None,
        seed: SupportsIndex | None = None,
        window: SupportsIndex | None = None,
        lanes: SupportsIndex | None = None,
        rank: SupportsIndex | None = None,
        world_size: SupportsIndex | None = None,
        memory: str | SupportsIndex = "2GiB",
        num_workers: SupportsIndex | None = None,
        prefetch_factor: SupportsIndex | None = None,
        timeout: float = 0,
        epochs: SupportsIndex | None = None,
        remainder: Literal["drop", "pad"] | None = None,
        worker_type: Literal["thread", "process", "auto"] = "thread",
        items_in_parallel: SupportsIndex = 1,
        allow_empty: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        exclude: Any = None,
    ) -> None:
        super().__init__()
        self.loader = DataLoader(
            dataset,
            batch_size,
            shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
            worker_init_fn=worker_init_fn,
            generator=generator,
            timeout=timeout,
            prefetch_factor=prefetch_factor,
            global_batch_size=global_batch_size,
            seed=seed,
            window=window,
            lanes=lanes,
            rank=rank,
            world_size=world_size,
            memory=memory,
            epochs=epochs,
            remainder=remainder,
            worker_type=worker_type,
            items_in_parallel=items_in_parallel,
            allow_empty=allow_empty,
            on_error=on_error,
            exclude=exclude,
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise RuntimeError(_NO_WORKERS)
        for batch in self.loader:
            yield tensors_of(batch)

    def __len__(self) -> int:
        return len(self.loader)

    def __reduce__(self) -> Any:
        # Worker processes that are not forked get the dataset pickled.
        raise RuntimeError(_NO_WORKERS)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was given, see `headrace.DataLoader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Goes on where a state was saved, see `headrace.DataLoader.load_state_dict`."""
        self.loader.load_state_dict(state, strict=strict)
