"""What an `Encoder` asks of a tokenizer; a module beside this one for each package."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["BOS_NAMES", "EOS_NAMES", "Backend", "Part", "digest"]

Part = Literal["bos", "eos"]
"""Which end of a document a token stands at."""

BOS_NAMES = (
    "<s>", "<bos>", "[BOS]", "<|bos|>", "<|begin_of_text|>", "<|startoftext|>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
"""What vocabularies call the token that begins a document."""
EOS_NAMES = (
    "</s>", "<eos>", "[EOS]", "<|eos|>", "<|end_of_text|>", "<|endoftext|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
"""What vocabularies call the token that ends a document."""


class Backend(ABC):
    """A tokenizer. It pickles, and several threads may use it.

    Attributes:
        name: what it is, in a word or two.
    """

    name: str

    @property
    @abstractmethod
    def vocab_size(self) -> int | None:
        """One more than the largest id; None if it cannot say."""

    @abstractmethod
    def ids(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The ids of some texts one after another, with no special token added, and how many are of each.

        Raises:
            Exception: what the tokenizer raises for a text that it cannot take.
        """

    @abstractmethod
    def find(self, part: Part) -> int:
        """The id of the token that begins or ends a document.

        Raises:
            ValueError: if it has none, or several that could be meant; says what was looked for.
        """

    @abstractmethod
    def digest(self) -> str:
        """Of all that decides which ids a text has, as far as the tokenizer shows it: the same in every process."""

    def named(self, part: Part, known: dict[str, int]) -> int:
        """See `find`, for a tokenizer that knows its tokens by their text alone.

        Args:
            part: which token.
            known: ids of those of `BOS_NAMES` and `EOS_NAMES` that it has.
        """
        names = BOS_NAMES if part == "bos" else EOS_NAMES
        found = [name for name in names if name in known]
        if len(found) == 1:
            return known[found[0]]
        hint = f"hint: give its id, {part}=<id>, or leave it out with {part}=False"
        if found:
            raise ValueError(f"{self.name}: expected one {part} token, found {', '.join(found)}\n{hint}")
        raise ValueError(f"{self.name}: expected a {part} token, found none of {', '.join(names)}\n{hint}")


def digest(parts: Iterable[bytes]) -> str:
    """Of some bytes, and where each part ends."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()
