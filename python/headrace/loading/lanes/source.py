"""What a loader asks of a source of rows that knows its position lane by lane.

A run over lanes consists of N lanes, each an endless stream of rows of its own. Row g of the run is row g // N of lane
g % N. A rank has some of the lanes, and asks a source for their rows, always the next one of a lane. What lies behind
a lane (items, documents, other sources) is the source's own matter; to the loader a lane's state is plain JSON.

A `LanePlan` is the description: which rows there are, a pure function of the data, the pipeline and a `Setup`. It makes
a `LaneSource`: the same rows from given places on, for some of the lanes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace._changes import Adapted
from headrace.loading.exclusion import Exclusion
from headrace.samples.pipeline import OnError

if TYPE_CHECKING:
    from .workers import LaneWorkers

__all__ = ["Column", "LanePlan", "LaneResources", "LaneSource", "Layout", "Maker", "Planner", "Record", "Rows", "Setup"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What holds in a whole run, whatever its sources."""

    seed: int
    shuffle: bool
    lanes: int
    """N, of the run: never dependent on ranks."""
    window: int | None
    """W; None for each source's own default."""
    epochs: int | None
    """Passes over a source's items after which its lanes end; None for no end."""
    pad: bool
    """Whether what is left of a lane that ends is given as a row that padding fills up, or not at all."""
    skips: bool
    """Whether documents that cannot be made are left out."""
    steps: _core.Steps
    """How rows are grouped to steps, for what is said of steps: past, and to come as far as is known."""
    exclusion: Exclusion | None = None
    """What sources are to do without: what is masked of it is masked from the next row on."""

    @property
    def masks(self) -> bool:
        """Whether batches say which documents are masked."""
        return self.exclusion is not None and self.exclusion.first_masked is not None


@dataclass(frozen=True)
class Column:
    """One array of a batch."""

    dtype: np.dtype[Any]
    width: int | None
    """Entries in a row: the array is (rows, width). None for one a row: (rows,)."""
    pad: int | float = 0
    """What stands where a row holds nothing."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What a row is: a line in each of some arrays, or, where there are no columns, a sample of any kind."""

    columns: Mapping[str, Column]
    """By the names that batches give them. Those with a width are packed alike, and have the same one."""
    seq_len: int = 0
    """Entries of a packed row that count for ``cu_seqlens``: the width without an overlap; 0 for samples."""
    boundaries: bool = False
    """Whether batches hold ``document_ids``, ``position_ids``, ``cu_seqlens`` and ``max_seqlen``, made of records."""
    cu_seqlens_size: int | None = None
    """Entries of ``cu_seqlens`` in each batch, filled up with the last one; None for as many as there are."""
    loss_mask: bool = False
    """Whether batches hold a ``loss_mask`` made of records: 1 where a row holds a document, 0 where it is padding."""

    masked: bool = False
    """Whether ``loss_mask``, made or packed, is 0 where records are masked; of samples whether there is one."""

    source: bool = False
    """Whether batches hold ``source``: the number of each row's source in a mixture."""

    @property
    def packed(self) -> bool:
        """Whether rows are lines of arrays, not samples."""
        return bool(self.columns)


class Record(ABC):
    """What a row was made of: the only source of its boundaries and of its provenance. It never changes, is small, and
    may be asked from any thread, also after its source was closed.
    """  # noqa: D205

    __slots__ = ()

    @property
    @abstractmethod
    def lengths(self) -> Sequence[int]:
        """Entries of each part of a packed row in order, each at least 1; what is left of the width is padding. Empty
        for samples.
        """  # noqa: D205

    @property
    def masked(self) -> Sequence[bool]:
        """Whether each of these parts is masked, or the sample; empty where nothing is."""
        return ()

    @property
    @abstractmethod
    def position(self) -> int:
        """The number of the item in its dataset that the row begins with; of a batch of samples, which sample it is."""

    @abstractmethod
    def sources(self) -> list[Any]:
        """Where each part lies: a `headrace.Source` each for packed rows, one `Place` for a sample."""


class Rows:
    """Rows of one rank's step, while they are made: filled by `LaneSource.take`, each place once.

    Attributes:
        arrays: for each column of the layout an array with a line for each row. It begins as padding.
        samples: an entry for each row; used where the layout has no columns.
        source: int32, (rows,): of a mixture the number of each row's source; -1 for rows that nothing was written to.
        records: an entry for each row; None for one that nothing was written to.
    """

    __slots__ = ("arrays", "records", "samples", "source")

    def __init__(self, layout: Layout, count: int) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {
            name: np.full((count,) if column.width is None else (count, column.width), column.pad, dtype=column.dtype)
            for name, column in layout.columns.items()
        }
        self.samples: list[Any] = [None] * count
        self.records: list[Record | None] = [None] * count
        self.source: npt.NDArray[np.int32] = np.full(count if layout.source else 0, -1, dtype=np.int32)


class LaneSource(ABC):
    """The rows of some lanes, from given states on. One thread calls it, but for `close`.

    Calls of `take` for different lanes may come in any order, and change nothing for each other: the t-th row that is
    taken of a lane, and the lane's state after it, are functions of the plan alone.

    Attributes:
        lanes: int64, (own lanes,): the numbers of the lanes that it has, increasing. Methods name a lane by its index
            in this array.
    """

    lanes: npt.NDArray[np.int64]

    def want(self, counts: npt.NDArray[np.int64]) -> None:
        """Says how many rows of each lane will be taken soon: a hint. It changes when rows are ready, and nothing else.

        Args:
            counts: int64, (own lanes,): from the next row on, with those of earlier hints that were not taken yet.
        """
        del counts

    @abstractmethod
    def take(self, lanes: Sequence[int], into: Rows, at: Sequence[int]) -> list[int]:
        """Takes the next row of each of some lanes, waiting for what is missing.

        Args:
            lanes: indices of own lanes, each at most once.
            into: where rows are written to. Only the places named are touched; of an array what lies behind a row's
                last part is left as it is, for it holds padding already.
            at: for each lane the place of its row.

        Returns:
            The indices among `lanes` (not lane numbers) whose lane has ended, increasing: nothing was written for
            these, nor will be. Of a source without an end it is always empty.

        Raises:
            Exception: what reading or a function raised. Lanes may then be at different rows: the source is of no
                more use, and another one is begun from the last snapshot.
        """

    @abstractmethod
    def snapshot(self) -> object:
        """Where all own lanes are after the rows taken so far. It never changes, refers to the source's own immutable
        parts, and costs little: one is made for every step.
        """  # noqa: D205

    @abstractmethod
    def state(self, snapshot: Any) -> dict[int, Any]:
        """For each own lane, by its number, where it is: plain JSON types, from which `LanePlan.open` goes on.

        The same place always has the same state, however the source came there. Any thread may ask.
        """

    @abstractmethod
    def epoch(self, snapshot: Any) -> int:
        """The pass that the slowest own lane is in. Any thread may ask."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Counts for people and logs. Any thread may ask."""

    @abstractmethod
    def close(self) -> None:
        """Ends what works for it. Any thread may call it, at any moment: it waits for nothing and takes no lock. A
        `take` that waits meanwhile raises.
        """  # noqa: D205


class LanePlan(ABC):
    """Which rows there are in each of N lanes: pure, immutable, and the same on all ranks.

    Attributes:
        layout: what its rows are.
        setup: of the run.
        window: W, for the state; 1 where there are no windows, None where sources have defaults of their own.
        items: M, the items in a pass of all lanes.
        rows: of the run, where lanes are known to end together after so many; None where only reading tells, or for no
            end.
    """

    layout: Layout
    setup: Setup
    window: int | None
    items: int
    rows: int | None = None

    @abstractmethod
    def pipeline(self) -> dict[str, Any]:
        """What decides which rows there are, by name, as plain JSON types. A state of a run in which an entry is
        another is refused by the entry's name.
        """  # noqa: D205

    @abstractmethod
    def sources(self) -> list[dict[str, Any]]:
        """What the data is, for the state: a dict for each source, with its ``identity`` and counts."""

    def stages(self) -> list[str]:
        """The user's functions by name. Where they alone differ from a state's, ``strict=False`` allows it."""
        return []

    @abstractmethod
    def adapted(self, state: Mapping[str, Any], *, strict: bool) -> Adapted:
        """A state whose form was checked, as the beginning of a run by this plan.

        With `strict` off functions may have other names, and rows another length where a round of lanes begins: the
        state tells of either.

        Raises:
            StateMismatch: naming the first difference that is not allowed.
        """

    def makers(self, *, memory: int, on_error: OnError) -> "list[Maker]":
        """What threads or processes are to call for this plan's sources, if it has such work. They must pickle. The
        run's `LaneWorkers` is made of those of the whole plan, in this order.

        Args:
            memory: bytes for what they keep in one process, all together.
            on_error: ``"skip"`` leaves out documents that are damaged or whose functions raise.
        """  # noqa: D205
        del memory, on_error
        return []

    @abstractmethod
    def first(self, lane: int) -> Any:
        """The state of a lane of which nothing was taken yet, as `LaneSource.state` gives it."""

    @abstractmethod
    def open(self, lanes: npt.NDArray[np.int64], states: Mapping[int, Any], resources: "LaneResources") -> LaneSource:
        """Some lanes from given places on.

        Args:
            lanes: int64, increasing: their numbers, each in ``range(setup.lanes)``.
            states: for each of them, by its number, what `LaneSource.state` or `first` gave, and `check_state` passed.
            resources: what the source may use.
        """

    @abstractmethod
    def epoch(self, states: Mapping[int, Any]) -> int:
        """The pass that the slowest of some lanes is in, by their states; as `LaneSource.epoch` says it."""

    def given(self, row: int) -> list[dict[str, int]]:
        """What each of `sources` gave up to a row of the run, for the state; nothing outside of mixtures."""
        del row
        return []

    def progress(self, row: int, states: Callable[[], Mapping[int, Any]]) -> dict[str, Any]:
        """Counts for people and logs.

        Args:
            row: before which all ranks were given what is counted.
            states: gives those of the own lanes there.
        """
        del row, states
        return {}

    @abstractmethod
    def check_state(self, lane: int, state: Any) -> None:
        """Refuses what is no state of a lane.

        Raises:
            StateMismatch: naming the lane, what was expected and what was found.
        """


class Planner(ABC):
    """Makes the plans of a dataset."""

    @abstractmethod
    def plan(self, setup: Setup, state: Mapping[str, Any] | None) -> LanePlan:
        """The plan for a run.

        Args:
            setup: of the run.
            state: what the run goes on from, as `adapted` gave it, or the part of its own state that does not change;
                None for a new run.

        Raises:
            ValueError: if the dataset has no such run.
        """

    @abstractmethod
    def adapted(
        self, state: Mapping[str, Any], exclusion: Exclusion | None, *, epochs: int | None, strict: bool
    ) -> Adapted:
        """A state whose form was checked, for `plan`; with `strict` off changed where that is allowed.

        Args:
            state: of the run so far.
            exclusion: what the run does without.
            epochs: passes that it has; None for no end.
            strict: False allows some differences.

        Raises:
            StateMismatch: naming what is wrong with it, or the first difference that is not allowed.
        """


class Maker(ABC):
    """Called with a task it gives the task's result: the part of a source that threads or processes run."""

    @abstractmethod
    def __call__(self, task: Any) -> Any:
        """The result of a task."""

    def probes(self) -> list[Any]:
        """What `probe` may be called with, to find out whether threads or processes suit; none if that is no matter."""
        return []

    def probe(self, some: list[Any]) -> None:
        """Does some work of the kind, and forgets it."""
        del some


@dataclass(frozen=True, kw_only=True)
class LaneResources:
    """What one source may use."""

    workers: "LaneWorkers"
    """Who runs tasks, for all sources of a run."""
    makers: int
    """The index among the workers' makers of the first one of this source's plan."""
    memory: int
    """Bytes for what the source holds in this process: rows to come, and what they are made of."""
    share: float = 1.0
    """Of all rows about so many are this source's: as much of what threads do ahead of use is to be for it."""
