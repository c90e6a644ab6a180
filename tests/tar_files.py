"""Archives for the tests of WebDataset, and reading them."""

import io
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace._files import Store
from headrace.formats.webdataset import WebDatasetSource


def archive(
    path: Path, files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], *, format: int = tarfile.USTAR_FORMAT
) -> Path:
    """Writes files by Python's tarfile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def opened(folder: Path, *, progress: Callable[[str, int, int], None] = lambda *_: None) -> WebDatasetSource:
    """The archives in a folder, with a cache in a hidden folder beside them."""
    store = Store([str(folder)], {})
    files = [file for file in store.files if not file.path.startswith("plain/")]
    return WebDatasetSource.open(store, files, cache_dir=folder / ".cache", progress=progress)


def samples(source: WebDatasetSource, columns: tuple[str, ...] | None = None) -> list[Any]:
    """All samples."""
    found: list[Any] = []
    for chunk, size in enumerate(source.sizes):
        loaded = source.load(chunk, columns)
        assert len(loaded) == size
        found += loaded.take(range(len(loaded)))
    return found
