"""Items that are added in the course of a run over lanes: from the same pass on for all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import check_resume
from lane_pipelines import begin, cut, dataset_of, join, keep, loader_of, packings, steps_of
from lane_pipelines import reference_of as fixed_reference
from lane_reference import LaneReference, Packing, Starved, Step
from sample_sources import made_up
from test_lanes_order import check_row, rows_given, tokens_of

OLD, NEW, NEWER = (5, 1, 7, 0, 4), (5, 1, 7, 0, 4, 9, 3), (5, 1, 7, 0, 4, 9, 3, 6)
"""Chunks of 17, 29 and 35 items."""

CONCAT = Packing(mode="concat", seq_len=20, overlap=1, bos_id=1)
BEST_FIT = Packing(mode="best_fit", seq_len=20, lookahead=5, eos_id=2)
MODES = {
    "concat": CONCAT,
    "without an overlap": Packing(mode="concat", seq_len=20, bos_id=1),
    "best_fit": BEST_FIT,
    "pad": Packing(mode="pad", seq_len=6),
    "truncate": Packing(mode="truncate", seq_len=6),
    "documents": Packing(mode=None),
}


@dataclass(frozen=True, kw_only=True)
class GrownReference(LaneReference):
    """The run again from its beginning, pass by pass: each over its own items, as if there had never been others."""

    passes: dict[int, LaneReference]
    """From which pass on there are the items of which other run."""

    def item(self, row: int) -> tuple[int, int]:
        """See `LaneReference.item`."""
        begin = number = 0
        while True:
            run = self.passes[max(first for first in self.passes if first <= number)]
            size = len(run.items)
            if row < begin + size:
                return number, run.item(row - begin + number * size)[1]
            begin, number = begin + size, number + 1


def reference_of(
    passes: dict[int, tuple[int, ...]],
    steps: tuple[Step, ...],
    packing: Packing,
    *,
    lanes: int,
    random_access: bool,
    window: int | None = 2,
) -> GrownReference:
    """The run whose passes are from some on over some chunks; `window` is of lanes of items."""
    runs: dict[int, LaneReference] = {}
    for first, sizes in passes.items():
        data = dataset_of(sizes, steps, packing, random_access=random_access)
        own = None if random_access else window
        runs[first] = fixed_reference(data, sizes, steps, packing, lanes=lanes, window=own)
    last = runs[max(runs)]
    fields = {name: getattr(last, name) for name in ("items", "order", "lanes", "seed", "steps", "packing")}
    return GrownReference(**fields, passes=runs)


class Run:
    """A run that is saved and goes on, on any number of ranks, now and then with more items.

    Attributes:
        found: its rows by their numbers, as `check_row` takes them.
        passes: from which pass on it is over which chunks.
    """

    def __init__(self, steps: tuple[Step, ...], packing: Packing, *, random_access: bool = False) -> None:
        self._steps, self._packing, self._random_access = steps, packing, random_access
        self.found: dict[int, Any] = {}
        self.passes: dict[int, tuple[int, ...]] = {}
        self._state: dict[str, Any] | None = None
        self._lanes = 12

    def go_on(self, sizes: tuple[int, ...], world: int, count: int, *, lanes: int = 12) -> dict[str, Any]:
        """Gives some more steps, and the state after them, of all ranks."""
        self._lanes = lanes
        data = dataset_of(sizes, self._steps, self._packing, random_access=self._random_access)
        more: dict[str, Any] = {"window": None if self._random_access else 2, "lanes": lanes}
        more |= {} if self._packing.mode else {"collate_fn": tokens_of}
        ranks = [loader_of(data, 12, rank=rank, world_size=world, **more) for rank in range(world)]
        if self._state is None:
            self.passes = {0: sizes}
        before = self.passes[max(self.passes)]
        for loader in ranks:
            if self._state is None:
                continue
            if sizes == before:
                loader.load_state_dict(self._state)
                continue
            with pytest.raises(hr.StateMismatch, match=f"{sum(sizes) - sum(before)} samples were added behind"):
                loader.load_state_dict(self._state)
            with pytest.warns(UserWarning, match="were added behind") as warned:
                loader.load_state_dict(self._state, strict=False)
            assert [Path(warning.filename) for warning in warned] == [Path(__file__)], "it points at the caller"
        if self._state is not None and sizes != before:
            first = ranks[0].state_dict()["changes"][-1]["after"]["epoch"]
            self.passes = {number: held for number, held in self.passes.items() if number < first} | {first: sizes}
        for loader in ranks:
            self.found |= rows_given(loader, count)
        self._state = hr.State.merge([loader.state_dict() for loader in ranks])
        return self._state

    def check(self) -> None:
        """Compares all rows with the reference's."""
        reference = reference_of(
            self.passes, self._steps, self._packing, lanes=self._lanes, random_access=self._random_access
        )
        try:
            wanted = [reference.row(number) for number in range(len(self.found))]
        except Starved:
            reject()
        assert sorted(self.found) == list(range(len(self.found)))
        for number, row in self.found.items():
            check_row(row, wanted[number], self._packing, self.passes[max(self.passes)])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("random_access", [False, True])
def test_all_lanes_change_with_the_same_pass(mode: str, random_access: bool) -> None:
    run = Run((), MODES[mode], random_access=random_access)
    run.go_on(OLD, 2, 2, lanes=4)
    run.go_on(NEW, 1, 3, lanes=4)
    state = run.go_on(NEW, 4, 4, lanes=4)
    run.go_on(NEWER, 2, 6, lanes=4)
    run.check()
    [line] = state["changes"]
    assert (line["kind"], line["step"], line["before"]["samples"], line["after"]["samples"]) == (
        "data added",
        2,
        17,
        29,
    )
    assert len(run.passes) == 3


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_pipeline_and_any_additions(data: st.DataObject) -> None:
    steps = tuple(step for step in data.draw(steps_of) if step.kind != "batch_map")
    lanes = data.draw(st.sampled_from([6, 12]))
    run = Run(steps, data.draw(packings), random_access=data.draw(st.booleans()))
    held = OLD
    for _ in range(data.draw(st.integers(2, 4), "restarts")):
        held = (*held, *data.draw(st.sampled_from([(), (), (3,), (2, 4)]), "added"))
        world = data.draw(st.sampled_from([1, 2, 3, 6]), "world")
        try:
            run.go_on(held, world, data.draw(st.integers(0, 3), "steps"), lanes=lanes)
        except hr.DataError:
            reject()  # nothing is left of a lane's items
    run.check()


@pytest.mark.parametrize("mode", MODES)
def test_check_resume_over_items_that_were_added(mode: str) -> None:
    run = Run((Step("flat_map", cut), Step("filter", keep)), MODES[mode])
    run.go_on(OLD, 1, 1)
    state = run.go_on(NEW, 2, 0)
    options: dict[str, Any] = {} if MODES[mode].mode else {"collate_fn": tokens_of}
    data = dataset_of(NEW, (Step("flat_map", cut), Step("filter", keep)), MODES[mode])
    assert check_resume(data, steps=4, loader=options, state=state).restarts == 15


def test_the_pass_is_the_next_one_that_no_lane_has_begun() -> None:
    """Of lanes of one item a row it can be told by hand."""
    packing = Packing(mode="truncate", seq_len=6)

    def state_after(steps: int) -> dict[str, Any]:
        loader = loader_of(made_up((8, 4)).map(_short).pack(6, mode="truncate"), 4, shuffle=False)
        for _, batch in zip(range(steps), loader, strict=False):
            assert len(batch["tokens"]) == 4
        return loader.state_dict()

    assert packing.seq_len == 6
    for steps, epoch in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3)):
        loader = loader_of(made_up((8, 4, 2)).map(_short).pack(6, mode="truncate"), 4, shuffle=False)
        with pytest.warns(UserWarning, match=f"they are used from epoch {epoch} on"):
            loader.load_state_dict(state_after(steps), strict=False)
        [line] = loader.state_dict()["changes"]
        assert (line["row"], line["after"]["epoch"]) == (12 * epoch, epoch)
        items = [token for _, batch in zip(range(9), loader, strict=False) for token in batch["tokens"][:, 0].tolist()]
        old = [number % 12 for number in range(4 * steps, 12 * epoch)]
        assert items == [*old, *(number % 14 for number in range(100))][:36]


def _short(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [sample["id"]]}


def test_an_overlap_is_of_the_pass_that_it_was_given_of() -> None:
    """A row's last token is an item of the pass to come: so that pass has begun."""
    loader = loader_of(made_up((8, 4)).map(_short).pack(3, overlap=1), 4, shuffle=False)
    assert next(iter(loader))["tokens"][:, -1].tolist() == [0, 1, 2, 3]
    again = loader_of(made_up((8, 4, 2)).map(_short).pack(3, overlap=1), 4, shuffle=False)
    with pytest.warns(UserWarning, match="they are used from epoch 2 on"):
        again.load_state_dict(loader.state_dict(), strict=False)
    assert next(iter(again))["tokens"].tolist() == [[lane, lane + 4, lane + 8, lane] for lane in (0, 1, 2, 3)][:4]
    state = loader.state_dict()
    unknown = {lane: one.partition(">")[0] for lane, one in state["lane_states"].items()}
    fresh = loader_of(made_up((8, 4)).map(_short).pack(3, overlap=1), 4)
    fresh.load_state_dict(state | {"lane_states": unknown})
    with pytest.raises(hr.StateMismatch, match="lane 0 does not tell the document that its overlap is of"):
        again.load_state_dict(state | {"lane_states": unknown}, strict=False)
    next(iter(fresh))
    with pytest.warns(UserWarning, match="they are used from epoch 3 on"):
        again.load_state_dict(fresh.state_dict(), strict=False)


def test_what_cannot_be_known_is_refused() -> None:
    data = {sizes: dataset_of(sizes, (Step("batch_map", join, 3),), CONCAT) for sizes in (OLD, NEW)}
    loader = loader_of(data[OLD], 12)
    with pytest.warns(UserWarning, match="they are used from epoch 0 on"):
        loader_of(data[NEW], 12).load_state_dict(loader.state_dict(), strict=False)
    next(iter(loader))
    with pytest.raises(hr.StateMismatch, match=r"lane \d+ is within a group of a batch_map"):
        loader_of(data[NEW], 12).load_state_dict(loader.state_dict(), strict=False)
    plain = {sizes: dataset_of(sizes, (), CONCAT) for sizes in (OLD, NEW)}
    part = loader_of(plain[OLD], 12, rank=0, world_size=2)
    with pytest.raises(hr.StateMismatch, match="12 samples were added behind those of the state"):
        loader_of(plain[NEW], 12, rank=0, world_size=2).load_state_dict(part.state_dict())
    with pytest.raises(hr.StateMismatch, match=r"it is a part(.|\n)*gather_state"):
        loader_of(plain[NEW], 12, rank=0, world_size=2).load_state_dict(part.state_dict(), strict=False)
    state = loader_of(plain[OLD], 12).state_dict()
    with pytest.raises(hr.StateMismatch, match="samples is 18 here and 17 in the state"):
        loader_of(dataset_of((1, *OLD), (), CONCAT), 12).load_state_dict(state, strict=False)
    other = loader_of(dataset_of(NEW, (Step("filter", keep),), CONCAT), 12)
    with pytest.raises(hr.StateMismatch, match="stages is"):
        other.load_state_dict(state, strict=False)  # which nothing is warned of
    assert other.step == 0
    broken = state | {"lane_states": dict.fromkeys(state["lane_states"], "x")}
    with pytest.raises(hr.StateMismatch, match="lane 0: expected a document"):
        loader_of(plain[NEW], 12).load_state_dict(broken, strict=False)


WITHOUT: dict[str, Callable[[hr.SampleDataset], Any]] = {
    "samples": lambda data: data.map(begin),
    "documents": lambda data: data.map(begin).flat_map(cut),
    "concat": lambda data: data.map(begin).pack(9, overlap=1),
    "best_fit": lambda data: data.map(begin).flat_map(cut).pack(9, mode="best_fit", lookahead=5),
}


@pytest.mark.parametrize("pipeline", WITHOUT)
@pytest.mark.parametrize("left_out", [(16,), (0, 7, 9)])
def test_a_run_that_began_without_documents_goes_on(pipeline: str, left_out: tuple[int, ...]) -> None:
    """Over the same data, and then over more: as over what is left of either."""
    make = WITHOUT[pipeline]
    names = [made_up(NEW).place(number).id for number in left_out]

    def rows(exclude: list[str] | None) -> tuple[dict[int, Any], list[str]]:
        options: dict[str, Any] = {"lanes": 4, "window": 2, "exclude": exclude}
        options |= {"collate_fn": tokens_of} if pipeline in ("samples", "documents") else {}
        state: dict[str, Any] | None = None
        found: dict[int, Any] = {}
        for sizes, has_more in ((OLD, False), (OLD, False), (NEW, True), (NEW, False)):
            kept = [number for number in range(sum(sizes)) if number not in left_out]
            loader = loader_of(make(made_up(sizes) if exclude else made_up(sizes).subset(kept)), 4, **options)
            if state is not None and has_more:
                with pytest.warns(UserWarning, match="12 samples were added behind"):
                    loader.load_state_dict(state, strict=False)
            elif state is not None:
                loader.load_state_dict(state)
            found |= rows_given(loader, 3)
            state = loader.state_dict()
        assert state is not None
        return found, [line["kind"] for line in state["changes"]]

    found, changes = rows(names)
    wanted, _ = rows(None)
    assert changes == ["excluded", "data added"]
    assert found == wanted
    assert len(found) > 30


@pytest.mark.parametrize("reached", [">", ">x", ">0", ">3/1", ">9-12", ">9 12", ">9>10", ">9.0"])
def test_what_was_reached_lies_behind_the_next_document(reached: str) -> None:
    loader = loader_of(made_up(OLD).map(begin).pack(9, overlap=1), 4)
    for _, batch in zip(range(4), loader, strict=False):
        assert batch.state["lane_states"]["0"].count(">") == 1
    state = loader.state_dict()
    states = {lane: one.partition(">")[0] + reached for lane, one in state["lane_states"].items()}
    with pytest.raises(hr.StateMismatch, match=r"lane 0: expected a document and how many .* '12.1/40>14', found"):
        loader.load_state_dict(state | {"lane_states": states})
    other = loader_of(made_up(OLD).map(begin).pack(9), 4)
    with pytest.raises(hr.StateMismatch, match="lane 0: expected a document"):
        other.load_state_dict(other.state_dict() | {"lane_states": state["lane_states"]})


def test_what_comes_too_late_for_a_run_with_an_end_is_said_not_to_be_used() -> None:
    loader = loader_of(made_up((8, 4)).map(_short).pack(1), 4, epochs=1, shuffle=False)
    next(iter(loader))
    again = loader_of(made_up((8, 4, 2)).map(_short).pack(1), 4, epochs=1, shuffle=False)
    with pytest.warns(UserWarning, match="; no epoch to come is of them$"):
        again.load_state_dict(loader.state_dict(), strict=False)
    assert [batch["tokens"][:, 0].tolist() for batch in again] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_run_with_an_end_has_the_items_of_its_passes() -> None:
    loader = loader_of(made_up((8, 4)).map(_short).pack(1), 4, epochs=3, shuffle=False)
    next(iter(loader))
    again = loader_of(made_up((8, 4, 2)).map(_short).pack(1), 4, epochs=3, shuffle=False)
    with pytest.warns(UserWarning, match="from epoch 1 on"):
        again.load_state_dict(loader.state_dict(), strict=False)
    # 12 + 14 + 14 items in lanes of ten.
    assert [batch["tokens"][:, 0].tolist() for batch in again][-1] == [10, 11, 12, 13]
    assert again.step == 10
