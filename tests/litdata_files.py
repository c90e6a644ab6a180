"""Writes LitData folders with litdata itself, reads them back with it, and makes by hand what it cannot write."""

import gc
import json
import os
import shutil
import struct
import sys
import tempfile
import types
import warnings
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"


def _zstd_for_litdata() -> None:
    """litdata compresses with a package `zstd`; where that is not installed, `zstandard` does the same work."""
    if find_spec("zstd") is not None:
        return
    import zstandard

    module: Any = types.ModuleType("zstd")
    module.__spec__ = ModuleSpec("zstd", None)
    module.compress = lambda data, level=3: zstandard.ZstdCompressor(level).compress(data)
    module.decompress = lambda data: zstandard.ZstdDecompressor().decompress(data)
    sys.modules["zstd"] = module


_zstd_for_litdata()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    import torch_geometric.data  # noqa: F401
    from litdata import StreamingDataset
    from litdata.streaming.writer import BinaryWriter

from headrace._files import Store  # noqa: E402
from headrace.formats.litdata import LitDataSource  # noqa: E402
from headrace.media import Encoded  # noqa: E402


def write(folder: Path, samples: Iterable[Any], **how: Any) -> Path:
    """Writes samples in chunks of three, by default."""
    if "chunk_bytes" not in how:
        how.setdefault("chunk_size", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = BinaryWriter(str(folder), **how)
        for number, sample in enumerate(samples):
            writer[number] = sample
        writer.done()
        writer.merge()
    return folder


def theirs(folder: Path, **how: Any) -> list[Any]:
    """All samples as litdata returns them. It removes compressed files that it read, so it gets a copy."""
    with tempfile.TemporaryDirectory() as copy, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        data = StreamingDataset(copy, **how)
        samples = [_kept(data[number]) for number in range(len(data))]
        # It leaves files open; that they close while its warnings are ignored keeps them out of other tests.
        del data
        gc.collect()
    return samples


def _kept(sample: Any) -> Any:
    """Bytes that litdata returns are views of a file that it may close."""
    if isinstance(sample, memoryview):
        return bytes(sample)
    if type(sample) in (list, tuple):
        return type(sample)(map(_kept, sample))
    return {key: _kept(part) for key, part in sample.items()} if type(sample) is dict else sample


def opened(folder: Path, **how: Any) -> LitDataSource:
    return LitDataSource.open(Store([str(folder)], {}), **how)


def ours(folder: Path, columns: tuple[str, ...] | None = None, **how: Any) -> list[Any]:
    """All samples as headrace returns them."""
    return everything(opened(folder, **how), columns)


def everything(source: LitDataSource, columns: tuple[str, ...] | None = None) -> list[Any]:
    samples: list[Any] = []
    for number, size in enumerate(source.sizes.tolist()):
        chunk = source.load(number, columns)
        assert len(chunk) == size
        samples += chunk.take(range(size))
    return samples


def same(mine: Any, other: Any) -> None:
    """Compares values and their types; a tensor is the same as an array, and encoded media the same as its bytes."""
    if isinstance(mine, Encoded):
        mine = mine.encoded()
    if isinstance(other, torch.Tensor) and isinstance(mine, np.ndarray):
        other = other.numpy()
    assert type(mine) is type(other)
    if isinstance(mine, dict):
        assert list(mine) == list(other)
        for key in mine:
            same(mine[key], other[key])
    elif isinstance(mine, list | tuple) or type(mine).__name__ == "deque":
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            same(one, two)
    elif isinstance(mine, np.ndarray):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(mine, other)
        assert mine.flags.writeable
        # NumPy's own memory, not a view of the chunk; a tensor's memory or a view of an array has a base.
        assert mine.base is None or isinstance(mine.base, np.ndarray)
    elif isinstance(mine, torch.Tensor):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)
    elif hasattr(mine, "tobytes"):
        assert (mine.mode, mine.size, mine.tobytes()) == (other.mode, other.size, other.tobytes())
    elif isinstance(mine, float) and mine != mine:
        assert other != other
    else:
        assert mine == other


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunk": {"compression": "zstd", "compression_level": "chunk"},
    "chunk by level": {"compression": "zstd:7", "compression_level": "chunk"},
    "batch": {"compression": "zstd"},
    "small batches": {"compression": "zstd:2", "compression_batch_size": 2},
    "sample": {"compression": "zstd", "compression_level": "sample"},
}
"""Ways of compressing, by the arguments of litdata's writer."""

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def spec(*keys: str) -> str:
    """The structure of a dict of leaves, or of one leaf if there are no keys."""
    children = [LEAF for _ in keys]
    tree = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": children} if keys else LEAF
    return json.dumps([1, tree])


def item(*leaves: bytes) -> bytes:
    return struct.pack(f"<{len(leaves)}I", *map(len, leaves)) + b"".join(leaves)


def chunk(items: Sequence[bytes]) -> bytes:
    offsets = np.cumsum([4 + 4 * (len(items) + 1), *map(len, items)]).astype("<u4")
    return struct.pack("<I", len(items)) + offsets.tobytes() + b"".join(items)


def by_hand(folder: Path, chunks: Sequence[Sequence[bytes] | bytes], sizes: Sequence[int] = (), **config: Any) -> Path:
    """A folder of chunks that are given as items, or whole with the number of their items."""
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for number, one in enumerate(chunks):
        data = one if isinstance(one, bytes) else chunk(one)
        size = sizes[number] if sizes else len(one)
        entries.append({"filename": f"chunk-0-{number}.bin", "chunk_bytes": len(data), "chunk_size": size, "dim": None})
        (folder / entries[-1]["filename"]).write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": config, "updated_at": "0"}))
    return folder


def edit(folder: Path, **config: Any) -> Path:
    """Changes the config of an index, or a chunk's entry by its number as ``chunk_0={...}``."""
    path = folder / "index.json"
    index = json.loads(path.read_text())
    for name, value in config.items():
        kind, _, number = name.rpartition("_")
        if kind == "chunk" and number.isdigit():
            index["chunks"][int(number)] |= value
        else:
            index["config"][name] = value
    path.write_text(json.dumps(index))
    return folder
