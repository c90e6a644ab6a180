"""What loading a state warns of: each change once, when all of the state was checked, and nothing if it is refused."""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import headrace as hr
from datasets import Corpus, CorpusWriter, seeded
from lane_pipelines import begin
from loading_data import Numbers
from sample_sources import made_up
from test_changes import here, moved, there

OLD, NEW = (5, 1, 7, 0, 4), (5, 1, 7, 0, 4, 9, 3)
"""Chunks of 17 and 29 samples."""

EXCLUDED = ["file-0:0:1", "file-2:2:3"]

State = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A run, and one that goes on with it although much has changed."""

    before: Callable[[], hr.DataLoader]
    after: Callable[[], hr.DataLoader]
    told: tuple[str, ...]
    """What there is to be told of, in this order: how each text begins."""
    spoil: Callable[[State], None]
    """Makes of a state one that is refused, and not before the changes were found."""
    refusal: str


def loader_of(data: Any, **arguments: Any) -> hr.DataLoader:
    return hr.DataLoader(data, global_batch_size=4, num_workers=0, **arguments)


def packed(corpus: Corpus, elsewhere: Corpus) -> Case:
    def spoil(state: State) -> None:
        state.update(step=2**61, position=2**63)

    return Case(
        before=lambda: hr.DataLoader(corpus.open(seq_len=6), global_batch_size=4),
        after=lambda: hr.DataLoader(elsewhere.open(seq_len=9), global_batch_size=4, exclude=["new-f0.parquet:0:0"]),
        told=("1 excluded documents are only here", "the data has moved", "seq_len changes from 6 to 9"),
        spoil=spoil,
        refusal="row .* beyond",
    )


def packed_mixture(corpus: Corpus, elsewhere: Corpus) -> Case:
    def loader(c: float, *moved: str, seq_len: int = 6, **arguments: Any) -> hr.DataLoader:
        weights = {"a": 1.0, "b": 1.0, "c": c}
        one, other = corpus.open(seq_len=seq_len), elsewhere.open(seq_len=seq_len)
        sources = {name: (other if name in moved else one, weight) for name, weight in weights.items()}
        return hr.DataLoader(hr.mix(sources), global_batch_size=4, **arguments)

    def spoil(state: State) -> None:
        state["sources"][2]["given"]["rows"] += 1

    return Case(
        before=lambda: loader(1),
        after=lambda: loader(4, "b", "c", seq_len=9, exclude=["f0.parquet:0:0"]),
        told=(
            "1 excluded documents are only here",
            "source 'b' has moved",
            "source 'c' has moved",
            "seq_len changes from 6 to 9",
            "the mixture changes from row 8 on: the weight of source 'c'",
        ),
        spoil=spoil,
        refusal="by its weights source 'c' has given",
    )


def samples(*_: Corpus) -> Case:
    def spoil(state: State) -> None:
        state["lanes"] = 2

    return Case(
        before=lambda: loader_of(made_up(OLD), lanes=4),
        after=lambda: loader_of(made_up(NEW), lanes=4, exclude=EXCLUDED),
        told=("2 excluded documents are only here", "12 samples were added"),
        spoil=spoil,
        refusal="lanes is 4 here",
    )


def joined(pair: tuple[State, State]) -> State:
    return pair[0] | {"other": pair[1]["id"]}


def zipped(*_: Corpus) -> Case:
    def loader(**arguments: Any) -> hr.DataLoader:
        return loader_of(hr.zip([made_up(OLD), made_up(NEW)], joined), lanes=4, **arguments)

    def spoil(state: State) -> None:
        state["pipeline"]["dealt"][1]["lanes"] = 2

    return Case(
        before=loader,
        after=lambda: loader(exclude=EXCLUDED),
        told=("2 excluded documents are only here",),
        spoil=spoil,
        refusal="lanes is 4 here",
    )


def dynamic(sizes: tuple[int, ...], function: Any, seq_len: int) -> Any:
    return made_up(sizes).map(begin).map(function).pack(seq_len)


def rows(*_: Corpus) -> Case:
    def spoil(state: State) -> None:
        state["lane_states"]["3"] = "elsewhere"

    return Case(
        before=lambda: loader_of(dynamic(OLD, here, 20)),
        after=lambda: loader_of(dynamic(OLD, there, 30), exclude=EXCLUDED),
        told=(
            "2 excluded documents are only here",
            "the functions have other names than in the state",
            "seq_len changes from 20 to 30",
        ),
        spoil=spoil,
        refusal="lane 3",
    )


def rows_of_more_items(*_: Corpus) -> Case:
    def spoil(state: State) -> None:
        state["pipeline"]["eos_id"] = 7

    return Case(
        before=lambda: loader_of(dynamic(OLD, here, 20)),
        after=lambda: loader_of(dynamic(NEW, there, 30), exclude=EXCLUDED),
        told=(
            "2 excluded documents are only here",
            "12 samples were added",
            "the functions have other names than in the state",
            "seq_len changes from 20 to 30",
        ),
        spoil=spoil,
        refusal="eos_id is None here and 7 in the state",
    )


def mixture_of_rows(*_: Corpus) -> Case:
    def loader(names: str, sizes: tuple[int, ...], function: Any, seq_len: int, **arguments: Any) -> hr.DataLoader:
        return loader_of(hr.mix({name: (dynamic(sizes, function, seq_len), 1) for name in names}), **arguments)

    def spoil(state: State) -> None:
        state["lane_states"]["3"]["row"] = -1

    return Case(
        before=lambda: loader("ab", OLD, here, 20),
        after=lambda: loader("abc", NEW, there, 30, exclude=EXCLUDED),
        told=(
            "2 excluded documents are only here",
            "seq_len changes from 20 to 30",
            "12 samples were added to source 'a'",
            "12 samples were added to source 'b'",
            "the mixture changes from row 8 on: source 'c' is only here",
            "the functions of source 'a' have other names",
            "the functions of source 'b' have other names",
        ),
        spoil=spoil,
        refusal="lane 3",
    )


def objects(*_: Corpus) -> Case:
    def spoil(state: State) -> None:
        state["size"] = 41

    def loader() -> hr.DataLoader:
        return loader_of(Numbers(40))

    return Case(loader, loader, (), spoil, "length is 40 here")


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def streams(*_: Corpus) -> Case:
    def spoil(state: State) -> None:
        state["keys"] = "order"

    def loader() -> hr.DataLoader:
        return loader_of(Stream())

    return Case(loader, loader, (), spoil, "what says the keys is 'iterable' here")


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(31))


@pytest.fixture(scope="module")
def elsewhere(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return moved(corpus, tmp_path_factory.mktemp("elsewhere") / "files")


@pytest.fixture(
    params=[
        packed,
        packed_mixture,
        samples,
        zipped,
        rows,
        rows_of_more_items,
        mixture_of_rows,
        objects,
        streams,
    ]
)
def case(request: pytest.FixtureRequest, corpus: Corpus, elsewhere: Corpus) -> Case:
    return request.param(corpus, elsewhere)


def saved(case: Case) -> State:
    """The state after two steps."""
    loader = case.before()
    assert len(list(itertools.islice(loader, 2))) == 2
    return loader.state_dict()


def warned(call: Callable[[], object]) -> list[str]:
    """What a call warns its caller of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert all(one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


def equal(one: Any, other: Any) -> bool:
    """Whether two batches are."""
    if hasattr(one, "keys"):
        return set(one) == set(other) and all(np.array_equal(one[name], other[name]) for name in one)
    return bool(np.array_equal(one, other))


def test_each_change_is_told_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    state, loader = saved(case), case.after()
    texts = warned(lambda: loader.load_state_dict(state, strict=False))
    assert len(texts) == len(case.told), texts
    for text, expected in zip(texts, case.told, strict=True):
        assert text.startswith(f"headrace: {expected}")
    # Nor later: where the loader becomes one of two ranks the state is looked at again. Warnings are errors here.
    changed = loader.state_dict()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert loader.world_size == 2
    next(iter(loader))
    again = case.after()
    again.load_state_dict(changed)
    next(iter(again))


def test_a_state_that_is_refused_changes_nothing_and_is_not_warned_of(case: Case) -> None:
    state = saved(case)
    spoilt = copy.deepcopy(state)
    case.spoil(spoilt)
    loader, twin = case.after(), case.after()
    iterator, other = iter(loader), iter(twin)
    assert equal(next(iterator), next(other))

    def load() -> None:
        with pytest.raises((ValueError, hr.StateMismatch), match=case.refusal):
            loader.load_state_dict(spoilt, strict=False)

    assert warned(load) == []
    if case.told:
        with pytest.raises(hr.StateMismatch):
            loader.load_state_dict(state)
        # Nor does one that is refused by its user, to whom warnings are errors.
        with pytest.raises(UserWarning, match=case.told[0]):
            loader.load_state_dict(state, strict=False)
    assert loader.state_dict() == twin.state_dict()
    assert equal(next(iterator), next(other))
