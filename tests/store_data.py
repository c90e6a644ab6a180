"""Data that tests of stores put there, and what a loader makes of it."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from places import Place

__all__ = [
    "LINES",
    "PARTS",
    "content",
    "corpus",
    "in_storage_order",
    "names_of",
    "opened",
    "opened_records",
    "records",
    "rows",
]


def content(name: str) -> bytes:
    """Some bytes, the same for a name in every run."""
    return random.Random(name).randbytes(5000 + len(name))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of five row groups of 4,000 tokens, which do not compress."""
    folder = tmp_path_factory.mktemp("corpus")
    values = np.random.default_rng(0).integers(0, 2**31 - 1, (4, 20_000), dtype=np.int32)
    offsets = pa.array(np.arange(0, 20_001, 100, dtype=np.int32))
    for number in range(4):
        table = pa.table({"tokens": pa.ListArray.from_arrays(offsets, pa.array(values[number]))})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=40, compression="none", use_dictionary=False)
    return folder


PARTS = [f"{number}.parquet" for number in range(4)]


def opened(place: Place, corpus: Path, options: dict[str, str] | None = None) -> hr.PackedDataset:
    """The corpus at a place, which is put there first."""
    place.server.put_folder(place.bucket, corpus, "corpus/")
    urls = place.urls("corpus", PARTS)
    return hr.open(urls, storage_options=place.patient() if options is None else options, index="rebuild").pack(100)


def rows(packed: hr.PackedDataset, **options: Any) -> list[list[int]]:
    """All rows of an epoch in their order."""
    options = {"seed": 3, "epochs": 1, "num_workers": 2} | options
    loader = hr.DataLoader(packed, 8, **options)
    return [row for batch in loader for row in batch["tokens"].tolist()]


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files of two hundred lines, in blocks that are read one by one."""
    folder = tmp_path_factory.mktemp("records")
    for number in range(3):
        lines = [json.dumps({"id": f"{number}-{line}", "text": "ü" * line}) for line in range(200)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    return folder


LINES = [f"{number}.jsonl" for number in range(3)]


def opened_records(place: Place, records: Path) -> hr.SampleDataset:
    """The records at a place, which are put there first."""
    place.server.put_folder(place.bucket, records, "records/")
    urls = place.urls("records", LINES)
    return hr.open(urls, storage_options=place.patient())


def names_of(data: hr.SampleDataset, **options: Any) -> list[str]:
    """The names of all records of an epoch in their order."""
    return [name for batch in hr.DataLoader(data, 10, seed=1, epochs=1, **options) for name in batch["id"]]


def in_storage_order(packed: hr.PackedDataset) -> hr.DataLoader:
    """One row group after the other, as little ahead as can be."""
    return hr.DataLoader(packed, 1, shuffle=False, window=1, num_workers=1, prefetch_factor=1, epochs=1, memory="16MiB")
