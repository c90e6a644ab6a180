"""Mixtures of packed columns whose rows become longer or shorter in mid-run: each lane of each source goes on."""

import json
import warnings
from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import Corpus, CorpusWriter
from headrace.testing import check_resume
from mixtures import Step, corpora, expected, loaders, steps

LANES = 6
NAMES = ("large", "middle", "one document", "tiny documents")
PACKING: dict[str, Any] = {"eos_id": -1, "overlap": 1, "boundaries": True}
WEIGHTS = [6.0, 3.0, 0.5, 1.5]


@pytest.fixture(scope="module")
def parts(write: CorpusWriter) -> dict[str, Corpus]:
    return corpora(write)


def mixed(parts: dict[str, Corpus], seq_len: int, weights: Sequence[float] | None = None, **arguments: Any) -> Any:
    """A mixture of all sources; `packing` changes how, `names` which of them."""
    packing = PACKING | arguments.pop("packing", {})
    names = arguments.pop("names", NAMES)
    sources = {name: parts[name].open(seq_len=seq_len, **packing) for name in names}
    if "schedule" in arguments:
        return hr.mix(sources, **arguments)
    shares = dict(zip(names, WEIGHTS if weights is None else weights, strict=True))
    return hr.mix({name: (one, shares[name]) for name, one in sources.items()}, **arguments)


def changed(dataset: hr.MixDataset, state: dict[str, Any], world: int = 1, **arguments: Any) -> list[hr.DataLoader]:
    """Loaders that go on from a state, which has been JSON, with whatever differs."""
    ranks = [hr.DataLoader(dataset, rank=rank, world_size=world, num_workers=1, **arguments) for rank in range(world)]
    for loader in ranks:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader.load_state_dict(json.loads(json.dumps(state)), strict=False)
        assert all(one.filename == __file__ for one in caught)
        lengths = [one for one in caught if "seq_len changes from" in str(one.message)]
        before = state["sources"][0]["packing"]["seq_len"]
        assert len(lengths) == (before != dataset.sources[dataset.names[0]].packing.seq_len)
    return ranks


def lines(state: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    """What a state tells of changes of seq_len."""
    keys = ("step", "row", "before", "after")
    return [tuple(line[key] for key in keys) for line in state["changes"] if line["kind"] == "seq_len"]  # type: ignore[misc]


def rows_of(taken: Sequence[Step]) -> list[tuple[int, list[int]]]:
    return [row for step in taken for row in step.rows.values()]


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 2**64 - 1),
    window=st.integers(1, 8),
    overlap=st.integers(0, 2),
    per_batch=st.booleans(),
    rule=st.sampled_from(["repeat", "repeat", "drop", "stop"]),
)
def test_chains_of_changes_give_the_rows_of_the_reference(
    parts: dict[str, Corpus], data: st.DataObject, seed: int, window: int, overlap: int, per_batch: bool, rule: Any
) -> None:
    """Each link has other rows, weights, ranks and batches than the one before; the last one goes on to the end."""
    packing: dict[str, Any] = {"overlap": overlap}
    passes = {"one document": 200, "tiny documents": 60, "middle": data.draw(st.integers(3, 5), "passes")}
    if rule == "repeat":
        passes = data.draw(st.sampled_from([{}, {"middle": 1}, passes]), "max_epochs")
    rules: dict[str, Any] = {"max_epochs": passes, "on_exhausted": rule, "per_batch": per_batch, "packing": packing}
    sizes = [6, 12, 18] if per_batch else [3, 6, 12, 18]
    weights = data.draw(st.sampled_from([WEIGHTS, [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.2, 0.3]]), "weights")
    seq_len, world, batch = 0, 1, 6
    found: list[Step] = []
    changes: list[tuple[int, int, int, int]] = []
    by_round: dict[int, list[float]] = {0: weights}
    lengths: dict[int, int] = {}
    state: dict[str, Any] | None = None
    ranks: list[hr.DataLoader] = []
    links = data.draw(st.integers(2, 5), "links")
    for link in range(links):
        before = seq_len
        is_between = state is None or state["position"] % LANES == 0
        if is_between:
            seq_len = data.draw(st.integers(max(1, overlap), 12), "seq_len")
            weights = data.draw(st.sampled_from([weights, WEIGHTS, [0.0, 1.0, 0.5, 4.0]]), "weights")
        batch = data.draw(st.sampled_from(sizes), "batch")
        world = data.draw(st.sampled_from([world for world in (1, 2, 3, 6) if batch % world == 0]), "world")
        dataset = mixed(parts, seq_len, weights, **rules)
        if state is None:
            ranks = loaders(dataset, world, global_batch_size=batch, lanes=LANES, seed=seed, window=window)
            lengths[0], by_round = seq_len, {0: weights}
        else:
            ranks = changed(dataset, state, world, global_batch_size=batch)
            if is_between:
                first = state["position"] // LANES
                lengths[first], by_round[first] = seq_len, weights
            if seq_len != before:
                changes.append((state["step"], state["position"], before, seq_len))
        assert lines(ranks[0].state_dict()) == changes
        wanted = 10**6 if link == links - 1 and rule != "repeat" else data.draw(st.integers(0, 6), "steps")
        taken = steps(ranks, wanted)
        found += taken
        state = ranks[0].state_dict()
        assert all(one.state_dict() == state for one in ranks)
        check_given(state, ranks[0], found, lengths)
    how: dict[str, Any] = {"exhausted": "stop" if rule == "stop" else "drop"}
    if per_batch:
        draws = [step for step, one in enumerate(found) for _ in range(len(one.rows) // LANES)]
        how["draws"] = [*draws, *(len(found) + number // (batch // LANES) for number in range(batch))]
    rows = rows_of(found)
    reference = expected([parts[name] for name in NAMES], ranks[0], by_round, len(rows) + batch, lengths, **how)
    assert rows == reference[: len(rows)]
    if rule != "repeat":
        assert 0 <= len(reference) - len(rows) < batch
        assert ranks[0].stats()["steps"] == len(found)


def check_given(state: dict[str, Any], loader: hr.DataLoader, found: Sequence[Step], lengths: dict[int, int]) -> None:
    """What each source gave is counted by the lengths of then."""
    counts, tokens = np.zeros(len(NAMES), dtype=int), np.zeros(len(NAMES), dtype=int)
    for step in found:
        for row, (source, _) in step.rows.items():
            counts[source] += 1
            tokens[source] += lengths[max(first for first in lengths if first <= row // LANES)]
    assert [one["given"]["rows"] for one in state["sources"]] == counts.tolist()
    assert [one["given"]["tokens"] for one in state["sources"]] == tokens.tolist()
    told = loader.stats()
    assert told["tokens"] == tokens.sum()
    assert [told["sources"][name]["tokens"] for name in NAMES] == tokens.tolist()


LINKS = ((6, 12, 5), (17, 6, 4), (3, 12, 6))
"""seq_len, global batch size and steps of each part of a run."""


class Run:
    """A run whose rows become longer and shorter: its steps, and the states before each and after all."""

    def __init__(self, parts: dict[str, Corpus], **arguments: Any) -> None:
        self.parts = parts
        self.arguments = arguments
        self.taken: list[Step] = []
        self.states: list[dict[str, Any]] = []
        self.batches: list[hr.Batch] = []
        [loader] = loaders(self.dataset(6), 1, global_batch_size=12, lanes=LANES, seed=4, window=3)
        for number, (seq_len, batch, count) in enumerate(LINKS):
            if number:
                [loader] = changed(self.dataset(seq_len), loader.state_dict(), global_batch_size=batch)
            for _ in range(count):
                self.states.append(loader.state_dict())
                batch_ = next(iter(loader))
                self.batches.append(batch_)
        self.states.append(loader.state_dict())
        self.loader = loader

    def dataset(self, seq_len: int) -> hr.MixDataset:
        return mixed(self.parts, seq_len, **self.arguments)


@pytest.fixture(scope="module")
def run(parts: dict[str, Corpus]) -> Run:
    return Run(parts)


def test_states_before_and_behind_changes_go_on(run: Run) -> None:
    ends = [5, 9, 15]
    for step, state in enumerate(run.states[:-1]):
        end = next(end for end in ends if step < end)
        seq_len, batch, _ = LINKS[ends.index(end)]
        for world in (1, 2, 3):
            ranks = loaders(run.dataset(seq_len), world, state)
            assert [one.state_dict() for one in ranks] == [state] * world
            assert ranks[0].global_batch_size == batch
            taken = steps(ranks, end - step)
            assert [one.state for one in taken[:-1]] == run.states[step + 1 : end]
            for one, wanted in zip(taken, run.batches[step:end], strict=True):
                rows = zip(wanted["source"].tolist(), wanted["tokens"].tolist(), strict=True)
                assert one.rows == dict(zip(wanted.rows.tolist(), rows, strict=True))


def test_a_state_tells_of_all_changes(run: Run) -> None:
    kinds = [(one["kind"], one["step"], one["row"], one["before"], one["after"]) for one in run.states[-1]["changes"]]
    assert kinds == [
        ("seq_len", 5, 60, 6, 17),
        ("batch size", 5, 60, 12, 6),
        ("seq_len", 9, 84, 17, 3),
        ("batch size", 9, 84, 6, 12),
    ]
    for step, batch in enumerate(run.batches):
        seq_len = 17 if 5 <= step < 9 else 3 if step >= 9 else 6
        rows = len(batch.rows)
        assert batch["tokens"].shape == batch["document_ids"].shape == (rows, seq_len + 1)
        assert batch["cu_seqlens"][-1] == rows * seq_len


def test_sources_are_told_of_any_step(run: Run) -> None:
    [loader, _] = loaders(run.dataset(3), 2, run.states[-1])
    for batch in run.batches:
        both = [loader.sources(batch.step, rank) for rank in range(2)]
        assert sorted(map(str, both[0] + both[1])) == sorted(map(str, batch.sources()))


def test_steps_before_a_change_are_no_place_to_go_on(run: Run) -> None:
    [loader] = loaders(run.dataset(3), 1, run.states[-1])
    for step in (0, 4, 8):
        message = f"step {step} lies before step 9, where seq_len changed from 17 to 3\nhint: load a state that was"
        with pytest.raises(ValueError, match=message):
            loader.seek(step)
    assert loader.step == 15
    loader.seek(9)
    for wanted in run.batches[9:]:
        batch = next(iter(loader))
        assert batch["tokens"].tolist() == wanted["tokens"].tolist()


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "without an overlap": {"packing": {"overlap": 0, "bos_id": -2}},
    "batches of one source": {"per_batch": True},
    "sources leave": {"on_exhausted": "drop", "max_epochs": {"tiny documents": 9, "one document": 99, "middle": 2}},
    "a source stops it": {
        "on_exhausted": "stop",
        "max_epochs": {"tiny documents": 99, "one document": 199, "middle": 5, "large": 5},
    },
    "over steps": {"schedule": {0: dict(zip(NAMES, WEIGHTS, strict=True)), 13: dict.fromkeys(NAMES, 1.0)}},
    "over tokens": {
        "schedule": hr.WeightSchedule(
            {0: dict(zip(NAMES, WEIGHTS, strict=True)), 1500: dict.fromkeys(NAMES, 1.0)}, "tokens", "linear"
        )
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lengths", [(7, 12), (12, 3, 5)])
def test_a_changed_run_goes_on_exactly_on_any_ranks(
    parts: dict[str, Corpus], case: str, lengths: tuple[int, ...]
) -> None:
    [loader] = loaders(mixed(parts, lengths[0], **CASES[case]), 1, global_batch_size=12, seed=1)
    steps([loader], 4)
    for seq_len in lengths[1:]:
        [loader] = changed(mixed(parts, seq_len, **CASES[case]), loader.state_dict())
        state = loader.state_dict()
        checked = check_resume(mixed(parts, seq_len, **CASES[case]), state=state, steps=4, loader={"num_workers": 1})
        assert checked.steps > 1
        steps([loader], 3)


def test_a_schedule_over_tokens_counts_them_by_the_lengths_of_then(parts: dict[str, Corpus]) -> None:
    points = {0: WEIGHTS, 500: [1.0, 0.0, 0.0, 1.0], 900: [0.0, 1.0, 1.0, 0.0], 1300: WEIGHTS}
    schedule = hr.WeightSchedule({at: dict(zip(NAMES, one, strict=True)) for at, one in points.items()}, "tokens")
    lengths = {0: 7, 8: 12, 11: 3}
    ranks = loaders(mixed(parts, 7, schedule=schedule), 1, global_batch_size=LANES, lanes=LANES)
    taken: list[Step] = []
    for first, seq_len in lengths.items():
        if first:
            ranks = changed(mixed(parts, seq_len, schedule=schedule), ranks[0].state_dict(), 2)
        taken += steps(ranks, {0: 8, 8: 3, 11: 25}[first])
    by_round: dict[int, list[float]] = {}
    for at, weights in points.items():
        row = tokens = 0
        while tokens < at:
            tokens += lengths[max(first for first in lengths if first <= row // LANES)]
            row += 1
        by_round[ceil(row / LANES)] = weights
    assert [*by_round] == [0, 10, 21, 43] or len(by_round) == 4
    rows = rows_of(taken)
    assert rows == expected([parts[name] for name in NAMES], ranks[0], by_round, len(rows), lengths)


def test_a_source_that_was_taken_out_comes_back_with_its_next_tokens(parts: dict[str, Corpus]) -> None:
    rules: dict[str, Any] = {"on_exhausted": "drop", "max_epochs": {"middle": 6, "large": 3}}
    ranks = loaders(mixed(parts, 7, **rules), 1, global_batch_size=LANES, seed=1)
    taken = steps(ranks, 4)
    kept = [name for name in NAMES if name != "middle"]
    some = dict(rules, max_epochs={"large": 3})
    fewer = [1.0, 1.0, 1.0]
    # Taken out together with a change, which it is there for again.
    ranks = changed(mixed(parts, 12, fewer, names=kept, **some), taken[-1].state, 2)
    taken += steps(ranks, 3)
    ranks = changed(mixed(parts, 4, fewer, names=kept, **some), taken[-1].state, 3)
    taken += steps(ranks, 3)
    state = taken[-1].state
    assert [one["packing"]["seq_len"] for one in state["sources"]] == [4, 7, 4, 4]
    ranks = changed(mixed(parts, 9, **rules), state, 1)
    taken += steps(ranks, 10**3)
    # In batches of the middle part sources have the numbers of its names.
    numbers = {number: NAMES.index(name) for number, name in enumerate([*kept, "middle"])}
    rows = [
        (numbers[source] if 4 <= step < 10 else source, tokens)
        for step, one in enumerate(taken)
        for source, tokens in one.rows.values()
    ]
    weights = {0: WEIGHTS, 4: [1.0, 0.0, 1.0, 1.0], 10: WEIGHTS}
    lengths = {0: 7, 4: 12, 7: 4, 10: 9}
    wanted = expected([parts[name] for name in NAMES], ranks[0], weights, 10**4, lengths)
    assert rows == wanted
    assert len(taken) > 20


def test_a_source_that_has_left_stays_away(parts: dict[str, Corpus]) -> None:
    """Though shorter rows would be left of it."""
    rules: dict[str, Any] = {"on_exhausted": "drop", "max_epochs": {"middle": 1, "large": 2}}
    ranks = loaders(mixed(parts, 29, **rules), 1, global_batch_size=LANES, seed=1)
    taken: list[Step] = []
    while ranks[0].stats()["sources"]["middle"]["weight"]:
        taken += steps(ranks, 1)
    first = len(taken)
    before = taken[-1].state["sources"][1]["given"]
    ranks = changed(mixed(parts, 2, **rules), taken[-1].state)
    assert ranks[0].stats()["sources"]["middle"]["weight"] == 0
    taken += steps(ranks, 10**3)
    assert taken[-1].state["sources"][1]["given"] == before
    wanted = expected([parts[name] for name in NAMES], ranks[0], {0: WEIGHTS}, 10**5, {0: 29, first: 2})
    assert rows_of(taken) == wanted
    assert len(taken) > first + 10


def test_what_was_not_used_is_given_once_in_rows_of_one_token(parts: dict[str, Corpus]) -> None:
    """To the last token of each source, whatever its rows were before."""
    rules: dict[str, Any] = {"on_exhausted": "drop", "packing": {"overlap": 0, "eos_id": None}}
    ranks = loaders(mixed(parts, 5, **rules), 1, global_batch_size=LANES, seed=1)
    found: list[list[int]] = [[] for _ in NAMES]
    for seq_len, count in ((5, 3), (8, 2), (1, 10**4)):
        if seq_len != 5:
            ranks = changed(mixed(parts, seq_len, **rules), ranks[0].state_dict())
        for source, tokens in rows_of(steps(ranks, count)):
            found[source] += tokens
    for name, tokens, entry in zip(NAMES, found, ranks[0].state_dict()["sources"], strict=True):
        there = sorted(parts[name].tokens)
        if name != "tiny documents":
            assert len(set(tokens)) == len(tokens)
        assert entry["given"]["tokens"] == len(tokens)
        assert set(tokens) <= set(there)
        # It goes with the first of its lanes: the others are a few rows behind. Others went before rows were short.
        assert name != "large" or len(there) - len(tokens) <= 8 * entry["lanes"]


def test_documents_stay_masked_and_left_out(parts: dict[str, Corpus]) -> None:
    plain = loaders(mixed(parts, 6), 1, global_batch_size=12, seed=1)
    steps(plain, 3)
    state = plain[0].state_dict()
    [straight] = changed(mixed(parts, 9), state)
    batches = [next(iter(straight)) for _ in range(6)]
    rows = zip(batches[3]["source"].tolist(), batches[3].sources(), strict=True)
    names = list(dict.fromkeys(part.id for source, row in rows for part in row if source == 0))[:5]
    [masked] = changed(mixed(parts, 9), state, exclude=names)
    seen = 0
    for wanted in batches:
        batch = next(iter(masked))
        assert np.array_equal(batch["tokens"], wanted["tokens"])
        for row, (numbers, mask) in enumerate(zip(batch["document_ids"], batch["loss_mask"], strict=True)):
            parts_ = batch.sources()[row]
            hidden = [number for number, part in enumerate(parts_) if part.id in names]
            assert np.array_equal(mask == 0, np.isin(numbers, hidden))
            seen += int((mask == 0).sum())
    assert seen > 5
    options = {"num_workers": 1, "exclude": names}
    check_resume(mixed(parts, 9), state=masked.state_dict(), steps=3, loader=options)
    # And of a run that never has them.
    [without] = loaders(mixed(parts, 6), 1, global_batch_size=12, seed=1, exclude=names)
    steps([without], 3)
    [without] = changed(mixed(parts, 9), without.state_dict(), exclude=names)
    for _ in range(9):
        assert not {part.id for row in next(iter(without)).sources() for part in row} & set(names)
    check_resume(mixed(parts, 9), state=without.state_dict(), steps=3, loader=options)


def test_another_length_is_refused_where_it_cannot_be(parts: dict[str, Corpus]) -> None:
    [loader] = loaders(mixed(parts, 6), 1, global_batch_size=12, seed=1)
    steps([loader], 2)
    state = loader.state_dict()
    other = hr.DataLoader(mixed(parts, 9), rank=0, world_size=1)
    with pytest.raises(hr.StateMismatch, match="seq_len is 9 here and 6 in the state\nhint: strict=False goes on with"):
        other.load_state_dict(state)
    loader.set_global_batch_size(8)
    steps([loader], 1)
    message = "seq_len cannot change from 6 to 9 here: row 32 is in the middle of a round of 12 rows\nhint: .* row 36"
    with pytest.raises(hr.StateMismatch, match=message):
        other.load_state_dict(loader.state_dict(), strict=False)
    # Not together with what never changes.
    overlap = hr.DataLoader(mixed(parts, 9, packing={"overlap": 2}), rank=0, world_size=1)
    with pytest.raises(hr.StateMismatch, match="overlap of source 'large' is 2 here and 1 in the state"):
        overlap.load_state_dict(state, strict=False)


WRONG: dict[str, Any] = {
    "not a count": ({"before": "6"}, "expected a change of seq_len from '6' on"),
    "in a round": ({"row": 61}, "where steps and rounds begin, found .*'row': 61"),
    "to come": ({"step": 6, "row": 66}, "where steps and rounds begin"),
    "elsewhere": ({"after": 16}, "by its changes seq_len is 16, its pipeline says 17"),
    "from another one": ({"before": 5}, "by its weights source 'large' has given"),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_changes_that_cannot_have_been_are_refused(run: Run, change: dict[str, Any], message: str) -> None:
    state = run.states[5]
    line, *others = state["changes"]
    with pytest.raises(hr.StateMismatch, match=message):
        loaders(run.dataset(17), 1, state | {"changes": sorted([line | change, *others], key=lambda one: one["step"])})


def test_sources_of_a_state_are_alike(run: Run) -> None:
    state = json.loads(json.dumps(run.states[5]))
    state["sources"][1]["packing"]["seq_len"] = 18
    with pytest.raises(hr.StateMismatch, match=r"rows of all sources to have one seq_len, found \[17, 18, 17, 17\]"):
        loaders(run.dataset(17), 1, state)
