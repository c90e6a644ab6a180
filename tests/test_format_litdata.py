"""LitData folders: every value as litdata returns it, however its chunks are compressed or encrypted."""

import io
import json
import pickle
import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import litdata_files as files
from headrace.errors import DataError, MissingError
from headrace.formats.litdata import is_litdata, load_decryption
from litdata_files import by_hand, edit, everything, item, opened, ours, same, spec, theirs, write

torch = files.torch

import litdata  # noqa: E402
import litdata.types as kinds  # noqa: E402
from litdata.streaming import serializers as stored  # noqa: E402
from litdata.streaming.item_loader import TokensLoader  # noqa: E402
from litdata.streaming.temporal import TemporalArrayLoader  # noqa: E402
from litdata.utilities.encryption import FernetEncryption, RSAEncryption  # noqa: E402

_random = np.random.default_rng(5)


def _pixels(width: int, height: int, channels: int = 3) -> Any:
    shape = (height, width, channels) if channels > 1 else (height, width)
    # Smooth, so that a JPEG of it is not all noise.
    return (np.indices(shape).sum(0) * 7 + _random.integers(0, 9, shape)).astype(np.uint8)


def _encoded(kind: str, width: int = 21, height: int = 13, mode: str = "RGB", **how: Any) -> bytes:
    image = Image.fromarray(_pixels(width, height)).convert(mode)
    data = io.BytesIO()
    image.save(data, kind, **how)
    return data.getvalue()


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return _encoded("JPEG", exif=exif)


def _bytes_only(name: str) -> Any:
    return {"video": stored.VideoSerializer, "audio": stored.AudioSerializer}[name](decode="bytes")


_RAW = b"not what it says it is"
_ALIKE = np.arange(6).reshape(2, 3)

# Samples of each of litdata's serialisers; a dict of plain values would go to a table, so leaves stand alone or in
# tuples.
_LEAVES: dict[str, list[Any]] = {
    "str": ["", "Zürich", "x" * 5000],
    "text": [kinds.Text(text="naïve"), kinds.Text(text="")],
    "bool": [True, False],
    "int": [0, -1, 2**63 - 1, -(2**63)],
    "float": [0.0, -1.5, float("inf"), float("nan"), 5e-324],
    "bytes": [b"", b"\0\xff" * 50],
    "numpy": [_ALIKE.astype(kind) for kind in "bhilBHILefdFD?"] + [np.zeros((0, 3)), np.zeros((2, 0, 4), "u1")],
    "no_header_numpy": [np.arange(5), np.zeros(0, int)],
    "tensor": [
        torch.tensor(3.5),
        torch.zeros(0, 3, dtype=torch.int16),
        torch.arange(24).reshape(2, 3, 4),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.tensor([[True], [False]]),
        torch.ones(2, 2, dtype=torch.float16),
        torch.ones(2, 2, dtype=torch.uint16),
    ],
    "no_header_tensor": [torch.arange(5), torch.zeros(0, dtype=torch.int64)],
    "jpeg": [kinds.Jpeg(bytes=data) for data in (_encoded("JPEG"), _encoded("JPEG", 8, 8, "L"), _turned())],
    "image": [kinds.Image(bytes=_encoded("PNG", mode=mode)) for mode in ("RGB", "L", "RGBA", "LA", "1", "P")]
    + [kinds.Image(bytes=_encoded("JPEG", progressive=True)), kinds.Image(bytes=_encoded("WEBP", lossless=True))],
    "jpeg_array": [kinds.JpegArray([kinds.Jpeg(bytes=_encoded("JPEG", 8 + n, 8)) for n in range(3)])],
    "pil": [Image.fromarray(_pixels(5, 7)).convert(mode) for mode in ("RGB", "L", "1", "RGBA", "CMYK", "I", "F")],
    "video": [kinds.Video(bytes=_RAW)],
    "audio": [kinds.Audio(bytes=_RAW)],
    "file": [kinds.File(bytes=_RAW), kinds.File(bytes=b"")],
    "pickle": [{1, 2}, {3}, None],
    "graph": [],
}  # fmt: skip


def _graphs() -> list[Any]:
    from torch_geometric.data import Data, HeteroData

    one = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, name="a")
    two = HeteroData()
    two["user"].x = torch.rand(2, 2)
    two["user", "likes", "item"].edge_index = torch.tensor([[0], [1]])
    return [one, two]


@pytest.mark.parametrize("name", [name for name in _LEAVES if name != "graph"])
def test_leaves_are_what_litdata_returns(name: str, tmp_path: Path) -> None:
    samples = [(sample, number) for number, sample in enumerate(_LEAVES[name])]
    folder = write(tmp_path / "data", samples)
    used = json.loads((folder / "index.json").read_text())["config"]["data_format"]
    assert used[0].split(":")[0] == name
    theirs_ = theirs(folder, serializers={name: _bytes_only(name)} if name in ("video", "audio") else None)
    same(ours(folder, allow_pickle=True), theirs_)
    if name != "pickle":
        same(ours(folder, tensors="torch"), theirs_)


@pytest.mark.parametrize("kind", [*"bhilBHILefdFD?"])
def test_bare_arrays_of_each_type(kind: str, tmp_path: Path) -> None:
    samples = [(np.arange(count).astype(kind), count) for count in range(4)]
    folder = write(tmp_path / "arrays", samples)
    same(ours(folder), samples)
    if kind in "IL":  # which litdata has no number for, as tensors
        return
    tensors = [(torch.from_numpy(array), count) for array, count in samples]
    folder = write(tmp_path / "tensors", tensors)
    same(ours(folder), samples)
    same(ours(folder, tensors="torch"), theirs(folder))


def test_graphs_need_no_unpickling(tmp_path: Path) -> None:
    for number, graph in enumerate(_graphs()):
        folder = write(tmp_path / str(number), [(graph, 1)] * 4)
        for mine, other in zip(ours(folder), theirs(folder), strict=True):
            assert type(mine[0]) is type(other[0]) is type(graph)
            left, right = mine[0].to_dict(), other[0].to_dict()
            assert str(left) == str(right)


def test_graphs_are_dicts_where_torch_geometric_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "data", [(graph, 1) for graph in _graphs()[:1]])
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    ((graph, _),) = ours(folder)
    assert (graph["num_nodes"], graph["name"]) == (3, "a")
    same(graph["edge_index"], np.array([[0, 1], [1, 2]]))


_SAMPLES = [
    {"image": bytes([number]) * number, "label": number, "ids": np.arange(number), "text": "ä" * number}
    for number in range(11)
]

_HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunk": {"compression": "zstd", "compression_level": "chunk"},
    "chunk by level": {"compression": "zstd:7", "compression_level": "chunk"},
    "batch": {"compression": "zstd"},
    "small batches": {"compression": "zstd:2", "compression_batch_size": 2},
    "sample": {"compression": "zstd", "compression_level": "sample"},
}


@pytest.mark.parametrize("how", _HOW)
def test_compressed_chunks(how: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", _SAMPLES, chunk_size=5, **_HOW[how])
    source = opened(folder)
    same(everything(source), theirs(folder))
    same(everything(source), _SAMPLES)
    assert source.sizes.tolist() == [5, 5, 1]
    assert source.stored.tolist() == [(folder / source.file(chunk)).stat().st_size for chunk in range(3)]
    assert source.columns == ("image", "label", "ids", "text")
    chosen = everything(source, ("text", "label"))
    same(chosen, [{"text": sample["text"], "label": sample["label"]} for sample in _SAMPLES])
    held = source.load(0).nbytes
    assert (held > 150) == (how not in ("plain", "sample"))


_KEYS = {"fernet": FernetEncryption, "rsa": RSAEncryption}


@pytest.mark.parametrize("packed", ["plain", "chunk"])
@pytest.mark.parametrize("algorithm", _KEYS)
@pytest.mark.parametrize("level", ["chunk", "sample"])
def test_encrypted_chunks(level: str, algorithm: str, packed: str, tmp_path: Path) -> None:
    key = _KEYS[algorithm]("secret", level=level)
    # RSA encrypts no more than 190 bytes at once.
    samples = [(number, b"ab" * number) for number in range(7)]
    folder = write(tmp_path / "data", samples, encryption=key, chunk_size=3, **_HOW[packed])
    key.save(str(tmp_path / "key"))
    saved = load_decryption(tmp_path / "key", "secret")
    for decryption in (key, saved, pickle.loads(pickle.dumps(saved))):
        same(ours(folder, decryption=decryption), samples)
    same(theirs(folder, encryption=key), samples)

    with pytest.raises(ValueError, match="hint: give its key"):
        opened(folder)
    with pytest.raises(ValueError, match="expected a key of"):
        opened(folder, decryption=_KEYS[algorithm]("secret", level="chunk" if level == "sample" else "sample"))
    with pytest.raises(DataError, match="either the key is another one"):
        ours(folder, decryption=_KEYS[algorithm]("secret", level=level))


def test_saved_keys_that_are_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"level": "sample"}', '{"level": "row", "salt": ""}'):
        (tmp_path / "key").write_text(text)
        with pytest.raises(DataError, match="expected a key as litdata saves it"):
            load_decryption(tmp_path / "key", "secret")


_ROWS = [
    {"text": "é" * number, "n": number, "list": list(range(number)), "deep": {"a": [{"b": 1.5}], "c": None}}
    for number in range(300)
]


@pytest.mark.parametrize("how", [{}, {"compression": "zstd"}, {"compression": "zstd", "compression_level": "chunk"}])
def test_rows_of_a_table(how: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path / "data", _ROWS, chunk_size=280, **how)
    source = opened(folder)
    same(everything(source), theirs(folder))
    same(everything(source), _ROWS)
    assert source.columns == ("text", "n", "list", "deep")
    same(everything(source, ("n", "text")), [{"n": row["n"], "text": row["text"]} for row in _ROWS])
    same(dict(source.load(1).arrays(("n",))), {"n": list(range(280, 300))})


def test_keys_that_only_later_rows_have(tmp_path: Path) -> None:
    rows = [{"a": 1}] * 3 + [{"a": 2, "b": "x"}, {"a": 3}, {"a": 4}] + [{"a": 5}] * 3
    folder = write(tmp_path / "data", rows)
    source = opened(folder)
    assert source.schema == {"a": "int", "b": "str"}
    # litdata itself leaves the key out of a chunk in which no row has it.
    same(everything(source), [{"a": row["a"], "b": row.get("b")} for row in rows])
    same(everything(source, ("b",)), [{"b": row.get("b")} for row in rows])


@pytest.mark.parametrize("level", ["chunk", "sample"])
def test_encrypted_tables_which_litdata_cannot_read(level: str, tmp_path: Path) -> None:
    key = FernetEncryption("secret", level=level)
    folder = write(tmp_path / "data", _ROWS[:5], encryption=key)
    same(ours(folder, decryption=key), _ROWS[:5])


@pytest.mark.parametrize("as_tensors", [False, True])
def test_tokens(as_tensors: bool, tmp_path: Path) -> None:
    documents = [np.arange(number * 7, number * 9 + 3, dtype=np.int32) for number in range(10)]
    given_ = [torch.from_numpy(document) for document in documents] if as_tensors else documents
    folder = write(tmp_path / "data", given_, chunk_bytes=90, item_loader=TokensLoader())
    same(ours(folder), documents)
    for block in (1, 4, 7, 1000):
        source = opened(folder, block_size=block)
        same(everything(source), theirs(folder, item_loader=TokensLoader(block_size=block)))
        assert source.schema == {"": "ndarray[int32]"}
    assert len({opened(folder, block_size=block).identity() for block in (None, 1, 4)}) == 3
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        opened(folder, block_size=0)
    edit(folder, chunk_0={"dim": 1})
    with pytest.raises(DataError, match="expected 1 tokens of 4 bytes"):
        ours(folder, block_size=2)
    edit(folder, chunk_0={"dim": None})
    with pytest.raises(DataError, match="expected the tokens of each chunk"):
        ours(folder, block_size=2)
    with pytest.raises(ValueError, match="is for datasets of tokens"):
        opened(write(tmp_path / "other", _SAMPLES), block_size=2)


def test_temporal_items(tmp_path: Path) -> None:
    records = [
        {"x": _random.random((frames, 2), np.float32), "y": torch.arange(frames), "ok": np.ones(frames, bool)}
        for frames in (3, 1, 8, 2)
    ]
    folder = write(tmp_path / "data", records, item_loader=TemporalArrayLoader([["y", "ok"]]))
    source = opened(folder)
    same(everything(source), theirs(folder, item_loader=TemporalArrayLoader()))
    same(ours(folder, tensors="torch"), records)
    assert source.schema == {"x": "ndarray[float32]", "y": "ndarray[int64]", "ok": "ndarray[bool]"}
    same(everything(source, ("ok",)), [{"ok": record["ok"]} for record in records])


def test_containers_of_leaves(tmp_path: Path) -> None:
    sample = {
        "a": [np.zeros(2), (1, {"b": b"x"}, [])],
        "o": OrderedDict(z=1, y=[2.5]),
        "d": defaultdict(list, k=3),
        "q": deque([1, 2], maxlen=5),
        "e": {},
    }
    # litdata makes plain dicts of a sample that is one, and of those in it.
    folder = write(tmp_path / "kept", [[sample]] * 4)
    same(ours(folder), theirs(folder))
    ((first,), *_) = ours(folder)
    assert (first["d"].default_factory, first["q"].maxlen) == (list, 5)
    folder = write(tmp_path / "plain", [sample] * 4)
    same(ours(folder), theirs(folder))
    same(ours(folder, ("q", "a")), [{"q": sample["q"], "a": sample["a"]}] * 4)
    assert opened(folder).schema["a"] == "list[ndarray[float64], tuple[int, {b: bytes}, list[]]]"


_TREES = st.recursive(
    st.sampled_from([1, 2.5, True, "text", b"raw", "array"]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


def _filled(shape: Any, number: int) -> Any:
    if isinstance(shape, dict):
        return {key: _filled(part, number + 1) for key, part in shape.items()}
    if isinstance(shape, list | tuple):
        return type(shape)(_filled(part, number + 2) for part in shape)
    if shape == "array":
        return np.arange(number % 5)
    return shape if isinstance(shape, bool) else shape * (number % 4)


@settings(max_examples=25)
@given(shape=_TREES, count=st.integers(1, 7), how=st.sampled_from(sorted(_HOW)))
def test_any_tree(shape: Any, count: int, how: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    samples = [(_filled(shape, number), np.zeros(1)) for number in range(count)]
    folder = write(tmp_path_factory.mktemp("tree") / "data", samples, **_HOW[how])
    same(ours(folder), samples)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(value=_VALUES, junk=st.binary(max_size=30))
def test_json_leaves(value: Any, junk: bytes) -> None:
    from headrace.formats.litdata.nested import nested

    data = stored._nested_dumps(value)
    same(nested(b"..." + data + junk, 3, 3 + len(data)), stored._nested_loads(data))
    old = json.dumps([value]).encode()
    same(nested(old, 0, len(old)), [value])
    with pytest.raises((DataError, ValueError, IndexError, struct.error)):
        nested(data[:-1], 0, len(data) - 1)


@given(value=_VALUES, protocol=st.integers(2, 5))
def test_plain_pickles_are_read_without_unpickling(value: Any, protocol: int) -> None:
    from headrace.formats.litdata.plain import plain_pickle

    data = pickle.dumps({"a": value, ("b", 1): [value]} if not isinstance(value, dict | list) else value, protocol)
    try:
        found = plain_pickle(data)
    except DataError as error:
        assert "used twice" in str(error)  # noqa: PT017
        return
    same(found, pickle.loads(data))


def test_user_serialisers(tmp_path: Path) -> None:
    class Upper(stored.Serializer):
        def serialize(self, data: Any) -> tuple[bytes, str]:
            return data.text.lower().encode(), "upper:3"

        def deserialize(self, data: bytes) -> str:
            return bytes(data).decode().upper() * self.times

        def can_serialize(self, data: Any) -> bool:
            return type(data) is kinds.Text

        def setup(self, metadata: Any) -> None:
            self.times = int(metadata.split(":")[1])

    folder = write(tmp_path / "data", [(kinds.Text(text="Ab"), 1)], serializers={"upper": Upper()})
    same(ours(folder, serializers={"upper": Upper()}), theirs(folder, serializers={"upper": Upper()}))
    assert ours(folder, serializers={"upper": bytes, "int": len}) == [(b"ab", 8)]
    with pytest.raises(DataError, match=r"hint: if it is your own, give it as serializers=\{'upper'"):
        ours(folder)


def test_another_process_can_open_it(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "data", _SAMPLES))
    source.load(0)
    program = "import pickle, sys; source = pickle.load(sys.stdin.buffer); print(source.load(2)[1], source.identity())"
    done = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(source), capture_output=True, check=True)
    assert done.stdout.decode().strip() == f"{_SAMPLES[7]} {source.identity()}"


def test_what_is_there_of_compressed_and_decompressed_files(tmp_path: Path) -> None:
    """Case B122."""
    folder = write(tmp_path / "data", _SAMPLES, **_HOW["chunk"])
    packed = opened(folder)
    (name, other, *_) = [packed.file(chunk) for chunk in range(len(packed.sizes))]
    plain = files.Store([str(folder)], {}).open(packed._files[0].file, codec="zstd")
    (folder / name).unlink()
    (folder / name.replace(".zstd", "")).write_bytes(plain.read(0, plain.size))
    # A torn twin is passed over.
    (folder / other.replace(".zstd", "")).write_bytes(b"torn")
    mixed = opened(folder)
    assert [mixed.file(0), mixed.file(1)] == ["chunk-0-0.bin", "chunk-0-1.zstd.bin"]
    same(everything(mixed), _SAMPLES)
    assert mixed.identity() == packed.identity()
    edit(folder, chunk_0={"filename": "chunk-0-0.bin"}, chunk_1={"filename": "chunk-0-1.bin"})
    same(ours(folder), _SAMPLES)


def test_indexes_of_old_releases(tmp_path: Path) -> None:
    """They leave the header out of chunk_bytes, and most of the config."""
    for how in ("plain", "chunk"):
        folder = write(tmp_path / how, _SAMPLES, **_HOW[how])
        path = folder / "index.json"
        index = json.loads(path.read_text())
        for entry in index["chunks"]:
            entry["chunk_bytes"] -= 4 + 4 * (entry["chunk_size"] + 1)
        kept = ("compression", "data_format", "data_spec")
        path.write_text(json.dumps({"chunks": index["chunks"], "config": {k: index["config"][k] for k in kept}}))
        same(ours(folder), _SAMPLES)


def test_what_is_an_index() -> None:
    assert is_litdata({"chunks": [], "config": {}})
    for other in (None, [], {}, {"shards": []}, {"chunks": {}, "config": {}}, {"chunks": []}):
        assert not is_litdata(other)


def test_identity_is_that_of_the_samples(tmp_path: Path) -> None:
    one = write(tmp_path / "one", _SAMPLES)
    two = write(tmp_path / "two", _SAMPLES)
    assert opened(one).identity() == opened(two).identity() == opened(one, tensors="torch").identity()
    assert opened(one).identity() != opened(write(tmp_path / "three", _SAMPLES[:-1])).identity()


def test_no_index_and_none_of_litdata(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-0.bin").write_bytes(b"x")
    with pytest.raises(MissingError):
        opened(tmp_path)
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(DataError, match="expected JSON"):
        opened(tmp_path)
    (tmp_path / "index.json").write_text('{"shards": []}')
    with pytest.raises(DataError, match="expected an index of LitData"):
        opened(tmp_path)
    with pytest.raises(ValueError, match="tensors must be"):
        opened(tmp_path, tensors="jax")


def test_litdata_version() -> None:
    """What these tests compare with."""
    assert tuple(map(int, litdata.__version__.split(".")[:3])) >= (0, 2, 76)


def test_bare_leaves_by_hand(tmp_path: Path) -> None:
    config = {"data_format": ["numpy"], "data_spec": spec()}
    folder = by_hand(tmp_path, [[item(struct.pack("<IId", 10, 0, 2.5))]], **config)
    same(ours(folder), [np.array(2.5)])
