"""Flat token files: ``.bin`` without or with llm.c's header, and ``.npy``."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace._files import File, Store
from headrace.errors import DataError

from .layout import Reader, Records, Shard

__all__ = ["read_flat"]

_HEADER_BYTES = 1024
"""Of llm.c: 256 numbers of 32 bits, of which the third is the number of tokens."""
_HEADERS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
"""Magic number and version of llm.c's files, and the tokens' type."""
_NPY = b"\x93NUMPY"
_NPY_HEADER = 1 << 16


def read_flat(store: Store, files: Sequence[File], *, stored_dtype: str | None, name: str = "tokens") -> Records:
    """Token files as they lie: each a shard.

    Args:
        store: where they lie.
        files: ``.bin`` or ``.npy``.
        stored_dtype: the type of a token in ``.bin`` files without a header; others say it themselves, and it has to be
            the same if it is given.
        name: of the column.

    Raises:
        ValueError: if the type is not known.
        DataError: if a file is not of that type, or of another one than the first.
    """
    given = None if stored_dtype is None else _dtype(stored_dtype)
    shards: list[Shard] = []
    length: int | None = None
    found: np.dtype[Any] | None = None
    for number, file in enumerate(files):
        head = Reader(store, file).read(0, min(file.size, _NPY_HEADER if file.name.endswith(".npy") else _HEADER_BYTES))
        where = store.uri(file.path)
        if head.startswith(_NPY):
            dtype, begin, records, width = _npy(head, where)
        else:
            dtype, begin, records, width = _bin(head, file, where, given)
        if given is not None and dtype != given:
            raise DataError(f"{where}: expected {given} as stored_dtype says, found {dtype} in its header")
        if number and (dtype != found or width != length):
            raise DataError(f"{where}: expected {found} as in the first file, found {dtype}" + _rows(length, width))
        found, length = dtype, width
        wanted = begin + records * dtype.itemsize
        if file.size != wanted:
            raise DataError(f"{where}: expected {wanted} bytes for {records} tokens of {dtype}, found {file.size}")
        shards.append(Shard(file, begin, records))
    if found is None:
        raise DataError(f"{store.url}: expected .bin or .npy files, found none")
    return Records("tokens", store, np.dtype([(name, found)]), shards, length)


def _bin(head: bytes, file: File, where: str, given: np.dtype[Any] | None) -> tuple[np.dtype[Any], int, int, None]:
    if len(head) == _HEADER_BYTES:
        magic, version, tokens = np.frombuffer(head, "<i4", 3).tolist()
        if (dtype := _HEADERS.get((magic, version))) is not None:
            return dtype, _HEADER_BYTES, tokens, None
    if given is None:
        raise ValueError(
            f'{where}: the file does not say what a token is: give stored_dtype, such as "uint16" or "uint32"'
        )
    tokens, rest = divmod(file.size, given.itemsize)
    if rest:
        raise DataError(
            f"{where}: expected tokens of {given}, {given.itemsize} bytes each, found {file.size} bytes, which are no "
            "whole number of them\nhint: is stored_dtype the type that the file was written with?"
        )
    return given, 0, tokens, None


def _npy(head: bytes, where: str) -> tuple[np.dtype[Any], int, int, int | None]:
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
    except (ValueError, EOFError) as error:
        raise DataError(f"{where}: expected the header of a .npy file: {error}") from None
    if len(shape) not in (1, 2) or (is_fortran and len(shape) == 2) or dtype.kind not in "iufb":
        raise DataError(
            f"{where}: expected numbers in one dimension, or in two in C order, found {dtype} of shape {shape}"
            + (" in Fortran order" if is_fortran else "")
        )
    records = int(np.prod(shape, dtype=object))
    return dtype, stream.tell(), records, int(shape[1]) if len(shape) == 2 else None


def _rows(one: int | None, other: int | None) -> str:
    return "" if one == other else f" in rows of {other} instead of {one}"


def _dtype(name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise ValueError(f'stored_dtype must be a type of numbers, such as "uint16", got {name!r}') from None
    if dtype.kind not in "iuf":
        raise ValueError(f'stored_dtype must be a type of numbers, such as "uint16", got {name!r}')
    return dtype.newbyteorder("<") if dtype.byteorder == "=" else dtype
