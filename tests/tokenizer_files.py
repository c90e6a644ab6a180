"""Small tokenizers of several packages, and functions that worker processes find."""

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
