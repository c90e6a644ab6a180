"""What `mix` takes and what it refuses."""

import math
import pickle
from typing import Any

import pytest

import headrace as hr
from datasets import Corpus, CorpusWriter, equal_documents
from mixture_reference import points


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(equal_documents(files=1, groups=2, documents=20, length=9))


@pytest.fixture(scope="module")
def packed(corpus: Corpus) -> hr.PackedDataset:
    return corpus.open(seq_len=8)


@pytest.fixture(scope="module")
def empty(write: CorpusWriter) -> hr.PackedDataset:
    return write({"a.parquet": [[[], None]]}).open(seq_len=8)


@pytest.mark.parametrize(
    "weights, message",
    [
        ((0, 0), "a source must have a weight above 0"),
        ((1, -1), "the weight of source 'b' must be 0 or more and finite, got -1"),
        ((math.nan, 1), "the weight of source 'a' must be 0 or more and finite, got nan"),
        ((1, math.inf), "the weight of source 'b' must be 0 or more and finite, got inf"),
    ],
)
def test_weights_that_are_none(packed: hr.PackedDataset, weights: tuple[float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hr.mix({"a": (packed, weights[0]), "b": (packed, weights[1])})


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"sources": {}}, TypeError, "a dict of names"),
        ({"sources": {1: ("packed", 1)}}, TypeError, "a source's name must be text, got 1"),
        ({"sources": {"a": ("packed", "much")}}, TypeError, "the weight of source 'a' must be a number, got 'much'"),
        ({"sources": {"a": ("packed", 1, 2)}}, TypeError, r"source 'a' must be \(dataset, weight\), got 3 values"),
        (
            {"sources": {"a": ("data", 1)}},
            TypeError,
            "source 'a' must be a dataset of samples or packed tokens, got 'data'",
        ),
        (
            {"sources": {"a": ("packed", 1), "b": ("table", 1)}},
            ValueError,
            "must be alike: columns is .* for source 'a' and {} for source 'b'",
        ),
        (
            {"sources": {"a": ("packed", 1), "b": ("rows", 1)}, "on_exhausted": "stop"},
            ValueError,
            "on_exhausted='stop' needs sources whose rows are counted: only reading tells where source 'a' ends",
        ),
        (
            {"sources": {"a": ("packed", 1), "b": ("rows", 1)}, "max_epochs": {"b": 1}},
            ValueError,
            r"max_epochs=\{'b': 1\} needs sources whose rows are counted: only reading tells where source 'b' ends",
        ),
        ({"sources": {"a": ("packed", 1), "b": "packed"}}, ValueError, "source 'b' has no weight"),
        ({"sources": {"a": "packed"}}, ValueError, "weights are missing"),
        ({"schedule": {0: {"a": 1}}}, ValueError, "a schedule from 0 on says all weights"),
        (
            {"schedule": {5: {"b": 1}}},
            ValueError,
            "the weights at 5 must be those of all sources and no others: see 'a'",
        ),
        ({"schedule": {5: {"a": -2}}}, ValueError, "the weight of source 'a' at 5 must be 0 or more"),
        ({"schedule": {-5: {"a": 2}}}, ValueError, "a point of the schedule must be at least 0, got -5"),
        ({"temperature": 0}, ValueError, "temperature must be above 0 and finite, got 0"),
        ({"temperature": "hot"}, TypeError, "temperature must be a number, got 'hot'"),
        ({"on_exhausted": "end"}, ValueError, 'on_exhausted must be "repeat", "stop" or "drop", got \'end\''),
        ({"max_epochs": {"b": 1}}, ValueError, "max_epochs names 'b', but the sources are 'a'"),
        ({"max_epochs": {"a": 0}}, ValueError, r"max_epochs\['a'\] must be at least 1, got 0"),
    ],
)
def test_arguments_that_do_not_fit(
    corpus: Corpus, packed: hr.PackedDataset, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    table = hr.open(corpus.folder)
    known = {"packed": packed, "table": table, "rows": table.select(["tokens"]).pack(8)}

    def real(source: Any) -> Any:
        if isinstance(source, tuple):
            return (known.get(source[0], source[0]), *source[1:])
        return known.get(source, source)

    sources = {name: real(source) for name, source in arguments.get("sources", {"a": ("packed", 1)}).items()}
    rest = {name: value for name, value in arguments.items() if name != "sources"}
    with pytest.raises(error, match=message):
        hr.mix(sources, **rest)


@pytest.mark.parametrize(
    "packing, key, found",
    [
        ({"seq_len": 9}, "seq_len", "8 for source 'a' and 9 for source 'b'"),
        ({"overlap": 1}, "overlap", "0 for source 'a' and 1 for source 'b'"),
        ({"dtype": "int64"}, "dtype", "'int32' for source 'a' and 'int64' for source 'b'"),
        ({"name": "ids"}, "name", "'tokens' for source 'a' and 'ids' for source 'b'"),
        ({"boundaries": True}, "boundaries", "False for source 'a' and True for source 'b'"),
    ],
)
def test_rows_that_are_not_alike_are_refused_by_name(
    corpus: Corpus, packed: hr.PackedDataset, packing: dict[str, Any], key: str, found: str
) -> None:
    other = corpus.open(**{"seq_len": 8} | packing)
    with pytest.raises(ValueError, match=f"must be alike: {key} is {found}"):
        hr.mix({"a": (packed, 1), "b": (other, 1)})


def test_tokens_cannot_be_named_as_the_sources_are(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="the tokens of source 'a' must not be named 'source'"):
        hr.mix({"a": (corpus.open(seq_len=8, name="source"), 1)})


def test_an_empty_source_gives_nothing_where_that_is_asked_for(
    packed: hr.PackedDataset, empty: hr.PackedDataset
) -> None:
    for rule in ("repeat", "stop"):
        with pytest.raises(ValueError, match="source 'b' holds no token"):
            hr.mix({"a": (packed, 1), "b": (empty, 1)}, on_exhausted=rule)
    with pytest.raises(ValueError, match="the sources hold no token"):
        hr.mix({"b": (empty, 1)}, on_exhausted="drop")
    alone = hr.DataLoader(hr.mix({"a": (packed, 1)}, on_exhausted="drop"), global_batch_size=4, seed=1)
    wanted = [batch["tokens"].tolist() for batch in alone]
    assert len(wanted) == 11
    for weight, rule in ((1, "drop"), (0, "drop"), (0, "stop")):
        loader = hr.DataLoader(
            hr.mix({"b": (empty, weight), "a": (packed, 1)}, on_exhausted=rule), global_batch_size=4, seed=1
        )
        batches = list(loader)
        assert [batch["tokens"].tolist() for batch in batches] == wanted
        assert {source for batch in batches for source in batch["source"].tolist()} == {1}


def test_a_source_of_weight_0_keeps_nothing_from_ending(packed: hr.PackedDataset) -> None:
    mixed = hr.mix({"a": (packed, 1), "b": (packed, 0)}, on_exhausted="drop")
    assert sum(1 for _ in hr.DataLoader(mixed, global_batch_size=4)) == 11


def test_a_source_too_rare_to_be_drawn_is_accepted(packed: hr.PackedDataset) -> None:
    loader = hr.DataLoader(hr.mix({"a": (packed, 1), "b": (packed, 1e-9), "c": (packed, 1e-30)}), global_batch_size=4)
    for _, _batch in zip(range(10), loader, strict=False):
        pass
    assert {name: source["rows"] for name, source in loader.stats()["sources"].items()} == {"a": 40, "b": 0, "c": 0}


def test_temperatures(packed: hr.PackedDataset) -> None:
    def weights(temperature: float | None) -> list[float]:
        mixed = hr.mix({"a": (packed, 900), "b": (packed, 100), "c": (packed, 0)}, temperature=temperature)
        return list(mixed.info()["weights"].values())

    assert weights(None) == [900, 100, 0]
    assert weights(1) == pytest.approx([1, 1 / 9, 0], rel=1e-15)
    assert weights(2) == pytest.approx([1, 1 / 3, 0], rel=1e-15)
    assert weights(0.5) == pytest.approx([1, 1 / 81, 0], rel=1e-15)
    assert points(weights(1e9))[:2] == pytest.approx([2**47, 2**47], rel=1e-6)


def test_too_little_data_is_refused_with_the_numbers(packed: hr.PackedDataset) -> None:
    mixed = hr.mix({"a": (packed, 1), "b": (packed, 1)}, on_exhausted="stop")
    with pytest.raises(ValueError, match=r"too little data: the mixture ends after \d+ rows; a global batch needs 512"):
        hr.DataLoader(mixed, global_batch_size=512)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"epochs": 2}, "epochs has no meaning for a mixture"),
        ({"remainder": "pad"}, 'remainder must be "drop" for a mixture'),
        ({"collate_fn": list}, "collate_fn has no meaning for a mixture"),
        ({"world_size": 3, "rank": 0}, "the global batch size must be a multiple of world_size=3"),
        ({"global_batch_size": None}, "a batch size is missing"),
    ],
)
def test_arguments_of_the_loader_that_do_not_fit(
    packed: hr.PackedDataset, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        len(hr.DataLoader(hr.mix({"a": (packed, 1)}, on_exhausted="stop"), **{"global_batch_size": 4} | arguments))


def test_a_mixture_pickles_and_tells_what_it_is(packed: hr.PackedDataset) -> None:
    mixed = hr.mix({"a": (packed, 3), "b": (packed, 1)}, on_exhausted="drop", max_epochs={"a": 2})
    again = pickle.loads(pickle.dumps(mixed))
    assert again.info() == mixed.info()
    assert (mixed.names, len(mixed)) == (("a", "b"), 2 * len(packed))
    assert repr(mixed) == "mix(a=0.75, b=0.25, on_exhausted='drop', max_epochs={'a': 2})"
    first, second = (next(iter(hr.DataLoader(one, global_batch_size=4, seed=1))) for one in (mixed, again))
    assert (first["tokens"] == second["tokens"]).all()
