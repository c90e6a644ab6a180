"""Dynamic pipelines whose rows become longer or shorter in mid-run: each lane goes on with what it has not used."""

import json
from collections import deque
from dataclasses import replace
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

import headrace as hr
import lane_mixtures as mixtures
from datasets import CorpusWriter, seeded
from headrace.testing import check_resume
from lane_pipelines import (
    SIZES,
    check_row,
    copies,
    dataset_of,
    join,
    loader_of,
    packings,
    reference_of,
    rows_given,
    steps_of,
)
from lane_reference import Packing, Starved, Step
from mixture_reference import MixtureReference

LANES = 6
SHAPES = ((6, 1), (6, 2), (6, 3), (12, 1), (12, 3), (3, 1), (3, 3), (2, 2))
"""Global batch sizes and numbers of ranks."""


def ranks(data: Any, shape: tuple[int, int], **options: Any) -> list[hr.DataLoader]:
    """The loaders of all ranks."""
    batch, world = shape
    return [loader_of(data, batch, rank=rank, world_size=world, **options) for rank in range(world)]


def load(loaders: list[hr.DataLoader], state: dict[str, Any], change: tuple[int, int] | None) -> None:
    """Loads a state that has been JSON, and expects one warning of a change."""
    saved = json.loads(json.dumps(state))
    for one in loaders:
        if change is None:
            one.load_state_dict(saved)
            continue
        with pytest.warns(UserWarning, match=f"seq_len changes from {change[0]} to {change[1]} from row") as caught:
            one.load_state_dict(saved, strict=False)
        assert [warning.filename for warning in caught] == [__file__]


def take(loaders: list[hr.DataLoader], steps: int) -> dict[int, Any]:
    return {number: row for one in loaders for number, row in rows_given(one, steps).items()}


def state_of(loaders: list[hr.DataLoader]) -> dict[str, Any]:
    return hr.State.merge([one.state_dict() for one in loaders])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_chains_of_changes_give_the_rows_of_the_reference(data: st.DataObject) -> None:
    """Each link has other rows, ranks and batches than the one before, and may be saved without a step."""
    steps, packing = data.draw(steps_of, "steps"), data.draw(packings, "packing")
    assume(packing.mode is not None)
    # Shorter rows would leave out nearly all documents where those that are longer are.
    packing = replace(packing, seq_len=max(4, packing.seq_len))
    order: dict[str, Any] = {"shuffle": data.draw(st.booleans(), "shuffle"), "seed": 5}
    dataset = dataset_of(SIZES, steps, packing)
    reference = reference_of(dataset, SIZES, steps, packing, lanes=LANES, **order)
    state: dict[str, Any] | None = None
    changes: list[tuple[int, int, int]] = []
    for _ in range(data.draw(st.integers(2, 4), "links")):
        loaders = ranks(dataset, data.draw(st.sampled_from(SHAPES), "shape"), lanes=LANES, **order)
        if state is not None:
            seq_len = data.draw(st.integers(4, 24), "seq_len")
            change = None if seq_len == packing.seq_len else (packing.seq_len, seq_len)
            if change is not None and state["position"] % LANES:
                other = loader_of(dataset_of(SIZES, steps, replace(packing, seq_len=seq_len)), 6)
                row = state["position"] + LANES - state["position"] % LANES
                with pytest.raises(hr.StateMismatch, match=f"hint: change it where a round begins, as at row {row}"):
                    other.load_state_dict(state, strict=False)
                change = None
            if change is not None:
                packing = replace(packing, seq_len=seq_len)
                dataset = dataset_of(SIZES, steps, packing)
                loaders = ranks(dataset, data.draw(st.sampled_from(SHAPES), "other shape"))
                reference.lengths[state["position"] // LANES] = seq_len
                changes.append((state["position"], *change))
            load(loaders, state, change)
            again = state_of(loaders)
            assert again["lane_states"] == state["lane_states"]
            lines = [line for line in again["changes"] if line["kind"] == "seq_len"]
            assert [(line["row"], line["before"], line["after"]) for line in lines] == changes
        wanted = data.draw(st.integers(0, 4), "count")
        try:
            begin = 0 if state is None else state["position"]
            expected = {row: reference.row(row) for row in range(begin, begin + wanted * loaders[0].global_batch_size)}
        except Starved:
            reject()
        found = take(loaders, wanted)
        assert sorted(found) == sorted(expected)
        for number, row in found.items():
            check_row(row, expected[number], packing, SIZES)
        state = state_of(loaders)


DEEP = (Step("flat_map", copies, random=True), Step("batch_map", join, 3))


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("mode", ["concat", "best_fit", "pad", "truncate"])
def test_changed_runs_end_as_they_should(mode: str, pad: bool) -> None:
    """To the end of the last pass, with a resume after every step."""
    packing = Packing(mode=mode, seq_len=4, lookahead=5, eos_id=2)
    reference = reference_of(dataset_of(SIZES, DEEP, packing), SIZES, DEEP, packing, lanes=3, epochs=2, pad=pad)
    reference.lengths.update({3: 17, 5: 6})
    options: dict[str, Any] = {"lanes": 3, "epochs": 2, "remainder": "pad" if pad else "drop"}
    state: dict[str, Any] | None = None
    rows = 0
    while True:
        here = replace(packing, seq_len=reference.size(rows // 3))
        loader = loader_of(dataset_of(SIZES, DEEP, here), 3, **options)
        if state is not None:
            before = state["pipeline"]["seq_len"]
            load([loader], state, None if before == here.seq_len else (before, here.seq_len))
        found = rows_given(loader, 1)
        if not found:
            break
        for number, row in found.items():
            wanted = reference.row(number)
            assert pad or wanted is not None
            check_row(row, wanted or [], here, SIZES)
        rows += 3
        state = loader.state_dict()
    ended = [reference.row(rows + lane) is None for lane in range(3)]
    assert all(ended) if pad else any(ended)
    assert rows > 20


def mixture(
    samples: dict[str, hr.SampleDataset], seq_len: int, mode: Any, weights: dict[str, float], **options: Any
) -> Any:
    """A mixture whose rows hold the tokens of documents."""
    sources = {name: samples[name].flat_map(mixtures.one_each).pack(seq_len, mode=mode) for name in weights}
    return hr.mix({name: (sources[name], weight) for name, weight in weights.items()}, **options)


@pytest.mark.parametrize("mode", ["concat", "pad"])
def test_sources_of_a_mixture_change_alike(tmp_path: Path, mode: str) -> None:
    samples = mixtures.lines(tmp_path, {"many": 90, "few": 17})
    weights = {"many": 3.0, "few": 1.0}
    run: dict[str, Any] = {"global_batch_size": 6, "seed": 1, "num_workers": 0}
    parts: list[tuple[int, dict[int, Any]]] = []
    state: dict[str, Any] | None = None
    for seq_len, world in ((4, 1), (11, 2), (4, 3)):
        ranks = mixtures.loaders(mixture(samples, seq_len, mode, weights), world, **run)
        if state is not None:
            load(ranks, state, (parts[-1][0], seq_len))
        taken = mixtures.steps(ranks, 5)
        parts.append((seq_len, {row: found for step in taken for row, found in step.rows.items()}))
        state = hr.State.merge(taken[-1].parts)
    assert [(one["row"], one["before"], one["after"]) for one in state["changes"]] == [(30, 4, 11), (60, 11, 4)]
    for source, entry in enumerate(state["sources"]):
        own = [sum(found[0] == source for found in rows.values()) for _, rows in parts]
        tokens = sum(count * seq_len for count, (seq_len, _) in zip(own, parts, strict=True))
        assert entry["given"] == {"rows": sum(own), "tokens": tokens}
    # Which source has which row never depends on how long rows are; each lane of one goes on where it was.
    whole = mixtures.steps(mixtures.loaders(mixture(samples, 4, mode, weights), 1, **run), 15)
    given_rows = {row: found for _, rows in parts for row, found in rows.items()}
    assert {row: found[0] for row, found in given_rows.items()} == {
        row: found[0] for step in whole for row, found in step.rows.items()
    }
    for source, name in enumerate(weights):
        alone = LaneStreams(samples[name], mode)
        for row in sorted(given_rows):
            if given_rows[row][0] == source:
                seq_len = next(length for length, rows in parts if row in rows)
                assert given_rows[row][1] == alone.next(row % 6, seq_len), f"row {row}"


class LaneStreams:
    """The tokens of a source's six lanes, row after row."""

    def __init__(self, samples: hr.SampleDataset, mode: str) -> None:
        loader = hr.DataLoader(
            samples.flat_map(mixtures.one_each), global_batch_size=6, lanes=6, seed=1, num_workers=0, collate_fn=list
        )
        documents = [[one["tokens"] for one in batch] for batch in islice(loader, 200)]
        self.lanes = [deque(batch[lane] for batch in documents if batch[lane]) for lane in range(6)]
        self.mode = mode

    def next(self, lane: int, seq_len: int) -> list[int]:
        row: list[int] = []
        documents = self.lanes[lane]
        while len(row) < seq_len:
            document = documents.popleft()
            room = seq_len - len(row)
            row += document[:room]
            if document[room:]:
                documents.appendleft(document[room:])
            if self.mode == "pad":
                break
        return row + [0] * (seq_len - len(row))


def test_a_schedule_over_tokens_counts_them_by_the_lengths_of_then(tmp_path: Path) -> None:
    samples = mixtures.lines(tmp_path, {"many": 90, "few": 17})
    names = ["many", "few"]
    points = {0: [1.0, 1.0], 100: [2.0, 1.0], 300: [0.0, 1.0], 700: [1.0, 0.0]}
    later = {at: dict(zip(names, one, strict=True)) for at, one in points.items() if at}
    schedule = hr.WeightSchedule(later, over="tokens")
    lengths = {0: 4, 5: 11, 9: 4}

    def ranks(seq_len: int, world: int, schedule: hr.WeightSchedule | None = schedule) -> list[hr.DataLoader]:
        data = mixture(samples, seq_len, "concat", {"many": 1.0, "few": 1.0}, schedule=schedule)
        return mixtures.loaders(data, world, global_batch_size=6, seed=1, num_workers=0)

    state: dict[str, Any] | None = None
    found: dict[int, int] = {}
    for (first, seq_len), count in zip(lengths.items(), (5, 4, 20), strict=True):
        here = ranks(seq_len, 1 + first % 3)
        if state is not None:
            with pytest.raises(hr.StateMismatch, match=f"seq_len is {seq_len} here and"):
                here[0].load_state_dict(state)
            load(here, state, (lengths[max(one for one in lengths if one < first)], seq_len))
        taken = mixtures.steps(here, count)
        found |= {row: one[0] for step in taken for row, one in step.rows.items()}
        state = hr.State.merge(taken[-1].parts)
        check_resume(
            here[0].dataset, state=state, steps=2, global_batch_size=6, world_sizes=(1, 2, 3), loader={"num_workers": 0}
        )
    by_round: dict[int, list[float]] = {}
    for at, weights in points.items():
        row = tokens = 0
        while tokens < at:
            tokens += lengths[max(first for first in lengths if first <= row // 6)]
            row += 1
        by_round[ceil(row / 6)] = weights
    assert len(by_round) == 4
    reference = MixtureReference(seed=1, lanes=6, source_lanes=[6, 6], weights=by_round)
    assert [found[row] for row in sorted(found)] == [drawn.source for drawn in reference.up_to(len(found))]
    # A schedule that comes with a change counts all that was given before.
    before = next(iter(ranks(4, 1, None)[0])).state
    [loader] = ranks(8, 1)
    with pytest.warns(UserWarning, match="headrace: ") as caught:
        loader.load_state_dict(before, strict=False)
    assert sorted(str(one.message)[:27] for one in caught) == [
        "headrace: seq_len changes f",
        "headrace: the mixture chang",
    ]
    sources = [source for batch in islice(loader, 30) for source in batch["source"].tolist()]
    # 24 tokens and rows of 8: 100 of them end in round 3, 300 in round 7, 700 in round 16.
    weights = {0: [1.0, 1.0], 3: [2.0, 1.0], 7: [0.0, 1.0], 16: [1.0, 0.0]}
    reference = MixtureReference(seed=1, lanes=6, source_lanes=[6, 6], weights=weights)
    assert sources == [drawn.source for drawn in reference.up_to(186)[6:]]


@pytest.mark.parametrize("per_batch", [False, True])
def test_packed_columns_beside_other_rows_change_with_them(
    tmp_path: Path, write: CorpusWriter, per_batch: bool
) -> None:
    corpus, samples = write(seeded(5, files=2, groups=3, documents=8, longest=20)), mixtures.lines(tmp_path, {"a": 40})

    def mixed(seq_len: int) -> hr.MixDataset:
        rows = samples["a"].flat_map(mixtures.one_each).pack(seq_len)
        return hr.mix({"web": (corpus.open(seq_len=seq_len), 2.0), "rows": (rows, 1.0)}, per_batch=per_batch)

    run: dict[str, Any] = {"global_batch_size": 6, "seed": 1, "num_workers": 0}
    found: list[list[int]] = [[] for _ in range(6)]
    state: dict[str, Any] | None = None
    before = 0
    for seq_len, world in ((4, 1), (9, 2), (5, 3)):
        here = mixtures.loaders(mixed(seq_len), world, **run)
        if state is not None:
            load(here, state, (before, seq_len))
        taken = mixtures.steps(here, 4)
        for step in taken:
            for row, (source, tokens) in sorted(step.rows.items()):
                found[row % 6] += tokens if source == 0 else []
        state, before = hr.State.merge(taken[-1].parts), seq_len
        arguments = {"seed": 1, "num_workers": 0}
        check_resume(mixed(seq_len), state=state, steps=2, global_batch_size=6, world_sizes=(1, 3), loader=arguments)
    assert [(one["before"], one["after"]) for one in state["changes"]] == [(4, 9), (9, 5)] if state else False
    alone: list[list[int]] = [[] for _ in range(6)]
    for batch in islice(hr.DataLoader(hr.open(corpus.folder).select(["tokens"]).pack(1), **run), 120):
        for row, tokens in zip(batch.rows.tolist(), batch["tokens"].tolist(), strict=True):
            alone[row % 6] += tokens
    assert min(map(len, found)) > 10
    assert found == [lane[: len(own)] for lane, own in zip(alone, found, strict=True)]
