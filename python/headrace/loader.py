"""The loader: one rank's batches of a run, in the run's one order."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex

from . import _disk_cache
from ._base import Dataset
from ._units import as_int
from .batch import Source
from .dataset import PackedDataset
from .loading.arguments import UNSET, Arguments
from .loading.base import Driver
from .mixing import MixDataset
from .samples.dynamic_dataset import DynamicDataset
from .samples.reading import Readable

__all__ = ["DataLoader"]


class DataLoader:
    """Gives one rank its part of every global batch, the same samples or rows whatever the number of ranks.

    It takes four kinds of datasets. The arguments begin as those of PyTorch's DataLoader, in its order.

    - *Packed tokens*, as `TableDataset.pack` gives them. ``for batch in loader`` gives the rest of the current epoch,
      the next ``for`` the next one; batches are always whole and may span two epochs.
    - *Mixtures* of packed tokens, as `mix` gives them. Their batches also hold ``source`` (int32, (rows,)): the number
      of each row's source in ``dataset.names``. There is one epoch, without end if sources repeat; else `len` tells it.
    - *Samples*, as `open` gives them with all that is made of them, and tuples of them (`zip`). ``for`` works in the
      same way. An epoch has each sample once, and a new order; batches do not span epochs.
    - *Dynamic pipelines*, as `flat_map`, `batch_map` or `pack` make of samples. How many rows they give only reading
      tells: ``for`` does not end (but see `epochs`), and there is no length. Each rank has lanes of its own, and its
      `state_dict` is a part of the whole one (docs/pipelines.md).
    - *Any other object* with ``__len__`` and ``__getitem__`` or ``__getitems__``, or with ``__iter__``, such as a
      PyTorch `Dataset`: with PyTorch's defaults and behaviour. Each ``for`` begins a new epoch, but the first one
      after `load_state_dict`, which goes on in the middle. What rank and world size are is looked up, so that no
      DistributedSampler is needed; one that is passed works.

    Args:
        dataset: what to load.
        batch_size: rows or samples of this rank in a step; or give `global_batch_size`. For datasets of headrace it
            may be left out if a state is loaded; for other objects it is 1 by default, and None gives single samples.
        shuffle: whether each epoch has an order of its own; True by default for datasets of headrace, else False.
        sampler: keys of samples, for other objects: any iterable, asked anew in each epoch.
        batch_sampler: lists of keys, likewise; `batch_size`, `shuffle`, `sampler` and `drop_last` are then left out.
        num_workers: threads that read, decode and assemble. By default the CPUs of this process, shared out among the
            ranks of a machine that torchrun started (LOCAL_WORLD_SIZE); for other objects 0. With 0 samples are made
            by the thread that iterates; for packed tokens 0 counts as 1.
        collate_fn: makes a batch of a list of samples. By default arrays, numbers and tensors are stacked, dicts,
            tuples and dataclasses kept, and text becomes lists (`headrace.loading.collate`). Not for packed tokens.
        pin_memory: whether PyTorch tensors are copied to pinned memory. Not for packed tokens.
        drop_last: whether the samples after an epoch's last whole batch are left out. By default the last batch holds
            what is left, shared out evenly; if that is less than one for each rank, they join the batch before, so
            that all ranks take equally many steps, none gets an empty batch, and nothing is lost or repeated. Accepted
            for packed tokens, see `remainder`.
        timeout: seconds to wait for a batch before TimeoutError; 0 waits forever.
        worker_init_fn: called once in each worker with its number, before its first sample.
        multiprocessing_context: accepted; worker processes are always spawned.
        generator: for other objects, in place of `seed`: a torch.Generator, whose initial seed counts, or a NumPy one.
        prefetch_factor: batches that are ready ahead of use: for samples this many for each worker, 2 by default.
        persistent_workers: accepted; workers always live as long as the loader.
        pin_memory_device: accepted.
        in_order: accepted; batches are always in order.
        global_batch_size: rows or samples of all ranks in a step, a multiple of `world_size`; or a dict from steps to
            sizes that hold from there on, such as ``{0: 64, 1000: 256}``.
        seed: of the order and of random numbers for functions, in ``range(2**64)``; 0 by default.
        window: chunks (row groups, shards) that are shuffled together; by default from the data, see docs/order.md.
        lanes: N, see docs/order.md; by default from the data and the largest global batch size, for dynamic pipelines
            the largest number that divides all global batch sizes.
        rank: with `world_size`, which rank this is; by default from torch.distributed if it is initialised, else from
            RANK and WORLD_SIZE, else 0 of 1. headrace never makes a process group.
        world_size: ranks.
        memory: bytes of anonymous memory for decoded data, as a number or text such as ``"2GiB"``. For packed tokens
            with room for two windows the next one is decoded while this one is used (large windows of shuffled data
            need 1.1 to 1.5 windows for that); with room for one it waits until this one is used up; a window that does
            not fit at all goes to a spill file in the cache folder. For samples it bounds the chunks that are kept.
        epochs: passes over the data; None for no end. For datasets of headrace; for dynamic pipelines on one rank.
        remainder: for packed tokens, what becomes of those after the last whole batch of the last epoch: ``"drop"``,
            or ``"pad"`` to fill them up with `pad_id` (batches then hold ``loss_mask``). `stats` tells how many were
            dropped. For dynamic pipelines likewise, lane by lane.
        worker_type: ``"thread"``, ``"process"`` for functions that hold the GIL (spawned; the dataset and functions
            are pickled to them), or ``"auto"``; `stats` says what was chosen and why.
        items_in_parallel: samples of one batch that are made at the same time, for data that is waited for.
        allow_empty: whether a rank may get a batch of no sample: what `collate_fn` makes of an empty list, and without
            one an empty list, whatever other batches are.
        on_error: ``"skip"`` leaves out samples of a pipeline that are damaged or whose functions raise; `stats` counts
            and lists them.
        exclude: documents to do without, in datasets of headrace: a file of names or a list of them, as `Source.id` and
            `Place.id` tell them (``"file:chunk:row"``), of sources and places themselves, a function of a `Place` that
            is called for every item, or a dataset of samples, such as ``data.where(headrace.col("url") == url)``. A
            run that begins with them does not have them. If a state does not know them, ``strict=False`` masks them
            from there on: all rows stay as they are, and batches hold ``loss_mask`` (uint8), with 0 for their tokens or
            samples. The list stays the same from then on, or grows at its end.

    What is left out of `seed`, `shuffle`, `lanes`, `window` and the batch size comes from a loaded state. `epochs`,
    `remainder` and the part of a schedule that lies ahead are not in a state: give them again.

    Raises:
        ValueError: if an argument cannot be used, or there is too little data for a batch.
        BudgetError: when iteration starts, if `memory` is too small for one step of packed tokens.

    Example:
        >>> loader = headrace.DataLoader(packed, global_batch_size=4, seed=0)
        >>> for batch in loader:
        ...     tokens = batch["tokens"]
        >>> tokens.shape, tokens.dtype.name, loader.epoch
        ((4, 64), 'int32', 1)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: SupportsIndex | None = UNSET,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: SupportsIndex | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: SupportsIndex | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        global_batch_size: SupportsIndex | Mapping[int, int] | None = None,
        seed: SupportsIndex | None = None,
        window: SupportsIndex | None = None,
        lanes: SupportsIndex | None = None,
        rank: SupportsIndex | None = None,
        world_size: SupportsIndex | None = None,
        memory: str | SupportsIndex = "2GiB",
        epochs: SupportsIndex | None = None,
        remainder: Literal["drop", "pad"] | None = None,
        worker_type: Literal["thread", "process", "auto"] = "thread",
        items_in_parallel: SupportsIndex = 1,
        allow_empty: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
        exclude: Any = None,
    ) -> None:
        del multiprocessing_context, persistent_workers, pin_memory_device, in_order
        arguments = Arguments(
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            generator=generator,
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
        arguments.check()
        self._driver = _driver(dataset, arguments)

    # Where the run stands

    @property
    def dataset(self) -> Any:
        """What is loaded."""
        return self._driver.dataset

    @property
    def step(self) -> int:
        """The next step, counted from 0 through the whole run."""
        return self._driver.step

    @property
    def position(self) -> int:
        """Rows or samples of all ranks given so far, with those that `drop_last` left out."""
        return self._driver.position

    @property
    def epoch(self) -> int:
        """The epoch of the next step; the number of epochs once a finite run has ended."""
        return self._driver.epoch

    @property
    def global_batch_size(self) -> int:
        """Rows or samples of all ranks in the next step."""
        return self._driver.global_batch_size

    @property
    def batch_size(self) -> int:
        """Rows or samples of this rank in the next step."""
        return self._driver.global_batch_size // self._driver.world_size

    @property
    def rank(self) -> int:
        """Which rank this loader feeds."""
        return self._driver.rank

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self._driver.world_size

    def __len__(self) -> int:
        """Batches of the current epoch, exactly; what is passed over by `skip` does not count."""
        return self._driver.length()

    # Iterating

    def __iter__(self) -> Iterator[Any]:
        return self._driver.iterate()

    def close(self) -> None:
        """Ends the threads and processes that work ahead. The position stays: iterating goes on from there.

        Example:
            >>> with headrace.DataLoader(packed, global_batch_size=4) as closing:
            ...     first = next(iter(closing))
            >>> closing.step
            1
        """
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def seek(self, step: SupportsIndex) -> None:
        """Goes to a step of the run, in either direction, without a replay.

        Raises:
            ValueError: if a finite run has no such step.

        Example:
            >>> loader.seek(5)
            >>> next(iter(loader)).step
            5
        """
        self._driver.seek(as_int(step, "step", least=0, most=2**63 - 1))

    def skip(self, steps: range) -> None:
        """Passes over some of the steps to come, such as those around a loss spike; they keep their numbers.

        Their rows are not given; the state remembers it.

        Raises:
            TypeError: if `steps` is no range.
            ValueError: if it is not one of neighbouring steps, or begins before the next step.

        Example:
            >>> loader.skip(range(loader.step, loader.step + 2))
            >>> next(iter(loader)).step
            2
        """
        if not isinstance(steps, range):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"skip takes a range of steps, got {steps!r}")
        self._driver.skip(steps)

    def set_global_batch_size(self, rows: SupportsIndex) -> None:
        """Changes the rows of all ranks in a step, from the next step on; a schedule no longer counts.

        Raises:
            ValueError: if the number of ranks does not divide it, or the data is too little for it.

        Example:
            >>> loader.set_global_batch_size(8)
            >>> next(iter(loader))["tokens"].shape
            (8, 64)
        """
        self._driver.set_global_batch_size(as_int(rows, "the global batch size", least=1, most=2**32 - 1))

    # State

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was given, as plain JSON types; never a collective.

        It is whole, and the same on all ranks, but for dynamic pipelines: there it holds the rank's own lanes, and
        says so (``part``); `gather_state` or `State.merge` make it whole.

        `State.to_bytes` makes it a file's content. Each batch carries its own as `batch.state`.

        Example:
            >>> state = loader.state_dict()
            >>> state["step"], state["position"], state["seed"]
            (0, 0, 0)
        """
        return self._driver.state()

    def gather_state(self, group: Any = None) -> dict[str, Any]:
        """The state of all ranks, on each of them: a collective where `state_dict` is only a rank's part of it.

        That is so for dynamic pipelines on several ranks, where each knows where its own lanes are. `State.merge` does
        the same with parts that ranks have saved.

        Args:
            group: of torch.distributed, whose ranks are those of the loaders; None for all.

        Raises:
            RuntimeError: if there is no such group where one is needed.

        Example:
            >>> loader.gather_state() == loader.state_dict()
            True
        """
        return self._driver.gather(group)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Goes on where a state was saved, in any run over the same data: the rest is the same to the byte.

        The number of ranks, the batch size, threads and memory may be others. An iterator that is still alive raises
        when used.

        Args:
            state: from `state_dict`, `Batch.state` or `State.from_bytes`; or a list of those of all ranks. A part is
                enough for the rank that saved it, on as many ranks as then.
            strict: False allows data that was moved or renamed without a change of content, other weights and sources
                of mixtures, functions of dynamic pipelines that have other names, samples or items that were added
                behind those of the state, further documents to exclude, and another ``seq_len`` where a round of all
                lanes begins, with a warning. The state tells of it from then on (``changes``).

        Raises:
            StateMismatch: if the state is damaged or of another run; it names the first difference.

        Example:
            >>> state = next(iter(loader)).state
            >>> loader.load_state_dict(state)
            >>> loader.step
            1
        """
        self._driver.load(state, strict=strict)

    # Telling

    def sources(self, step: SupportsIndex, rank: SupportsIndex | None = None) -> list[list[Source]]:
        """Where the rows of a step come from, without having iterated there; reads only the slices that they touch.

        Args:
            step: any step of the run.
            rank: whose rows; by default this rank's.

        Returns:
            For each row the parts that it is packed from, as `Batch.sources`.

        Example:
            >>> loader.sources(3)[0] == list(loader)[3].sources()[0]
            True
        """
        step = as_int(step, "step", least=0, most=2**63 - 1)
        if rank is not None:
            rank = as_int(rank, "rank", least=0, most=self._driver.world_size - 1)
        return self._driver.sources(step, rank)

    def stats(self) -> dict[str, Any]:
        """Counts for people and logs.

        Returns:
            ``step``, ``epoch``, ``position`` (rows of all ranks), ``tokens`` (in those rows), ``lanes``, ``window``;
            of a finite run ``steps`` and ``remainder_tokens`` (that no batch holds); ``documents_cut`` (the share of
            documents that a lane's end cuts, at most); of this loader's reading ``windows``, ``windows_spilled``,
            ``window_bytes`` (the most that windows held in memory), ``chunk_bytes`` (stored, of the row groups asked
            for), ``preview_bytes`` (of local files, read for the first batch before its window, and with that again);
            of a mixture ``sources``: for each by name the ``rows``, ``tokens`` and ``epoch`` that it has given, its
            ``weight`` now, ``lanes``, ``window`` and ``documents_cut``;
            and of all that was read of the dataset ``bytes_read``, ``bytes_cached`` (from the disk cache),
            ``requests``, ``retries``, ``hedged`` (second requests beside slow ones). Of dynamic pipelines ``rows``,
            ``tokens`` and ``padding`` that this rank was given, ``items`` and ``documents`` that were made for it,
            ``items_dropped`` (of which nothing was left), ``documents_too_long``, ``documents_skipped``, and the first
            of these as ``skipped`` (the item's number, its place, and the error).

        Example:
            >>> loader.stats()["lanes"]
            4
        """
        _disk_cache.warn()
        return self._driver.stats()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._driver.settings().items())
        return f"DataLoader({self._driver.dataset!r}, {shown})"


def _driver(dataset: Any, arguments: Arguments) -> Driver:
    # A driver is imported when one of its kind is wanted: `import headrace` is to take a moment.
    if isinstance(dataset, PackedDataset):
        from .loading.packed import PackedDriver

        return PackedDriver.of(dataset, arguments)
    if isinstance(dataset, MixDataset) and dataset.packed:
        from .loading.mixture import MixtureDriver

        return MixtureDriver.of(dataset, arguments)
    if isinstance(dataset, Readable):
        from .loading.samples import SampleDriver

        return SampleDriver.of(dataset, arguments)
    if isinstance(dataset, DynamicDataset | MixDataset):
        from .loading.lanes.driver import LaneDriver
        from .loading.lanes.plans import has_rows, planner_of

        return LaneDriver.of(dataset, planner_of(dataset), arguments, packed=has_rows(dataset))
    if isinstance(dataset, Dataset):
        raise TypeError(f"expected packed tokens, a mixture or samples, got {dataset!r}")
    if isinstance(dataset, str | bytes | os.PathLike):
        raise TypeError(f"expected a dataset, got {dataset!r}\nhint: headrace.open(...) opens a path or URL")
    from .loading.mapstyle import MapDriver

    return MapDriver.of(dataset, arguments)
