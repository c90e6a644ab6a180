"""`walk`: the files of a folder, wherever it lies."""

import os
from collections.abc import Mapping

from headrace._files import Store

__all__ = ["walk"]


def walk(path: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The files below a folder, sorted, with their full names: inputs for `optimize` and `map`.

    Hidden files, whose name or folder begins with ``.`` or ``_``, are left out; symbolic links are followed.

    Args:
        path: a folder, a file or a glob, on a disk or in a store, as `headrace.open` takes it.
        storage_options: settings of the store.

    Raises:
        ValueError: if nothing matches.
        StoreError: if the store does not answer.

    Example:
        >>> [name.rpartition("/")[2] for name in headrace.walk(folder)]
        ['a.parquet']
    """
    store = Store([os.fspath(path)], dict(storage_options or {}))
    return [store.uri(file.path) for file in store.files]
