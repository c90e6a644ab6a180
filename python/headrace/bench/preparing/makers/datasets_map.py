"""Hugging Face datasets: `map` in processes, then Parquet: what one writes without headrace."""

# datasets has no type stubs:
# pyright: basic

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tokenizers import Tokenizer

import datasets
from headrace.bench.preparing.data.text import END, LINES, TOKENIZER
from headrace.bench.preparing.job import Place

__all__ = ["Encode", "Maker"]


class Encode:
    """What is done to a batch; each process opens the tokenizer for itself."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tokenizer: Tokenizer | None = None

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The tokens of some documents."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(self._file))
        end = self._tokenizer.token_to_id(END)
        found = self._tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"tokens": [[*one.ids, end] for one in found]}

    def __reduce__(self) -> Any:
        return Encode, (self._file,)


class Maker:
    """`Dataset.from_json(...).map(...).to_parquet(...)`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        datasets.disable_progress_bars()

    def run(self) -> int:
        """Make the file; its tokens."""
        place = self._place
        data = datasets.Dataset.from_json(str(place.data / LINES), cache_dir=str(place.output / "cache"))
        kinds = datasets.Features({"id": datasets.Value("string"), "tokens": datasets.List(datasets.Value("uint16"))})
        encode = Encode(place.data / TOKENIZER)
        made = data.map(encode, batched=True, num_proc=place.workers, remove_columns=["text"], features=kinds)
        made.to_parquet(str(place.output / "tokens.parquet"))
        file = pq.ParquetFile(place.output / "tokens.parquet")
        return sum(file.metadata.row_group(group).column(1).num_values for group in range(file.metadata.num_row_groups))

    def content(self) -> Iterator[Any]:
        """The tokens of each document."""
        for tokens in pq.read_table(self._place.output / "tokens.parquet")["tokens"]:
            yield np.asarray(tokens.values)
