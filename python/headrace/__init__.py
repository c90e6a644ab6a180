"""headrace feeds model training: exact, elastic, read where the data lies.

    import headrace as hr

    data = hr.open("s3://bucket/fineweb-edu").pack(2048, column="tokens")
    loader = hr.DataLoader(data, global_batch_size=512, seed=0)
    for batch in loader:
        train(batch["tokens"])

Importing this starts no thread and needs nothing but NumPy.
"""

from . import _core
from ._base import Dataset
from .batch import Batch, Source
from .dataset import PackedDataset, Schema, TableDataset
from .errors import BudgetError, DataError, HeadraceError, MissingError, StateMismatch, StoreError
from .loader import DataLoader
from .loading.collate import register_collate
from .opening import open
from .samples.batch import SampleBatch
from .samples.dataset import SampleDataset, concat
from .samples.expression import Expression, col
from .samples.source import Place
from .state import State

__all__ = [
    "Batch",
    "BudgetError",
    "DataError",
    "DataLoader",
    "Dataset",
    "Expression",
    "HeadraceError",
    "MissingError",
    "PackedDataset",
    "Place",
    "SampleBatch",
    "SampleDataset",
    "Schema",
    "Source",
    "State",
    "StateMismatch",
    "StoreError",
    "TableDataset",
    "col",
    "concat",
    "open",
    "register_collate",
]

__version__: str = _core.version()[0]
