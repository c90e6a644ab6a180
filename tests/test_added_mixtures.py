"""Data that is added to sources of a mixture whose rows come lane by lane: each has it from a pass of its own on."""

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import check_resume
from lane_pipelines import begin, check_row, cut, dataset_of, grow, keep, loader_of, noisy, packings, toss
from lane_reference import Packing, Starved, Step
from mixture_reference import Drawn, MixtureReference
from sample_sources import made_up
from test_added_lanes import reference_of
from test_lanes_order import tokens_of

LANES = 12

Sizes = tuple[int, ...]
"""The chunks of a source."""

OLD: dict[str, Sizes] = {"many": (5, 1, 7, 0, 4, 9), "few": (3, 2), "one": (2,)}
LONGER: dict[str, Sizes] = {"many": (5, 1, 7, 0, 4, 9), "few": (3, 4), "one": (6, 5)}
"""Of as many that each lane comes to some with tokens."""

WEIGHTS = {"many": 4.0, "few": 2.0, "one": 0.5}
DOCUMENTS = Packing(mode=None)
PACKED = Packing(mode="best_fit", seq_len=20, lookahead=5, eos_id=2)


class Run:
    """A mixture that is saved and goes on, on any number of ranks, now and then with more items in some sources.

    Attributes:
        found: its rows by their numbers: which source each is of, and what `check_row` takes.
        passes: for each source from which pass on it is over which chunks.
    """

    def __init__(
        self,
        steps: Sequence[Step] = (),
        packing: Packing = DOCUMENTS,
        *,
        random_access: Sequence[str] = (),
        ends: Mapping[str, int] | None = None,
        exhausted: Literal["repeat", "stop", "drop"] = "repeat",
        weights: Mapping[str, float] = WEIGHTS,
    ) -> None:
        self._steps, self._packing, self._random_access = tuple(steps), packing, random_access
        self._window = None if random_access else 2
        self._ends, self._exhausted = dict(ends or {}), exhausted
        self.weights = dict(weights)
        self.found: dict[int, tuple[int, Any]] = {}
        self.passes: dict[str, dict[int, Sizes]] = {}
        self.state: dict[str, Any] | None = None

    def loader(self, sizes: Mapping[str, Sizes], **options: Any) -> hr.DataLoader:
        sources = {
            name: (self._source(one, random_access=name in self._random_access), self.weights[name])
            for name, one in sizes.items()
        }
        more: dict[str, Any] = {} if self._packing.mode else {"collate_fn": tokens_of}
        data = hr.mix(sources, on_exhausted=self._exhausted, max_epochs=self._ends or None)
        return loader_of(data, LANES, lanes=LANES, window=self._window, **more, **options)

    def _source(self, sizes: Sizes, *, random_access: bool) -> Any:
        if self._packing.mode is None and not self._steps:
            return made_up(sizes, random_access=random_access).map(begin)  # whose rows are counted
        return dataset_of(sizes, self._steps, self._packing, random_access=random_access)

    def go_on(self, sizes: Mapping[str, Sizes], world: int, count: int) -> dict[str, Any]:
        """Gives some more steps, and the state after them, of all ranks."""
        ranks = [self.loader(sizes, rank=rank, world_size=world) for rank in range(world)]
        last = {name: held[max(held)] for name, held in self.passes.items()}
        grown = [name for name, one in last.items() if one != sizes[name]]
        for loader in ranks:
            if self.state is not None:
                self._load(loader, self.state, grown)
        if self.state is None:
            self.passes = {name: {0: one} for name, one in sizes.items()}
        for name in grown:
            first = self._epoch(ranks[0].state_dict(), name)
            before = self.passes[name]
            self.passes[name] = {number: one for number, one in before.items() if number < first} | {first: sizes[name]}
        for loader in ranks:
            self.found |= rows_given(loader, count)
        self.state = hr.State.merge([loader.state_dict() for loader in ranks])
        return self.state

    def _load(self, loader: hr.DataLoader, state: dict[str, Any], grown: Sequence[str]) -> None:
        if not grown:
            loader.load_state_dict(state)
            return
        with pytest.raises(hr.StateMismatch, match=f"samples were added to source '{grown[0]}' behind"):
            loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="were added to source") as warned:
            loader.load_state_dict(state, strict=False)
        assert len(warned) == len(grown)
        for name, text in zip(grown, warned, strict=True):
            epoch = loader.state_dict()["changes"][grown.index(name) - len(grown)]["after"][name]["epoch"]
            is_late = epoch >= self._ends.get(name, math.inf)
            assert ("; no epoch to come is of them" if is_late else f" from epoch {epoch} on") in str(text.message)
        assert {Path(warning.filename) for warning in warned} == {Path(__file__)}, "it points at the caller"

    def _epoch(self, state: dict[str, Any], name: str) -> int:
        """From which pass on a source has what was added last, as the state says; of plain samples as it follows."""
        assert self.state is not None
        [line] = [line for line in state["changes"] if name in (line["after"] or {})][-1:]
        assert (line["kind"], line["step"], line["row"]) == ("data added", self.state["step"], self.state["position"])
        epoch: int = line["after"][name]["epoch"]
        if self._packing.mode is None and not self._steps:
            number = list(self.passes).index(name)
            rows = [row.row for row in self._reference().up_to(len(self.found)) if row.source == number]
            end = first = 0
            while end <= max(rows, default=-1):
                end, first = end + self._size(name, first), first + 1
            # One that is exhausted comes to no other pass.
            assert epoch == first or (epoch == self._ends[name] and self._has_left(number))
        return epoch

    def _has_left(self, number: int) -> bool:
        reference = self._reference()
        reference.up_to(len(self.found))
        return number in reference.gone

    def _size(self, name: str, epoch: int) -> int:
        held = self.passes[name]
        return sum(held[max(first for first in held if first <= epoch)])

    def _reference(self) -> MixtureReference:
        limits = [
            sum(self._size(name, epoch) for epoch in range(self._ends[name])) if name in self._ends else None
            for name in self.passes
        ]
        return MixtureReference(
            seed=0,
            lanes=LANES,
            source_lanes=[LANES] * len(self.passes),
            weights={0: [self.weights[name] for name in self.passes]},
            limits=limits,
            exhausted="stop" if self._exhausted == "stop" else "drop",
        )

    def check(self) -> list[Drawn]:
        """Compares all rows with the references', which gives them."""
        drawn = self._reference().up_to(len(self.found))
        assert sorted(self.found) == list(range(len(drawn)))
        assert [source for _, (source, _) in sorted(self.found.items())] == [row.source for row in drawn]
        alone = [
            reference_of(
                held,
                self._steps,
                self._packing,
                lanes=LANES,
                random_access=name in self._random_access,
                window=self._window,
            )
            for name, held in self.passes.items()
        ]
        last = [held[max(held)] for held in self.passes.values()]
        for number, row in enumerate(drawn):
            try:
                wanted = alone[row.source].row(row.row)
            except Starved:
                reject()
            check_row(self.found[number][1], wanted, self._packing, last[row.source])
        return drawn


def rows_given(loader: hr.DataLoader, count: int) -> dict[int, tuple[int, Any]]:
    found: dict[int, tuple[int, Any]] = {}
    for batch in islice(iter(loader), count):
        values = [value.tolist() for value in batch["tokens"]]
        rows = zip(batch["source"].tolist(), zip(values, batch.sources(), strict=True), strict=True)
        found |= dict(zip(batch.rows.tolist(), rows, strict=True))
    return found


def more(sizes: Mapping[str, Sizes], **added: Sizes) -> dict[str, Sizes]:
    return {name: (*one, *added.get(name, ())) for name, one in sizes.items()}


@pytest.mark.parametrize("packing", [DOCUMENTS, PACKED, Packing(mode="concat", seq_len=20, overlap=1)])
@pytest.mark.parametrize("random_access", [(), ("few",)])
def test_each_source_changes_with_a_pass_of_its_own(packing: Packing, random_access: Sequence[str]) -> None:
    run = Run((), packing, random_access=random_access)
    first = LONGER if packing.mode else OLD
    run.go_on(first, 2, 3)
    second = more(first, few=(4,))
    run.go_on(second, 1, 3)
    third = more(second, many=(3, 8), few=(2,), one=(2,))
    state = run.go_on(third, 3, 4)
    run.go_on(third, 2, 6)
    run.check()
    assert [(line["step"], list(line["after"])) for line in state["changes"]] == [
        (3, ["few"]),
        (6, ["many"]),
        (6, ["few"]),
        (6, ["one"]),
    ]
    few = [[line[when]["few"]["samples"] for when in ("before", "after")] for line in state["changes"][::2]]
    count = sum(first["few"])
    assert few == [[count, count + 4], [count + 4, count + 6]]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_additions_to_any_pipeline(data: st.DataObject) -> None:
    kinds = (Step("map", grow), Step("map", noisy, random=True), Step("filter", keep), Step("flat_map", cut))
    steps = data.draw(st.lists(st.sampled_from((*kinds, Step("filter", toss, random=True))), max_size=2), "steps")
    random_access = data.draw(st.sets(st.sampled_from(list(OLD))).map(sorted), "random access")
    run = Run(steps, data.draw(packings, "packing"), random_access=random_access)
    sizes = LONGER
    for _ in range(data.draw(st.integers(2, 4), "restarts")):
        added = {name: data.draw(st.sampled_from([(), (), (3,), (2, 4)]), "added") for name in OLD}
        sizes = more(sizes, **added)
        try:
            run.go_on(sizes, data.draw(st.sampled_from([1, 2, 3, 6]), "world"), data.draw(st.integers(0, 3), "steps"))
        except hr.DataError:
            reject()  # nothing is left of a lane's items
    run.check()


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_sources_that_end_have_the_items_of_their_passes(data: st.DataObject) -> None:
    """One that was exhausted before it was added to stays away, however few its items are."""
    names = data.draw(st.lists(st.sampled_from(list(OLD)), min_size=1, unique=True), "that end")
    ends = {name: data.draw(st.integers(1, 4), "passes") for name in names}
    exhausted: Literal["repeat", "stop"] = data.draw(st.sampled_from(["repeat", "stop"]), "exhausted")
    run = Run(ends=ends if exhausted == "repeat" else ends | dict.fromkeys(OLD.keys() - ends, 3), exhausted=exhausted)
    sizes = OLD
    for _ in range(data.draw(st.integers(2, 4), "restarts")):
        sizes = more(sizes, **{name: data.draw(st.sampled_from([(), (3,), (20, 4)]), "added") for name in OLD})
        try:
            run.go_on(sizes, data.draw(st.sampled_from([1, 2, 3]), "world"), data.draw(st.integers(0, 3), "steps"))
        except ValueError:
            reject()  # a mixture that ends has no whole batch, or a lane none of a source's rows
    run.check()


def test_one_that_left_stays_away_and_one_that_did_not_has_more_to_give() -> None:
    """Six rows in two passes are fewer than lanes: a lane that has none is soon asked for one."""
    run = Run(ends={"few": 2, "many": 2})
    sizes: dict[str, Sizes] = {"many": (40,), "few": (3,), "one": (1,)}
    run.go_on(sizes, 1, 1)
    state = run.go_on(more(sizes, many=(20,), few=(30,)), 1, 30)
    run.check()
    assert [line["after"] for line in state["changes"]] == [
        {"many": state["changes"][0]["after"]["many"] | {"epoch": 1, "samples": 60}},
        {"few": state["changes"][1]["after"]["few"] | {"epoch": 2, "samples": 33}},
    ]
    given = [source for source, _ in run.found.values()]
    assert given.count(1) < 6
    assert given.count(0) > 80


@pytest.mark.parametrize("packing", [DOCUMENTS, PACKED])
def test_check_resume_over_items_that_were_added(packing: Packing) -> None:
    run = Run((Step("flat_map", cut),), packing)
    run.go_on(LONGER, 1, 2)
    sizes = more(LONGER, many=(6,), one=(3,))
    run.go_on(sizes, 2, 1)
    sizes = more(sizes, few=(6,))
    state = run.go_on(sizes, 3, 0)
    loader = run.loader(sizes)
    options: dict[str, Any] = {} if packing.mode else {"collate_fn": tokens_of}
    assert check_resume(loader.dataset, steps=4, loader=options, state=state).restarts == 15


def test_weights_sources_and_data_may_change_at_once() -> None:
    """And a source that was taken out may come back with more."""

    def loader(sizes: Mapping[str, Sizes]) -> hr.DataLoader:
        data = {name: made_up(one) for name, one in sizes.items()}
        return loader_of(hr.mix({name: (data[name], 1) for name in sizes}), 4, lanes=4, window=2)

    def goes_on(sizes: Mapping[str, Sizes], state: dict[str, Any], *texts: str) -> hr.DataLoader:
        again = loader(sizes)
        with pytest.warns(UserWarning, match="added to source|the mixture changes") as warned:
            again.load_state_dict(state, strict=False)
        assert [text for text, one in zip(texts, warned, strict=True) if text not in str(one.message)] == []
        assert len(list(islice(iter(again), 3))) == 3
        return again

    first = loader({"a": (8,), "b": (9,)})
    next(iter(first))
    second = goes_on({"a": (8, 2), "c": (7,)}, first.state_dict(), "added to source 'a'", "source 'c' is only here")
    third = goes_on(
        {"a": (8, 2), "b": (9, 3)}, second.state_dict(), "added to source 'b'", "source 'b' was taken out before"
    )
    state = third.state_dict()
    assert [(line["kind"], line["step"]) for line in state["changes"]] == [
        ("data added", 1),
        ("sources", 1),
        ("data added", 4),
        ("sources", 4),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = loader({"a": (8, 2), "b": (9, 3)})
        again.load_state_dict(state)
    assert again.state_dict() == state


def test_a_mixture_without_documents_is_added_to() -> None:
    """It began without some, as if the data did not have them; others are masked from then on."""
    out, later = [made_up(OLD["many"]).place(number).id for number in (3, 25)], [made_up((2,)).place(1).id]

    def loader(sizes: Mapping[str, Sizes], exclude: Any) -> hr.DataLoader:
        data = hr.mix({name: (made_up(one).map(_same), WEIGHTS[name]) for name, one in sizes.items()})
        return loader_of(data, LANES, lanes=LANES, window=2, exclude=exclude)

    first = loader(OLD, out)
    before = list(islice(iter(first), 2))
    sizes = more(OLD, many=(8,))
    again = loader(sizes, [*out, *later])
    with pytest.warns(UserWarning, match="added to source|are only here") as warned:
        again.load_state_dict(first.state_dict(), strict=False)
    assert len(warned) == 2
    after = list(islice(iter(again), 12))
    ids = [one for batch in [*before, *after] for one in batch["id"][batch["source"] == 0].tolist()]
    assert set(ids) == {*range(34)} - {3, 25}
    masks = {
        (int(one), bool(kept)) for batch in after for one, kept in zip(batch["id"], batch["loss_mask"], strict=True)
    }
    assert (1, False) in masks
    assert (1, True) not in masks


def _same(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": np.int64(sample["id"])}


# What is no addition


@pytest.mark.parametrize(
    "sizes, options, message",
    [
        (
            OLD | {"few": (3,)},
            {},
            "the pipeline of source 'few' is not that of the state: samples is 3 here and 5 in the",
        ),
        (
            more(OLD, many=(3,)) | {"few": (2, 3, 4)},
            {},
            "the pipeline of source 'few' .* samples is 9 here and 5 in the",
        ),
        (more(OLD, many=(3,)), {"start": 1}, "the pipeline of source 'many' .*: samples is 29 here and 26"),
        (
            more(OLD, many=(3,)),
            {"random_access": True},
            "the pipeline of source 'many' .*: order is 'permutation' here",
        ),
    ],
)
def test_other_changes_of_data_are_refused_by_the_source(
    sizes: Mapping[str, Sizes], options: dict[str, Any], message: str
) -> None:
    def loader(sizes: Mapping[str, Sizes], **options: Any) -> hr.DataLoader:
        return loader_of(hr.mix({name: (made_up(one, **options), WEIGHTS[name]) for name, one in sizes.items()}), LANES)

    first = loader(OLD)
    next(iter(first))
    again = loader(sizes, **options)
    with pytest.raises(hr.StateMismatch, match=message):
        again.load_state_dict(first.state_dict(), strict=False)
    assert again.step == 0
    assert again.state_dict()["changes"] == []


def test_a_part_of_a_state_does_not_tell_from_where_on() -> None:
    run = Run()
    loader = run.loader(OLD, rank=0, world_size=2)
    next(iter(loader))
    again = run.loader(more(OLD, few=(2,)), rank=0, world_size=2)
    with pytest.raises(
        hr.StateMismatch, match="it is a part, and from which pass on added data is used depends on all"
    ):
        again.load_state_dict(loader.state_dict(), strict=False)
