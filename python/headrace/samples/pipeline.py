"""From positions in a dataset to samples: chunks are read, and the user's functions applied."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from headrace.errors import StoreError

from .cache import ChunkCache
from .selection import Selection
from .source import Chunk, Place, Source
from .stages import DROPPED, Filter, Key, Stage

__all__ = ["Fetched", "Origin", "Pipeline", "Skip"]

OnError = Literal["raise", "skip"]


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


class Skip(NamedTuple):
    """A sample that could not be made, and why."""

    position: int
    place: Place
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


@dataclass(frozen=True)
class Pipeline:
    """Items of some origins, numbered, and how each becomes a sample. It never changes and pickles."""

    origins: tuple[Origin, ...]
    selection: Selection

    def __len__(self) -> int:
        return len(self.selection)

    def place(self, position: int) -> Place:
        """Where the item at a position lies."""
        origin, chunk, row = (int(part[0]) for part in self.selection.locate(np.array([position], dtype=np.int64)))
        return self.origins[origin].source.place(chunk, row)

    def fetch(
        self,
        positions: npt.NDArray[np.int64],
        cache: ChunkCache,
        *,
        seed: int = 0,
        epoch: int = 0,
        on_error: OnError = "raise",
    ) -> Fetched:
        """The samples at some positions.

        Args:
            positions: int64, (samples,), each in ``range(len(self))``.
            cache: where chunks are kept.
            seed: of random numbers for functions.
            epoch: of random numbers for functions.
            on_error: ``"skip"`` leaves out samples that are damaged or whose functions raise.

        Raises:
            Exception: what a function raised, with a note that names the sample.
            DataError: if a sample is damaged.
            StoreError: if the store does not answer.
        """
        numbers = positions.tolist()
        origins, chunks, rows = (part.tolist() for part in self.selection.locate(positions))
        located: list[tuple[int, int, int]] = list(zip(origins, chunks, rows, strict=True))
        samples = self._read(located, cache)
        skipped: list[Skip] = []
        slot = 0
        while slot < len(samples):
            try:
                # One frame for all samples: `slot` says where an error stopped it.
                for here in range(slot, len(samples)):
                    slot = here
                    sample = samples[slot]
                    if type(sample) is _Failed:
                        raise sample.error
                    if stages := self.origins[located[slot][0]].stages:
                        samples[slot] = _apply(stages, sample, Key(seed, epoch, numbers[slot]))
                break
            except StoreError:
                raise
            except Exception as error:
                origin, chunk, row = located[slot]
                where = self.origins[origin].source.place(chunk, row)
                if on_error == "raise":
                    _note(error, f"headrace: sample {numbers[slot]} ({where})")
                    raise
                skipped.append(Skip(numbers[slot], where, f"{type(error).__name__}: {error}"))
                samples[slot] = DROPPED
                slot += 1
        kept = [slot for slot, sample in enumerate(samples) if sample is not DROPPED]
        if len(kept) == len(samples):
            return Fetched(samples)
        return Fetched([samples[slot] for slot in kept], len(samples) - len(kept) - len(skipped), skipped, kept)

    def dtypes(self) -> dict[str, np.dtype[Any]] | None:
        """The types of number columns, if batches can be made column by column: no function looks at samples, and all
        origins have the same columns. So it never depends on a batch's samples.
        """  # noqa: D205
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

    def gather(self, positions: npt.NDArray[np.int64], cache: ChunkCache) -> dict[str, Any] | None:
        """The samples at some positions column by column; for pipelines that have `dtypes`.

        None means that they are to be fetched one by one: a sample is damaged, which is then named.

        Raises:
            StoreError: if the store does not answer.
        """
        found = self.selection.locate(positions)
        pairs = list(zip(found.origin.tolist(), found.chunk.tolist(), strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        try:
            chunks = list(self._chunks(list(numbers), cache).values())
            if isinstance(chunks[0], _Failed):
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
        if any(isinstance(chunk, _Failed) for chunk in chunks.values()):
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

    def _chunks(self, wanted: Sequence[tuple[int, int]], cache: ChunkCache) -> "dict[tuple[int, int], Chunk | _Failed]":
        """Some chunks, in this order, those that are missing read; for one that is damaged, what that raised."""
        chunks: dict[tuple[int, int], Chunk | _Failed | None] = {pair: cache.find(self.key(*pair)) for pair in wanted}
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
        return cast("dict[tuple[int, int], Chunk | _Failed]", chunks)

    def _chunk(self, pair: tuple[int, int], cache: ChunkCache) -> "Chunk | _Failed":
        try:
            return cache.get(self.key(*pair), self.load(*pair))
        except StoreError:
            raise
        except Exception as error:
            return _Failed(error)

    def key(self, origin: int, chunk: int) -> tuple[Source, Any, int]:
        """What a chunk is kept under: the same for all that read the same columns of one source."""
        which = self.origins[origin]
        return which.source, which.columns, chunk

    def load(self, origin: int, chunk: int) -> Callable[[], Chunk]:
        """A function that reads a chunk."""
        which = self.origins[origin]
        return lambda: which.source.load(chunk, which.columns)


class _Failed:
    """Stands for a sample that could not be read."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _take(chunk: Chunk, rows: list[int]) -> list[Any]:
    """Some samples of a chunk; where one is damaged, what it raised."""
    try:
        return chunk.take(rows)
    except StoreError:
        raise
    except Exception:
        return [_take_one(chunk, row) for row in rows]


def _take_one(chunk: "Chunk | _Failed", row: int) -> Any:
    if isinstance(chunk, _Failed):
        return chunk
    try:
        return chunk[row]
    except StoreError:
        raise
    except Exception as error:
        return _Failed(error)


def _note(error: Exception, note: str) -> None:
    """Adds a note once: a function may raise the same exception again and again."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _apply(stages: Sequence[Stage], sample: Any, key: Key) -> Any:
    for number, stage in enumerate(stages):
        try:
            sample = stage(sample, key, number)
        except StopIteration as error:
            # Where samples are asked for, it would pass for the end of the data.
            raise RuntimeError(f"{stage!r} raised StopIteration") from error
        except Exception as error:
            _note(error, f"headrace: raised in {stage!r}")
            raise
        if sample is DROPPED:
            return DROPPED
    return sample
