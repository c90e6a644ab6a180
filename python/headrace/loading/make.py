"""Makes one batch of samples: what a worker does with a task."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError
from headrace.samples.cache import ChunkCache
from headrace.samples.pipeline import AnyPipeline, Fetched, OnError, Skip

from .collate import default_collate, registered
from .items import Helpers

__all__ = ["AnyTask", "Broken", "Made", "Maker", "Task"]

_Ints = npt.NDArray[np.int64]


class Task(NamedTuple):
    """A batch to be made."""

    step: int
    epoch: int
    begin: int
    """The step's first row, of any rank."""
    rows: _Ints
    """Rows of this rank."""
    positions: _Ints
    """The samples that stand there; of a zip with a column for each source."""
    drawn: _Ints
    """The rows as random numbers count them."""


class AnyTask(Protocol):
    """What is asked of a task whose batch was made: its numbers are not, but for those who want to know them."""

    @property
    def step(self) -> int:
        """See `Task`."""
        ...

    @property
    def epoch(self) -> int:
        """See `Task`."""
        ...

    @property
    def rows(self) -> _Ints:
        """See `Task`."""
        ...

    @property
    def positions(self) -> _Ints:
        """See `Task`."""
        ...


class Made(NamedTuple):
    """A batch, and what became of its samples."""

    step: int
    batch: Any
    """None if there is none: nothing was left, and nobody wants an empty batch."""
    samples: int
    """In the batch."""
    dropped: int
    """By filters."""
    skipped: list[Skip]
    kept: list[int] | None
    """Which of the task's samples are in the batch; None for all."""


class Broken(NamedTuple):
    """In place of a batch that could not be made among others."""

    step: int
    error: BaseException


class Maker:
    """Reads the samples of a task and collates them. Several threads may call it; pickles to other processes.

    Args:
        pipeline: whose samples.
        seed: of random numbers for functions.
        collate: makes a batch of a list of samples; None for the default.
        on_error: whether samples that cannot be made are left out.
        allow_empty: whether a batch of no sample is made.
        parallel: samples that are made at the same time.
        memory: bytes of chunks that are kept.
    """

    def __init__(
        self,
        pipeline: AnyPipeline,
        *,
        seed: int,
        collate: Callable[[list[Any]], Any] | None,
        on_error: OnError,
        allow_empty: bool,
        parallel: int,
        memory: int,
    ) -> None:
        self.pipeline = pipeline
        self.cache = ChunkCache(memory)
        self._seed = seed
        self._collate = collate
        self._on_error: OnError = on_error
        self._allow_empty = allow_empty
        self._parallel = parallel
        # Decided for all batches alike: not if a function or a rule of the user's looks at samples.
        self._dtypes = pipeline.dtypes() if collate is None and not registered() else None
        self._helpers: Helpers | None = None

    def __call__(self, task: Task) -> Made:
        """The batch of a task.

        Raises:
            Exception: what a function raised, or reading a sample, with a note that names it.
        """
        if self._dtypes is not None and (batch := self._columns(task.positions)) is not None:
            return Made(task.step, self._typed(batch), len(task.positions), 0, [], None)
        fetched = self._fetch(task.positions, task.drawn)
        count = len(fetched.samples)
        collate = self._collate or default_collate
        batch = collate(fetched.samples) if count or self._allow_empty else None
        if self._dtypes is not None and count:
            batch = self._typed(cast("dict[str, Any]", batch))
        return Made(task.step, batch, count, fetched.dropped, fetched.skipped, fetched.kept)

    @property
    def reads_together(self) -> bool:
        """Whether the batches of several tasks cost less when they are read at once: where any item is as cheap to
        read as the next, and nothing is done to it.
        """  # noqa: D205
        return self._dtypes is not None and all(origin.source.random_access for origin in self.pipeline.origins)

    def together(self, tasks: Sequence[Task]) -> list[Made | Broken]:
        """The batches of several tasks, for a maker that `reads_together`: parts of the same arrays.

        Raises:
            StoreError: if the store does not answer.
        """
        several = len(tasks) > 1 and all(len(task.positions) for task in tasks)
        columns = self._columns(np.concatenate([task.positions for task in tasks])) if several else None
        if columns is None:
            # One of them may be damaged, or has nothing to read.
            return [self._alone(task) for task in tasks]
        ends = np.cumsum([len(task.positions) for task in tasks]).tolist()
        made: list[Made | Broken] = []
        for task, begin, end in zip(tasks, [0, *ends], ends, strict=False):
            batch = {name: values[begin:end] for name, values in columns.items()}
            made.append(Made(task.step, self._typed(batch), end - begin, 0, [], None))
        return made

    def _alone(self, task: Task) -> Made | Broken:
        try:
            return self(task)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Broken(task.step, error)

    def read(self, positions: Sequence[Any]) -> None:
        """Makes some samples of the first epoch, and forgets them: for measuring."""
        self._fetch(np.array(positions, dtype=np.int64), np.zeros(len(positions), dtype=np.int64))

    def _columns(self, positions: _Ints) -> dict[str, Any] | None:
        """The batch of default collation made column by column; None if it is to be made sample by sample."""
        columns = self.pipeline.gather(positions, self.cache) if len(positions) else None
        if columns is None:
            return None
        try:
            return {
                name: values if isinstance(values, np.ndarray) else default_collate(values)
                for name, values in columns.items()
            }
        except Exception:
            # Sample by sample it fails likewise, and says where in a sample.
            return None

    def _typed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch of columns with the types that the dataset has them in, whatever a file or a sample has.

        Raises:
            DataError: if a value does not fit.
        """
        for name, dtype in (self._dtypes or {}).items():
            array = cast("npt.NDArray[Any]", batch.get(name))
            if not isinstance(array, np.ndarray) or array.dtype == dtype:  # pyright: ignore[reportUnnecessaryIsInstance]
                continue
            with np.errstate(all="ignore"):
                batch[name] = array.astype(dtype)
            if not np.array_equal(batch[name], array, equal_nan=array.dtype.kind == "f"):
                raise DataError(
                    f"column {name!r} is of {dtype} in the dataset's first file, and has other values as {array.dtype}"
                    "\nhint: map(...) can make numbers of one type of them"
                )
        return batch

    def _fetch(self, positions: _Ints, rows: _Ints) -> Fetched:
        def fetch(some: slice) -> Fetched:
            return self.pipeline.fetch(
                positions[some], self.cache, rows=rows[some], seed=self._seed, on_error=self._on_error
            )

        if self._parallel == 1 or len(positions) <= 1:
            return fetch(slice(None))
        if self._helpers is None:
            self._helpers = Helpers(self._parallel - 1)
        each = [slice(number, number + 1) for number in range(len(positions))]
        parts: list[Fetched] = self._helpers.map(fetch, each)
        kept = [number for number, part in enumerate(parts) if part.samples]
        return Fetched(
            [part.samples[0] for part in parts if part.samples],
            sum(part.dropped for part in parts),
            [skip for part in parts for skip in part.skipped],
            None if len(kept) == len(parts) else kept,
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_helpers": None}
