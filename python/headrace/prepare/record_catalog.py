"""A store of records as an output knows it: the files of its shards, and the index that lists them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace._files import Store
from headrace.errors import DataError
from headrace.formats.records.store import dtype_of

from .record_shards import INDEX, files_of, parsed_index
from .writing import Catalog, Entry, Existing

__all__ = ["RecordCatalog", "entries_of", "sizes_of"]


class RecordCatalog(Catalog):
    """The index of a store, whose schema is all that it says but for the shards.

    A shard has up to three files, each an entry; that of the records has the shard's own entry in the index.
    """

    format = "records"
    index_name = INDEX
    pattern = r"shard-(\d+)(?:-\d+)?\.(?:bin|ends|meta)"

    def index(self, entries: Sequence[Entry], schema: str | None) -> bytes:
        """See `Catalog.index`."""
        assert schema is not None
        shards = [entry["shard"] for entry in entries if "shard" in entry]
        return json.dumps({**json.loads(schema), "shards": shards}, indent=1).encode()

    def read(self, index: bytes, there: Store) -> Existing:
        """See `Catalog.read`."""
        where = there.uri(INDEX)
        found = parsed_index(index, where)
        head = {key: value for key, value in found.items() if key != "shards"}
        try:
            return Existing(entries_of(found), json.dumps(head))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: expected the shards of a store of records: {error!r}") from None


def entries_of(index: Mapping[str, Any]) -> list[Entry]:
    """The files of a store as entries, in the order of shards."""
    return [
        {"name": name, "bytes": size, "samples": 0}
        if samples is None
        else {"name": name, "bytes": size, "samples": samples, "shard": shard}
        for shard in index["shards"]
        for name, size, samples in sizes_of(index, shard)
    ]


def sizes_of(index: Mapping[str, Any], shard: Mapping[str, Any]) -> list[tuple[str, int, int | None]]:
    """The files of a shard: names, bytes, and samples; None for those beside the records."""
    records = shard["records"] * dtype_of(index["dtype"]).itemsize
    meta = 0 if index["meta"] is None else dtype_of(index["meta"]).itemsize
    count = shard.get("documents", 0)
    samples = count if index["kind"] == "documents" else shard["records"]
    sizes = (records, 8 * count, meta * count)
    return [
        (name, size, samples if name == shard["name"] else None)
        for name, size in zip(files_of(shard), sizes, strict=False)
    ]
