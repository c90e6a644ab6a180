"""Small datasets of documents with known tokens, and the loader's batches in a form that can be compared.

Unless a test says otherwise each token occurs once, so that a lost, repeated or misplaced one cannot hide.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import headrace as hr
from reference import Reference

TESTS = Path(__file__).parent

Document = list[int] | None
Files = Mapping[str, Sequence[Sequence[Document]]]
"""The row groups of each file, by the file's name."""
Lengths = Sequence[Sequence[Sequence[int | None]]]
"""The length of each document of each row group of each file; None for null."""


# Documents


def numbered(lengths: Lengths, token: Callable[[int], int] = lambda number: number) -> dict[str, list[list[Document]]]:
    """Files f0.parquet, f1.parquet ... with documents of these lengths; token n of all of them is `token(n)`."""
    numbers = count()

    def document(length: int | None) -> Document:
        return None if length is None else [token(next(numbers)) for _ in range(length)]

    return {
        f"f{name}.parquet": [[document(length) for length in group] for group in groups]
        for name, groups in enumerate(lengths)
    }


def seeded(seed: int, *, files: int = 3, groups: int = 4, documents: int = 8, longest: int = 12) -> dict[str, Any]:
    """Files of row groups of up to `documents` documents of up to `longest` tokens; some null, some empty."""
    random = Random(seed)

    def length() -> int | None:
        return None if random.random() < 0.05 else random.randint(0, longest)

    return numbered(
        [[[length() for _ in range(random.randint(1, documents))] for _ in range(groups)] for _ in range(files)]
    )


def equal_documents(*, files: int, groups: int, documents: int, length: int) -> dict[str, list[list[Document]]]:
    """Files whose row groups all hold the same number of tokens, in documents of the same length."""
    return numbered([[[length] * documents] * groups] * files)


def arithmetic_files() -> dict[str, list[list[Document]]]:
    """The dataset of the golden files: 150 documents, by formulas that need no library."""
    lengths = [None if number % 31 == 30 else (7 * number * number + 3 * number) % 23 for number in range(150)]
    cuts = [[1, 2, 3, 4, 5, 6, 7], [30], [9, 9, 9, 9], [10] * 5 + [6]]
    rest = iter(lengths)
    shape = [[[next(rest) for _ in range(group)] for group in groups] for groups in cuts]
    assert next(rest, "none") == "none", "the cuts hold all documents"
    return numbered(shape, lambda number: (number + 1) * 7919 % 50_021)


@st.composite
def document_files(draw: st.DrawFn) -> dict[str, list[list[Document]]]:
    """One to three files of a few row groups, with null, empty, short and long documents, and at least two tokens."""
    lengths = st.one_of(st.none(), st.sampled_from([0, 0, 1, 2, 5]), st.integers(0, 30))
    groups = st.lists(st.lists(lengths, min_size=1, max_size=6), min_size=1, max_size=5)
    shape = draw(st.lists(groups, min_size=1, max_size=3))
    shape[-1][-1].append(draw(st.integers(2, 40)))
    return numbered(shape)


# Datasets


@dataclass(frozen=True)
class Corpus:
    """Documents in Parquet files of one folder."""

    folder: Path
    files: Files = field(repr=False)

    @property
    def chunks(self) -> list[Sequence[Document]]:
        """The row groups, in storage order."""
        return [group for name in sorted(self.files) for group in self.files[name]]

    @property
    def places(self) -> list[tuple[str, int]]:
        """The file, as sources name it, and the number in it of each of `chunks`."""
        return [
            (str(self.folder / name), group) for name in sorted(self.files) for group in range(len(self.files[name]))
        ]

    @property
    def tokens(self) -> list[int]:
        """All tokens, in storage order."""
        return [token for chunk in self.chunks for document in chunk for token in document or ()]

    def open(self, **packing: Any) -> hr.PackedDataset:
        """The dataset, opened anew and packed."""
        return hr.open(self.folder).pack(**packing)

    def write(self, name: str, groups: Sequence[Sequence[Document]], **options: Any) -> None:
        """Writes one file; `options` are those of pyarrow's writer."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([("tokens", pa.list_(pa.int32()))])
        with pq.ParquetWriter(path, schema, **options) as writer:
            for group in groups:
                writer.write_table(pa.table({"tokens": list(group)}, schema), row_group_size=len(group))


class CorpusWriter:
    """Writes a `Corpus` to a new folder."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        self._new_folder = new_folder

    def __call__(self, files: Files, **options: Any) -> Corpus:
        corpus = Corpus(self._new_folder(), files)
        for name, groups in files.items():
            corpus.write(name, groups, **options)
        return corpus


def reference_of(corpus: Corpus, packing: Mapping[str, Any], order: Mapping[str, Any]) -> Reference:
    """The reference model of a run: `packing` as for `pack`, `order` as for `DataLoader`."""
    own = {name: packing[name] for name in ("seq_len", "overlap", "bos_id", "eos_id", "pad_id") if name in packing}
    return Reference(corpus.chunks, **own, **order)


# Batches


class Record(NamedTuple):
    """A batch, in a form that can be kept and compared; `rows` maps the numbers of rows to their tokens."""

    step: int
    epoch: int
    rows: dict[int, list[int]]


def record(batch: hr.Batch) -> Record:
    return Record(batch.step, batch.epoch, dict(zip(batch.rows.tolist(), batch["tokens"].tolist(), strict=True)))


def batches(loader: hr.DataLoader) -> Iterator[hr.Batch]:
    """All batches that are left of a finite run, epoch after epoch."""
    while loader.step < loader.stats()["steps"]:
        before = loader.step
        yield from loader
        assert loader.step > before, "an epoch without a batch"


def take_batches(loader: hr.DataLoader, wanted: int) -> list[hr.Batch]:
    """The next batches, as many as wanted, over ends of epochs; fewer only at a run's end."""
    taken: list[hr.Batch] = []
    more = wanted > 0
    while more:
        before = len(taken)
        taken += islice(loader, wanted - before)
        more = before < len(taken) < wanted
    return taken


def take(loader: hr.DataLoader, wanted: int) -> list[Record]:
    """The same as records."""
    return [record(batch) for batch in take_batches(loader, wanted)]


def drain(loader: hr.DataLoader) -> list[Record]:
    """All that is left of a finite run."""
    return [record(batch) for batch in batches(loader)]


def merged(ranks: Iterable[Sequence[Record]]) -> list[Record]:
    """The global batches that the ranks' parts make up. Fails where ranks disagree or share a row."""
    whole: list[Record] = []
    for parts in zip(*ranks, strict=True):
        steps = {(part.step, part.epoch) for part in parts}
        assert len(steps) == 1, f"ranks are not at one step: {steps}"
        rows = {row: tokens for part in parts for row, tokens in part.rows.items()}
        assert len(rows) == sum(len(part.rows) for part in parts), "two ranks have the same row"
        whole.append(Record(parts[0].step, parts[0].epoch, dict(sorted(rows.items()))))
    return whole


def stream(records: Iterable[Record]) -> dict[int, list[int]]:
    """The rows of batches in the order in which they were given."""
    rows: dict[int, list[int]] = {}
    for one in records:
        assert not rows.keys() & one.rows.keys(), "a row was given twice"
        rows |= one.rows
    return rows


def least_memory(dataset: hr.PackedDataset, **arguments: Any) -> int:
    """The smallest budget that a loader accepts: what it holds beside the batches, windows included, must spill."""
    with pytest.raises(hr.BudgetError) as refusal:
        next(iter(hr.DataLoader(dataset, **arguments, memory=1)))
    found = re.search(r"needs (\d+) bytes", str(refusal.value))
    assert found, f"the refusal must say what is needed: {refusal.value}"
    return int(found[1])


# Processes


def python(script: str, *arguments: str, stdin: IO[bytes] | None = None, seconds: float = 120) -> str:
    """What a script prints in a new interpreter. It may import the helpers of the tests."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
