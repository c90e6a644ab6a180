"""LitData folders that are damaged or hostile, and what litdata cannot write: the right values, or a `DataError`."""

import contextlib
import io
import json
import pickle
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError
from headrace.media import Audio, Mesh, Nifti, Pdf, Video
from litdata_files import LEAF, by_hand, chunk, edit, everything, item, opened, ours, same, spec, torch, write

_PAIRS = [{"image": bytes([number]) * 9, "label": number, "ids": np.arange(number)} for number in range(4)]

_HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunk": {"compression": "zstd", "compression_level": "chunk"},
    "batch": {"compression": "zstd", "compression_batch_size": 2},
    "sample": {"compression": "zstd", "compression_level": "sample"},
}


def _one(folder: Path, name: str, *leaves: bytes, **how: Any) -> Any:
    """The only sample of a folder with one leaf of a serialiser."""
    by_hand(folder, [[item(*leaves)]], data_format=[name], data_spec=spec(), item_loader="PyTreeLoader")
    (sample,) = ours(folder, **how)
    return sample


def _refused(folder: Path, name: str, leaf: bytes, match: str, **how: Any) -> None:
    with pytest.raises(DataError, match=match) as caught:
        _one(folder, name, leaf, **how)
    assert "chunk-0-0.bin, chunk 0, row 0" in str(caught.value)


@pytest.mark.parametrize("how", _HOW)
def test_truncated_files(how: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", _PAIRS, chunk_size=4, **_HOW[how])
    (name,) = [path for path in folder.iterdir() if path.suffix == ".bin"]
    whole = name.read_bytes()
    for size in [*range(72), *range(72, len(whole), 13)]:
        if size >= len(whole):
            break
        name.write_bytes(whole[:size])
        with pytest.raises(DataError):
            ours(folder)
        # Even if the index were made to fit.
        if how != "chunk":
            edit(folder, chunk_0={"chunk_bytes": size})
            with pytest.raises(DataError, match=str(name)):
                ours(folder)
            edit(folder, chunk_0={"chunk_bytes": len(whole)})


@pytest.mark.parametrize("how", ["plain", "batch", "sample"])
def test_flipped_headers(how: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", _PAIRS, chunk_size=4, **_HOW[how])
    (name,) = [path for path in folder.iterdir() if path.suffix == ".bin"]
    whole = name.read_bytes()
    head = 24 + 20 + 2 * 24 if how == "batch" else 24
    unused = range(10, 12), range(16, 20)  # flags, and rows of a batch, which the batches themselves tell
    source = opened(folder)
    for at in range(head):
        for bit in (0, 3, 7):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            name.write_bytes(data)
            source = opened(folder)
            if how == "batch" and any(at in span for span in unused):
                same(everything(source), _PAIRS)
            else:
                with pytest.raises(DataError, match=str(name)):
                    everything(source)


def test_flipped_sizes_of_leaves(tmp_path: Path) -> None:
    folder = by_hand(
        tmp_path, [[item(b"abcd", struct.pack("<q", 5))]], data_format=["bytes", "int"], data_spec=spec("a", "b")
    )
    name = folder / "chunk-0-0.bin"
    whole = name.read_bytes()
    for columns in (None, ("a",)):
        for at in range(12, 20):
            data = bytearray(whole)
            data[at] ^= 1
            name.write_bytes(data)
            with pytest.raises(DataError, match="row 0: expected an item of"):
                ours(folder, columns)


@given(data=st.data())
def test_any_damage_is_an_error_or_a_value(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    name, leaf = data.draw(st.sampled_from(_EXAMPLES))
    torn = bytearray(leaf)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(torn)))
        torn[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(DataError):
        _one(tmp_path_factory.mktemp("torn"), name, bytes(torn), tensors="torch")


def _ldgr(version: int, *fields: tuple[str, int, bytes]) -> bytes:
    short = ">H" if version >= 3 else ">B"
    parts = [b"LDGR", bytes([version]), struct.pack(short, len(fields))]
    for name, kind, payload in fields:
        parts += [struct.pack(short, len(name)), name.encode(), bytes([kind]) if version > 1 else b""]
        parts += [struct.pack(">I", len(payload)), payload]
    return b"".join(parts)


_TENSOR = struct.pack(">III", 15, 1, 2) + np.array([7, 8], "<i4").tobytes()
_META = pickle.dumps(
    {"_cls": "data", "_tree": {"x": "__ldgr_t__", "n": 3}, "_paths": [("x",)], "_fields": ["x"]}, protocol=4
)
_GRAPH = _ldgr(3, ("x", 0, _TENSOR), ("_meta", 1, _META))

_EXAMPLES = [
    ("numpy", struct.pack("<IIII", 2, 2, 1, 2) + bytes(8)),
    ("tensor", _TENSOR),
    ("no_header_tensor:10", bytes(8)),
    ("json", b"\5\1\0\0\0\1\0\0\0a\6\1\0\0\0\1\0\0\0\1\0\0\0k\x12" + bytes(8)),
    ("json", b'[1, {"a": "b"}]'),
    ("pil", struct.pack("<III", 2, 2, 3) + b"RGB" + bytes(12)),
    ("jpeg_array", struct.pack("<II", 1, 4) + b"\xff\xd8\xff\xd9"),
    ("graph", _GRAPH),
    ("text", "é".encode()),
]


def test_graphs_of_all_versions(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        graph = _one(tmp_path, "graph", _ldgr(version, ("x", 0, _TENSOR)))
        assert graph.x.tolist() == [7, 8]
    graph = _one(tmp_path, "graph", _GRAPH)
    assert (graph.x.tolist(), graph.n) == ([7, 8], 3)
    _refused(tmp_path, "graph", b"LDGR\x04" + bytes(9), "expected a graph of version 1, 2, 3, found 4")
    _refused(tmp_path, "graph", _GRAPH + b"x", "expected a graph of")
    _refused(tmp_path, "graph", _ldgr(3, ("x", 2, _TENSOR)), "found kind 2")


class _Code:
    """Unpickles to what a call returns; here one that leaves a mark."""

    def __reduce__(self) -> Any:
        return _run, ("mark",)


_marks: list[str] = []


def _run(mark: str) -> dict[str, str]:
    _marks.append(mark)
    return {}


def test_pickles_run_only_if_that_is_allowed(tmp_path: Path) -> None:
    bad = pickle.dumps(_Code())
    with pytest.raises(DataError, match="unpickling runs whatever code the file holds\nhint: say allow_pickle=True"):
        _one(tmp_path, "pickle", bad)
    _refused(tmp_path, "graph", bad, "unpickling runs whatever code")
    _refused(tmp_path, "graph", _ldgr(3, ("_meta", 1, bad)), "hint: say allow_pickle=True")
    _refused(tmp_path, "graph", _ldgr(3, ("_meta", 0, bad)), "hint: say allow_pickle=True")
    assert _marks == []
    assert _one(tmp_path, "pickle", bad, allow_pickle=True) == {}
    assert _marks == ["mark"]
    # A column that is not asked for does no harm.
    by_hand(tmp_path, [[item(bad, b"x")]], data_format=["pickle", "bytes"], data_spec=spec("a", "b"))
    assert ours(tmp_path, ("b",)) == [{"b": b"x"}]


def test_pickles_that_would_never_end(tmp_path: Path) -> None:
    """A list that holds itself; lists that double; a memo of two thousand million entries."""
    own: list[Any] = []
    own.append(own)
    double: list[Any] = []
    for _ in range(60):
        double = [double, double]
    for data in (pickle.dumps(own), pickle.dumps(double), b"\x80\x04]r\xff\xff\xff\x7f."):
        begin = time.monotonic()
        _refused(tmp_path, "graph", _ldgr(3, ("_meta", 1, data)), "hint: say|expected a dict")
        assert time.monotonic() - begin < 5


def test_declared_sizes_take_no_memory(tmp_path: Path) -> None:
    _refused(tmp_path, "numpy", struct.pack("<IIII", 3, 2, 2**31, 2**31), "expected 36893488147419103232 bytes")
    _refused(tmp_path, "numpy", struct.pack("<II", 3, 2**31), "expected an array of 2147483648 dimensions")
    _refused(tmp_path, "tensor", struct.pack(">IIII", 17, 2, 2**31, 1), "expected 17179869184 bytes")
    _refused(tmp_path, "pil", struct.pack("<III", 2**31, 2**31, 3) + b"RGB", "for an image of 2147483648 x 2147483648")
    _refused(tmp_path, "jpeg_array", struct.pack("<I", 2**32 - 1), "expected 4294967295 images")
    _refused(tmp_path, "json", b"\1\xff\xff\xff\xff", "expected 4294967295 values")
    _refused(tmp_path, "json", b"\6\xff\xff\xff\xff\0\0\0\0", "expected 4294967295 records of 0 values")
    _refused(tmp_path, "json", b"\5\1\0\0\0\0\0\0\0" * 5000 + b"\x0b", "RecursionError")


def test_leaves_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    _refused(tmp_path, "int", b"1234567", "expected 8 bytes, found 7")
    _refused(tmp_path, "float", b"", "expected 8 bytes, found 0")
    _refused(tmp_path, "bool", b"\0\0", "expected 1 bytes, found 2")
    _refused(tmp_path, "str", b"\xff", "UnicodeDecodeError")
    _refused(tmp_path, "no_header_numpy:3", b"1234567", "expected whole elements of 8 bytes")
    _refused(tmp_path, "numpy", struct.pack("<II", 14, 0), "expected the number of an array's type, 0 to 13, found 14")
    _refused(tmp_path, "tensor", struct.pack(">II", 21, 0), "found 21")
    _refused(tmp_path, "jpeg", b"no image", "UnidentifiedImageError")
    _refused(tmp_path, "pil", struct.pack("<III", 1, 1, 2) + b"ZZ", "expected the mode of an image, found 'ZZ'")
    _refused(tmp_path, "json", b"\x0c", "expected the type of a value, 0 to 11, found 12")
    _refused(tmp_path, "json", b"", "expected a value, found no bytes")
    _refused(tmp_path, "json", b"\x0bx", "expected a value of 1 bytes, found 2")
    for name in ("no_header_numpy:14", "no_header_numpy:x", "no_header_tensor", "what", "what:else"):
        with pytest.raises(DataError, match="expected"):
            _one(tmp_path, name, b"")


def test_bfloat16_needs_torch(tmp_path: Path) -> None:
    values = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    data = struct.pack(">IIII", 10, 2, 1, 2) + values.view(torch.int16).numpy().tobytes()
    _refused(tmp_path, "tensor", data, 'NumPy has no bfloat16.*\nhint: say tensors="torch"')
    same(_one(tmp_path, "tensor", data, tensors="torch"), values)
    with pytest.raises(DataError, match="NumPy has no bfloat16"):
        _one(tmp_path, "no_header_tensor:10", data[16:])
    same(_one(tmp_path, "no_header_tensor:10", data[16:], tensors="torch"), values[0])


def test_serialisers_are_named_as_litdata_names_them(tmp_path: Path) -> None:
    assert _one(tmp_path, "file:tar", b"raw") == b"raw"
    kinds = {"mesh:obj": Mesh, "nifti:nii.gz": Nifti, "audio": Audio, "video:mp4": Video, "pdf": Pdf}
    for name, kind in kinds.items():
        value = _one(tmp_path, name, b"raw")
        assert (type(value), value.encoded()) == (kind, b"raw")
    # The part behind the colon comes first, if there is a serialiser of that name.
    assert _one(tmp_path, "file:text", b"raw") == "raw"


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (("PIL", "pil"), ("tifffile", "tiff"), ("PIL", "jpeg")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match="hint: pip install"):
                _one(tmp_path, name, b"")


def test_tiff(tmp_path: Path) -> None:
    import tifffile

    array, data = np.arange(12, dtype=np.uint16).reshape(3, 4), io.BytesIO()
    tifffile.imwrite(data, array)
    for name in ("tiff", "tifffile"):
        np.testing.assert_array_equal(_one(tmp_path, name, data.getvalue()), array)


def _tree(kind: Any, context: Any, *children: Any) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": list(children)}])


def _specs() -> Iterator[tuple[Any, str]]:
    yield None, "expected a data_spec, found none"
    yield "", "expected a data_spec of LitData"
    yield "[1]", "expected a data_spec of LitData"
    yield json.dumps([2, LEAF]), "expected version 1, found 2"
    yield "[1, " + '{"type": "builtins.list", "context": "null", "children_spec": [' * 3000, "expected a data_spec"
    yield (
        "[1, " + '{"type": "builtins.list", "context": "null", "children_spec": [' * 200 + "]}" * 200 + "]",
        "at most 100",
    )
    yield _tree("collections.namedtuple", "my.Point", LEAF), "'my.Point', whose class only the program"
    yield _tree("my.Node", None, LEAF), "found 'my.Node'"
    yield _tree("builtins.dict", '["a", "b"]', LEAF), "expected 1 different keys"
    yield _tree("builtins.dict", '["a", "a"]', LEAF, LEAF), "expected 2 different keys"
    yield _tree("builtins.dict", '[{"a": 1}]', LEAF), "expected a data_spec of LitData: TypeError"
    yield _tree("builtins.list", "null"), "expected a serialiser for each of 0 leaves, found 1"
    context = {"default_factory_module": "os", "default_factory_name": "abort", "dict_context": ["a"]}
    yield _tree("collections.defaultdict", context, LEAF), "expected a defaultdict of a built-in type, found os.abort"
    yield _tree("collections.deque", '"x"', LEAF), "expected a deque's greatest length"


@pytest.mark.parametrize("text, match", [*_specs()])
def test_structures_that_are_refused(text: Any, match: str, tmp_path: Path) -> None:
    by_hand(tmp_path, [[item(b"x")]], data_format=["bytes"], data_spec=text)
    with pytest.raises(DataError, match=match):
        opened(tmp_path)


_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"item_loader": "ParquetLoader"}, 'hint: open the same folder with format="parquet"'),
    ({"item_loader": "MyLoader"}, "found 'MyLoader'"),
    ({"item_loader": 1}, "expected str as item_loader"),
    ({"compression": "lz4"}, "found 'lz4'"),
    ({"compression_level": "row"}, "found 'row'"),
    ({"encryption": {}}, "expected encryption with an algorithm"),
    ({"data_format": [1]}, "found 1"),
    ({"data_format": {}}, "expected list as data_format"),
    ({"item_loader": "TokensLoader"}, "expected tokens as bare arrays"),
    ({"item_loader": "TemporalArrayLoader"}, "expected temporal_schema"),
    ({"item_loader": "TemporalArrayLoader", "temporal_schema": {"version": 2}}, "of version 1, found 2"),
    ({"item_loader": "TemporalArrayLoader", "temporal_schema": {"version": 1}}, "KeyError"),
    ({"chunk_0": {"filename": "../chunk-0-0.bin"}}, "below the dataset's folder"),
    ({"chunk_0": {"filename": None}}, "expected filename as text"),
    ({"chunk_0": {"filename": "chunk-0-9.bin"}}, r"chunk-0-9.bin is not there.*\(1 of 1 chunks are missing\)"),
    ({"chunk_0": {"chunk_size": -1}}, "expected a count as chunk_size, found -1"),
    ({"chunk_0": {"chunk_size": True}}, "expected a count as chunk_size, found True"),
    ({"chunk_0": {"chunk_size": 0}}, "chunk-0-0.bin: expected 0 items as the index says, found 1"),
    ({"chunk_0": {"chunk_size": 4}}, "chunk-0-0.bin: expected at least 24 bytes for 4 items as .* says, found 17"),
    ({"chunk_0": {"chunk_size": 2**40}}, "expected at least .* bytes for 1099511627776 items as .* says, found 17"),
    ({"chunk_0": {"chunk_bytes": 1}}, "expected 1 bytes as .* says, found"),
    ({"chunk_0": {"dim": "x"}}, "expected a count as dim"),
]


@pytest.mark.parametrize("change, match", _CONFIGS)
def test_indexes_that_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    by_hand(tmp_path, [[item(b"x")]], data_format=["bytes"], data_spec=spec())
    edit(tmp_path, **change)
    with pytest.raises(DataError, match=match):
        opened(tmp_path)


def test_temporal_schemas_and_items_that_are_refused(tmp_path: Path) -> None:
    def schema(dtype: str, shape: list[Any], groups: list[list[str]]) -> dict[str, Any]:
        fields = {"x": {"dtype": dtype, "shape": shape, "tensor": False}}
        return {"version": 1, "fields": fields, "field_order": ["x"], "groups": groups}

    row = struct.pack("<Iff", 2, 1.0, 2.0)
    config = {"data_format": ["bytes"], "data_spec": spec(), "item_loader": "TemporalArrayLoader"}
    by_hand(tmp_path, [[row]], **config, temporal_schema=schema("<f4", [], [["x"]]))
    same(ours(tmp_path), [{"x": np.array([1, 2], "f4")}])
    for bad in (
        schema("O", [], [["x"]]),
        schema("<f4", [0], [["x"]]),
        schema("<f4", [], []),
        schema("<f4", [2**40] * 3, [["x"]]),
    ):
        by_hand(tmp_path, [[row]], **config, temporal_schema=bad)
        with pytest.raises(DataError, match="expected a temporal_schema of LitData"):
            opened(tmp_path)
    for torn in (row[:-1], b"", struct.pack("<I", 0), struct.pack("<I", 2**32 - 1)):
        by_hand(tmp_path, [[torn]], **config, temporal_schema=schema("<f4", [], [["x"]]))
        with pytest.raises(DataError, match="row 0"):
            ours(tmp_path)


def test_tables_that_are_damaged(tmp_path: Path) -> None:
    rows = [{"a": number, "b": "x" * number} for number in range(3)]
    folder = write(tmp_path / "data", rows)
    name = folder / "chunk-0-0.bin"
    whole = name.read_bytes()
    assert whole.endswith(b"LDARW01\0")
    for at in [*range(26), *range(len(whole) - 12, len(whole))]:
        data = bytearray(whole)
        data[at] ^= 0x41
        name.write_bytes(data)
        with pytest.raises(DataError, match="chunk-0-0"):
            ours(folder)
    for at in range(26, len(whole) - 12, 11):
        data = bytearray(whole)
        data[at] ^= 0xFF
        name.write_bytes(data)
        try:
            assert len(ours(folder)) == 3
        except DataError as error:
            assert "chunk-0-0.bin" in str(error)  # noqa: PT017
    name.write_bytes(whole)
    edit(folder, data_format=["bytes"], data_spec=spec(), types=None)
    with pytest.raises(DataError, match="found rows of a table"):
        ours(folder)


def test_ends_of_items_that_lie(tmp_path: Path) -> None:
    """Bytes behind the last item, batches that overlap, a magic number that is missing."""
    by_hand(tmp_path, [chunk([item(b"x")]) + b"more"], [1], data_format=["bytes"], data_spec=spec())
    with pytest.raises(DataError, match="expected the last item to end with the file"):
        ours(tmp_path)
    by_hand(
        tmp_path, [[item(b"x")]], data_format=["bytes"], data_spec=spec(), compression="zstd", compression_level="batch"
    )
    with pytest.raises(DataError, match="expected items compressed in batches"):
        ours(tmp_path)


@pytest.mark.parametrize("how", _HOW)
def test_a_chunk_that_has_no_item_by_the_index(how: str, tmp_path: Path) -> None:
    folder = write(tmp_path, _PAIRS, chunk_size=2, **_HOW[how])
    edit(folder, chunk_1={"chunk_size": 0})
    with pytest.raises(DataError, match=r"chunk-0-1\S*: expected 0 items as the index says, found 2"):
        opened(folder)


def test_rows_of_a_chunk_that_has_none_by_the_index(tmp_path: Path) -> None:
    folder = write(tmp_path, [{"a": number} for number in range(4)], chunk_size=2)
    edit(folder, chunk_1={"chunk_size": 0})
    with pytest.raises(DataError, match=r"chunk-0-1\S*: expected 0 items as the index says, found 2"):
        opened(folder)


def test_a_chunk_that_has_no_item(tmp_path: Path) -> None:
    by_hand(tmp_path, [[item(b"x")], [], b""], [1, 0, 0], data_format=["pickle"], data_spec=spec("a"))
    assert opened(tmp_path).sizes.tolist() == [1, 0, 0]


def test_tokens_that_the_index_leaves_out(tmp_path: Path) -> None:
    tokens = np.arange(9, dtype="<u2").tobytes()
    by_hand(tmp_path, [[tokens], [tokens]], data_format=["no_header_numpy:5"], item_loader="TokensLoader")
    edit(tmp_path, chunk_0={"dim": 9}, chunk_1={"dim": 9})
    assert opened(tmp_path, block_size=10).sizes.tolist() == [0, 0]
    for dim in (0, 3):
        edit(tmp_path, chunk_1={"dim": dim})
        with pytest.raises(DataError, match=f"chunk-0-1.bin, chunk 1: expected {dim} tokens .* found 18 bytes"):
            opened(tmp_path, block_size=4)
