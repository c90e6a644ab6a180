"""A source of samples that a test makes up: chunks of given sizes, reads that are counted, faults where asked for."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.samples.cache import ChunkCache
from headrace.samples.dataset import SampleDataset
from headrace.samples.pipeline import Origin, Pipeline
from headrace.samples.selection import Selection
from headrace.samples.source import Chunk, Extent, Source, digest

Fault = Callable[[int, int], None]
"""Called with a chunk and a row before it is read (row -1: before the chunk is opened), to raise what it wants."""


def sample_of(number: int) -> dict[str, Any]:
    """What item `number` of a source holds."""
    return {"id": number, "text": f"sample {number}", "half": number / 2}


class MadeUp(Source):
    """Items counted through from `start`.

    Attributes:
        loads: for each chunk that was opened its number and the columns asked for, in order.
    """

    format = "made up"
    url = "made-up://"
    schema: Mapping[str, str] = {"id": "int", "text": "str", "half": "float"}

    def __init__(
        self, sizes: Sequence[int], *, random_access: bool = False, start: int = 0, fault: Fault | None = None
    ) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.stored = self.sizes * 100
        self.random_access = random_access
        self.loads: list[tuple[int, tuple[str, ...] | None]] = []
        self.fault = fault
        self.start = start
        self._begins = start + np.cumsum([0, *sizes])

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        if self.fault is not None:
            self.fault(chunk, -1)
        self.loads.append((chunk, columns))
        return MadeUpChunk(self, chunk, columns)

    def file(self, chunk: int) -> str:
        return f"file-{chunk}"

    def identity(self, extent: Extent | None = None) -> str:
        return digest("made up", self.sizes[: None if extent is None else extent.chunks].tolist(), self.start)

    def sample(self, chunk: int, row: int) -> dict[str, Any]:
        if self.fault is not None:
            self.fault(chunk, row)
        return sample_of(int(self._begins[chunk]) + row)


class MadeUpChunk(Chunk):
    def __init__(self, source: MadeUp, number: int, columns: tuple[str, ...] | None) -> None:
        self._source, self._number, self._columns = source, number, columns
        self.nbytes = 10_000 * len(self)

    def __len__(self) -> int:
        return int(self._source.sizes[self._number])

    def __getitem__(self, row: int) -> dict[str, Any]:
        sample = self._source.sample(self._number, row)
        return sample if self._columns is None else {name: sample[name] for name in self._columns}


def dataset_of(source: Source) -> SampleDataset:
    """All samples of a source, as `headrace.open` gives them."""
    return SampleDataset(Pipeline((Origin(source),), Selection.whole(source.sizes)), ChunkCache(1 << 20))


def made_up(sizes: Sequence[int], **options: Any) -> SampleDataset:
    """All samples of a source of its own."""
    return dataset_of(MadeUp(sizes, **options))


def source_of(dataset: SampleDataset) -> MadeUp:
    """The source of a dataset that `made_up` gave."""
    source = dataset.pipeline.origins[0].source
    assert isinstance(source, MadeUp)
    return source


class Calls:
    """A function for `map` that notes the samples it was called with; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ids: list[int] = []

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.ids.append(sample["id"])
        return sample


def ids(samples: Iterable[Mapping[str, Any]]) -> list[int]:
    """The numbers of samples."""
    return [int(sample["id"]) for sample in samples]


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The sample with numbers of its own, and the process that it was made in."""
    if sample["id"] == 13:
        raise LookupError("no 13")
    return {"id": sample["id"], "drawn": rng.random(3), "pid": os.getpid()}
