"""Preparing data: datasets that train fast, of whatever a function makes of raw files; docs/preparing.md tells of it.

`optimizing`, `tokenizing`, `mapping`, `merging` and `walking` are what users call. Below them: `inputs` are what they
give, through `readers`, or a queue (`queueing`), and `documents` the texts of a dataset, in `parts`; `job` is done in
`workers`, which `engine` gives inputs from `feed`; `spool` keeps what comes of it, `chunking` makes chunks of that, in
the files of `writing`, and `output` makes them a dataset.

`recording` writes stores of records as they come, without any of that: over `record_shards` and `record_values`;
`completing` makes one dataset of parts, those of records by `record_parts`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import Prepared
    from .completing import complete_dataset
    from .mapping import map
    from .merging import merge_datasets
    from .optimizing import optimize
    from .readers import ParquetReader, Reader
    from .recording import DocumentWriter, StreamWriter
    from .spool import Failure
    from .tokenizing import tokenize
    from .walking import walk
    from .writing.graphs import Graph

__all__ = [
    "DocumentWriter",
    "Failure",
    "Graph",
    "ParquetReader",
    "Prepared",
    "Reader",
    "StreamWriter",
    "complete_dataset",
    "map",
    "merge_datasets",
    "optimize",
    "tokenize",
    "walk",
]

_PLACES = {
    "DocumentWriter": ".recording",
    "Failure": ".spool",
    "Graph": ".writing.graphs",
    "ParquetReader": ".readers",
    "Prepared": ".arguments",
    "Reader": ".readers",
    "StreamWriter": ".recording",
    "complete_dataset": ".completing",
    "map": ".mapping",
    "merge_datasets": ".merging",
    "optimize": ".optimizing",
    "tokenize": ".tokenizing",
    "walk": ".walking",
}
"""Where each is, imported when it is asked for: worker processes need `job` alone, and there are many of them."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name], __name__), name)
