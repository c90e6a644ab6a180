"""Raw files: each a sample, or several that belong together.

Nothing is read but what is asked for: a chunk is up to 256 neighbouring samples, and opening it reads nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace._files import File, Store
from headrace._traffic import Traffic
from headrace.errors import DataError
from headrace.formats.options import Group
from headrace.samples.source import Chunk, Extent, Hits, Place, Source, digest

__all__ = ["FilesSource", "Group"]

SAMPLES = 256
"""Samples of a chunk: enough to keep chunks few, few enough that a window mixes many of them."""
READERS = 16
"""Files of a remote store that one call reads at once."""
MOST_FIELDS = 1000
"""Kinds of members of a group. More of them are names that were taken for extensions."""

Ints = npt.NDArray[np.int64]


class FilesSource(Source):
    """Files as samples, with nothing decoded.

    A sample is ``{"path": str, "data": bytes}``, or of a group ``{"key": str, field: bytes, ...}`` with its fields in
    the order of their names; None for those that it lacks.
    """

    format = "files"
    random_access = True

    def __init__(self, store: Store, table: "FileTable", groups: "Groups | None") -> None:
        self._store = store
        self._table = table
        self._groups = groups
        self.url = store.url
        self.remote = store.is_remote
        count = len(table) if groups is None else len(groups.keys)
        starts = np.arange(0, count, SAMPLES)
        self.sizes = np.diff(np.append(starts, count)).astype(np.int64)
        stored = table.sizes if groups is None else table.sizes[groups.members]
        bounds = np.append(starts, count) if groups is None else groups.bounds[np.append(starts, count)]
        self.stored = np.diff(np.concatenate(([0], np.cumsum(stored)))[bounds]).astype(np.int64)
        if groups is None:
            self.schema = {"path": "str", "data": "bytes"}
            self.advice = _advice(table.path(0)) if count else ""
        else:
            kind = "bytes?" if groups.is_partial else "bytes"
            self.schema = {"key": "str", **dict.fromkeys(groups.fields, kind)}

    @classmethod
    def open(cls, store: Store, *, group: Group | None = None, partial: bool = False) -> "FilesSource":
        """The files of a store, without reading any.

        Args:
            store: where they lie, and which they are.
            group: None for a sample of each file. ``"stem"`` puts files together that share folder and stem: the name
                up to its last dot, whatever dots stand before it or in the folder. The sample's key is folder and
                stem, the fields are the extensions as they are written. A function is given each path and gives the
                key of its sample, or the key and the field's name (by default the extension), or None to leave the
                file out. It is not needed once this returns.
            partial: whether groups may lack fields that others have.

        Raises:
            DataError: if a group lacks a field, two files claim the same one, or a name has no extension to call it.
            TypeError: if the function gives something else.

        Example:
            >>> source = FilesSource.open(store, group="stem")
            >>> source.load(0)[0]
            {'key': 'cats/1', 'jpg': b'cats/1.jpg', 'txt': b'cats/1.txt'}
        """
        if group is not None and group != "stem" and not callable(group):
            raise ValueError(f'group must be None, "stem" or a function of a path, got {group!r}')
        table = FileTable(store.files)
        return cls(store, table, None if group is None else Groups(store, table, group, partial))

    def load(self, chunk: int, columns: tuple[str, ...] | None = None) -> Chunk:
        """Samples that read their files when they are made."""
        start = chunk * SAMPLES
        rows = range(start, start + int(self.sizes[chunk]))
        return _FilesChunk(self._store, self._table, self._groups, rows, columns or tuple(self.schema))

    def file(self, chunk: int) -> str:
        """The first file of a chunk."""
        return self.place(chunk, 0).file

    def place(self, chunk: int, row: int) -> Place:
        """Where an item lies: its file, or the first one of its group."""
        number = chunk * SAMPLES + row
        if self._groups is not None:
            number = int(self._groups.members[self._groups.bounds[number]])
        return Place(self._table.path(number), chunk, row)

    def whole_places(self, chunk: int, rows: Iterable[int]) -> Iterator[Place]:
        """See `Named.whole_places`: a file has one item, and no chunk of its own."""
        root = self.url.rstrip("/")
        return (Place(f"{root}/{self.place(chunk, row).file}", 0, 0) for row in rows)

    def items_in(self, url: str) -> list[int] | None:
        """See `Named.items_in`."""
        return [1] if url in self._items else None

    def named(self, file: str, chunk: int, rows: npt.NDArray[np.int64]) -> Hits | None:
        """See `Named.named`: each item is a file of its own."""
        if file.startswith(f"{self.url.rstrip('/')}/"):
            found = self._items.get(file)
            if found is None or chunk:
                return None
            is_there = rows == 0
            return Hits(found[0], np.full(int(is_there.sum()), found[1], dtype=np.int64), is_there)
        if chunk >= len(self.sizes):
            return None
        is_there = rows < self.sizes[chunk]
        is_there[is_there] = [self.place(chunk, row).file == file for row in rows[is_there].tolist()]
        return Hits(chunk, rows[is_there], is_there)

    @cached_property
    def _items(self) -> dict[str, tuple[int, int]]:
        """Chunk and row of each item, by its file's whole URL."""
        return {
            place.file: (chunk, row)
            for chunk, size in enumerate(self.sizes.tolist())
            for row, place in enumerate(self.whole_places(chunk, range(size)))
        }

    def identity(self, extent: Extent | None = None) -> str:
        """A digest of paths, sizes, and which files belong together."""
        if self._groups is None:
            count = len(self._table) if extent is None else extent.samples
            return digest("files", count, self._table.digest(count), None)
        # Of groups no file may be added: it can come to lie anywhere among them.
        return digest("files", len(self._table), self._table.digest(len(self._table)), self._groups.digest())

    def traffic(self) -> Traffic:
        """What the store counted."""
        return self._store.traffic()


def _advice(path: str) -> str:
    """How files like this one are opened as something else."""
    if path.lower().endswith((".bin", ".npy")):
        return 'headrace.open(..., stored_dtype="uint16") reads these files as tokens of that type'
    return 'headrace.open(..., format="text") makes a sample {"text": line} of each line of a file'


class _FilesChunk(Chunk):
    """Neighbouring samples, of which nothing was read yet."""

    def __init__(
        self, store: Store, table: "FileTable", groups: "Groups | None", rows: range, columns: tuple[str, ...]
    ) -> None:
        self._store = store
        self._table = table
        self._groups = groups
        self._rows = rows
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        number = self._rows[row]
        if self._groups is None:
            file = self._table[number]
            return {name: file.path if name == "path" else self._store.read(file) for name in self._columns}
        members = self._groups.files_of(number)
        sample: dict[str, Any] = {}
        for name in self._columns:
            if name == "key":
                sample[name] = self._groups.keys[number]
            else:
                member = members.get(name)
                sample[name] = None if member is None else self._store.read(self._table[member])
        return sample

    def take(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples, read at the same time if each has to be waited for."""
        if not self._store.is_remote or len(rows) < 2 or not self._reads:
            return [self[row] for row in rows]
        with ThreadPoolExecutor(min(READERS, len(rows)), "headrace-files") as pool:
            futures = [pool.submit(self.__getitem__, row) for row in rows]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()

    def arrays(self, columns: Sequence[str]) -> Mapping[str, Any]:
        """Lists of the fields' values; only these are read."""
        chunk = _FilesChunk(self._store, self._table, self._groups, self._rows, tuple(columns))
        samples = chunk.take(range(len(self)))
        return {name: [sample[name] for sample in samples] for name in columns}

    @property
    def _reads(self) -> bool:
        return not {"path", "key"}.issuperset(self._columns)


class Texts:
    """Many texts in two blocks of memory."""

    __slots__ = ("_bounds", "data")

    def __init__(self, texts: Sequence[str]) -> None:
        # Names that are not UTF-8 hold surrogates.
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        self.data = b"".join(parts)
        self._bounds = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, number: int) -> str:
        return self.data[self._bounds[number] : self._bounds[number + 1]].decode("utf-8", "surrogatepass")

    def digest(self, count: int) -> str:
        """Of the first texts and where each ends."""
        bounds = self._bounds[: count + 1]
        return blake2b(bounds.astype("<i8").tobytes() + self.data[: bounds[-1]], digest_size=16).hexdigest()


class FileTable:
    """Files without an object for each; it pickles as it is, so that no process needs to list them again."""

    __slots__ = ("_paths", "_versions", "sizes")

    def __init__(self, files: Sequence[File]) -> None:
        self._paths = Texts([file.path for file in files])
        self._versions = Texts([file.version for file in files])
        self.sizes: Ints = np.fromiter((file.size for file in files), np.int64, len(files))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> File:
        return File(self._paths[number], int(self.sizes[number]), self._versions[number])

    def path(self, number: int) -> str:
        """The path of a file."""
        return self._paths[number]

    def digest(self, count: int) -> list[str]:
        """Of paths and sizes of the first files."""
        sizes = self.sizes[:count].astype("<i8").tobytes()
        return [self._paths.digest(count), blake2b(sizes, digest_size=16).hexdigest()]


class Groups:
    """Which files belong together, in the order of each group's first file.

    Attributes:
        keys: of each group.
        fields: names of the members that groups have, sorted.
        members: the files of all groups, one group after the other.
        bounds: int64, (groups + 1,): where in `members` each group begins.
        is_partial: whether some group lacks a field.
    """

    def __init__(self, store: Store, table: FileTable, group: Group, partial: bool) -> None:
        numbers: dict[str, int] = {}
        names: dict[str, int] = {}
        files: list[int] = []
        owners: list[int] = []
        fields: list[int] = []
        for file, key, field in _grouped(store, table, group):
            files.append(file)
            owners.append(numbers.setdefault(key, len(numbers)))
            fields.append(names.setdefault(field, len(names)))
            if len(names) > MOST_FIELDS:
                raise DataError(
                    f"{store.uri(table.path(file))}: expected groups of files with at most {MOST_FIELDS} different "
                    f"extensions, found {field!r} beside these"
                )
        self.keys = Texts(list(numbers))
        self.fields = sorted(names)
        rank = np.zeros(len(names), np.int64)
        rank[[names[name] for name in self.fields]] = np.arange(len(names))
        owner, field = np.array(owners, np.int64), rank[np.array(fields, np.int64)]
        order = np.lexsort((field, owner))
        owner, self._fields, self.members = owner[order], field[order], np.array(files, np.int64)[order]
        self.bounds: Ints = np.searchsorted(owner, np.arange(len(numbers) + 1))
        self._refuse_twins(store, table, owner)
        lacking = np.flatnonzero(np.diff(self.bounds) != len(names))
        self.is_partial = bool(len(lacking))
        if self.is_partial and not partial:
            self._refuse_broken(store, table, int(lacking[0]))

    def files_of(self, group: int) -> dict[str, int]:
        """The file of each field that a group has."""
        at = slice(self.bounds[group], self.bounds[group + 1])
        members, fields = self.members[at].tolist(), self._fields[at].tolist()
        return {self.fields[field]: member for field, member in zip(fields, members, strict=True)}

    def digest(self) -> list[Any]:
        """Of keys, fields and members."""
        arrays = (self.members, self._fields, self.bounds)
        hashes = [blake2b(array.astype("<i8").tobytes(), digest_size=16).hexdigest() for array in arrays]
        return [self.keys.digest(len(self.keys)), self.fields, *hashes]

    def _refuse_twins(self, store: Store, table: FileTable, owner: Ints) -> None:
        twins = np.flatnonzero((np.diff(owner) == 0) & (np.diff(self._fields) == 0))
        if len(twins):
            first, second = self.members[twins[0] : twins[0] + 2].tolist()
            raise DataError(
                f"{store.uri(table.path(first))}: expected one file for {self.fields[self._fields[twins[0]]]!r} of "
                f"{self.keys[int(owner[twins[0]])]!r}, found also {table.path(second)!r}\n"
                "hint: the function may give the key and a name, (key, name), to tell them apart"
            )

    def _refuse_broken(self, store: Store, table: FileTable, group: int) -> None:
        found = self.files_of(group)
        lacking = [field for field in self.fields if field not in found]
        names = ", ".join(repr(table.path(file)) for file in found.values())
        raise DataError(
            f"{store.url}: expected a file for each of {', '.join(map(repr, self.fields))} with the key "
            f"{self.keys[group]!r}, found {names} only: {', '.join(map(repr, lacking))} missing\n"
            "hint: a stem ends at the last dot of a name; partial=True gives None for what is missing"
        )


def _grouped(store: Store, table: FileTable, group: Group) -> Iterator[tuple[int, str, str]]:
    """File, key and field of each file that has them."""
    for file in range(len(table)):
        path = table.path(file)
        folder, slash, name = path.rpartition("/")
        stem, dot, field = name.rpartition(".")
        key: Any = folder + slash + stem
        if callable(group):
            key = group(path)
            if key is None:
                continue
            if isinstance(key, tuple) and len(key) == 2:  # pyright: ignore[reportUnknownArgumentType]
                key, field = cast("tuple[Any, Any]", key)
                dot = "."
            if not isinstance(key, str) or not isinstance(field, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"group must give a key (str), a key and a name, or None, got {key!r} for {path!r}")
        if not dot or not field or field == "key" or (group == "stem" and not stem):
            raise DataError(
                f"{store.uri(path)}: expected a name with an extension (other than 'key') to call the file by\n"
                "hint: a function as group can name it, or leave it out by giving None"
            )
        yield file, key, field
