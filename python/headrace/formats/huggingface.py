"""Folders that Hugging Face's `Dataset.save_to_disk` wrote: Arrow files with features beside them."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from headrace._files import File, Store, inside
from headrace.errors import DataError, MissingError
from headrace.samples.source import Chunk, Extent, digest

from ._features import decoded_columns, feature_decoder, feature_text, shown
from ._line_tables import Progress
from .arrow import ArrowChunk, BatchSource, read_footers

__all__ = ["HuggingFaceSource"]

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_MOST_JSON = 64 << 20
"""Bytes of a file beside the data; names of a million classes take less."""


class HuggingFaceSource(BatchSource):
    """A saved dataset, with its values as `datasets` gives them but for what `feature_decoder` says."""

    format = "huggingface"

    def _set_features(self, features: Mapping[str, Any], columns: tuple[str, ...], decode: bool) -> None:
        self._features = {name: features[name] for name in columns if name in features}
        self._decodes = decode
        self._names = columns
        self._start()  # Before they are shown: it refuses what is nested too deep.
        self.schema = {
            name: feature_text(features[name]) if name in features else self.schema[name] for name in columns
        }

    @classmethod
    def open(
        cls, store: Store, *, progress: Progress, cache_dir: Path | None = None, decode: bool = True
    ) -> "HuggingFaceSource":
        """Reads what the folder says of itself, and footers.

        Args:
            store: the folder; which of its files hold data stands in ``state.json``.
            progress: called with a phase, files done and files in all.
            cache_dir: where tables are kept, or None to keep none.
            decode: False leaves images, sound and JSON as they are stored.

        Raises:
            DataError: if it is damaged, a folder of several splits, or seen through an indices mapping.
            MissingError: if it is no such folder.
            StoreError: if the store does not answer.
        """
        listed = {file.path: file for file in store.files}
        if STATE not in listed and SPLITS in listed:
            raise _several(store, listed[SPLITS])
        state = _read(store, listed, STATE)
        info = _read(store, listed, INFO)
        features = _features(store.uri(INFO), info)
        data = _data_files(store, listed, state)
        source = cls(store, data, read_footers(store, data, progress, cache_dir))
        columns = _columns(store.uri(STATE), state, tuple(source.schema))
        try:
            source._set_features(features, columns, decode)
        except DataError as error:
            raise DataError(f"{store.uri(INFO)}: {error}") from None
        split = state.get("_split")
        source.split = split if isinstance(split, str) else None
        return source

    split: str | None = None
    """The name of the split, if the dataset was saved with one."""

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Reads the columns of a record batch; what is in them is decoded sample by sample."""
        names = self._names if columns is None else columns
        changed = self._changed.intersection(names)
        decode = self._decode_row if changed else None
        return ArrowChunk(self._read(chunk, names), names, partial(self._where, chunk), decode, changed)

    def identity(self, extent: Extent | None = None) -> str:
        """A digest of the files' names and sizes, the rows of each batch, and the features."""
        return digest(super().identity(extent), self._features, self._names)

    def _start(self) -> None:
        super()._start()
        features: dict[str, Any] = getattr(self, "_features", {})
        if features:
            self._decode_row = feature_decoder(features, decode=self._decodes)
        self._changed = decoded_columns(features, decode=self._decodes) if features else frozenset[str]()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_decode_row", None)
        return state


def _several(store: Store, file: File) -> DataError:
    found: Any = _parse(store, file).get("splits")
    names = [name for name in cast("list[Any]", found) if isinstance(name, str)] if isinstance(found, list) else []
    url = store.url.rstrip("/")
    return DataError(
        f"{url}: expected one saved dataset, found a folder of the splits {', '.join(map(repr, names)) or '(none)'}\n"
        f"hint: open one of them, for example {url}/{names[0] if names else 'train'}"
    )


def _read(store: Store, listed: Mapping[str, File], name: str) -> dict[str, Any]:
    if name not in listed:
        raise MissingError(f"{store.uri(name)}: expected this file of a dataset that save_to_disk wrote, found none")
    return _parse(store, listed[name])


def _parse(store: Store, file: File) -> dict[str, Any]:
    uri = store.uri(file.path)
    if file.size > _MOST_JSON:
        raise DataError(f"{uri}: expected at most {_MOST_JSON} bytes of JSON, found {file.size}")
    try:
        found: Any = json.loads(store.read(file).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{uri}: expected JSON, found what is none ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{uri}: expected a JSON object, found {type(found).__name__}")
    return cast("dict[str, Any]", found)


def _features(uri: str, info: Mapping[str, Any]) -> dict[str, Any]:
    features = info.get("features")
    if features is None:
        return {}
    if not isinstance(features, dict):
        raise DataError(f"{uri}: expected 'features' to be an object, found {type(features).__name__}")
    return cast("dict[str, Any]", features)


def _data_files(store: Store, listed: Mapping[str, File], state: Mapping[str, Any]) -> list[File]:
    uri = store.uri(STATE)
    for key in ("_indices_files", "_indices_data_files"):
        if state.get(key):
            raise DataError(
                f"{uri}: expected a dataset whose rows are stored in their order, found an indices mapping ({key!r})\n"
                "hint: datasets.load_from_disk(…).flatten_indices() and save_to_disk write it without one"
            )
    names = _names(uri, state.get("_data_files"), "_data_files")
    missing = [name for name in names if name not in listed]
    if missing:
        raise MissingError(f"{store.uri(missing[0])}: expected this file, which {STATE} names, found none")
    return [listed[name] for name in names]


def _names(uri: str, entries: Any, key: str) -> list[str]:
    if not isinstance(entries, list):
        raise DataError(f"{uri}: expected a list in {key!r}, found {shown(entries)}")
    names: list[str] = []
    for entry in cast("list[Any]", entries):
        name: Any = cast("dict[str, Any]", entry).get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise DataError(f"{uri}: expected {{'filename': …}} in {key!r}, found {shown(entry)}")
        names.append(inside(name, uri))
    return names


def _columns(uri: str, state: Mapping[str, Any], stored: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that a format which was saved with the dataset leaves, in their stored order."""
    chosen = state.get("_format_columns")
    if chosen is None or state.get("_output_all_columns") is True:
        return stored
    if not isinstance(chosen, list):
        raise DataError(f"{uri}: expected a list in '_format_columns', found {shown(chosen)}")
    names = cast("list[Any]", chosen)
    unknown = [name for name in names if name not in stored]
    if unknown:
        raise DataError(f"{uri}: expected columns of the dataset in '_format_columns', found {shown(unknown[0])}")
    return tuple(name for name in stored if name in names)
