"""Where an output goes: what a path or URL, which may hold templates, stands for."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace._disk_cache import cache_folder
from headrace._files import Store as Files
from headrace._paths import address, expanded, has_template, in_home
from headrace.store import Store

from .durable import put_whole, store_error
from .local import WORK, LocalOutput
from .output import JOURNAL, Output
from .remote import RemoteOutput

__all__ = ["Target"]

_FOLDER = "outputs"
"""Below the cache folder: work folders of outputs in stores, and what unfinished runs made of templates."""


@dataclass(frozen=True)
class Target:
    """Where an output goes, as it was given."""

    path: str | os.PathLike[str]
    """A path or URL, which may hold templates."""
    options: Mapping[str, str] | None = None
    """Settings of its store."""
    work_dir: str | os.PathLike[str] | None = None
    """Where the work folder of an output in a store is made; by default in the cache folder."""

    def open(self, *, resume: bool) -> Output:
        """The output, locked for this process.

        Args:
            resume: whether a template stands for what an unfinished run made of it, if there is one.

        Raises:
            TypeError: if it is no path.
            ValueError: if the path or an option cannot be used.
            StoreError: if it cannot be written to, or another process writes there.
        """
        given = in_home(address(self.path, "output_dir"))
        if not has_template(given):
            return self._opened(given)
        record = _record(given)
        if resume and record.exists():
            known = str(json.loads(record.read_bytes())["path"])
            if (self._work(known) / JOURNAL).exists():
                return self._opened(known)
        filled = expanded(given)
        output = self._opened(filled)
        try:
            record.parent.mkdir(parents=True, exist_ok=True)
            # Beside it, since the output may be on another disk.
            aside = record.with_name(f"{record.name}.{os.getpid()}.tmp")
            put_whole(record, json.dumps({"template": given, "path": filled}).encode(), aside)
        except BaseException as error:
            output.close(finished=False)
            if isinstance(error, OSError):
                raise store_error(record, error) from None
            raise
        return output

    def _opened(self, path: str) -> Output:
        place = self._place(path)
        if isinstance(place, Store):
            return RemoteOutput(place, self._work(path), Files([path], dict(self.options or {})))
        if self.work_dir is not None:
            raise ValueError(f"work_dir is for outputs in stores, got it with the folder {path!r}")
        return LocalOutput(place)

    def _place(self, path: str) -> Store | Path:
        """A folder of this machine, or a part of a store."""
        if "://" in path or path.startswith("local:"):
            store = Store(path, storage_options=self.options)
            return store.local_root or store
        if self.options:
            raise ValueError(f"output_options are for outputs in stores, got them with the folder {path!r}")
        return Path(path)

    def _work(self, path: str) -> Path:
        place = self._place(path)
        if not isinstance(place, Store):
            return place / WORK
        # A folder of its own, as all of it goes in the end: others may use the one that it lies in.
        name = _short(f"{place.endpoint or ''}\n{place.url}")
        if self.work_dir is not None:
            return Path(in_home(address(self.work_dir, "work_dir"))).absolute() / name
        return cache_folder(None) / _FOLDER / name


def _record(template: str) -> Path:
    """Where it is noted what was made of a template."""
    name = template if "://" in template else os.path.abspath(template)  # noqa: PTH100
    return cache_folder(None) / _FOLDER / f"{_short(name)}.json"


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
