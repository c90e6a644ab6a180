"""What several writers of one store of records left, each of a part: the index that makes one store of them."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .record_catalog import sizes_of
from .record_shards import INDEX, lock, read_index, unlock

__all__ = ["hold_parts", "parts_of", "whole_of"]

_ALIKE = ("version", "kind", "dtype", "documents", "meta")


def parts_of(folder: Path) -> list[Path]:
    """The indexes of parts, in the order of their numbers."""
    return sorted(folder.glob("part-*.json"))


def hold_parts(folder: Path, held: ExitStack) -> None:
    """Keeps writers away from the folder while `held` is open.

    Raises:
        StoreError: if one is still at it.
    """
    # A writer that has ended no shard has a lock and no index.
    names = {f".lock-{path.name}" for path in [folder / INDEX, *parts_of(folder)]}
    names |= {path.name for path in folder.glob(".lock-part-*.json")}
    for name in sorted(names):
        held.callback(unlock, lock(folder, name, "wait until it is closed"), folder / name)


def whole_of(folder: Path, parts: Sequence[Path]) -> tuple[list[tuple[str, int | None, int | None]], dict[str, Any]]:
    """The index of all parts, behind what the folder's own index lists already.

    Returns:
        Of each file its name, bytes and samples (None for those beside a shard's records); and the index.

    Raises:
        DataError: if an index is damaged.
        TypeError: if the parts' records are not alike.
    """
    there = [folder / INDEX] if (folder / INDEX).exists() else []
    (first, whole), *others = [(path, read_index(path)) for path in [*there, *parts]]
    # A call that was ended before it removed the parts' indexes has listed their shards.
    known = {shard["name"] for shard in whole["shards"]} if there else set[str]()
    for path, index in others:
        for key in _ALIKE:
            if index[key] != whole[key]:
                raise TypeError(f"{path}: expected {key} {whole[key]!r} as in {first.name}, found {index[key]!r}")
        whole["shards"] += [shard for shard in index["shards"] if shard["name"] not in known]
    return [file for shard in whole["shards"] for file in sizes_of(whole, shard)], whole
