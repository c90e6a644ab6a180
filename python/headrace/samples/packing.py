"""What `pack` was asked for, where documents have to be made before they are packed: checked, and what it says of
documents. How they become rows is `headrace.loading.lanes.packers`.
"""  # noqa: D205

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, SupportsIndex, cast

import numpy as np
import numpy.typing as npt

from headrace._units import as_int
from headrace.errors import DataError

__all__ = ["RESERVED", "Flat", "Lines", "Mode", "PackedColumn", "RowPacking", "packed_columns", "part_of", "token_id"]

Mode = Literal["concat", "best_fit", "pad", "truncate"]

RESERVED: Final = ("document_ids", "position_ids", "cu_seqlens", "max_seqlen")
"""Names of arrays that packing makes."""

_LOOKAHEAD: Final = 64
"""Documents that ``best_fit`` chooses among; each lane holds so many. Of rows of 2,048 with documents of log-normal
lengths (median 400) it leaves 0.3 to 0.7 % to padding, twice as many leave 0.2 to 0.5 %."""

_DTYPES: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


class PackedColumn(NamedTuple):
    """A part of documents that is packed."""

    column: str
    """Its name in a document."""
    name: str
    """Its name in a batch."""
    dtype: np.dtype[Any]
    pad: int | float
    """What stands in padding, and where tokens are added."""


class Flat(NamedTuple):
    """Documents end to end."""

    lengths: list[int]
    """Entries of each, bos and eos included."""
    arrays: list[npt.NDArray[Any]]
    """For each packed column, (entries,)."""

    @staticmethod
    def joined(lines: Sequence["Lines"], columns: Sequence[PackedColumn]) -> "Flat":
        """Some documents one after another."""
        return Flat(
            [line.length for line in lines],
            [
                np.concatenate(parts)
                if (parts := [part for line in lines for part in line.parts[number]])
                else np.zeros(0, dtype=column.dtype)
                for number, column in enumerate(columns)
            ],
        )


class Lines(NamedTuple):
    """What is packed of one document."""

    length: int
    """Entries, bos and eos included."""
    parts: list[list[npt.NDArray[Any]]]
    """For each packed column, arrays that follow each other."""


@dataclass(frozen=True, kw_only=True)
class RowPacking:
    """The arguments of `SampleDataset.pack`, checked."""

    mode: Mode
    seq_len: int
    overlap: int
    columns: tuple[PackedColumn, ...]
    bos_id: int | None
    eos_id: int | None
    boundaries: bool
    cu_seqlens_size: int | None
    lookahead: int
    long: Literal["split", "drop"]
    max_documents: int | None

    @staticmethod
    def of(
        seq_len: SupportsIndex,
        *,
        mode: str,
        column: str,
        columns: Iterable[str] | Mapping[str, str] | None,
        name: str,
        dtype: str,
        bos_id: SupportsIndex | None,
        eos_id: SupportsIndex | None,
        overlap: SupportsIndex,
        boundaries: bool,
        cu_seqlens_size: SupportsIndex | None,
        pad_id: SupportsIndex,
        ignore_index: SupportsIndex,
        pad_values: Mapping[str, int | float] | None,
        lookahead: SupportsIndex | None,
        long: str | None,
        max_documents: SupportsIndex | None,
    ) -> "RowPacking":
        """What the arguments of `pack` say.

        Raises:
            TypeError: if a value is of the wrong type.
            ValueError: if one cannot be used, or two do not go together.
        """
        _one_of(mode, "mode", ("concat", "best_fit", "pad", "truncate"))
        length = as_int(seq_len, "seq_len", least=1, most=2**31 - 1)
        _only(mode, "overlap", bool(overlap), ("concat",))
        _only(mode, "lookahead", lookahead is not None, ("best_fit",))
        _only(mode, "max_documents", max_documents is not None, ("best_fit",))
        _only(mode, "long", long is not None, ("best_fit", "pad"))
        if long is not None:
            _one_of(long, "long", ("split", "drop"))
        packed = packed_columns(
            column,
            columns,
            name=name,
            dtype=dtype,
            pad_id=pad_id,
            ignore_index=ignore_index,
            pad_values=pad_values,
        )
        if cu_seqlens_size is not None and not boundaries:
            raise ValueError(f"cu_seqlens_size needs boundaries=True, got {cu_seqlens_size!r} without")
        return RowPacking(
            mode=cast("Mode", mode),
            seq_len=length,
            overlap=as_int(overlap, "overlap", least=0, most=length),
            columns=packed,
            bos_id=_fitting(bos_id, "bos_id", packed[0]),
            eos_id=_fitting(eos_id, "eos_id", packed[0]),
            boundaries=bool(boundaries),
            cu_seqlens_size=None if cu_seqlens_size is None else as_int(cu_seqlens_size, "cu_seqlens_size", least=2),
            lookahead=_LOOKAHEAD if lookahead is None else as_int(lookahead, "lookahead", least=1, most=2**20),
            long=cast("Any", long or "split"),
            max_documents=None if max_documents is None else as_int(max_documents, "max_documents", least=1),
        )

    @staticmethod
    def of_tokens(
        seq_len: int, token: PackedColumn, *, overlap: int, bos_id: int | None, eos_id: int | None, boundaries: bool
    ) -> "RowPacking":
        """One column laid end to end, of arguments that were checked."""
        return RowPacking(
            mode="concat",
            seq_len=seq_len,
            overlap=overlap,
            columns=(token,),
            bos_id=bos_id,
            eos_id=eos_id,
            boundaries=boundaries,
            cu_seqlens_size=None,
            lookahead=_LOOKAHEAD,
            long="split",
            max_documents=None,
        )

    @property
    def width(self) -> int:
        """Entries of a row."""
        return self.seq_len + self.overlap

    @property
    def longest(self) -> float:
        """Entries of the longest documents that are not left out."""
        leaves_out = self.long == "drop" and self.mode in ("best_fit", "pad")
        return self.seq_len if leaves_out else math.inf

    def identity(self) -> dict[str, Any]:
        """What of it decides what rows hold, for the state."""
        found: dict[str, Any] = {
            "mode": self.mode,
            "columns": [column.column for column in self.columns],
            "seq_len": self.seq_len,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
        }
        if self.mode == "concat":
            found["overlap"] = self.overlap
        if self.mode == "best_fit":
            found |= {"lookahead": self.lookahead, "max_documents": self.max_documents}
        if self.mode in ("best_fit", "pad"):
            found["long"] = self.long
        # NaN is equal to nothing, and no JSON.
        found["pads"] = [None if math.isnan(column.pad) else column.pad for column in self.columns]
        if len(self.columns) > 1:
            # What is cast to floats is rounded; integers hold the same in any type, or are refused.
            found["floats"] = [column.dtype.name if column.dtype.kind == "f" else None for column in self.columns]
        return found

    def lines(self, document: Any) -> Lines:
        """What is packed of a document, with bos and eos around it if it has a token.

        Raises:
            DataError: if it has not the columns, in equal lengths and of a type that fits.
        """
        values = [self._values(document, column.column) for column in self.columns]
        length = len(values[0])
        for column, one in zip(self.columns, values, strict=True):
            if len(one) != length:
                raise DataError(
                    f"pack: expected {column.column!r} to be as long as {self.columns[0].column!r}, {length}, found "
                    f"{len(one)}"
                )
        if not length:
            return Lines(0, [[] for _ in self.columns])
        parts = [[_cast(one, column)] for column, one in zip(self.columns, values, strict=True)]
        for added, place in ((self.bos_id, 0), (self.eos_id, 1)):
            if added is None:
                continue
            for number, (column, own) in enumerate(zip(self.columns, parts, strict=True)):
                own.insert(place * len(own), np.array([column.pad if number else added], dtype=column.dtype))
            length += 1
        return Lines(length, parts)

    def _values(self, document: Any, column: str) -> npt.NDArray[Any]:
        found = self._found(document, column)
        if found is None:
            return np.zeros(0, dtype=np.int64)
        try:
            values: npt.NDArray[Any] = np.asarray(found)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"pack: expected {column!r} to be a list of numbers: {error}") from None
        if values.ndim != 1 or (values.dtype.kind not in "biuf" and len(values)):
            what = f"an array of {values.dtype} with {values.ndim} dimensions" if values.ndim else type(found).__name__
            raise DataError(f"pack: expected {column!r} to be numbers in one dimension, found {what}")
        return values

    def _found(self, document: Any, column: str) -> Any:
        if not isinstance(document, Mapping):
            if len(self.columns) > 1:
                raise DataError(
                    f"pack: expected a dict with {', '.join(one.column for one in self.columns)}, found "
                    f"{type(document).__name__}"
                )
            return document
        parts = cast("Mapping[str, Any]", document)
        try:
            return _inside(parts, column)
        except KeyError:
            raise DataError(
                f"pack: expected a dict with {column!r}, found {', '.join(map(str, parts))}\n"
                "hint: column= or columns= names what is packed"
            ) from None


def part_of(path: str, names: Iterable[str]) -> str:
    """Of the names the one that a path is, or begins with: ``"a"`` of ``"a.b"``. The path's beginning if none is."""
    return path if path in names else path.partition(".")[0]


def _inside(parts: Mapping[str, Any], name: str) -> Any:
    """The part with a name, or with the path of one inside others, such as ``"a.b"``: None inside of None.

    Raises:
        KeyError: if there is none.
    """
    outer, dot, rest = name.partition(".")
    if name in parts or not dot:
        return parts[name]
    inner = parts[outer]
    if inner is not None and not isinstance(inner, Mapping):
        raise KeyError(name)
    return None if inner is None else _inside(cast("Mapping[str, Any]", inner), rest)


def token_id(value: SupportsIndex | None, name: str) -> int | None:
    """A token of 32 bits, or None for None.

    Raises:
        TypeError: if it is no integer.
        ValueError: if it is out of range.
    """
    return None if value is None else as_int(value, name, least=-(2**31), most=2**31 - 1)


def _fitting(value: SupportsIndex | None, name: str, column: PackedColumn) -> int | None:
    """A token that its column can hold, or None for None."""
    token, bounds = token_id(value, name), np.iinfo(column.dtype)
    if token is not None and not bounds.min <= token <= bounds.max:
        raise ValueError(
            f"{name} must fit into {column.column!r}, which is {column.dtype} ({bounds.min} to {bounds.max}), "
            f"got {token}"
        )
    return token


def packed_columns(
    column: str,
    columns: Iterable[str] | Mapping[str, str] | None,
    *,
    name: str,
    dtype: str,
    pad_id: SupportsIndex,
    ignore_index: SupportsIndex,
    pad_values: Mapping[str, int | float] | None,
) -> tuple[PackedColumn, ...]:
    """What these arguments of `pack` say: the tokens first.

    Raises:
        TypeError: if a value is of the wrong type.
        ValueError: if one cannot be used, or a column cannot hold what is to fill it up.
    """
    token = token_id(pad_id, "pad_id") or 0
    label = as_int(ignore_index, "ignore_index", least=-(2**31), most=2**31 - 1)
    pads: dict[str, Any] = {} if pad_values is None else dict(pad_values)
    # NumPy's numbers are as good; states hold Python's.
    pads = {key: value.item() if isinstance(value, np.number) else value for key, value in pads.items()}
    _one_of(dtype, "dtype", ("int32", "int64"))
    if columns is None:
        if not isinstance(column, str) or not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"column and name must be text, got {column!r} and {name!r}")
        if name in (*RESERVED, "loss_mask"):
            raise ValueError(f"name must be none of {', '.join((*RESERVED, 'loss_mask'))}, got {name!r}")
        _known(pads, [column])
        return (_padded(column, name, np.dtype(dtype), pads.get(column, token)),)
    if isinstance(columns, str):
        raise TypeError(f"columns takes a list of names, or a dict from names to dtypes, got {columns!r}")
    names = list(columns)
    kinds = dict.fromkeys(names, dtype) | dict(
        cast("Mapping[str, str]", columns) if isinstance(columns, Mapping) else {}
    )
    if not kinds or not all(isinstance(key, str) for key in kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"columns takes a list of names, or a dict from names to dtypes, got {columns!r}")
    if len(kinds) != len(names):
        raise ValueError(f"columns takes each name once, got {names}")
    _known(pads, list(kinds))
    packed: list[PackedColumn] = []
    for number, (key, kind) in enumerate(kinds.items()):
        if key in RESERVED:
            raise ValueError(f"columns must be none of {', '.join(RESERVED)}, got {key!r}")
        try:
            text = np.dtype(kind).name
        except TypeError:
            text = kind
        _one_of(text, f"columns[{key!r}]", _DTYPES)
        if number == 0 and np.dtype(text).kind not in "iu":
            raise ValueError(f"columns: the first one holds tokens, expected a dtype of integers, got {text!r}")
        pad = pads.get(key, token if number == 0 else label if key == "labels" else 0)
        packed.append(_padded(key, key, np.dtype(text), pad))
    return tuple(packed)


def _padded(column: str, name: str, dtype: np.dtype[Any], pad: int | float) -> PackedColumn:
    """A column with what fills it up.

    Raises:
        ValueError: if it is of integers and cannot hold that.
    """
    if dtype.kind == "f":
        return PackedColumn(column, name, dtype, pad)
    least, most = _bounds(dtype)
    # NaN is in no range.
    if not least <= pad <= most or pad != int(pad):
        raise ValueError(f"columns: {column!r} is of {dtype}, which cannot hold its pad value {pad}")
    return PackedColumn(column, name, dtype, int(pad))


def _bounds(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The least and the largest value of a type of integers, or of truth values."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _known(pads: Mapping[str, int | float], names: Sequence[str]) -> None:
    for key, value in pads.items():
        if key not in names:
            raise ValueError(f"pad_values: expected names of packed columns, {', '.join(names)}, got {key!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"pad_values[{key!r}] must be a number, got {value!r}")


def _cast(values: npt.NDArray[Any], column: PackedColumn) -> npt.NDArray[Any]:
    """Values in the type of their column.

    Raises:
        DataError: if it cannot hold them.
    """
    if values.dtype == column.dtype:
        return values
    kind = column.dtype.kind
    if kind == "f":
        return values.astype(column.dtype)
    if values.dtype.kind == "f":
        raise DataError(
            f"pack: expected {column.column!r} to hold integers, as {column.dtype} has it, found {values.dtype}\n"
            f'hint: columns={{..., {column.column!r}: "float32"}}'
        )
    if not np.can_cast(values.dtype, column.dtype):
        least, most = _bounds(column.dtype)
        low, high = int(values.min()), int(values.max())
        if low < least or high > most:
            raise DataError(
                f"pack: expected {column.column!r} to fit {column.dtype}, {least} to {most}, found "
                f"{low if low < least else high}"
            )
    return values.astype(column.dtype)


def _one_of(value: Any, name: str, choices: Sequence[str]) -> None:
    if value not in choices:
        wanted = ", ".join(f'"{choice}"' for choice in choices[:-1]) + f' or "{choices[-1]}"'
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def _only(mode: str, name: str, given: bool, modes: Sequence[str]) -> None:
    if given and mode not in modes:
        raise ValueError(f"{name} has no meaning for mode={mode!r}, only for {' and '.join(modes)}")
