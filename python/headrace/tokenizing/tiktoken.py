"""Encodings of the package `tiktoken`."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .backend import BOS_NAMES, EOS_NAMES, Backend, Part, digest

__all__ = ["Tiktoken", "named_encoding"]


class Tiktoken(Backend):
    """A ``tiktoken.Encoding``. Text that spells a special token is text.

    Args:
        encoding: of the package.
    """

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self.name = f"tiktoken {encoding.name}"

    @property
    def vocab_size(self) -> int | None:
        """See `Backend.vocab_size`."""
        return 1 + self._encoding.max_token_value

    def ids(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See `Backend.ids`."""
        encode = self._encoding.encode_to_numpy
        parts = [encode(text, disallowed_special=()) for text in texts]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return np.concatenate(parts) if parts else np.zeros(0, np.uint32), lengths

    def find(self, part: Part) -> int:
        """See `Backend.find`."""
        encoding = self._encoding
        special = encoding.special_tokens_set.intersection((*BOS_NAMES, *EOS_NAMES))
        return self.named(part, {name: encoding.encode_single_token(name) for name in special})

    def digest(self) -> str:
        """See `Backend.digest`."""
        encoding = self._encoding
        special = {name: encoding.encode_single_token(name) for name in encoding.special_tokens_set}
        # The public way to the vocabulary: what ids stand for, in their order.
        ids = sorted(set(range(self._encoding.max_token_value + 1)).difference(special.values()))
        about = json.dumps([encoding.name, getattr(encoding, "_pat_str", ""), sorted(special.items())])
        return digest([about.encode(), *_bytes_of(encoding, ids)])


def named_encoding(name: str) -> Tiktoken:
    """The encoding of a name, as ``tiktoken.get_encoding`` has it.

    Raises:
        ImportError: if `tiktoken` is not installed.
        ValueError: if it knows no such name, or cannot get its vocabulary.
    """
    try:
        import tiktoken  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"tiktoken:{name} needs tiktoken\nhint: pip install tiktoken") from error
    package: Any = tiktoken
    known: list[str] = package.list_encoding_names()
    if name not in known:
        raise ValueError(f"expected an encoding of tiktoken, one of {', '.join(known)}, found {name!r}")
    try:
        return Tiktoken(package.get_encoding(name))
    except OSError as error:
        raise ValueError(f"tiktoken:{name}: its vocabulary could not be fetched: {error}") from error


def _bytes_of(encoding: Any, ids: Sequence[int]) -> "list[bytes]":
    found: list[bytes] = []
    for number in ids:
        try:
            found.append(encoding.decode_single_token_bytes(number))
        except KeyError:
            # A number that no token has.
            found.append(b"")
    return found
