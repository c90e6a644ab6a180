"""Files that are added to sources of a mixture of packed columns: each source takes them from its own next pass on."""

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import Corpus, CorpusWriter, record, seeded, take_batches
from headrace.testing import check_resume
from mixture_reference import Drawn, MixtureReference
from reference import Reference
from test_added_packed import first_files, load

NAMES = ("a", "b")
FILES = 4
LANES = 6


@pytest.fixture(scope="module")
def parts(write: CorpusWriter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Corpus]]:
    """Of each source, what there is when there are no, one, two ... files."""
    whole = {
        name: write(seeded(seed, files=FILES, groups=2, documents=8, longest=9))
        for name, seed in zip(NAMES, (3, 8), strict=True)
    }
    return {
        name: [first_files(corpus, count, tmp_path_factory.mktemp(name)) for count in range(FILES + 1)]
        for name, corpus in whole.items()
    }


@dataclass
class Source:
    """What is expected of a source."""

    whole: Corpus
    packing: dict[str, Any]
    passes: int | None
    files: int
    data: dict[int, int] = field(default_factory=dict[int, int])
    """From which pass on there are how many row groups."""
    order: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def reference(self) -> Reference:
        return Reference(
            self.whole.chunks, **self.packing, **self.order, seq_len=1, global_batch_size=1, data=self.data
        )

    def add(self, files: int, rows: list[Drawn], overlap: int, *, has_left: bool) -> int:
        lanes, reference = self.order["lanes"], self.reference
        used = [(row.begin + row.length + overlap - 1) * lanes + row.row % lanes + 1 for row in rows]
        epoch = next(epoch for epoch in range(999) if reference.begin_of_pass(epoch) >= max(used, default=0))
        if has_left:
            assert self.passes is not None
            epoch = max(epoch, self.passes)
        self.files = files
        self.data = {begin: count for begin, count in self.data.items() if begin < epoch} | {epoch: self.row_groups}
        return epoch

    @property
    def row_groups(self) -> int:
        return sum(len(self.whole.files[name]) for name in sorted(self.whole.files)[: self.files])

    def epoch_of(self, tokens: int) -> int:
        reference = self.reference
        return next(epoch for epoch in range(99) if reference.begin_of_pass(epoch + 1) > tokens)


@settings(max_examples=20, deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 2**64 - 1),
    exhausted=st.sampled_from(["repeat", "stop", "drop"]),
    passes=st.fixed_dictionaries({}, optional={"a": st.integers(1, 4), "b": st.integers(1, 4)}),
    window=st.integers(1, 6),
    overlap=st.integers(0, 1),
)
def test_any_number_of_additions_restarts_and_ranks(
    parts: dict[str, list[Corpus]],
    data: st.DataObject,
    seed: int,
    exhausted: Any,
    passes: dict[str, int],
    window: int,
    overlap: int,
) -> None:
    """Against the slow second implementations: each row is the source's next, over the data that its passes have."""
    packing: dict[str, Any] = {"eos_id": -1}
    lengths = {0: data.draw(st.integers(2, 5), "seq_len")}
    weight = st.sampled_from([1.0, 2.0, 0.3])
    weights = {0: [data.draw(weight, name) for name in NAMES]}
    default = None if exhausted == "repeat" else 1
    sources = [
        Source(parts[name][FILES], packing, passes.get(name, default), data.draw(st.integers(2, 3), "files"))
        for name in NAMES
    ]
    for source in sources:
        source.data = {0: source.row_groups}

    def mixed() -> hr.MixDataset:
        made = {
            name: (parts[name][source.files].open(**packing, overlap=overlap, seq_len=lengths[max(lengths)]), weight)
            for name, source, weight in zip(NAMES, sources, weights[max(weights)], strict=True)
        }
        return hr.mix(made, on_exhausted=exhausted, max_epochs=passes)

    def reference() -> MixtureReference:
        return MixtureReference(
            seed=seed,
            lanes=LANES,
            source_lanes=[source.order["lanes"] for source in sources],
            weights=weights,
            limits=[
                None if source.passes is None else source.reference.begin_of_pass(source.passes) for source in sources
            ],
            exhausted="stop" if exhausted == "stop" else "drop",
            lengths=lengths,
            overlap=overlap,
        )

    state: dict[str, Any] | None = None
    found: dict[int, tuple[int, list[int]]] = {}
    """The source and the tokens of each row."""
    ended = False
    for _ in range(data.draw(st.integers(2, 4), "links")):
        batch, world = data.draw(st.sampled_from([(6, 1), (6, 2), (12, 3), (4, 2)]), "batch")
        told: list[str] = []
        if state is not None:
            row = state["position"]
            before = reference()
            drawn = before.up_to(row)
            for number, (name, source) in enumerate(zip(NAMES, sources, strict=True)):
                more = data.draw(st.integers(0, FILES - source.files), "more")
                if more:
                    rows = [one for one in drawn if one.source == number]
                    epoch = source.add(source.files + more, rows, overlap, has_left=number in before.gone)
                    is_over = source.passes is not None and epoch >= source.passes
                    told.append(f"source '{name}' behind those of the state")
                    told.append("they are not used" if is_over else f"they are used from its pass {epoch} on")
            last_length, length = lengths[max(lengths)], data.draw(st.integers(2, 5), "seq_len")
            if row % LANES == 0 and length != last_length:
                lengths = {begin: kept for begin, kept in lengths.items() if begin < row // LANES}
                lengths[row // LANES] = length
                told += ["seq_len changes", f"from {last_length} to {length}"]
            if data.draw(st.booleans(), "other weights"):
                first = -(-row // LANES)
                last = weights[max(weights)]
                new = [data.draw(weight, name) for name in NAMES]
                if new != last:
                    weights = {begin: kept for begin, kept in weights.items() if begin < first} | {first: new}
        options: dict[str, Any] = {"global_batch_size": batch, "num_workers": 0}
        if state is None:
            options |= {"seed": seed, "lanes": LANES, "window": window}
        ranks = [hr.DataLoader(mixed(), rank=rank, world_size=world, **options) for rank in range(world)]
        if state is None:
            saved = ranks[0].state_dict()["sources"]
            for source, entry in zip(sources, saved, strict=True):
                source.order = {"seed": seed, "lanes": entry["lanes"], "window": entry["window"]}
        else:
            for one in ranks:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    one.load_state_dict(json.loads(json.dumps(state)), strict=False)
                texts = [str(one.message) for one in caught if "mixture changes" not in str(one.message)]
                assert len(texts) == len(told) // 2
                assert all(text in " ".join(texts) for text in told)
        steps = data.draw(st.integers(0, 6), "steps")
        taken = [take_batches(one, steps) for one in ranks]
        for part in taken:
            for one in part:
                for row, source, tokens in zip(
                    one.rows.tolist(), one["source"].tolist(), one["tokens"].tolist(), strict=True
                ):
                    found[row] = source, tokens
        ended = len(taken[0]) < steps
        state = hr.State.merge([one.state_dict() for one in ranks])
        if data.draw(st.booleans(), "moved back"):
            earliest = max((one["step"] for one in state["changes"] if one["kind"] == "seq_len"), default=0)
            ranks[0].seek(data.draw(st.integers(earliest, state["step"]), "to"))
            state = ranks[0].state_dict()
            found = {row: one for row, one in found.items() if row < state["position"]}
            ended = False
    after = reference()
    rows = after.up_to(len(found) + batch)
    assert sorted(found) == list(range(len(found)))
    assert ended == (ended and len(rows) < len(found) + batch)
    references = [source.reference for source in sources]
    for row, one in zip(range(len(found)), rows, strict=False):
        lane = one.row % sources[one.source].order["lanes"]
        units = references[one.source].lane_units(lane, one.begin, one.begin + one.length + overlap)
        assert found[row] == (one.source, [unit.token for unit in units]), f"row {row}"
    assert len(rows) >= len(found)
    for number, (entry, source) in enumerate(zip(state["sources"], sources, strict=True)):
        own = [one for one in rows[: state["position"]] if one.source == number]
        tokens = sum(one.length for one in own)
        assert entry["given"] == {"rows": len(own), "tokens": tokens, "epoch": source.epoch_of(tokens)}


PACKING: dict[str, Any] = {"seq_len": 5, "eos_id": -1}
RUN: dict[str, Any] = {"global_batch_size": 6, "seed": 2, "lanes": 6, "window": 4}


def mixed(parts: dict[str, list[Corpus]], a: int, b: int, **arguments: Any) -> hr.MixDataset:
    """Of so many files of each source."""
    weights = arguments.pop("weights", (1, 1))
    counts = {"a": (a, weights[0]), "b": (b, weights[1])}
    return hr.mix(
        {name: (parts[name][files].open(**PACKING), weight) for name, (files, weight) in counts.items()}, **arguments
    )


def rows_of(batches: list[hr.Batch]) -> list[tuple[int, list[int]]]:
    """The source and the tokens of each row."""
    return [row for batch in batches for row in zip(batch["source"].tolist(), batch["tokens"].tolist(), strict=True)]


def test_each_source_has_a_line_and_a_pass_of_its_own(parts: dict[str, list[Corpus]]) -> None:
    loader = hr.DataLoader(mixed(parts, 1, 2, weights=(3, 1)), **RUN)
    before = take_batches(loader, 13)
    epochs = [source["given"]["epoch"] for source in loader.state_dict()["sources"]]
    assert epochs[0] > epochs[1]
    with pytest.raises(hr.StateMismatch, match="source 'a' is not that of the state: 2 files were added to source 'a'"):
        hr.DataLoader(mixed(parts, 3, 4, weights=(3, 1))).load_state_dict(loader.state_dict())
    again = load(
        hr.DataLoader(mixed(parts, 3, 4, weights=(3, 1))), loader.state_dict(), "to source 'a'", "to source 'b'"
    )
    [line] = again.state_dict()["changes"]
    assert (line["kind"], line["step"], line["row"]) == ("data added", 13, 78)
    assert {name: one["files"] for name, one in line["before"].items()} == {"a": 1, "b": 2}
    assert {name: one["files"] for name, one in line["after"].items()} == {"a": 3, "b": 4}
    assert [line["after"][name]["epoch"] - epoch for name, epoch in zip(NAMES, epochs, strict=True)] == [1, 1]
    after = take_batches(again, 40)
    files = [
        [
            Path(one.file).name
            for batch in after
            for row, source in zip(batch.sources(), batch["source"], strict=True)
            if source == number
            for one in row
        ]
        for number in range(2)
    ]
    assert [set(names) for names in files] == [
        {"f0.parquet", "f1.parquet", "f2.parquet"},
        {f"f{number}.parquet" for number in range(4)},
    ]
    third = load(hr.DataLoader(mixed(parts, 3, 4, weights=(3, 1)), rank=1, world_size=2), after[-1].state)
    for batch in [*before[::4], *after[::7]]:
        both: list[Any] = [*third.sources(batch.step, 0), *third.sources(batch.step, 1)]
        told = [[(Path(one.file).name, *one[1:]) for one in row] for row in both]
        wanted = [[(Path(one.file).name, *one[1:]) for one in row] for row in batch.sources()]
        assert sorted(told) == sorted(wanted)


@pytest.mark.parametrize(
    "arguments", [{}, {"on_exhausted": "drop", "max_epochs": {"a": 3, "b": 4}}, {"per_batch": True}]
)
def test_check_resume_over_data_that_was_added(parts: dict[str, list[Corpus]], arguments: dict[str, Any]) -> None:
    loader = hr.DataLoader(mixed(parts, 2, 2, **arguments), **RUN | {"global_batch_size": 12})
    take_batches(loader, 2)
    data = mixed(parts, 4, 3, **arguments)
    state = load(hr.DataLoader(data), loader.state_dict(), "to source 'a'", "to source 'b'").state_dict()
    assert check_resume(data, steps=5, world_sizes=(1, 2, 3, 4), state=state).restarts == 18


def test_a_source_that_has_left_stays_away(parts: dict[str, list[Corpus]], write: CorpusWriter, tmp_path: Path) -> None:
    """It had less than a row, and so gave none; what the others gave since is what comes of it."""
    small = write({"f0.parquet": [[[1, 2]]], "f1.parquet": [[[n, n + 1, n + 2] for n in range(100)]]})
    one = first_files(small, 1, tmp_path)

    def of(corpus: Corpus) -> hr.MixDataset:
        return hr.mix(
            {"a": (parts["a"][4].open(**PACKING), 1), "b": (corpus.open(**PACKING), 1)},
            on_exhausted="drop",
            max_epochs={"a": 3},
        )

    loader = hr.DataLoader(of(one), **RUN)
    whole = rows_of(list(loader))
    loader.seek(4)
    again = load(hr.DataLoader(of(small)), loader.state_dict(), "none of its 1 passes is to come, so they are not used")
    assert again.state_dict()["changes"][0]["after"]["b"]["epoch"] == 1
    assert rows_of(list(again)) == whole[24:]
    # Before it was drawn for the first time it could still come.
    loader.seek(0)
    start = load(hr.DataLoader(of(small)), loader.state_dict(), "they are used from its pass 0 on")
    assert sum(source for source, _ in rows_of(list(start))) > 20


@pytest.mark.parametrize("exhausted", ["stop", "drop"])
def test_a_limit_counts_passes_of_which_those_to_come_have_more(parts: dict[str, list[Corpus]], exhausted: Any) -> None:
    ends: list[int] = []
    for passes, told in ((1, "none of its 1 passes is to come"), (2, "they are used from its pass 1 on")):
        arguments: dict[str, Any] = {"on_exhausted": exhausted, "max_epochs": {"a": passes, "b": 9}}
        loader = hr.DataLoader(mixed(parts, 2, 3, **arguments), **RUN)
        before = len(loader)
        take_batches(loader, 3)
        again = load(hr.DataLoader(mixed(parts, 4, 3, **arguments)), loader.state_dict(), told)
        rest = take_batches(again, 1000)
        assert (again.epoch, len(again), len(rest)) == (1, 3 + len(rest), len(again) - 3)
        given = again.stats()["sources"]["a"]
        weights = [parts["a"][files].open(**PACKING).weight for files in (2, 4)]
        assert 0 <= sum(weights[:passes]) - given["tokens"] < 6 * 5 * 6
        ends.append(3 + len(rest) - before)
    assert ends[0] == 0 < ends[1]


def test_moved_data_may_have_more_behind_it(parts: dict[str, list[Corpus]], tmp_path: Path) -> None:
    loader = hr.DataLoader(mixed(parts, 2, 2), **RUN)
    take_batches(loader, 3)
    other = Corpus(tmp_path, {f"g{name}": groups for name, groups in parts["a"][3].files.items()})
    for name in parts["a"][3].files:
        other.write(f"g{name}", parts["a"][3].files[name])
    moved = parts | {"a": [*parts["a"][:3], other]}
    again = load(hr.DataLoader(mixed(moved, 3, 2)), loader.state_dict(), "source 'a' has moved", "added to source 'a'")
    lines = again.state_dict()["changes"]
    assert [line["kind"] for line in lines] == ["data moved", "data added"]
    assert lines[0]["after"] == {"a": lines[1]["before"]["a"]["identity"]}
    straight = load(hr.DataLoader(mixed(parts, 3, 2)), loader.state_dict(), "added to source 'a'")
    assert rows_of(take_batches(again, 20)) == rows_of(take_batches(straight, 20))


def test_a_source_that_grew_may_be_taken_out_and_come_back(parts: dict[str, list[Corpus]]) -> None:
    """Its state says in which pass it is: of less data in the past than of what it has now."""
    loader = hr.DataLoader(mixed(parts, 2, 1, weights=(1, 2)), **RUN)
    take_batches(loader, 12)
    second = load(hr.DataLoader(mixed(parts, 2, 4, weights=(1, 2))), loader.state_dict(), "added to source 'b'")
    take_batches(second, 12)
    alone = hr.mix({"a": (parts["a"][2].open(**PACKING), 1)})
    third = load(hr.DataLoader(alone), second.state_dict(), "source 'b' is only in the state")
    take_batches(third, 2)
    given = third.state_dict()["sources"][1]["given"]
    epoch, groups = (second.state_dict()["changes"][0]["after"]["b"][key] for key in ("epoch", "row_groups"))
    assert epoch > 1
    assert groups == 8
    weights = [parts["b"][files].open(**PACKING).weight for files in (1, 4)]
    assert given["epoch"] == epoch + (given["tokens"] - epoch * weights[0]) // weights[1]
    fourth = load(hr.DataLoader(mixed(parts, 2, 4, weights=(1, 2))), third.state_dict(), "the mixture changes")
    back = [row for row in rows_of(take_batches(fourth, 10)) if row[0] == 1]
    straight = rows_of(take_batches(second, 20))
    assert len(back) > 30
    assert all(row in straight for row in back), "it goes on with its next tokens"


def test_a_source_without_a_token_gets_some(
    parts: dict[str, list[Corpus]], write: CorpusWriter, tmp_path: Path
) -> None:
    whole = write({"f0.parquet": [[[], None]], **{f"g{name}": groups for name, groups in parts["b"][3].files.items()}})
    empty = first_files(whole, 1, tmp_path)

    def of(corpus: Corpus, weight: float) -> hr.MixDataset:
        return hr.mix({"a": (parts["a"][2].open(**PACKING), 1), "b": (corpus.open(**PACKING), weight)})

    loader = hr.DataLoader(of(empty, 0), **RUN)
    take_batches(loader, 4)
    again = load(hr.DataLoader(of(whole, 1)), loader.state_dict(), "weight of source 'b'", "from its pass 0 on")
    tokens = [token for source, row in rows_of(take_batches(again, 60)) if source for token in row if token >= 0]
    assert set(tokens) == set(parts["b"][3].tokens)
    assert again.stats()["sources"]["b"]["epoch"] > 0


def test_seek_goes_back_before_an_addition(parts: dict[str, list[Corpus]]) -> None:
    loader = hr.DataLoader(mixed(parts, 1, 1), **RUN)
    found = take_batches(loader, 15)
    again = load(hr.DataLoader(mixed(parts, 3, 2)), loader.state_dict(), "to source 'a'", "to source 'b'")
    found += take_batches(again, 30)
    for step in (0, 7, 14, 16, 33):
        again.seek(step)
        assert [record(one) for one in take_batches(again, 5)] == [record(one) for one in found[step : step + 5]]
    # More is added there: what came before stays.
    again.seek(9)
    third = load(hr.DataLoader(mixed(parts, 4, 2)), again.state_dict(), "to source 'a'")
    third.seek(0)
    assert [record(one) for one in take_batches(third, 9)] == [record(one) for one in found[:9]]
    assert (
        third.state_dict()["changes"][1]["after"]["a"]["epoch"]
        <= again.state_dict()["changes"][0]["after"]["a"]["epoch"]
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"a": {"row_groups": 2}}, "expected row groups to be added"),
        ({"a": {"row_groups": 2, "weight": -1}}, "expected row groups to be added"),
        ({"a": "2"}, "expected row groups to be added"),
        ({}, "expected row groups to be added"),
    ],
)
def test_changes_that_cannot_have_been_are_refused(parts: dict[str, list[Corpus]], change: Any, message: str) -> None:
    loader = hr.DataLoader(mixed(parts, 1, 1), **RUN)
    take_batches(loader, 2)
    state = load(hr.DataLoader(mixed(parts, 3, 1)), loader.state_dict(), "to source 'a'").state_dict()
    [line] = state["changes"]
    with pytest.raises(hr.StateMismatch, match=message):
        hr.DataLoader(mixed(parts, 3, 1)).load_state_dict(state | {"changes": [line | {"before": change}]})
