"""LitData folders: every value as litdata returns it."""

import io
import json
import pickle
import struct
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
from headrace.errors import DataError
from litdata_files import HOW, by_hand, item, opened, ours, same, spec, theirs, write

torch = files.torch

import litdata  # noqa: E402
import litdata.types as kinds  # noqa: E402
from litdata.streaming import serializers as stored  # noqa: E402

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


_TURNED = Image.Exif()
_TURNED[0x0112] = 6


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
    "jpeg": [kinds.Jpeg(bytes=_encoded("JPEG", mode="L")), kinds.Jpeg(bytes=_encoded("JPEG", exif=_TURNED))],
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


_MOVING = {"save_all": True, "append_images": [Image.fromarray(_pixels(21, 13) // 2)]}
_KINDS: dict[str, bytes] = {
    "CMYK": _encoded("JPEG", mode="CMYK"),
    "4:2:0": _encoded("JPEG", quality=60, subsampling=2),
    "deep": _encoded("PNG", mode="I;16"),
    "transparent colour": _encoded("PNG", transparency=(1, 2, 3)),
    "transparent palette": _encoded("PNG", mode="P", transparency=3),
    "GIF": _encoded("GIF"),
    "moving GIF": _encoded("GIF", **_MOVING),
    "moving PNG": _encoded("PNG", **_MOVING),
    "turned WEBP": _encoded("WEBP", lossless=True, exif=_TURNED),
    "BMP": _encoded("BMP"),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_images_are_the_pixels_that_torchvision_makes(kind: str, tmp_path: Path) -> None:
    data = _KINDS[kind]
    config = {"compression": None, "item_loader": "PyTreeLoader"}
    folder = by_hand(tmp_path / "data", [[item(data)]], data_format=["image:png"], data_spec=spec(), **config)
    if kind == "BMP":  # which torchvision cannot read
        (mine,) = ours(folder)
        same(np.asarray(Image.open(io.BytesIO(data))).transpose(2, 0, 1).copy(), mine)
    else:
        same(ours(folder), theirs(folder))


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
@given(shape=_TREES, count=st.integers(1, 7), how=st.sampled_from([*HOW]))
def test_any_tree(shape: Any, count: int, how: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    samples = [(_filled(shape, number), np.zeros(1)) for number in range(count)]
    folder = write(tmp_path_factory.mktemp("tree") / "data", samples, **HOW[how])
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


def test_litdata_version() -> None:
    """What these tests compare with."""
    assert tuple(map(int, litdata.__version__.split(".")[:3])) >= (0, 2, 76)


def test_bare_leaves_by_hand(tmp_path: Path) -> None:
    config = {"data_format": ["numpy"], "data_spec": spec()}
    folder = by_hand(tmp_path, [[item(struct.pack("<IId", 10, 0, 2.5))]], **config)
    same(ours(folder), [np.array(2.5)])
