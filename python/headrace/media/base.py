"""What all kinds of media have in common: they are stored as the bytes of a file."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Encoded", "Source", "as_array", "is_array", "package"]

Source = str | os.PathLike[str] | bytes


class Encoded:
    """A value that is stored as the bytes of a file. They are taken as they are, unless a class says otherwise.

    Args:
        source: a path on a disk, or the bytes.

    Raises:
        TypeError: if it is neither.
    """

    __slots__ = ("source",)

    takes = "a path or bytes"
    """What can be a source, for messages."""

    def __init__(self, source: Any) -> None:
        if not isinstance(source, bytes) and not _is_path(source) and not self._is_object(source):
            raise TypeError(f"{type(self).__name__} takes {self.takes}, got {type(source).__name__}")
        self.source: Any = source

    def encoded(self) -> bytes:
        """The bytes of the file.

        Raises:
            OSError: if it cannot be read.
        """
        source: Any = self.source
        if isinstance(source, bytes):
            return source
        return Path(source).read_bytes() if _is_path(source) else self._encode(source)

    def __repr__(self) -> str:
        source: Any = self.source
        if isinstance(source, bytes):
            text = f"{len(source):,} bytes"
        elif _is_path(source):
            text = repr(str(source))
        else:
            text = type(source).__name__
        return f"{type(self).__name__}({text})"

    def _is_object(self, source: Any) -> bool:
        """Whether it is something that `_encode` makes a file of."""
        return False

    def _encode(self, source: Any) -> bytes:
        """The bytes of the file that is made of such an object; only a class that takes objects has any."""
        raise NotImplementedError


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def package(module: str, name: str, what: str) -> Any:
    """A package that is needed now.

    Args:
        module: what is imported.
        name: what is installed for it.
        what: what it does here.

    Raises:
        ImportError: if it is not installed, or lacks a library of its own; says what to do.
    """
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        raise ImportError(f"{what} by {name}, which cannot be imported: {error}\nhint: pip install {name}") from None


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy or a tensor of PyTorch."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__array__")


def as_array(value: Any) -> Any:
    """An array or a tensor, as NumPy's."""
    import numpy as np

    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
