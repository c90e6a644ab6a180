"""The loader: one rank's batches of a run, in the run's one order."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, SupportsIndex

from . import _core, _run
from ._driver import Driver, Resources
from ._ranks import default_workers, resolve_rank
from ._units import as_int, parse_bytes
from .batch import Batch, Source
from .dataset import Dataset, PackedDataset
from .state import MAX_LANES, State, check_state

__all__ = ["DataLoader"]


class DataLoader:
    """Gives one rank its part of every global batch, the same rows whatever the number of ranks.

    ``for batch in loader`` gives the rest of the current epoch; the next ``for`` gives the next one. The arguments
    begin as those of PyTorch's DataLoader; `sampler`, `batch_sampler`, `collate_fn`, `pin_memory` and
    `worker_init_fn` have no meaning for packed datasets and are refused.

    Args:
        dataset: what `TableDataset.pack` gives.
        batch_size: rows of this rank in a step; or give `global_batch_size`. May be left out if a state is loaded.
        shuffle: False for storage order; True by default.
        num_workers: threads that read, decode and assemble (0 counts as 1); by default the CPUs of this process,
            shared out among the ranks of a machine that torchrun started (LOCAL_WORLD_SIZE).
        drop_last: accepted; batches are always whole, see `remainder`.
        timeout: seconds to wait for a batch before TimeoutError; 0 waits forever.
        prefetch_factor: batches that are ready ahead of use, at least; of small ones up to 8 are.
        global_batch_size: rows of all ranks in a step, a multiple of `world_size`; or a dict from steps to sizes that
            hold from there on, such as ``{0: 64, 1000: 256}``.
        seed: of the order, in ``range(2**64)``; 0 by default.
        window: row groups that are shuffled together; by default from the data, see docs/order.md.
        lanes: N, see docs/order.md; by default from the data and the largest global batch size.
        rank: with `world_size`, which rank this is; by default from torch.distributed if it is initialised, else from
            RANK and WORLD_SIZE, else 0 of 1. headrace never makes a process group.
        world_size: ranks.
        memory: bytes of anonymous memory for decoded data and batches, as a number or text such as ``"2GiB"``. With
            room for two windows the next one is decoded while this one is used (large windows of shuffled data need
            1.1 to 1.5 windows for that); with room for one it waits until this one is used up; a window that does not
            fit at all goes to a spill file in the cache folder.
        epochs: passes over the data; None for no end.
        remainder: what becomes of the tokens after the last whole batch of the last epoch: ``"drop"``, or ``"pad"``
            to fill them up with `pad_id` (batches then hold ``loss_mask``). `stats` tells how many were dropped.

    What is left out of `seed`, `shuffle`, `lanes`, `window` and the batch size comes from a loaded state. `epochs`,
    `remainder` and the part of a schedule that lies ahead are not in a state: give them again.

    Raises:
        ValueError: if an argument cannot be used, or there is too little data for a batch.
        BudgetError: when iteration starts, if `memory` is too small for one step.

    Example:
        >>> loader = headrace.DataLoader(packed, global_batch_size=4, seed=0)
        >>> for batch in loader:
        ...     tokens = batch["tokens"]
        >>> tokens.shape, tokens.dtype.name, loader.epoch
        ((4, 64), 'int32', 1)
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: SupportsIndex | None = None,
        shuffle: bool | None = None,
        sampler: None = None,
        batch_sampler: None = None,
        num_workers: SupportsIndex | None = None,
        collate_fn: None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: None = None,
        *,
        prefetch_factor: SupportsIndex = 2,
        global_batch_size: SupportsIndex | Mapping[int, int] | None = None,
        seed: SupportsIndex | None = None,
        window: SupportsIndex | None = None,
        lanes: SupportsIndex | None = None,
        rank: SupportsIndex | None = None,
        world_size: SupportsIndex | None = None,
        memory: str | SupportsIndex = "2GiB",
        epochs: SupportsIndex | None = None,
        remainder: Literal["drop", "pad"] = "drop",
    ) -> None:
        refused = {
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "collate_fn": collate_fn,
            "worker_init_fn": worker_init_fn,
            "pin_memory": pin_memory or None,
        }
        for name, value in refused.items():
            if value is not None:
                raise ValueError(f"{name} has no meaning for a packed dataset, got {value!r}")
        if batch_size is not None and global_batch_size is not None:
            raise ValueError(f"give batch_size or global_batch_size, got {batch_size!r} and {global_batch_size!r}")
        if remainder not in ("drop", "pad"):
            raise ValueError(f'remainder must be "drop" or "pad", got {remainder!r}')
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"timeout must be a number of seconds, got {timeout!r}")
        if not 0 <= timeout < math.inf:
            raise ValueError(f"timeout must be 0 or a positive number of seconds, got {timeout!r}")
        if shuffle is not None and not isinstance(shuffle, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"shuffle must be True, False or None, got {shuffle!r}")
        given = _run.Given(
            seed=_optional(seed, "seed", 0, 2**64 - 1),
            shuffle=shuffle,
            lanes=_optional(lanes, "lanes", 1, MAX_LANES),
            window=_optional(window, "window", 1, 2**32 - 1),
            batch_size=_optional(batch_size, "batch_size", 1, 2**32 - 1),
            schedule=None if global_batch_size is None else _run.check_schedule(global_batch_size),
            epochs=_optional(epochs, "epochs", 1, 2**32 - 1),
            pad=remainder == "pad",
        )
        resources = Resources(
            workers=default_workers()
            if num_workers is None
            else max(1, as_int(num_workers, "num_workers", least=0, most=1024)),
            memory=parse_bytes(memory, "memory"),
            prefetch=as_int(prefetch_factor, "prefetch_factor", least=1, most=1024),
            timeout=float(timeout) or None,
        )
        resolve_rank(rank, world_size)
        self._driver = Driver(_packed(dataset), given, resources, rank, world_size)
        if batch_size is not None or global_batch_size is not None:
            # Arguments that do not go together are refused now rather than at the first batch.
            self._driver.here()

    # Where the run stands

    @property
    def step(self) -> int:
        """The next step, counted from 0 through the whole run."""
        return self._driver.here()[1].step

    @property
    def position(self) -> int:
        """Rows of all ranks given so far."""
        position = self._driver.here()[1]
        return position.steps.row_of(position.step)

    @property
    def epoch(self) -> int:
        """The epoch of the next step; the number of epochs once a finite run has ended."""
        run, position = self._driver.here()
        return position.steps.epoch_of(run.core, position.step)

    @property
    def global_batch_size(self) -> int:
        """Rows of all ranks in the next step."""
        position = self._driver.here()[1]
        return position.steps.batch_of(position.step)

    @property
    def batch_size(self) -> int:
        """Rows of this rank in the next step."""
        return self.global_batch_size // self._driver.here()[0].world_size

    @property
    def rank(self) -> int:
        """Which rank this loader feeds."""
        return self._driver.here()[0].rank

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self._driver.here()[0].world_size

    def __len__(self) -> int:
        """Batches of the current epoch, exactly; what is passed over by `skip` does not count."""
        run, position = self._driver.here()
        epoch = self.epoch
        if self._driver.given.epochs is not None and epoch >= self._driver.given.epochs:
            epoch = self._driver.given.epochs - 1
        first, last = (position.steps.first_step(run.core, number) for number in (epoch, epoch + 1))
        return position.count(first, last)

    # Iterating

    def __iter__(self) -> Iterator[Batch]:
        return _Epoch(self._driver)

    def seek(self, step: SupportsIndex) -> None:
        """Goes to a step of the run, in either direction, without a replay.

        Raises:
            ValueError: if a finite run has no such step.

        Example:
            >>> loader.seek(5)
            >>> next(iter(loader)).step
            5
        """
        run, position = self._driver.here()
        step = as_int(step, "step", least=0, most=2**63 - 1)
        end = position.steps.end(run.core)
        if end is not None and step > end:
            raise ValueError(f"step must be in 0..{end}, the end of the run, got {step}")
        run.core.check_row(position.steps.row_of(step))
        self._driver.move(position.at(step))

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
        position = self._driver.here()[1]
        if steps.step != 1 or not steps or steps.start < position.step or steps.stop >= 2**63:
            raise ValueError(f"skip takes neighbouring steps from {position.step} on, got {steps!r}")
        skipped = sorted([*position.skipped, (steps.start, steps.stop)])
        merged: list[tuple[int, int]] = []
        for start, stop in skipped:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self._driver.change(replace(position, skipped=tuple(merged)))

    def set_global_batch_size(self, rows: SupportsIndex) -> None:
        """Changes the rows of all ranks in a step, from the next step on; a schedule no longer counts.

        Raises:
            ValueError: if the number of ranks does not divide it, or the data is too little for it.

        Example:
            >>> loader.set_global_batch_size(8)
            >>> next(iter(loader))["tokens"].shape
            (8, 64)
        """
        run, position = self._driver.here()
        batch = as_int(rows, "the global batch size", least=1, most=2**32 - 1)
        _run.check_divides(batch, run.world_size)
        run.core.check_enough(batch)
        self._driver.change(replace(position, steps=position.steps.with_batch(position.step, batch)))

    # State

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was given, as plain JSON types; the same on all ranks.

        `State.to_bytes` makes it a file's content. Each batch carries its own as `batch.state`.

        Example:
            >>> state = loader.state_dict()
            >>> state["step"], state["position"], state["seed"]
            (0, 0, 0)
        """
        run, position = self._driver.here()
        _run.keep_file_table(self._driver.dataset, run)
        return run.state(position)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Goes on where a state was saved, in any run over the same data: the rest is the same to the byte.

        The number of ranks, the batch size, threads and memory may be others. An iterator that is still alive raises
        when used.

        Args:
            state: from `state_dict`, `Batch.state` or `State.from_bytes`; or a list of those of all ranks.
            strict: False allows data that was moved or renamed without a change of content, with a warning.

        Raises:
            StateMismatch: if the state is damaged or of another run; it names the first difference.

        Example:
            >>> state = next(iter(loader)).state
            >>> loader.load_state_dict(state)
            >>> loader.step
            1
        """
        state = check_state(state) if isinstance(state, Mapping) else State.merge(state)
        _run.check_same_data(self._driver.dataset, state, strict=strict)
        self._driver.load(state)

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
        run, position = self._driver.here()
        step = as_int(step, "step", least=0, most=2**63 - 1)
        end = position.steps.end(run.core)
        if end is not None and step >= end:
            raise ValueError(f"step must be in range({end}), the steps of the run, got {step}")
        run.core.check_row(position.steps.row_of(step))
        rows = _core.sources(
            run.core,
            position.steps,
            world=run.world_size,
            rank=run.rank if rank is None else as_int(rank, "rank", least=0, most=run.world_size - 1),
            step=step,
            workers=self._driver.resources.workers,
            memory=self._driver.resources.memory,
            spill=self._driver.spill,
        )
        return [[Source(*part) for part in row] for row in rows]

    def stats(self) -> dict[str, Any]:
        """Counts for people and logs.

        Returns:
            ``step``, ``epoch``, ``position`` (rows of all ranks), ``tokens`` (in those rows), ``lanes``, ``window``;
            of a finite run ``steps`` and ``remainder_tokens`` (that no batch holds); ``documents_cut`` (the share of
            documents that a lane's end cuts, at most); of this loader's reading ``windows``, ``windows_spilled``,
            ``window_bytes`` (the most that windows held in memory), ``chunk_bytes`` (stored, of the row groups asked
            for), ``preview_bytes`` (of local files, read for the first batch before its window, and with that again);
            and of all that was read of the dataset ``bytes_read``, ``requests``, ``retries``.

        Example:
            >>> loader.stats()["lanes"]
            4
        """
        run, position = self._driver.here()
        steps, end = position.steps, position.steps.end(run.core)
        cuts = run.core.windows * (run.lanes - 1)
        stats: dict[str, Any] = {
            "step": position.step,
            "epoch": self.epoch,
            "position": self.position,
            "tokens": self.position * self._driver.dataset.packing.seq_len,
            "lanes": run.lanes,
            "window": run.window,
            "documents_cut": min(1.0, cuts / max(1, self._driver.dataset.rows)),
        }
        if end is not None:
            stats |= {"steps": end, "remainder_tokens": run.core.left_out(steps.row_of(end))}
        requests, read, retries = self._driver.dataset.core.traffic()
        return stats | self._driver.counters() | {"bytes_read": read, "requests": requests, "retries": retries}

    def __repr__(self) -> str:
        settings = {
            name: value for name, value in vars(self._driver.given).items() if value is not None and name != "pad"
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return f"DataLoader({self._driver.dataset!r}, {shown})"


class _Epoch(Iterator[Batch]):
    """The rest of one epoch. `len()` is the number of batches left."""

    def __init__(self, driver: Driver) -> None:
        self._epoch = driver.epoch()
        driver.iteration += 1
        self._driver = driver
        self._number = driver.iteration
        self._done = False

    def __next__(self) -> Batch:
        driver = self._current()
        batch = None if self._done else driver.next(self._epoch)
        if batch is None:
            self._done = True
            raise StopIteration
        return batch

    def __len__(self) -> int:
        driver = self._current()
        position = driver.here()[1]
        return 0 if self._done else position.count(position.step, driver.first_step(self._epoch + 1))

    def __iter__(self) -> "_Epoch":
        return self

    def __del__(self) -> None:
        # A half-used iterator that goes ends the threads that work for it; the position stays.
        # One that could not be made has nothing to end.
        if not getattr(self, "_done", True) and self._driver.iteration == self._number:
            self._driver.close()

    def _current(self) -> Driver:
        if self._driver.iteration != self._number:
            raise RuntimeError(
                "this iterator is not the loader's latest: a newer one was made, or the loader was moved by seek or "
                "load_state_dict\nhint: iterate over the loader again"
            )
        return self._driver


def _packed(dataset: Dataset) -> PackedDataset:
    if isinstance(dataset, PackedDataset):
        return dataset
    if isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected a packed dataset, got {dataset!r}\nhint: dataset.pack(seq_len, column=...)")
    raise TypeError(f"expected what headrace.open(...).pack(...) gives, got {type(dataset).__name__}")


def _optional(value: SupportsIndex | None, name: str, least: int, most: int) -> int | None:
    return None if value is None else as_int(value, name, least=least, most=most)
