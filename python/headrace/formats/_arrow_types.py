"""Arrow types as the C data interface has them: what columns of several files must have in common.

https://arrow.apache.org/docs/format/CDataInterface.html
"""

import ctypes
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["ArrowType", "fields_of"]


class _Schema(ctypes.Structure):
    """``struct ArrowSchema``, as far as it is looked at."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
]

_pointer_of: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]

_NUMBERS = {
    "b": "bool", "c": "int8", "C": "uint8", "s": "int16", "S": "uint16", "i": "int32", "I": "uint32", "l": "int64",
    "L": "uint64", "e": "float16", "f": "float32", "g": "float64",
}  # fmt: skip
_OTHERS = {
    "n": "null", "u": "string", "U": "string", "vu": "string", "z": "binary", "Z": "binary", "vz": "binary",
    "w": "binary", "d": "decimal", "tdD": "date", "tdm": "date", "tts": "time", "ttm": "time", "ttu": "time",
    "ttn": "time", "tss": "timestamp", "tsm": "timestamp", "tsu": "timestamp", "tsn": "timestamp", "tDs": "duration",
    "tDm": "duration", "tDu": "duration", "tDn": "duration", "tiM": "interval", "tiD": "interval", "tin": "interval",
    "+l": "list", "+L": "list", "+vl": "list", "+vL": "list", "+w": "list", "+s": "struct", "+m": "map",
}  # fmt: skip
"""Types by the beginning of their format, up to a colon. Those of one name give the same values of Python."""


@dataclass(frozen=True)
class ArrowType:
    """A type, without what does not show in values: widths of offsets, units of time, dictionaries.

    Example:
        >>> one, two = ArrowType("int64"), ArrowType("list", (("", ArrowType("float32")),))
        >>> str(two), two.fits(ArrowType("list", (("", one),))), one.fits(two)
        ('list<float32>', True, False)
    """

    kind: str
    """Arrow's name of it."""
    fields: tuple[tuple[str, "ArrowType"], ...] = ()
    """Names and types of what is inside; a list's element has no name."""

    def fits(self, other: "ArrowType") -> bool:
        """Whether values of both can be in one column: at most the kinds of numbers differ, or one is always null."""
        if "null" in (self.kind, other.kind):
            return True
        if self.kind in _NUMBERS.values() and other.kind in _NUMBERS.values():
            return True
        mine, theirs = dict(self.fields), dict(other.fields)
        return self.kind == other.kind and mine.keys() == theirs.keys() and all(
            part.fits(theirs[name]) for name, part in mine.items()
        )  # fmt: skip

    def __str__(self) -> str:
        if not self.fields:
            return self.kind
        return f"{self.kind}<{', '.join(f'{name}: {part}' if name else str(part) for name, part in self.fields)}>"


def fields_of(schema: object) -> dict[str, ArrowType]:
    """Names and types of the columns of a schema.

    Args:
        schema: a capsule ``arrow_schema`` of a struct, as ``__arrow_c_schema__`` gives it.
    """
    return dict(_children(_Schema.from_address(_pointer_of(schema, b"arrow_schema"))))


def _children(schema: Any) -> list[tuple[str, ArrowType]]:
    children = [schema.children[number].contents for number in range(schema.n_children)]
    return [(cast("bytes", child.name or b"").decode(errors="replace"), _type(child)) for child in children]


def _type(schema: Any) -> ArrowType:
    if schema.dictionary:
        return _type(schema.dictionary.contents)
    text = cast("bytes", schema.format).decode()
    key, _, rest = text.partition(":")
    if key == "+r":  # Runs of a value: their ends, and the values.
        return _children(schema)[1][1]
    kind = _NUMBERS.get(key) or _OTHERS.get(key, text)
    if kind == "timestamp" and rest:
        kind = "timestamp with a time zone"  # Such values of Python cannot be compared with others.
    fields = _children(schema)
    return ArrowType(kind, tuple(("", part) for _, part in fields) if kind == "list" else tuple(fields))
