"""`headrace cache`: where the cache folder is, what it holds, and how to empty it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from headrace import _core
from headrace._disk_cache import cache_folder
from headrace._units import show_bytes
from headrace.cli._common import console, facts, plural, print_json

__all__ = ["clear", "info", "path"]

_KINDS = {
    "index": "indexes of Parquet files",
    "tables": "tables of tar members, lines and record batches",
    "files": "tables of file names",
    "locks": "locks of those that build indexes",
}
"""Folders that hold what `open` would make anew."""


class _Held(NamedTuple):
    files: int
    bytes: int


def path(*, cache_dir: str | None, as_json: bool) -> int:
    """Prints the folder."""
    folder = str(cache_folder(cache_dir).absolute())
    if as_json:
        print_json({"path": folder})
    else:
        print(folder)
    return 0


def info(*, cache_dir: str | None, as_json: bool) -> int:
    """Prints what the folder holds."""
    folder = cache_folder(cache_dir)
    held = {"data": _Held(*_core.DiskCache.usage(folder))} | {kind: _held(_files(folder, kind)) for kind in _KINDS}
    _show(folder, held, as_json=as_json)
    return 0


def clear(*, cache_dir: str | None, everything: bool, as_json: bool) -> int:
    """Removes what was read of remote stores, and on request all that `open` would make anew; nothing else."""
    folder = cache_folder(cache_dir)
    removed = {"data": _Held(*_core.DiskCache.clear(folder))}
    if everything:
        removed |= {kind: _remove(_files(folder, kind)) for kind in _KINDS}
    _show(folder, removed, as_json=as_json)
    return 0


def _files(folder: Path, kind: str) -> list[Path]:
    return [path for path in (folder / kind).glob("*") if path.is_file()]


def _held(files: Iterable[Path]) -> _Held:
    sizes = [path.stat().st_size for path in files]
    return _Held(len(sizes), sum(sizes))


def _remove(files: list[Path]) -> _Held:
    held = _held(files)
    for path in files:
        path.unlink(missing_ok=True)
    return held


def _show(folder: Path, held: dict[str, _Held], *, as_json: bool) -> None:
    if as_json:
        report: dict[str, Any] = {"path": str(folder.absolute())}
        print_json(report | {kind: value._asdict() for kind, value in held.items()})
        return
    names = {"data": "what was read of remote stores"} | _KINDS
    rows = [
        (names[kind], f"{show_bytes(value.bytes)} in {plural(value.files, 'file')}") for kind, value in held.items()
    ]
    console().print(facts([("cache folder", str(folder.absolute())), *rows]))
