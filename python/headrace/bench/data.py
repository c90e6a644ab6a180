"""The data of the benchmark: Parquet files shaped like tokenised web text, the same tokens on every machine.

Token ids follow Zipf's law, document lengths a log-normal distribution (mean about 1,000 tokens, as FineWeb-Edu has
it), a row group holds 1,000 documents, a file 16 row groups. Both are drawn from tables by random integers, so that
no machine's rounding of a logarithm can change a token.
"""

# pyarrow has no type stubs:
# pyright: basic

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.bench.job import COLUMN

__all__ = ["CODECS", "VOCABULARIES", "Data", "Variant", "flat_tokens", "prepare"]

CODECS = ("snappy", "zstd", "none")
VOCABULARIES = (50_304, 128_256)  # ids: GPT-2's, rounded up to a multiple of 128, and Llama 3's

GROUP = 1_000  # documents in a row group: what `datasets` writes
FILE = 16  # row groups in a file
MEAN = 1_000  # tokens in a document
SIGMA = 1.0  # of the logarithm of a document's length
SHAPE = 1  # version of all this: data of another one is made anew

# Bytes of a dictionary beyond which a writer stores values as they are. The default of pyarrow, 1 MiB, holds every
# id of either vocabulary; with this one a row group's dictionary of 128,256 ids is given up on the way, and those of
# 50,304 ids (at most 197 KiB) never are. So the larger vocabulary has pages of both kinds.
DICTIONARY_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What distinguishes one dataset from another.

    Args:
        tokens: about how many tokens it holds, in millions.
        codec: one of `CODECS`.
        vocabulary: one of `VOCABULARIES`.
    """

    tokens: float
    codec: str
    vocabulary: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"tokens-{self.tokens:g}m-{self.codec}-{self.vocabulary}"


@dataclass(frozen=True, kw_only=True)
class Data:
    """A dataset on disk: ``parquet/`` in its folder, and beside it what loaders made of that."""

    folder: Path
    variant: Variant
    documents: int
    tokens: int
    bytes: int

    @property
    def parquet(self) -> Path:
        """The folder of the Parquet files."""
        return self.folder / "parquet"

    def counts(self) -> np.ndarray[Any, Any]:
        """How often each token id occurs: int64 of shape (vocabulary,)."""
        return np.load(self.folder / "counts.npy")


def prepare(root: Path, variant: Variant) -> Data:
    """Find the dataset below `root`, or make it."""
    folder = root / variant.name
    note = folder / "dataset.json"
    if not note.exists() or json.loads(note.read_text())["shape"] != SHAPE:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "parquet").mkdir(parents=True)
        _write(folder, variant)
    found = json.loads(note.read_text())
    return Data(
        folder=folder,
        variant=variant,
        documents=found["documents"],
        tokens=found["tokens"],
        bytes=found["bytes"],
    )


def flat_tokens(files: Iterable[str]) -> Iterator[np.ndarray[Any, Any]]:
    """The documents' tokens end to end, one int32 array for each row group, in the order of storage."""
    for path in files:
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            for chunk in file.read_row_group(group, columns=[COLUMN])[COLUMN].chunks:
                yield chunk.flatten().to_numpy()


def _write(folder: Path, variant: Variant) -> None:
    ids, lengths = _id_table(variant.vocabulary), _length_table()
    documents = max(1, round(variant.tokens * 1_000_000 / MEAN))
    counts = np.zeros(variant.vocabulary, np.int64)
    schema = pa.schema([("id", pa.string()), ("url", pa.string()), (COLUMN, pa.list_(pa.int32()))])
    settings: dict[str, Any] = {"compression": variant.codec, "dictionary_pagesize_limit": DICTIONARY_BYTES}
    writer: pq.ParquetWriter | None = None
    for group, first in enumerate(range(0, documents, GROUP)):
        if group % FILE == 0:
            if writer:
                writer.close()
            writer = pq.ParquetWriter(folder / "parquet" / f"part-{group // FILE:05}.parquet", schema, **settings)
        random = np.random.PCG64([SHAPE, group])
        offsets = np.zeros(min(GROUP, documents - first) + 1, np.int32)
        offsets[1:] = np.cumsum(lengths[random.random_raw(len(offsets) - 1) >> np.uint64(64 - LENGTH_BITS)])
        # One raw draw of 64 bits gives two ids.
        raw = random.random_raw(-(-int(offsets[-1]) // 2)).view(np.uint32)[: offsets[-1]]
        tokens = ids[raw >> np.uint32(32 - ID_BITS)]
        counts += np.bincount(tokens, minlength=variant.vocabulary)
        names = [f"<urn:uuid:{group:08x}-{row:04x}>" for row in range(len(offsets) - 1)]
        urls = [f"https://example.org/{group}/{row}.html" for row in range(len(offsets) - 1)]
        lists: Any = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
        assert writer
        writer.write_table(pa.table({"id": names, "url": urls, COLUMN: lists}, schema=schema))
    if writer:
        writer.close()
    np.save(folder / "counts.npy", counts)
    size = sum(path.stat().st_size for path in (folder / "parquet").iterdir())
    note = {"shape": SHAPE, "documents": documents, "tokens": int(counts.sum()), "bytes": size}
    # Written last: a dataset without it is made anew.
    (folder / "dataset.json").write_text(json.dumps(note))


ID_BITS = 22  # of a draw: the rarest of 128,256 ids has a share of 6e-7, which is more than 2**-22
LENGTH_BITS = 12


def _id_table(vocabulary: int) -> np.ndarray[Any, Any]:
    """The inverse of the ids' distribution, in 2**22 steps: int32. Frequent ids are low, as in a tokenizer."""
    # Zipf-Mandelbrot with exponent 1: additions and divisions alone, which every machine rounds alike.
    share = np.cumsum(1.0 / (np.arange(vocabulary) + 2.7))
    steps = (np.arange(2**ID_BITS) + 0.5) / 2**ID_BITS * share[-1]
    return np.searchsorted(share, steps).astype(np.int32)


def _length_table() -> np.ndarray[Any, Any]:
    """The inverse of the lengths' distribution, in 2**12 steps of whole tokens: int64."""
    normal = NormalDist(math.log(MEAN) - SIGMA**2 / 2, SIGMA)
    size = 2**LENGTH_BITS
    return np.array([max(1, round(math.exp(normal.inv_cdf((step + 0.5) / size)))) for step in range(size)])
