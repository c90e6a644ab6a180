"""From positions in a dataset to samples: chunks are read, and the user's functions applied."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import StoreError

from .applying import Failed, add_note, apply_stages
from .cache import ChunkCache
from .draws import Key
from .selection import Selection
from .source import Chunk, Place, Places, Source
from .stages import Filter, Stage

__all__ = ["AnyPipeline", "Fetched", "Origin", "Pipeline", "Skip"]

OnError = Literal["raise", "skip"]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """Where some of a dataset's samples come from, and what is done to them."""

    source: Source
    columns: tuple[str, ...] | None = None
    stages: tuple[Stage, ...] = ()

    @property
    def filtered(self) -> bool:
        """Whether a function decides which samples there are."""
        return any(isinstance(stage, Filter) for stage in self.stages)

    def summary(self) -> dict[str, Any]:
        """What a state remembers of the source."""
        source = self.source
        return {
            "format": source.format,
            "chunks": len(source.sizes),
            "samples": int(source.sizes.sum()),
            "identity": source.identity(),
        }


class Skip(NamedTuple):
    """A sample that could not be made, and why."""

    position: Any
    """An integer, or a list with one for each source of a zip."""
    place: Place | Places
    error: str


@dataclass
class Fetched:
    """What became of some positions."""

    samples: list[Any]
    """In the order of the positions; those that were dropped or skipped are missing."""
    dropped: int = 0
    """By filters."""
    skipped: list[Skip] = field(default_factory=list[Skip])
    """By ``on_error="skip"``."""
    kept: list[int] | None = None
    """Which of the positions the samples are of; None for all."""


class AnyPipeline(ABC):
    """Samples at positions, as loaders ask for them. It never changes and pickles.

    Attributes:
        origins: where samples come from.
    """

    origins: tuple[Origin, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Samples of an epoch."""

    @abstractmethod
    def in_order(self, rows: _Ints) -> _Ints:
        """The positions of rows that nothing shuffles."""

    @abstractmethod
    def place(self, position: Any) -> Place | Places:
        """Where the sample at a position lies."""

    @abstractmethod
    def note(self, position: Any) -> str:
        """Text for a note to an error that names the sample at a position."""

    @abstractmethod
    def items(self, positions: _Ints, cache: ChunkCache, *, rows: _Ints, seed: int) -> list[list[Any] | Failed]:
        """What stands at some positions: a list of one sample or none each, or what was raised for it. See `fetch`."""

    def fetch(
        self,
        positions: _Ints,
        cache: ChunkCache,
        *,
        rows: _Ints | None = None,
        seed: int = 0,
        on_error: OnError = "raise",
    ) -> Fetched:
        """The samples at some positions.

        Args:
            positions: int64, (samples,), each in ``range(len(self))``; of a zip (samples, sources).
            cache: where chunks are kept.
            rows: int64, (samples,): where in the run they stand, for random numbers; None for the first epoch. Of a zip
                also (samples, sources + 1): in the line of each source, and in the zip's own.
            seed: of random numbers for functions.
            on_error: ``"skip"`` leaves out samples that are damaged or whose functions raise.

        Raises:
            Exception: what a function raised, with a note that names the sample.
            DataError: if a sample is damaged.
            StoreError: if the store does not answer.
        """
        if rows is None:
            rows = np.zeros(len(positions), dtype=np.int64)
        items = self.items(positions, cache, rows=rows, seed=seed)
        samples: list[Any] = []
        kept: list[int] = []
        skipped: list[Skip] = []
        for index, item in enumerate(items):
            if type(item) is Failed:
                position = positions[index].tolist()
                if on_error == "raise":
                    add_note(item.error, self.note(position))
                    raise item.error
                skipped.append(Skip(position, self.place(position), f"{type(item.error).__name__}: {item.error}"))
            elif item:
                samples += item
                kept.append(index)
        if len(kept) == len(items):
            return Fetched(samples)
        return Fetched(samples, len(items) - len(kept) - len(skipped), skipped, kept)

    @property
    def filtered(self) -> bool:
        """Whether a function decides which samples there are."""
        return any(origin.filtered for origin in self.origins)

    def dtypes(self) -> dict[str, np.dtype[Any]] | None:
        """The types of number columns, if batches can be made column by column: whatever samples they are of."""
        return None

    def gather(self, positions: _Ints, cache: ChunkCache) -> dict[str, Any] | None:
        """The samples at some positions column by column; for pipelines that have `dtypes`.

        None means that they are to be fetched one by one: a sample is damaged, which is then named.

        Raises:
            StoreError: if the store does not answer.
        """
        del positions, cache
        return None

    def key(self, origin: int, chunk: int) -> tuple[Source, Any, int]:
        """What a chunk is kept under: the same for all that read the same columns of one source."""
        which = self.origins[origin]
        return which.source, which.columns, chunk

    def load(self, origin: int, chunk: int) -> Callable[[], Chunk]:
        """A function that reads a chunk."""
        which = self.origins[origin]
        return lambda: which.source.load(chunk, which.columns)


@dataclass(frozen=True)
class Pipeline(AnyPipeline):
    """Items of some origins, numbered, and how each becomes a sample."""

    origins: tuple[Origin, ...]
    selection: Selection

    def __len__(self) -> int:
        return len(self.selection)

    def in_order(self, rows: _Ints) -> _Ints:
        """See `AnyPipeline.in_order`."""
        return rows % len(self)

    def place(self, position: int) -> Place:
        """See `AnyPipeline.place`."""
        origin, chunk, row = (int(part[0]) for part in self.selection.locate(np.array([position], dtype=np.int64)))
        return self.origins[origin].source.place(chunk, row)

    def note(self, position: int) -> str:
        """See `AnyPipeline.note`."""
        return f"headrace: sample {position} ({self.place(position)})"

    def items(self, positions: _Ints, cache: ChunkCache, *, rows: _Ints, seed: int) -> list[list[Any] | Failed]:
        """See `AnyPipeline.items`."""
        size = len(self)

        def key_of(index: int) -> Key:
            return Key(seed, int(rows[index]) // size, int(positions[index]))

        return self.expand(positions, cache, key_of=key_of)

    def expand(
        self,
        positions: _Ints,
        cache: ChunkCache,
        *,
        key_of: Callable[[int], Key],
        then: Sequence[Stage] = (),
        skip: Callable[[int, Exception], None] | None = None,
    ) -> list[list[Any] | Failed]:
        """What the items at some positions become: a list of documents each, or what was raised for them.

        Args:
            positions: int64, (items,), each in ``range(len(self))``.
            cache: where chunks are kept.
            key_of: of the random numbers for the item with an index in `positions`.
            then: stages behind those of the pipeline. Their numbers follow those of the origin with most stages.
            skip: see `apply_stages`.

        Raises:
            StoreError: if the store does not answer.
        """
        origins, chunks, rows = (part.tolist() for part in self.selection.locate(positions))
        located: list[tuple[int, int, int]] = list(zip(origins, chunks, rows, strict=True))
        items: list[list[Any] | Failed] = [
            sample if type(sample) is Failed else [sample] for sample in self._read(located, cache)
        ]
        used: set[int] = set(origins)
        for number in sorted(used):
            stages = self.origins[number].stages
            if not stages:
                continue
            if len(used) == 1:
                apply_stages(stages, items, key_of, first=0, skip=skip)
                continue
            mine = [index for index, origin in enumerate(origins) if origin == number]
            part = [items[index] for index in mine]
            apply_stages(
                stages,
                part,
                lambda index, mine=mine: key_of(mine[index]),
                first=0,
                skip=None if skip is None else lambda index, error, mine=mine: skip(mine[index], error),
            )
            for index, item in zip(mine, part, strict=True):
                items[index] = item
        apply_stages(then, items, key_of, first=self.stages, skip=skip)
        return items

    @property
    def stages(self) -> int:
        """The stages of the origin that has most."""
        return max(len(origin.stages) for origin in self.origins)

    def dtypes(self) -> dict[str, np.dtype[Any]] | None:
        """See `AnyPipeline.dtypes`: none where functions look at samples, or origins have not the same columns."""
        found: set[tuple[tuple[str, np.dtype[Any]], ...]] = set()
        for origin in self.origins:
            columns = origin.columns or origin.source.columns
            if origin.stages or columns is None or not origin.source.dtypes:
                return None
            kinds = origin.source.dtypes
            found.add(tuple((name, kinds[name]) if name in kinds else (name, np.dtype(object)) for name in columns))
        if len(found) != 1:
            return None
        return {name: kind for name, kind in found.pop() if kind.kind != "O"}

    def gather(self, positions: _Ints, cache: ChunkCache) -> dict[str, Any] | None:
        """See `AnyPipeline.gather`."""
        found = self.selection.locate(positions)
        pairs = list(zip(found.origin.tolist(), found.chunk.tolist(), strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        try:
            chunks = list(self._chunks(list(numbers), cache).values())
            if isinstance(chunks[0], Failed):
                return None
            kind = type(chunks[0])
            if any(type(chunk) is not kind for chunk in chunks):
                return None
            return kind.gather(
                cast("list[Chunk]", chunks), np.array([numbers[pair] for pair in pairs], dtype=np.int64), found.row
            )
        except StoreError:
            raise
        except Exception:
            return None

    def _read(self, located: Sequence[tuple[int, int, int]], cache: ChunkCache) -> list[Any]:
        """The stored samples at some places; where one is damaged, what it raised."""
        wanted = list(dict.fromkeys([(origin, chunk) for origin, chunk, _ in located]))
        chunks = self._chunks(wanted, cache)
        if any(isinstance(chunk, Failed) for chunk in chunks.values()):
            return [_take_one(chunks[origin, chunk], row) for origin, chunk, row in located]
        if len(wanted) * 2 > len(located):
            try:
                whole = cast("dict[tuple[int, int], Chunk]", chunks)
                return [whole[origin, chunk][row] for origin, chunk, row in located]
            except StoreError:
                raise
            except Exception:
                return [_take_one(chunks[origin, chunk], row) for origin, chunk, row in located]
        # Several samples of each chunk, which a chunk of columns gives at once for less.
        slots: dict[tuple[int, int], list[int]] = {}
        for slot, (origin, chunk, _) in enumerate(located):
            slots.setdefault((origin, chunk), []).append(slot)
        samples: list[Any] = [None] * len(located)
        for pair, mine in slots.items():
            taken = _take(cast("Chunk", chunks[pair]), [located[slot][2] for slot in mine])
            for slot, sample in zip(mine, taken, strict=True):
                samples[slot] = sample
        return samples

    def _chunks(self, wanted: Sequence[tuple[int, int]], cache: ChunkCache) -> "dict[tuple[int, int], Chunk | Failed]":
        """Some chunks, in this order, those that are missing read; for one that is damaged, what that raised."""
        chunks: dict[tuple[int, int], Chunk | Failed | None] = {pair: cache.find(self.key(*pair)) for pair in wanted}
        missing = [pair for pair, chunk in chunks.items() if chunk is None]
        if missing:
            loads: dict[Hashable, Callable[[], Chunk]] = {self.key(*pair): self.load(*pair) for pair in missing}
            try:
                read = cache.get_all(loads)
                chunks |= {pair: read[self.key(*pair)] for pair in missing}
            except StoreError:
                raise
            except Exception:
                chunks |= {pair: self._chunk(pair, cache) for pair in missing}
        return cast("dict[tuple[int, int], Chunk | Failed]", chunks)

    def _chunk(self, pair: tuple[int, int], cache: ChunkCache) -> "Chunk | Failed":
        try:
            return cache.get(self.key(*pair), self.load(*pair))
        except StoreError:
            raise
        except Exception as error:
            return Failed(error)


def _take(chunk: Chunk, rows: list[int]) -> list[Any]:
    """Some samples of a chunk; where one is damaged, what it raised."""
    try:
        return chunk.take(rows)
    except StoreError:
        raise
    except Exception:
        return [_take_one(chunk, row) for row in rows]


def _take_one(chunk: "Chunk | Failed", row: int) -> Any:
    if isinstance(chunk, Failed):
        return chunk
    try:
        return chunk[row]
    except StoreError:
        raise
    except Exception as error:
        return Failed(error)
