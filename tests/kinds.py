"""Every kind of pipeline that a loader takes, over the same documents on disk, and what its runs give.

Tests of promises that hold for all of them are parametrized by `KINDS`.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

DOCUMENTS = 44
"""In four chunks; document n has the tokens n * 100, n * 100 + 1 ..."""

SEQ_LEN = 6
"""The mean length of documents: packed end to end there are as many rows as documents."""


def tokens_of(number: int) -> list[int]:
    """1 to 11 tokens."""
    return [number * 100 + place for place in range(1 + number * 5 % 11)]


class Documents:
    """Documents in a folder, in the formats that kinds of pipelines need.

    Args:
        folder: where to write them.
        numbers: their ids.
        tokens: those of the document with a number.
        stored: the type of a token in files that have one.
        files: among which the documents are shared out; JSON Lines have one for each of the four chunks.
    """

    def __init__(
        self,
        folder: Path,
        numbers: Sequence[int] = range(DOCUMENTS),
        *,
        tokens: Callable[[int], list[int]] = tokens_of,
        stored: str = "int32",
        files: Literal[1, 2, 4] = 1,
    ) -> None:
        self.folder = folder
        self.numbers: list[int] = []
        self.tokens: list[list[int]] = []
        self._of, self._stored = tokens, stored
        self._chunks: dict[str, tuple[int, list[int]]] = {}
        """For each file the number of its first chunk in the dataset, and the place of the first document of each."""
        self._size = -(-len(numbers) // 4)
        for name in ("lines", "parquet"):
            (folder / name).mkdir(parents=True)
        in_file = self._size * 4 // files
        for begin in range(0, len(numbers), in_file):
            self._write(numbers[begin : begin + in_file])

    def _write(self, numbers: Sequence[int]) -> None:
        """A file of each format behind those that there are, of JSON Lines one for each chunk."""
        begin = len(self.numbers)
        self.numbers += numbers
        self.tokens += map(self._of, numbers)
        chunks = [
            range(at, min(at + self._size, len(self.numbers))) for at in range(begin, len(self.numbers), self._size)
        ]
        for chunk in chunks:
            name = f"{self._count('.jsonl'):02}.jsonl"
            lines = [json.dumps({"id": self.numbers[place], "tokens": self.tokens[place]}) for place in chunk]
            (self.folder / "lines" / name).write_text("\n".join(lines) + "\n")
            self._chunks[name] = self._count(".jsonl"), [chunk.start]
        table = pa.table({"tokens": pa.array(self.tokens[begin:], pa.list_(pa.type_for_alias(self._stored)))})
        name = f"{self._count('.parquet'):02}.parquet"
        pq.write_table(table, self.folder / "parquet" / name, row_group_size=self._size)
        groups = sum(len(begins) for name, (_, begins) in self._chunks.items() if name.endswith(".parquet"))
        self._chunks[name] = groups, [chunk.start for chunk in chunks]
        mode = "append" if begin else None
        self._chunks[f"shard-{self._count('.bin'):05}.bin"] = self._count(".bin"), [begin]
        with hr.StreamWriter(self.folder / "records", self._stored, documents=True, mode=mode) as writer:
            for tokens in self.tokens[begin:]:
                writer.write(np.array(tokens, dtype=self._stored))
                writer.end_document()

    def _count(self, suffix: str) -> int:
        return sum(name.endswith(suffix) for name in self._chunks)

    def grown(self, folder: Path, numbers: Sequence[int]) -> "Documents":
        """The same with further documents behind them, in files of their own."""
        shutil.copytree(self.folder, folder)
        more = copy(self)
        more.folder, more.numbers, more.tokens = folder, [*self.numbers], [*self.tokens]
        more._chunks = {**self._chunks}
        more._write(numbers)
        return more

    def tokens_at(self, part: Any) -> list[int]:
        """The stored tokens that a row's part is of, as its source says."""
        return self.tokens[self.place_of(part)][part.first_token :][: part.tokens]

    def place_of(self, part: Any) -> int:
        """Which document a source, or a sample's place, is of: an index of `numbers`."""
        file, chunk, row = part[:3]
        folder, _, name = file.rpartition("/")
        first, begins = self._chunks[name]
        # With whole URLs chunks are counted in their files, else in the dataset.
        return begins[chunk if folder else chunk - first] + row

    @property
    def samples(self) -> hr.SampleDataset:
        """Dicts of ``id`` and ``tokens``."""
        return hr.open(self.folder / "lines")

    @property
    def ids(self) -> hr.SampleDataset:
        """Dicts of ``id``."""
        return self.samples.select(["id"])

    @property
    def packed(self) -> hr.PackedDataset:
        """Rows of stored tokens."""
        return hr.open(self.folder / "parquet").pack(SEQ_LEN)

    @property
    def records(self) -> hr.StreamDataset:
        """Records with the ends of documents."""
        found = hr.open(self.folder / "records")
        assert isinstance(found, hr.StreamDataset)
        return found


class Objects:
    """What is map-style: samples in memory."""

    def __init__(self, documents: Documents) -> None:
        self.samples = [{"id": number} for number in documents.numbers]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.samples[index]


def _pair(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"id": samples[0]["id"], "other": samples[1]["id"]}


def _same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def _single(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": sample["id"]}]


def _some(sample: dict[str, Any]) -> bool:
    return sample["id"] % 4 != 3


def _halves(sample: dict[str, Any]) -> list[dict[str, Any]]:
    tokens = sample["tokens"]
    return [{"tokens": part} for part in (tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]) if part]


def _dynamic(mode: Literal["concat", "best_fit", "pad", "truncate"]) -> Callable[[Documents], Any]:
    return lambda documents: documents.samples.flat_map(_halves).pack(SEQ_LEN, mode=mode)


def _mixed(make: Callable[[Documents], Any], other: Callable[[Documents], Any] | None = None) -> Callable[..., Any]:
    return lambda documents: hr.mix({"one": (make(documents), 3), "two": ((other or make)(documents), 1)})


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of pipelines."""

    make: Callable[[Documents], Any]
    ends: bool = True
    """Whether epochs end with a step, and have a length: that of as many rows as there are documents."""
    states: bool = True
    """Whether batches have a state of their own."""
    in_lanes: bool = False
    """Whether rows come lane by lane, so that a rank's state is its part of the whole."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of loaders."""
    fresh: Callable[[], Mapping[str, Any]] = dict
    """Further ones that each loader needs anew, such as samplers."""


KINDS: Mapping[str, Kind] = {
    "packed": Kind(make=lambda documents: documents.packed),
    "mixture of packed": Kind(make=_mixed(lambda documents: documents.packed), ends=False),
    "samples": Kind(make=lambda documents: documents.ids),
    "map over samples": Kind(make=lambda documents: documents.ids.map(_same)),
    "zip": Kind(make=lambda documents: hr.zip([documents.ids, documents.ids], _pair)),
    "objects": Kind(make=Objects, states=False, arguments={"shuffle": True}),
    "documents": Kind(make=lambda documents: documents.ids.flat_map(_single), ends=False, in_lanes=True),
    "concat": Kind(make=_dynamic("concat"), ends=False, in_lanes=True),
    "best_fit": Kind(make=_dynamic("best_fit"), ends=False, in_lanes=True),
    "pad": Kind(make=_dynamic("pad"), ends=False, in_lanes=True),
    "truncate": Kind(make=_dynamic("truncate"), ends=False, in_lanes=True),
    "mixture of samples": Kind(make=_mixed(lambda documents: documents.ids), ends=False, in_lanes=True),
    "mixture of best_fit": Kind(make=_mixed(_dynamic("best_fit")), ends=False, in_lanes=True),
    "mixture of samples and documents": Kind(
        make=_mixed(lambda documents: documents.ids, lambda documents: documents.ids.filter(_some).flat_map(_single)),
        ends=False,
        in_lanes=True,
    ),
    "stream": Kind(make=lambda documents: documents.records.sequences(SEQ_LEN)),
    "stored documents": Kind(make=lambda documents: documents.records.documents().map(_listed)),
}


def _listed(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(next(iter(sample.values()))[0]) // 100}


class Step(NamedTuple):
    """A global batch."""

    number: int
    rows: list[Any]
    """What each row holds, in the order of rows."""
    states: list[dict[str, Any]]
    """Of each rank, after it."""
    columns: dict[Any, dict[str, Any]]
    """By the number of each row, or what orders it alike, what it holds of each array."""


class Run:
    """Loaders of all ranks, side by side."""

    def __init__(self, kind: Kind, data: Any, batch: Any = None, world: int = 1, **arguments: Any) -> None:
        given = {"num_workers": 0, **kind.arguments, **arguments}
        self.loaders = [
            hr.DataLoader(data, global_batch_size=batch, rank=rank, world_size=world, **given, **kind.fresh())
            for rank in range(world)
        ]

    def load(self, states: Any, **how: Any) -> "Run":
        """Goes on from states."""
        for loader in self.loaders:
            loader.load_state_dict(states, **how)
        return self

    @property
    def states(self) -> list[dict[str, Any]]:
        """Of all ranks."""
        return [loader.state_dict() for loader in self.loaders]

    def take(self, count: int) -> list[Step]:
        """The next steps, epoch after epoch; fewer at the end of a run."""
        return list(islice(self.steps(), count))

    def steps(self) -> Iterator[Step]:
        """Those that are left, epoch after epoch, to the end of a run if it has one."""
        before = -1
        while before != self.loaders[0].step:
            before = self.loaders[0].step
            yield from self.epoch()

    def epoch(self) -> Iterator[Step]:
        """The steps that are left of the epoch."""
        for parts in zip(*self.loaders, strict=True):
            rows = [row for rank, part in enumerate(parts) for row in _rows(part, rank)]
            columns = dict(sorted(rows, key=lambda row: row[0]))
            assert len(columns) == len(rows), "a row on two ranks"
            steps = {getattr(part, "step", loader.step - 1) for part, loader in zip(parts, self.loaders, strict=True)}
            (step,) = steps
            yield Step(step, [repr(tuple(held.values())) for held in columns.values()], self.states, columns)


def _rows(batch: Any, rank: int) -> list[tuple[Any, dict[str, Any]]]:
    """The number of each row, or what orders it alike, and what it holds; of a rank that has none, nothing."""
    if isinstance(batch, list):
        assert batch == []
        return []
    names = [name for name in batch if name not in ("cu_seqlens", "max_seqlen")]
    values = list(zip(*(np.asarray(batch[name]).tolist() for name in names), strict=True))
    # Of batches that do not know their rows each rank has a stretch.
    numbers = batch.rows.tolist() if hasattr(batch, "rows") else [(rank, place) for place in range(len(values))]
    return [(number, dict(zip(names, value, strict=True))) for number, value in zip(numbers, values, strict=True)]
