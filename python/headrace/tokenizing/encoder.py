"""Texts to tokens: ids in the smallest type that holds them, with the tokens at both ends of a document."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .backend import Backend, Part

__all__ = ["Encoded", "Encoder"]

_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.int32), np.dtype(np.int64))
_UNKNOWN = 2**31
"""Ids of a vocabulary whose size is not known: those of 32 bits."""
_PANIC = "pyo3_runtime"
"""The module of what Python sees of a panic in Rust."""
_SHOWN = 60
"""Letters of a text in a message."""


class Encoded(NamedTuple):
    """Documents as tokens."""

    ids: npt.NDArray[Any]
    """(tokens,), of the encoder's `dtype`: all documents one after another."""
    lengths: npt.NDArray[np.int64]
    """int64, (documents,): tokens of each, bos and eos included."""


class Encoder:
    """A tokenizer, and what it puts around each document. It pickles, and several threads may use it.

    Args:
        backend: the tokenizer.
        bos: whether documents begin with its bos token, or the id of the token that they begin with.
        eos: likewise for their end.
        vocab_size: one more than the largest id, where the tokenizer cannot say or there are to be more.

    Attributes:
        vocab_size: one more than the largest id; None if nobody knows.
        dtype: of ids: uint8, uint16, int32 or int64, the smallest that holds all of the vocabulary.
        bos_id: the token that documents begin with, if they do.
        eos_id: the token that documents end with, if they do.

    Raises:
        ValueError: if a token is not there or not in the vocabulary.
    """

    def __init__(self, backend: Backend, *, bos: bool | int, eos: bool | int, vocab_size: int | None) -> None:
        self._backend = backend
        known = backend.vocab_size
        if known is not None and vocab_size is not None and vocab_size < known:
            raise ValueError(f"vocab_size must be at least {known:,}, as {backend.name} has it, got {vocab_size:,}")
        self.vocab_size = known if vocab_size is None else vocab_size
        self._stop = _UNKNOWN if self.vocab_size is None else self.vocab_size
        self.dtype = next(dtype for dtype in _DTYPES if self._stop - 1 <= np.iinfo(dtype).max)
        self.bos_id = self._token("bos", bos)
        self.eos_id = self._token("eos", eos)

    def __repr__(self) -> str:
        size = "any ids" if self.vocab_size is None else f"{self.vocab_size:,} ids"
        return f"Encoder({self._backend.name}: {size}, bos {self.bos_id}, eos {self.eos_id})"

    @cached_property
    def digest(self) -> str:
        """Of the tokenizer, without what is put around documents: the same in every process."""
        return self._backend.digest()

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The tokens of some documents.

        A document without a token of its own stays empty: bos and eos are put around others alone, as `pack` does it.
        Texts are taken as they are; which of them spell special tokens is up to the tokenizer.

        Raises:
            TypeError: if one is no text.
            ValueError: if one cannot be encoded as UTF-8, or the tokenizer gives an id beyond its vocabulary.
            RuntimeError: if the tokenizer panics, as those that are written in Rust may do.
            Exception: what the tokenizer raises.

        Example:
            >>> encoder = encoder_of(lambda text: list(text.encode()), eos=0, vocab_size=256)
            >>> encoded = encoder.encode(["ab", "", "c"])
            >>> encoded.ids.tolist(), encoded.lengths.tolist()
            ([97, 98, 0, 99, 0], [3, 0, 2])
        """
        for text in texts:
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"expected text, found a {type(text).__name__}")
        try:
            ids, lengths = self._backend.ids(texts)
        except BaseException as error:
            for text in texts:
                _check(text)
            if type(error).__module__ == _PANIC:
                # It is no Exception, and would end a worker process.
                raise RuntimeError(f"{self._backend.name}: the tokenizer panicked: {error}") from error
            raise
        if len(ids) and (low := int(ids.min())) < 0:
            raise ValueError(f"{self._backend.name}: expected ids from 0 on, found {low}")
        if len(ids) and (high := int(ids.max())) >= self._stop:
            size = self.vocab_size
            raise ValueError(
                f"{self._backend.name}: expected ids below {self._stop:,}, found {high:,}\n"
                + ("hint: give vocab_size, one more than the largest id" if size is None else "hint: give vocab_size")
            )
        return self._surrounded(ids, lengths)

    def _surrounded(self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> Encoded:
        bos, eos = self.bos_id, self.eos_id
        if bos is None and eos is None:
            return Encoded(ids.astype(self.dtype, copy=False), lengths)
        full = lengths > 0
        whole = lengths + full * ((bos is not None) + (eos is not None))
        stops = np.cumsum(whole)
        surrounded = np.empty(int(stops[-1]) if len(stops) else 0, self.dtype)
        own = np.ones(len(surrounded), np.bool_)
        if bos is not None:
            starts = (stops - whole)[full]
            surrounded[starts] = bos
            own[starts] = False
        if eos is not None:
            ends = stops[full] - 1
            surrounded[ends] = eos
            own[ends] = False
        surrounded[own] = ids
        return Encoded(surrounded, whole)

    def _token(self, part: Part, wanted: bool | int) -> int | None:
        if isinstance(wanted, bool):
            return self._backend.find(part) if wanted else None
        if not 0 <= wanted < self._stop:
            raise ValueError(f"{part} must be an id of {self._backend.name}, 0 to {self._stop - 1:,}, got {wanted:,}")
        return wanted


def _check(text: str) -> None:
    """Refuses what is no Unicode text: half of a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"expected text that UTF-8 can hold, found {error.reason} at {error.start} of {text[:_SHOWN]!r}"
        ) from None
