"""The loader: one rank's batches of a run, in the run's one order."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, SupportsIndex

from . import _core, _run
from ._ranks import default_workers, resolve_rank
from ._units import as_int, parse_bytes
from .batch import Batch, Source
from .dataset import Dataset, PackedDataset
from .state import check_state

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
        prefetch_factor: batches that are ready ahead of use.
        global_batch_size: rows of all ranks in a step, a multiple of `world_size`; or a dict from steps to sizes that
            hold from there on, such as ``{0: 64, 1000: 256}``.
        seed: of the order, in ``range(2**64)``; 0 by default.
        window: row groups that are shuffled together; by default from the data, see docs/order.md.
        lanes: N, see docs/order.md; by default from the data and the largest global batch size.
        rank: with `world_size`, which rank this is; by default from torch.distributed if it is initialised, else from
            RANK and WORLD_SIZE, else 0 of 1. headrace never makes a process group.
        world_size: ranks.
        memory: bytes of anonymous memory for decoded data and batches, as a number or text such as ``"2GiB"``. Windows
            beyond it are decoded into a spill file in the cache folder.
        epochs: passes over the data; None for no end.
        remainder: what becomes of the tokens after the last whole batch of the last epoch: ``"drop"``, or ``"pad"``
            to fill them up with `pad_id` (batches then hold ``loss_mask``). `stats` tells how many were dropped.

    What is left out of `seed`, `shuffle`, `lanes`, `window` and the batch size comes from a loaded state.

    Raises:
        ValueError: if an argument cannot be used, or there is too little data for a batch.
        BudgetError: when iteration starts, if `memory` is too small for one step.

    Example:
        >>> loader = headrace.DataLoader(packed, global_batch_size=512, seed=0)  # doctest: +SKIP
        >>> for batch in loader:  # doctest: +SKIP
        ...     train(batch["tokens"])
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
        self._dataset = _packed(dataset)
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
        if timeout < 0:
            raise ValueError(f"timeout must not be negative, got {timeout!r}")
        self._given = _run.Given(
            seed=_optional(seed, "seed", 0, 2**64 - 1),
            shuffle=None if shuffle is None else bool(shuffle),
            lanes=_optional(lanes, "lanes", 1, 2**32 - 1),
            window=_optional(window, "window", 1, 2**32 - 1),
            batch_size=_optional(batch_size, "batch_size", 1, 2**32 - 1),
            schedule=None if global_batch_size is None else _run.check_schedule(global_batch_size),
            epochs=_optional(epochs, "epochs", 1, 2**32 - 1),
            pad=remainder == "pad",
        )
        self._ranks = (rank, world_size)
        resolve_rank(rank, world_size)
        self._workers = default_workers() if num_workers is None else max(1, as_int(num_workers, "num_workers", least=0))
        self._memory = parse_bytes(memory, "memory")
        self._prefetch = as_int(prefetch_factor, "prefetch_factor", least=1)
        self._timeout = float(timeout) or None
        self._loaded: dict[str, Any] | None = None
        self._resolved: tuple[_run.Run, _run.Position] | None = None
        self._engine: _Feed | None = None
        self._iterations = 0
        if self._given.batch_size is not None or self._given.schedule is not None:
            self._here()

    # Where the run stands

    @property
    def step(self) -> int:
        """The next step, counted from 0 through the whole run."""
        return self._here()[1].step

    @property
    def position(self) -> int:
        """Rows of all ranks given so far."""
        position = self._here()[1]
        return position.steps.row_of(position.step)

    @property
    def epoch(self) -> int:
        """The epoch of the next step; the number of epochs once a finite run has ended."""
        run, position = self._here()
        return position.steps.epoch_of(run.core, position.step)

    @property
    def global_batch_size(self) -> int:
        """Rows of all ranks in the next step."""
        position = self._here()[1]
        return position.steps.batch_of(position.step)

    @property
    def batch_size(self) -> int:
        """Rows of this rank in the next step."""
        return self.global_batch_size // self._here()[0].world_size

    @property
    def rank(self) -> int:
        """Which rank this loader feeds."""
        return self._here()[0].rank

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self._here()[0].world_size

    def __len__(self) -> int:
        """Batches of the current epoch, exactly; what is passed over by `skip` does not count."""
        run, position = self._here()
        epoch = self.epoch
        if self._given.epochs is not None and epoch >= self._given.epochs:
            epoch = self._given.epochs - 1
        first, last = (position.steps.first_step(run.core, number) for number in (epoch, epoch + 1))
        return position.count(first, last)

    # Iterating

    def __iter__(self) -> Iterator[Batch]:
        self._here()
        self._iterations += 1
        return _Epoch(self, self._iterations)

    def seek(self, step: SupportsIndex) -> None:
        """Goes to a step of the run, in either direction, without a replay.

        Raises:
            ValueError: if a finite run has no such step.
        """
        run, position = self._here()
        step = as_int(step, "step", least=0)
        end = position.steps.end(run.core)
        if end is not None and step > end:
            raise ValueError(f"step must be in 0..{end}, the end of the run, got {step}")
        self._move(replace(position, step=step))

    def skip(self, steps: range) -> None:
        """Passes over some of the steps to come, such as those around a loss spike; they keep their numbers.

        Their rows are not given; the state remembers it.

        Raises:
            TypeError: if `steps` is no range.
            ValueError: if it is not one of neighbouring steps, or begins before the next step.
        """
        if not isinstance(steps, range):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"skip takes a range of steps, got {steps!r}")
        position = self._here()[1]
        if steps.step != 1 or not steps or steps.start < position.step:
            raise ValueError(f"skip takes neighbouring steps from {position.step} on, got {steps!r}")
        skipped = sorted([*position.skipped, (steps.start, steps.stop)])
        merged: list[tuple[int, int]] = []
        for start, stop in skipped:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self._change(replace(position, skipped=tuple(merged)))

    def set_global_batch_size(self, rows: SupportsIndex) -> None:
        """Changes the rows of all ranks in a step, from the next step on; a schedule no longer counts.

        Raises:
            ValueError: if the number of ranks does not divide it, or the data is too little for it.
        """
        run, position = self._here()
        batch = as_int(rows, "the global batch size", least=1)
        _run.check_divides(batch, run.world_size)
        run.core.check_enough(batch)
        self._change(replace(position, steps=position.steps.with_batch(position.step, batch)))

    # State

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was given, as plain JSON types; the same on all ranks.

        `State.to_bytes` makes it a file's content. Each batch carries its own as `batch.state`.
        """
        run, position = self._here()
        _run.keep_file_table(self._dataset)
        return run.state(position)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Goes on where a state was saved, in any run over the same data: the rest is the same to the byte.

        The number of ranks, the batch size, threads and memory may be others. An iterator that is still alive raises
        when used.

        Args:
            state: from `state_dict`, `Batch.state` or `State.from_bytes`.
            strict: False allows data that was moved or renamed without a change of content, with a warning.

        Raises:
            StateMismatch: if the state is damaged or of another run; it names the first difference.
        """
        state = check_state(state)
        _run.check_same_data(self._dataset, state, strict=strict)
        before = self._loaded
        self._loaded = state
        try:
            self._resolve()
        except Exception:
            self._loaded = before
            raise
        self._iterations += 1
        self._close()

    # Telling

    def sources(self, step: SupportsIndex, rank: SupportsIndex | None = None) -> list[list[Source]]:
        """Where the rows of a step come from, without having iterated there; reads only the slices that they touch.

        Args:
            step: any step of the run.
            rank: whose rows; by default this rank's.

        Returns:
            For each row the parts that it is packed from, as `Batch.sources`.
        """
        run, position = self._here()
        step = as_int(step, "step", least=0)
        end = position.steps.end(run.core)
        if end is not None and step >= end:
            raise ValueError(f"step must be in range({end}), the steps of the run, got {step}")
        rows = _core.sources(
            run.core,
            position.steps,
            world=run.world_size,
            rank=run.rank if rank is None else as_int(rank, "rank", least=0, most=run.world_size - 1),
            step=step,
            workers=self._workers,
            memory=self._memory,
            spill=self._spill,
        )
        return [[Source(*part) for part in row] for row in rows]

    def stats(self) -> dict[str, Any]:
        """Counts for people and logs.

        Returns:
            ``step``, ``epoch``, ``position`` (rows of all ranks), ``tokens`` (given to all ranks), ``lanes``,
            ``window``; of a finite run ``steps`` and ``remainder_tokens`` (that no batch holds); ``documents_cut`` (the
            share of documents that a lane's end cuts, at most); and of the reading: ``windows``, ``windows_spilled``,
            ``window_bytes`` (the most that windows held in memory), ``chunk_bytes``, ``bytes_read``, ``requests``, ``retries``.
        """
        run, position = self._here()
        steps, end = position.steps, position.steps.end(run.core)
        cuts = run.core.windows * (run.lanes - 1)
        stats: dict[str, Any] = {
            "step": position.step,
            "epoch": self.epoch,
            "position": self.position,
            "tokens": self.position * self._dataset.packing.seq_len,
            "lanes": run.lanes,
            "window": run.window,
            "documents_cut": min(1.0, cuts / max(1, self._dataset.rows)),
        }
        if end is not None:
            stats |= {"steps": end, "remainder_tokens": run.core.left_out(steps.row_of(end))}
        return stats | (self._engine.core.counters() if self._engine else {})

    def __repr__(self) -> str:
        settings = {name: value for name, value in vars(self._given).items() if value not in (None, False)}
        shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return f"DataLoader({self._dataset!r}, {shown})"

    # Inside

    @property
    def _spill(self) -> str:
        return str(self._dataset.cache / "spill")

    def _here(self) -> tuple[_run.Run, _run.Position]:
        """The run and where it stands; the rank is looked up again, for a process group may have come up since."""
        if self._resolved is None or resolve_rank(*self._ranks) != (self._resolved[0].rank, self._resolved[0].world_size):
            self._resolve()
        assert self._resolved is not None
        return self._resolved

    def _resolve(self) -> None:
        rank, world_size = resolve_rank(*self._ranks)
        self._resolved = _run.start(self._dataset, self._given, world_size, rank, self._loaded)

    def _move(self, position: _run.Position) -> None:
        """Goes elsewhere: iterators that are alive end."""
        self._iterations += 1
        self._change(position)

    def _change(self, position: _run.Position) -> None:
        """Changes what comes next; what was prepared is made anew."""
        self._resolved = (self._here()[0], position)
        self._close()

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _next(self, stop: int) -> Batch | None:
        """The next batch, if its step comes before `stop`."""
        run, position = self._here()
        step = position.passed_over(position.step)
        if step >= stop:
            if step > position.step:
                self._resolved = (run, replace(position, step=step))
            return None
        if self._engine is None or self._engine.step != step:
            self._close()
            self._engine = _Feed(self, run, replace(position, step=step))
        core = self._engine.next(self._timeout)
        after = replace(position, step=core.step + 1)
        self._engine.step = after.passed_over(after.step)
        self._resolved = (run, after)
        names = {"tokens": self._dataset.packing.name}
        return Batch(core, names, _Snapshot(self._dataset, run, after))


class _Snapshot:
    """Makes the state after a batch when it is asked for."""

    def __init__(self, dataset: PackedDataset, run: _run.Run, position: _run.Position) -> None:
        self._saved = (dataset, run, position)

    def __call__(self) -> dict[str, Any]:
        dataset, run, position = self._saved
        _run.keep_file_table(dataset)
        return run.state(position)


class _Feed:
    """An engine, the step of the batch that it gives next, and the process that it lives in."""

    def __init__(self, loader: DataLoader, run: _run.Run, position: _run.Position) -> None:
        self.step = position.step
        self._process = os.getpid()
        self.core = _core.Engine(
            run.core,
            position.steps,
            world=run.world_size,
            rank=run.rank,
            start=position.step,
            skip=list(position.skipped),
            workers=loader._workers,  # pyright: ignore[reportPrivateUsage]
            memory=loader._memory,  # pyright: ignore[reportPrivateUsage]
            prefetch=loader._prefetch,  # pyright: ignore[reportPrivateUsage]
            spill=loader._spill,  # pyright: ignore[reportPrivateUsage]
        )

    def next(self, timeout: float | None) -> _core.Batch:
        """The next batch of the engine, which must have one."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this loader was started in another process: its threads did not survive the fork\n"
                "hint: make the loader in the process that uses it, or start processes with the 'spawn' method"
            )
        batch = self.core.next(timeout)
        if batch is None or batch.step != self.step:
            found = "nothing" if batch is None else f"step {batch.step}"
            raise RuntimeError(f"expected the batch of step {self.step}, the engine gave {found}; please report it")
        return batch

    def close(self) -> None:
        """Ends the engine's threads."""
        self.core.close()


class _Epoch(Iterator[Batch]):
    """The rest of one epoch. `len()` is the number of batches left."""

    def __init__(self, loader: DataLoader, number: int) -> None:
        self._loader = loader
        self._number = number
        run, position = loader._here()  # pyright: ignore[reportPrivateUsage]
        # Steps that are passed over may reach into a later epoch.
        epoch = position.steps.epoch_of(run.core, position.passed_over(position.step))
        self._epoch = epoch
        self._done = False

    def __next__(self) -> Batch:
        loader = self._current()
        if self._done:
            raise StopIteration
        batch = loader._next(self._stop(loader))  # pyright: ignore[reportPrivateUsage]
        if batch is None:
            self._done = True
            raise StopIteration
        return batch

    def __len__(self) -> int:
        loader = self._current()
        position = loader._here()[1]  # pyright: ignore[reportPrivateUsage]
        return 0 if self._done else position.count(position.step, self._stop(loader))

    def __iter__(self) -> "_Epoch":
        return self

    def __del__(self) -> None:
        # A half-used iterator that goes ends the threads that work for it; the position stays.
        loader = self._loader
        if not self._done and loader._iterations == self._number:  # pyright: ignore[reportPrivateUsage]
            loader._close()  # pyright: ignore[reportPrivateUsage]

    def _current(self) -> DataLoader:
        if self._loader._iterations != self._number:  # pyright: ignore[reportPrivateUsage]
            raise RuntimeError(
                "this iterator is not the loader's latest: a newer one was made, or the loader was moved by seek or "
                "load_state_dict\nhint: iterate over the loader again"
            )
        return self._loader

    def _stop(self, loader: DataLoader) -> int:
        run, position = loader._here()  # pyright: ignore[reportPrivateUsage]
        return position.steps.first_step(run.core, self._epoch + 1)


def _packed(dataset: Dataset) -> PackedDataset:
    if isinstance(dataset, PackedDataset):
        return dataset
    if isinstance(dataset, Dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"expected a packed dataset, got {dataset!r}\nhint: dataset.pack(seq_len, column=...)")
    raise TypeError(f"expected what headrace.open(...).pack(...) gives, got {type(dataset).__name__}")


def _optional(value: SupportsIndex | None, name: str, least: int, most: int) -> int | None:
    return None if value is None else as_int(value, name, least=least, most=most)


