"""The tokenizers package alone, on texts in memory, with its own threads. What it gives is not even looked at.

This is its batch rate: nothing is read, converted or written while the clock runs.
"""

# tokenizers has no type stubs:
# pyright: basic

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from headrace.bench.preparing.data.text import END, TOKENIZER, texts
from headrace.bench.preparing.job import Place

__all__ = ["Maker"]

BATCH = 1_000  # documents in a call


class Maker:
    """`encode_batch_fast`, a thousand documents at a time."""

    def __init__(self, place: Place) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        os.environ["RAYON_NUM_THREADS"] = str(place.workers)
        self._tokenizer = Tokenizer.from_file(str(place.data / TOKENIZER))
        self._texts = list(texts(place.data))

    def run(self) -> int:
        """Encode all; the tokens, of which the last of each document would be put there."""
        return sum(1 + len(one) for batch in self._batches() for one in batch)

    def content(self) -> Iterator[Any]:
        """The tokens of each document, and the one that ends it."""
        end = self._tokenizer.token_to_id(END)
        for batch in self._batches():
            for one in batch:
                yield np.array([*one.ids, end])

    def _batches(self) -> Iterator[Any]:
        for at in range(0, len(self._texts), BATCH):
            yield self._tokenizer.encode_batch_fast(self._texts[at : at + BATCH], add_special_tokens=False)
