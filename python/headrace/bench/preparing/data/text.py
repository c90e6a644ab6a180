"""Text in JSON Lines, and a tokenizer that was trained on its beginning.

Words are made of syllables and drawn by Zipf's law, lengths of documents by a log-normal distribution with a mean of
about 4,000 letters: as much repeats as in text that people wrote, and a tokenizer has as much to do.
"""

# tokenizers has no type stubs:
# pyright: basic

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

import numpy as np

__all__ = ["LINES", "TOKENIZER", "texts", "write"]

LINES = "text.jsonl"
TOKENIZER = "tokenizer.json"
END = "<|endoftext|>"
VOCABULARY = 32_000
WORDS = 200_000  # different ones
MEAN = 700  # words in a document
SIGMA = 1.0  # of the logarithm of a document's length
SAMPLE = 4 << 20  # letters to train the tokenizer on


def write(folder: Path, size: int) -> None:
    """The lines and the tokenizer.

    Args:
        folder: where they go.
        size: of the text, in MB.
    """
    written = 0
    with (folder / LINES).open("w", encoding="utf-8") as file:
        for number, text in enumerate(_documents()):
            if written >= size * 1_000_000:
                break
            file.write(json.dumps({"id": f"document-{number}", "text": text}) + "\n")
            written += len(text)
    _train(folder)


def texts(folder: Path) -> Iterator[str]:
    """The documents' texts."""
    with (folder / LINES).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def _documents() -> Iterator[str]:
    words = np.array(_words(), dtype=object)
    share = np.cumsum(1.0 / (np.arange(WORDS) + 2.7))
    normal = NormalDist(math.log(MEAN) - SIGMA**2 / 2, SIGMA)
    draws = np.random.PCG64(1)
    while True:
        count = max(1, round(math.exp(normal.inv_cdf(((int(draws.random_raw()) >> 11) + 0.5) / 2**53))))
        shares = (draws.random_raw(count) >> np.uint64(11)) / 2**53 * share[-1]
        chosen = words[np.minimum(np.searchsorted(share, shares), WORDS - 1)]
        marks = draws.random_raw(count) % 16
        ends = np.array([".\n", ",", ".", "?"] + [""] * 12, dtype=object)[marks]
        yield " ".join((chosen + ends).tolist())


def _words() -> list[str]:
    """Words of one to four syllables, short ones first, as frequent words are short."""
    heads = [*"bcdfghlmnprstvw", "st", "tr", "ch", "th", ""]
    tails = [*"aeiou", "an", "en", "er", "in", "on", "or", "at", "is", "ing", "ed", "al", "ou", "ie"]
    draws = np.random.PCG64(2).random_raw(WORDS * 5).reshape(WORDS, 5)
    found: list[str] = []
    for number, row in enumerate(draws.tolist()):
        syllables = min(4, 1 + (number > 100) + (number > 3_000) * (row[4] % 2) + (number > 30_000))
        found.append("".join(heads[one % 20] + tails[one // 20 % 18] for one in row[:syllables]))
    return found


def _train(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_beginning(folder), trainer)
    tokenizer.save(str(folder / TOKENIZER))


def _beginning(folder: Path) -> Iterator[str]:
    letters = 0
    for text in texts(folder):
        yield text
        letters += len(text)
        if letters >= SAMPLE:
            return
