"""Samples become batches by stated rules, and what fits no rule is an error that names its place."""

import subprocess
import sys
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate as torch_collate

from headrace.loading import collate
from headrace.loading.collate import default_collate, register_collate

Point = namedtuple("Point", ["x", "y"])


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


@dataclass(slots=True)
class Checked:
    x: np.ndarray

    def __post_init__(self) -> None:
        assert self.x.ndim == 1


@pytest.mark.parametrize(
    "samples, dtype",
    [
        ([1, 2], "int64"),
        ([1.0, 2.0], "float64"),
        ([True, False], "bool"),
        ([1j, 2j], "complex128"),
        ([1, 2.5], "float64"),
        ([2.5, 1], "float64"),
        ([True, 2], "int64"),
        ([np.int16(1), np.int16(2)], "int16"),
        ([np.uint8(1), np.uint8(255)], "uint8"),
        ([np.uint64(2**63), np.uint64(1)], "uint64"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.bool_(True), np.bool_(False)], "bool"),
        ([np.datetime64("2020-01-01"), np.datetime64("2021-01-01")], "datetime64[D]"),
        ([1, np.int32(2)], "int64"),
    ],
)
def test_numbers_become_an_array(samples: list[Any], dtype: str) -> None:
    batch = default_collate(samples)
    assert isinstance(batch, np.ndarray)
    assert batch.dtype == dtype
    assert batch.tolist() == samples or dtype.startswith("datetime")


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_every_int64_stays_itself(samples: list[int]) -> None:
    batch = default_collate(samples)
    assert batch.dtype == np.int64
    assert batch.tolist() == samples


@pytest.mark.parametrize("samples", [[1, 2**63], [-1, 2**63], [2**64, 1], [2**63]])
def test_an_int_beyond_int64_is_refused_not_rounded(samples: list[int]) -> None:
    with pytest.raises(ValueError, match="int64 cannot hold"):
        default_collate(samples)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
@pytest.mark.parametrize("dtype", ["int32", "float16", "U3", "object"])
def test_arrays_are_stacked(shape: tuple[int, ...], dtype: str) -> None:
    samples = [np.full(shape, number).astype(dtype) for number in range(5)]
    batch = default_collate(samples)
    assert batch.dtype == dtype
    assert batch.shape == (5, *shape)
    np.testing.assert_array_equal(batch, np.stack(samples))
    assert not any(np.shares_memory(batch, sample) for sample in samples if sample.size)


def test_a_mask_is_kept() -> None:
    batch = default_collate([np.ma.array([1, 2], mask=[0, 1]), np.ma.array([3, 4], mask=[1, 0])])
    assert batch.mask.tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_order_does_not_matter(order: Any) -> None:
    samples = [np.asarray(np.arange(6).reshape(2, 3) + number, order=order) for number in range(3)]
    np.testing.assert_array_equal(default_collate(samples), np.stack(samples))


def test_tensors_are_stacked_to_a_tensor() -> None:
    batch = default_collate([{"x": torch.ones(2)}, {"x": torch.zeros(2)}])
    assert torch.equal(batch["x"], torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


def test_containers_keep_their_type() -> None:
    assert default_collate([("a", "b"), ("c", "d")]) == (["a", "c"], ["b", "d"])
    assert default_collate([["a", "b"], ["c", "d"]]) == [["a", "c"], ["b", "d"]]
    assert default_collate([Point("a", "b"), Point("c", "d")]) == Point(["a", "c"], ["b", "d"])
    assert default_collate([Pair("a", b"x"), Pair("c", b"y")]) == Pair(["a", "c"], [b"x", b"y"])
    ordered = default_collate([OrderedDict(b="x", a="y")] * 2)
    assert type(ordered) is OrderedDict
    assert list(ordered.items()) == [("b", ["x", "x"]), ("a", ["y", "y"])]
    default = default_collate([defaultdict(list, a="x")] * 2)
    assert default["missing"] == []
    assert default_collate([UserDict(a="x")] * 2) == UserDict(a=["x", "x"])
    assert default_collate([MappingProxyType({"a": "x"})] * 2) == MappingProxyType({"a": ["x", "x"]})
    assert [column.tolist() for column in default_collate([range(2), range(2)])] == [[0, 0], [1, 1]]
    assert default_collate([(), ()]) == ()


def test_the_samples_are_not_changed() -> None:
    samples = [defaultdict(list, a=1), defaultdict(list, a=2)]
    default_collate(samples)
    assert samples == [{"a": 1}, {"a": 2}]


def test_a_dataclass_is_not_checked_as_if_it_were_one_sample() -> None:
    assert default_collate([Checked(np.zeros(3)), Checked(np.ones(3))]).x.shape == (2, 3)


def test_text_and_none() -> None:
    assert default_collate(["a", None]) == ["a", None]
    assert default_collate([None, "a"]) == [None, "a"]
    assert default_collate([None, None]) == [None, None]
    assert default_collate([b"a", bytearray(b"b")]) == [b"a", b"b"]
    assert default_collate([np.str_("a"), "b"]) == ["a", "b"]
    assert default_collate([]) == []
    for samples in ([1, None], [None, 1], [np.zeros(1), None], [None, np.zeros(1)], [{"a": 1}, None]):
        with pytest.raises(ValueError, match=r"sample 0 is .*, sample 1 is .*\nhint: .*collate_fn"):
            default_collate(samples)


def test_images_stay_a_list() -> None:
    from PIL import Image

    images = [Image.new("RGB", (2, 3)), Image.new("L", (5, 1))]
    assert default_collate([{"image": image} for image in images])["image"] == images


@pytest.mark.parametrize(
    "samples, message",
    [
        ([{"image": [0, 0, np.zeros((2, 3))]}, {"image": [0, 0, np.zeros((4, 3))]}], r'\["image"\]\[2\]: sample 0 has '
         r"shape \(2, 3\), sample 1 has shape \(4, 3\)\nhint: .*pad.*collate_fn"),
        ([{"a": 1}, {"b": 1}], "sample 1 lacks 'a'"),
        ([{"a": 1}, {"a": 1, "b": 1}], "sample 1 has 'b', which sample 0 lacks"),
        ([{"a": {"b": 1}}, {"a": {}}], r"\['a'\]: sample 1 lacks 'b'"),
        ([[1, 2], [1, 2, 3]], "sample 0 has 2 entries, sample 1 has 3"),
        ([Pair(1, 2), Pair(1, "x")], r"\.right: sample 0 is int, sample 1 is str"),
        ([(1, torch.zeros(2)), (1, torch.zeros(3))], r"\[1\]: sample 0 has shape \(2,\), sample 1 has shape \(3,\)"),
        ([1.5, "a"], "sample 0 is float, sample 1 is str"),
        (["a", 1], "sample 0 is str, sample 1 is int"),
        ([[1], "a"], "sample 0 is list, sample 1 is str"),
        ([np.zeros(2), torch.zeros(2)], "sample 0 is ndarray, sample 1 is Tensor"),
        ([1, [1]], "sample 0 is int, sample 1 is list"),
        ([np.zeros(1), np.zeros(2), np.zeros(3)], "sample 1 has shape"),
        ([np.zeros(2), np.zeros(1), np.zeros(3)], "sample 1 has shape"),
    ],
)  # fmt: skip
def test_errors_name_the_place(samples: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace('"', "'")):
        default_collate(samples)


def test_a_type_without_a_rule_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"\['a'\]: no rule for object\nhint: .*register_collate"):
        default_collate([{"a": object()}])


def test_own_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collate, "_registered", {})
    monkeypatch.setattr(collate, "_rules", {})

    class Third(Fraction):
        pass

    register_collate(Fraction, lambda samples: np.array([float(sample) for sample in samples]))
    assert default_collate([{"a": Third(1, 2)}])["a"].tolist() == [0.5]
    register_collate(Third, len)
    assert default_collate([{"a": Third(1, 2)}] * 3)["a"] == 3
    register_collate(int, list)
    assert default_collate([1, 2]) == [1, 2]
    register_collate(Third, lambda samples: samples[0] / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        default_collate([{"a": Third(1, 2)}])
    assert caught.value.__notes__ == ["while collating ['a'] with the function registered for Third"]
    for wrong in ((1, len), (int, 1)):
        with pytest.raises(TypeError, match="register_collate takes"):
            register_collate(*wrong)  # type: ignore[arg-type]


_leaves = st.sampled_from(["int", "float", "bool", "str", "array", "tensor", "scalar"])
_shapes = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


def _sample(shape: Any, seed: int) -> Any:
    if isinstance(shape, dict):
        return {key: _sample(inner, seed) for key, inner in shape.items()}
    if isinstance(shape, list):
        return [_sample(inner, seed) for inner in shape]
    values: dict[str, Any] = {
        "int": seed,
        "float": seed / 2,
        "bool": bool(seed % 2),
        "str": str(seed),
        "array": np.full((2, 3), seed, np.float32),
        "tensor": torch.full((2,), seed),
        "scalar": np.int16(seed),
    }
    return values[shape]


def _plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _plain(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [_plain(value) for value in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


@given(_shapes, st.integers(1, 5))
def test_values_are_those_of_torch(shape: Any, count: int) -> None:
    samples = [_sample(shape, seed) for seed in range(count)]
    assert _plain(default_collate(samples)) == _plain(torch_collate(samples))


def test_graphs_become_a_batch_where_pyg_is_imported() -> None:
    code = """if True:
        import torch, warnings
        warnings.simplefilter("ignore")
        from torch_geometric.data import Batch, Data, HeteroData
        from headrace.loading.collate import default_collate
        graphs = [Data(x=torch.ones(n, 2), edge_index=torch.zeros(2, n, dtype=torch.long)) for n in (2, 3)]
        batch = default_collate(graphs)
        assert isinstance(batch, Batch) and batch.num_graphs == 2 and batch.batch.tolist() == [0, 0, 1, 1, 1]
        hetero = HeteroData()
        hetero["a"].x = torch.ones(2, 1)
        batch = default_collate([(hetero, 1), (hetero, 2)])
        assert batch[0]["a"].x.shape == (4, 1) and batch[1].tolist() == [1, 2]
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_nothing_but_numpy_is_imported() -> None:
    code = """if True:
        import sys
        from headrace.loading.collate import default_collate
        default_collate([{"a": 1, "b": "x", "c": [1.0, (True, None)]}])
        assert not {"torch", "PIL", "torch_geometric"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
