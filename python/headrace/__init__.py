"""headrace feeds model training: exact, elastic, read where the data lies.

    import headrace as hr

    data = hr.open("s3://bucket/fineweb-edu").pack(2048, column="tokens")
    loader = hr.DataLoader(data, global_batch_size=512, seed=0)
    for batch in loader:
        train(batch["tokens"])

Importing this starts no thread and needs nothing but NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _core
from ._base import Dataset
from .batch import Batch, Source
from .dataset import PackedDataset, Schema, TableDataset
from .errors import BudgetError, DataError, HeadraceError, MissingError, StateMismatch, StoreError
from .indexing import Indexed, index
from .loader import DataLoader
from .loading.collate import register_collate
from .media import Audio, File, Image, Mesh, Nifti, Pdf, Tiff, Video
from .mixing import MixDataset, WeightSchedule, mix
from .opening import open
from .records import DocumentDataset, StreamDataset
from .samples.batch import SampleBatch
from .samples.dataset import SampleDataset, concat
from .samples.expression import Expression, col
from .samples.source import Place, Places
from .samples.zipped import ZipDataset, zip
from .state import State
from .store import Store, StoredFile

if TYPE_CHECKING:
    from . import encryption
    from .prepare import (
        DocumentWriter,
        Graph,
        ParquetReader,
        Prepared,
        Reader,
        StreamWriter,
        complete_dataset,
        map,
        merge_datasets,
        optimize,
        tokenize,
        walk,
    )

__all__ = [
    "Audio",
    "Batch",
    "BudgetError",
    "DataError",
    "DataLoader",
    "Dataset",
    "DocumentDataset",
    "DocumentWriter",
    "Expression",
    "File",
    "Graph",
    "HeadraceError",
    "Image",
    "Indexed",
    "Mesh",
    "MissingError",
    "MixDataset",
    "Nifti",
    "PackedDataset",
    "ParquetReader",
    "Pdf",
    "Place",
    "Places",
    "Prepared",
    "Reader",
    "SampleBatch",
    "SampleDataset",
    "Schema",
    "Source",
    "State",
    "StateMismatch",
    "Store",
    "StoreError",
    "StoredFile",
    "StreamDataset",
    "StreamWriter",
    "TableDataset",
    "Tiff",
    "Video",
    "WeightSchedule",
    "ZipDataset",
    "col",
    "complete_dataset",
    "concat",
    "encryption",
    "index",
    "map",
    "merge_datasets",
    "mix",
    "open",
    "optimize",
    "register_collate",
    "tokenize",
    "walk",
    "zip",
]

__version__: str = _core.version()[0]

_PREPARING = frozenset(
    {
        "DocumentWriter",
        "Graph",
        "ParquetReader",
        "Prepared",
        "Reader",
        "StreamWriter",
        "map",
        "complete_dataset",
        "merge_datasets",
        "optimize",
        "tokenize",
        "walk",
    }
)
"""What `headrace.prepare` has, imported when it is asked for: loading data needs none of it."""


def __getattr__(name: str) -> Any:
    if name == "encryption":
        return import_module("headrace.encryption")
    if name not in _PREPARING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import prepare

    return getattr(prepare, name)
