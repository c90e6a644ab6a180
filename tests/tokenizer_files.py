"""Small tokenizers of several packages, and functions that worker processes find."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

END = "<|endoftext|>"
TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "", "naïve café, 日本語 \U0001f600", " two  spaces\n\ttabs ",
    "0123456789" * 20, "x", END, "def f(a, b):\n    return a + b\n",
]  # fmt: skip


def byte_level(vocabulary: int = 300, special: tuple[str, ...] = (END,)) -> Any:
    """A byte-level BPE as GPT-2's, trained on a few lines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text for text in TEXTS if text != END] * 3, trainer)
    return tokenizer


def saved(folder: Path, **how: Any) -> Path:
    """The file of such a tokenizer."""
    path = folder / "tokenizer.json"
    byte_level(**how).save(str(path))
    return path


def byte_encoding() -> Any:
    """A tiktoken encoding whose ids are bytes, and pairs of spaces."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([number]): number for number in range(256)} | {b"  ": 256}
    return tiktoken.Encoding("bytes", pat_str=r"\s+|\S+", mergeable_ranks=ranks, special_tokens={END: 300})


def letters(text: str) -> list[int]:
    """The numbers of a text's letters."""
    return [ord(letter) for letter in text]


def utf8(text: str) -> Any:
    """The bytes of a text, as an array."""
    return np.frombuffer(text.encode(), np.uint8)


class Logged:
    """The bytes of a text; notes which process was asked, and takes its time."""

    def __init__(self, log: Path, seconds: float) -> None:
        self._log, self._seconds = log, seconds

    def __call__(self, text: str) -> Any:
        with self._log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(self._seconds)
        return utf8(text)

    def calls(self) -> list[int]:
        """The processes of all calls so far."""
        return list(map(int, self._log.read_text().split())) if self._log.exists() else []


def picky(text: str) -> Any:
    """The bytes of a text, but none of one with an x."""
    if "x" in text:
        raise ValueError(f"no x: {text[:9]}")
    return utf8(text)
