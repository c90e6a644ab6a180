"""Files that are added to packed columns in the course of a run: its pass goes on without them, later ones have all."""

import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import (
    Corpus,
    CorpusWriter,
    Record,
    drain,
    equal_documents,
    merged,
    record,
    seeded,
    stream,
    take,
    take_batches,
)
from headrace.testing import check_resume
from reference import Reference

PAD = -9
FILES = 6


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(23, files=FILES, groups=3, documents=9, longest=14))


@pytest.fixture(scope="module")
def parts(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> list[Corpus]:
    """What there is when there are no, one, two ... files."""
    return [first_files(corpus, count, tmp_path_factory.mktemp("part")) for count in range(FILES + 1)]


def first_files(corpus: Corpus, count: int, folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    names = sorted(corpus.files)[:count]
    for name in names:
        shutil.copy(corpus.folder / name, folder / name)
    return Corpus(folder, {name: corpus.files[name] for name in names})


def load(loader: hr.DataLoader, state: Any, *told: str) -> hr.DataLoader:
    """Loads a state that has been JSON, with `strict` off if there is something to tell of: that, and nothing else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.load_state_dict(json.loads(json.dumps(state)), strict=not told)
    assert len(caught) == len(told), [str(one.message) for one in caught]
    for one, text in zip(caught, told, strict=True):
        assert text in str(one.message)
        assert one.filename == __file__
    return loader


@dataclass
class Expected:
    """What a run has to give: the lanes' streams by the slow second implementation, cut into rows."""

    corpus: Corpus
    packing: dict[str, Any]
    order: dict[str, Any]
    epochs: int
    data: dict[int, int] = field(default_factory=dict[int, int])
    """From which pass on there are how many files."""
    lengths: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From which row of each lane on which seq_len holds."""

    def start(self, number: int) -> int:
        """The first token of a row in its lane."""
        ends = [*(begin for begin, _ in self.lengths[1:]), number]
        return sum(
            length * max(0, min(end, number) - begin) for (begin, length), end in zip(self.lengths, ends, strict=True)
        )

    def places(self, number: int) -> int:
        return next(length for begin, length in reversed(self.lengths) if begin <= number) + self.packing["overlap"]

    def reference(self) -> Reference:
        own = {name: self.packing[name] for name in ("bos_id", "eos_id")}
        groups = {epoch: groups_of(self.corpus, files) for epoch, files in self.data.items()}
        return Reference(
            self.corpus.chunks, **own, **self.order, seq_len=1, global_batch_size=1, epochs=self.epochs, data=groups
        )

    def add(self, rows: int, files: int) -> int:
        """More files when so many rows were given; gives the pass from which on they are used."""
        reference, lanes = self.reference(), self.order["lanes"]
        ends = [(self.start(g // lanes) + self.places(g // lanes) - 1) * lanes + g % lanes + 1 for g in range(rows)]
        epoch = next(epoch for epoch in range(99) if reference.begin_of_pass(epoch) >= max(ends, default=0))
        self.data = {begin: count for begin, count in self.data.items() if begin < epoch} | {epoch: files}
        return epoch

    def check(self, found: Sequence[Record], remainder: str) -> None:
        reference, lanes = self.reference(), self.order["lanes"]
        streams = [reference.lane_units(lane, 0, reference.lane_length(lane) + 1) for lane in range(lanes)]
        for one in found:
            first = min(one.rows)
            assert one.epoch == streams[first % lanes][self.start(first // lanes)].epoch
            for row, tokens in one.rows.items():
                start, places = self.start(row // lanes), self.places(row // lanes)
                end = min(start + places, reference.lane_length(row % lanes))
                there = [unit.token for unit in streams[row % lanes][start:end]]
                there = there if len(there) > self.packing["overlap"] else []
                assert remainder == "pad" or len(there) == places
                assert tokens == there + [PAD] * (places - len(there)), f"row {row}"

    def rows(self, remainder: str) -> int:
        """Rows of the run."""
        reference, lanes = self.reference(), self.order["lanes"]
        row = 0
        while True:
            start, places = self.start(row // lanes), self.places(row // lanes)
            needed = places if remainder == "drop" else self.packing["overlap"] + 1
            if start + needed > reference.lane_length(row % lanes):
                return row
            row += 1

    def left(self, rows: int) -> int:
        """Tokens of the run that its first rows leave out."""
        reference, lanes, left = self.reference(), self.order["lanes"], 0
        for lane in range(lanes):
            own = len(range(lane, rows, lanes))
            reached = self.start(own) + self.packing["overlap"] if own else 0
            left += max(0, reference.lane_length(lane) - reached)
        return left


def groups_of(corpus: Corpus, files: int) -> int:
    return sum(len(corpus.files[name]) for name in sorted(corpus.files)[:files])


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 2**64 - 1),
    lanes=st.sampled_from([1, 2, 3, 6]),
    window=st.integers(1, 8),
    overlap=st.integers(0, 2),
    remainder=st.sampled_from(["drop", "pad"]),
)
def test_any_number_of_additions_restarts_and_ranks(
    corpus: Corpus, parts: list[Corpus], data: st.DataObject, seed: int, lanes: int, window: int, overlap: int,
    remainder: str,
) -> None:  # fmt: skip
    """Each link of a chain has more files, other rows, ranks and batches than the last, or begins before its end."""
    order: dict[str, Any] = {"seed": seed, "lanes": lanes, "window": window}
    packing: dict[str, Any] = {"overlap": overlap, "eos_id": -1, "bos_id": -2, "pad_id": PAD}
    epochs = 4
    expected = Expected(corpus, packing, order, epochs)
    files, seq_len = data.draw(st.integers(2, 4), "files"), data.draw(st.integers(max(1, overlap), 9), "seq_len")
    expected.data, expected.lengths = {0: files}, [(0, seq_len)]
    state: dict[str, Any] | None = None
    found: list[Record] = []
    notes: list[tuple[int, int, int, int]] = []
    for _ in range(data.draw(st.integers(2, 5), "links")):
        batch = data.draw(st.sampled_from([1, 2, 3, 6, 12]), "batch")
        world = data.draw(st.sampled_from([world for world in (1, 2, 3) if batch % world == 0]), "world")
        told: list[str] = []
        row = 0 if state is None else state["position"]
        if state is not None:
            more = data.draw(st.integers(0, min(2, FILES - files)), "more")
            if more:
                epoch = expected.add(row, files + more)
                notes.append((state["step"], files, files + more, epoch))
                files += more
                told.append(f"they are used from epoch {epoch} on")
            length = data.draw(st.integers(max(1, overlap), 9), "seq_len")
            if row % lanes == 0 and length != seq_len:
                told.append(f"seq_len changes from {seq_len} to {length}")
                seq_len = length
                expected.lengths = [*(one for one in expected.lengths if one[0] < row // lanes), (row // lanes, length)]
        options: dict[str, Any] = {"global_batch_size": batch, "epochs": epochs, "remainder": remainder}
        ranks = [
            hr.DataLoader(
                parts[files].open(seq_len=seq_len, **packing), **options, **order, rank=rank, world_size=world,
                num_workers=rank % 2,
            )
            for rank in range(world)
        ]  # fmt: skip
        if state is not None:
            for one in ranks:
                load(one, state, *told)
        steps = data.draw(st.integers(0, 12), "steps")
        found += merged([take(one, steps) for one in ranks])
        state = hr.State.merge([one.state_dict() for one in ranks])
        lines = [line for line in state["changes"] if line["kind"] == "data added"]
        assert [
            (line["step"], line["before"]["files"], line["after"]["files"], line["after"]["epoch"]) for line in lines
        ] == notes
        again = data.draw(st.sampled_from([*range(len(found)), None]), "asked for")
        if again is not None:
            ends: dict[str, Any] = {"epochs": epochs, "remainder": remainder}
            alone = load(hr.DataLoader(parts[files].open(seq_len=seq_len, **packing), **ends), state)
            sources: list[Any] = alone.sources(again)
            held = [sum(token >= 0 for token in tokens) for tokens in found[again].rows.values()]
            assert [sum(source.tokens for source in row) for row in sources] == held
        last = max((line["step"] for line in state["changes"] if line["kind"] == "seq_len"), default=0)
        if len(found) > last and data.draw(st.booleans(), "moved back"):
            step = data.draw(st.integers(last, len(found)), "to")
            ranks[0].seek(step)
            found, state = found[:step], ranks[0].state_dict()
    rest = drain(load(hr.DataLoader(parts[files].open(seq_len=seq_len, **packing), **options), state))
    found += rest
    expected.check(found, remainder)
    rows = [row for one in found for row in one.rows]
    assert rows == list(range(len(rows)))
    if remainder == "drop":
        assert 0 <= expected.rows(remainder) - len(rows) < batch
    else:
        assert 0 <= len(rows) - expected.rows(remainder) < max(batch, 1) or not rest


# One run, with two additions and a change of seq_len between them

PACKING: dict[str, Any] = {"overlap": 1, "eos_id": -1, "boundaries": True}
ORDER: dict[str, Any] = {"seed": 4, "lanes": 4, "window": 3}
LINKS = ((2, 6, 8, 6), (4, 6, 4, 5), (4, 9, 4, 4), (6, 9, 8, 9))
"""Files, seq_len, global batch size and steps of each part of a run."""
ENDS = (6, 11, 15, 24)


def new(part: Corpus, seq_len: int, batch: int | None = None, **arguments: Any) -> hr.DataLoader:
    return hr.DataLoader(part.open(seq_len=seq_len, **PACKING), global_batch_size=batch, num_workers=1, **arguments)


@pytest.fixture(scope="module")
def run(parts: list[Corpus]) -> tuple[list[hr.Batch], list[dict[str, Any]]]:
    """The batches, and the states before each and after all."""
    found: list[hr.Batch] = []
    states: list[dict[str, Any]] = []
    loader = new(parts[LINKS[0][0]], *LINKS[0][1:3], **ORDER)
    for number, (files, seq_len, batch, steps) in enumerate(LINKS):
        if number:
            told = ["are used from epoch"] if files != LINKS[number - 1][0] else ["seq_len changes"]
            loader = load(new(parts[files], seq_len, batch), loader.state_dict(), *told)
        states.append(loader.state_dict())
        found += (taken := take_batches(loader, steps))
        states += [one.state for one in taken[:-1]]
    return found, [*states, loader.state_dict()]


def test_states_before_and_behind_additions_go_on(
    parts: list[Corpus], run: tuple[list[hr.Batch], list[dict[str, Any]]]
) -> None:
    found, states = run
    for step, state in enumerate(states[:-1]):
        end = next(end for end in ENDS if step < end)
        files, seq_len, batch, _ = LINKS[ENDS.index(end)]
        for world in (1, 2, 4):
            loaders = [new(parts[files], seq_len, rank=rank, world_size=world) for rank in range(world)]
            for one in loaders:
                load(one, state)
                assert one.state_dict() == state
                assert one.global_batch_size == batch
            taken = [take_batches(one, end - step) for one in loaders]
            assert merged([list(map(record, part)) for part in taken]) == list(map(record, found[step:end]))
            assert [one.state for one in taken[0][:-1]] == states[step + 1 : end]


def test_a_state_tells_of_additions(run: tuple[list[hr.Batch], list[dict[str, Any]]]) -> None:
    found, states = run
    first, _, _, second, _ = changes = states[-1]["changes"]
    assert [(one["kind"], one["step"], one["row"]) for one in changes] == [
        ("data added", 6, 48),
        ("batch size", 6, 48),
        ("seq_len", 11, 68),
        ("data added", 15, 84),
        ("batch size", 15, 84),
    ]
    assert [one["before"]["files"] for one in (first, second)] == [2, 4]
    assert [set(one["after"]) - set(one["before"]) for one in (first, second)] == [{"epoch"}, {"epoch"}]
    here = states[-1]["sources"][0]
    assert second["after"] == {"epoch": second["after"]["epoch"]} | {key: here[key] for key in second["before"]}
    assert first["after"]["epoch"] < second["after"]["epoch"] <= max(batch.epoch for batch in found)
    # The old files alone until then, and others behind it.
    names = [{source.file for row in batch.sources() for source in row} for batch in found]
    for batch, files in zip(found, names, strict=True):
        most = (
            2 if batch.epoch + 1 < first["after"]["epoch"] else 4 if batch.epoch + 1 < second["after"]["epoch"] else 6
        )
        assert all(Path(file).name < f"f{most}" for file in files)
    assert {Path(file).name for file in set().union(*names)} == {f"f{number}.parquet" for number in range(6)}


def test_sources_are_told_of_any_step(parts: list[Corpus], run: tuple[list[hr.Batch], list[dict[str, Any]]]) -> None:
    found, states = run
    loader = load(new(parts[6], 9, rank=1, world_size=2), states[-1])
    for batch in found:
        both = [loader.sources(batch.step, rank) for rank in range(2)]
        places = [
            [(Path(source.file).name, *source[1:]) for source in row]
            for rank in both
            for row in rank  # files lie elsewhere than when the batch was given
        ]
        wanted = [[(Path(source.file).name, *source[1:]) for source in row] for row in batch.sources()]
        assert sorted(places) == sorted(wanted)


def test_what_comes_too_late_for_a_run_with_an_end_is_said_not_to_be_used(parts: list[Corpus]) -> None:
    loader = new(parts[2], 6, 4, epochs=1, **ORDER)
    take(loader, 3)
    again = load(new(parts[4], 6, epochs=1), loader.state_dict(), "; no epoch to come is of them")
    assert len(list(again)) == len(list(loader))


def test_epochs_have_their_lengths(parts: list[Corpus]) -> None:
    loader = new(parts[2], 6, 4, **ORDER)
    old = [len(loader)]
    take(loader, 3)
    again = load(new(parts[4], 6), loader.state_dict(), "are used from epoch 1 on")
    alone = new(parts[4], 6, 4, **ORDER)
    assert (again.epoch, len(again), alone.stats()["epoch"]) == (0, old[0], 0)
    lengths = [len(list(again)) for _ in range(4)]
    assert again.epoch == 4
    assert lengths[0] == old[0] - 3
    tokens = parts[4].open(seq_len=6, **PACKING).weight
    assert all(abs(length - tokens / 24) < 2 for length in lengths[1:])
    assert lengths[1] > old[0] * 1.5
    for epoch in range(3):
        again.seek(3 + sum(lengths[: epoch + 1]))
        assert (again.epoch, len(again)) == (epoch + 1, lengths[epoch + 1])
    again.seek(0)
    assert (again.epoch, len(again)) == (0, old[0])


def test_at_the_end_of_a_pass_the_next_one_is_of_all_data(write: CorpusWriter, tmp_path: Path) -> None:
    """Where no token of it was used; an overlap's token is one."""
    corpus = write(equal_documents(files=4, groups=2, documents=8, length=6))
    part = first_files(corpus, 2, tmp_path / "part")
    order: dict[str, Any] = {"seed": 1, "lanes": 2, "window": 2, "global_batch_size": 4}
    for overlap, first in ((0, 1), (1, 2)):
        packing = {"seq_len": 6, "overlap": overlap}
        loader = hr.DataLoader(part.open(**packing), **order)
        assert len(loader) == 8
        loader.load_state_dict(loader.state_dict())
        whole = hr.DataLoader(corpus.open(**packing), **order)
        start = load(hr.DataLoader(corpus.open(**packing)), loader.state_dict(), "from epoch 0 on")
        assert take(start, 12) == take(whole, 12), "nothing was used yet"
        taken = take(loader, 8)
        again = load(hr.DataLoader(corpus.open(**packing)), loader.state_dict(), f"from epoch {first} on")
        assert len(again) == (16 if first == 1 else 8)
        rows = stream([*taken, *drain_to(again, 1 + first)])
        counts = sorted(token for tokens in rows.values() for token in tokens[:6])
        old, new_tokens = part.tokens, corpus.tokens
        assert counts == sorted([*old * first, *new_tokens])


def drain_to(loader: hr.DataLoader, epoch: int) -> list[Record]:
    found: list[Record] = []
    while loader.epoch < epoch:
        found += [record(batch) for batch in loader]
    return found


def test_the_order_of_storage_goes_on(parts: list[Corpus]) -> None:
    loader = new(parts[1], 6, 3, shuffle=False)
    found = take(loader, 4)
    again = load(new(parts[3], 6, 3), loader.state_dict(), "2 files were added to the data behind those of the state")
    found += take(again, 60)
    tokens = [token for one in found for row in one.rows.values() for token in row[:6]]
    streams = [
        [token for chunk in part.chunks for document in chunk if document for token in [*document, -1]]
        for part in (parts[1], *[parts[3]] * 6)
    ]
    assert tokens == [token for one in streams for token in one][: len(tokens)]
    assert len(tokens) > len(streams[0]) + 2 * len(streams[1])


def test_check_resume_over_data_that_was_added(parts: list[Corpus]) -> None:
    state = load(new(parts[4], 6), new(parts[2], 6, 12, **ORDER).state_dict(), "from epoch 0 on")
    loader = new(parts[2], 6, 12, **ORDER)
    take(loader, 2)
    state = load(new(parts[4], 6), loader.state_dict(), "from epoch 1 on").state_dict()
    ran = check_resume(parts[4].open(seq_len=6, **PACKING), steps=5, world_sizes=(1, 2, 3, 4), state=state)
    assert ran.restarts == 18


def test_moved_data_may_have_more_behind_it(corpus: Corpus, parts: list[Corpus], tmp_path: Path) -> None:
    """The same content under other names, in the same order, and then what is new."""
    names = {f"f{number}.parquet": f"g{number}.parquet" for number in range(4)}
    for name, other in names.items():
        shutil.copy(corpus.folder / name, tmp_path / other)
    other = Corpus(tmp_path, {other: corpus.files[name] for name, other in names.items()})
    loader = new(parts[2], 6, 8, **ORDER)
    take(loader, 2)
    with pytest.raises(hr.StateMismatch, match="the data has other paths"):
        new(other, 6).load_state_dict(loader.state_dict())
    again = load(new(other, 6), loader.state_dict(), "the data has moved", "2 files were added to the data")
    moved, added = again.state_dict()["changes"]
    assert (moved["kind"], added["kind"]) == ("data moved", "data added")
    assert (
        moved["after"]
        == added["before"]["identity"]
        == new(first_files(other, 2, tmp_path / "two"), 6, 8).state_dict()["sources"][0]["identity"]
    )
    straight = load(new(parts[4], 6), loader.state_dict(), "2 files were added")
    assert take(again, 20) == take(straight, 20)


# Documents to do without


def test_documents_that_were_left_out_stay_so_and_others_are_masked(parts: list[Corpus]) -> None:
    """From the beginning, in the middle of the run, and in what was added."""
    places = [(name, next(row for row, one in enumerate(groups[0]) if one)) for name, groups in parts[4].files.items()]
    # By a path below the root row groups are numbered through the dataset, of which each file has three.
    first, second, _, third = (f"{name}:{3 * number}:{row}" for number, (name, row) in enumerate(places))
    whole = new(parts[2], 6, 8, exclude=[first], **ORDER)
    found = take(whole, 3)
    masked = load(new(parts[2], 6, exclude=[first, second]), whole.state_dict(), "1 excluded documents are only here")
    found += take(masked, 1)
    lists = [first, second, third]
    with pytest.raises(hr.StateMismatch, match="excluded documents are not those"):
        new(parts[4], 6, exclude=[second, third]).load_state_dict(masked.state_dict(), strict=False)
    again = load(
        new(parts[4], 6, exclude=lists), masked.state_dict(), "1 excluded documents are only here", "2 files were added"
    )
    kinds = [line["kind"] for line in again.state_dict()["changes"]]
    assert kinds == ["excluded", "excluded", "excluded", "data added"]
    batches = take_batches(again, 40)
    found += map(record, batches)
    # The same as of files that never had the first one.
    documents = {name: [list(group) for group in groups] for name, groups in parts[4].files.items()}
    _, out, _, later = (documents[name][0][row] for name, row in places)
    documents[places[0][0]][0][places[0][1]] = []
    groups = [group for name in sorted(documents) for group in documents[name]]
    old = sum(len(parts[2].files[name]) for name in parts[2].files)
    epoch = again.state_dict()["changes"][-1]["after"]["epoch"]
    reference = Reference(
        groups, seq_len=6, overlap=1, eos_id=-1, global_batch_size=8, data={0: old, epoch: len(groups)}, **ORDER
    )
    for one in found:
        assert one.rows == {row: reference.row(row) for row in one.rows}
    for batch in batches:
        for tokens, mask in zip(batch["tokens"].tolist(), batch["loss_mask"].tolist(), strict=True):
            for token, kept in zip(tokens, mask, strict=True):
                assert token == -1 or kept == (token not in {*out, *later})


# What is no addition


def changed(corpus: Corpus, folder: Path, **files: Any) -> Corpus:
    """Four files, of which some are others, more, or missing."""
    there = {name: corpus.files[name] for name in sorted(corpus.files)[:4]}
    other = Corpus(folder, {name: groups for name, groups in (there | files).items() if groups is not None})
    for name, groups in other.files.items():
        other.write(name, groups)
    return other


REFUSED: dict[str, tuple[Any, str]] = {
    "a file before": ({"e.parquet": [[[1, 2, 3]]]}, "5 files here, 2 in the state"),
    "a file between": ({"f00.parquet": [[[1, 2, 3]]]}, "5 files here, 2 in the state"),
    "another file": ({"f1.parquet": [[[1, 2, 3]]]}, "4 files here, 2 in the state"),
    "one that is gone": ({"f0.parquet": None}, "3 files here, 2 in the state"),
    "fewer": ({f"f{number}.parquet": None for number in (1, 2, 3)}, "1 files here, 2 in the state"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_changes_of_data_are_refused(corpus: Corpus, parts: list[Corpus], what: str, tmp_path: Path) -> None:
    files, message = REFUSED[what]
    other = changed(corpus, tmp_path, **files)
    loader = new(parts[2], 6, 8, **ORDER)
    take(loader, 2)
    for strict in (True, False):
        again = hr.DataLoader(other.open(seq_len=6, **PACKING), global_batch_size=1, lanes=1)
        with pytest.raises(hr.StateMismatch, match=f"the data is not that of the state: {message}"):
            again.load_state_dict(loader.state_dict(), strict=strict)
        assert again.step == 0


def test_an_addition_is_refused_unless_it_is_asked_for(parts: list[Corpus]) -> None:
    loader = new(parts[2], 6, 8, **ORDER)
    take(loader, 2)
    state = loader.state_dict()
    other = new(parts[3], 6, 8)
    with pytest.raises(
        hr.StateMismatch,
        match=r"not that of the state: 1 file was added to the data behind those of the state, the first is "
        r"'f2.parquet'\nhint: strict=False goes on with the old data to the end of the pass",
    ):
        other.load_state_dict(state)
    assert (other.step, other.state_dict()["changes"]) == (0, [])
    # Of one that is refused for another reason no warning tells.
    for options, message in (({"lanes": 2}, "lanes is 2"), ({"seed": 5}, "seed is 5")):
        with pytest.raises(hr.StateMismatch, match=message):
            new(parts[3], 6, 8, **options).load_state_dict(state, strict=False)
    # What was added does not go again.
    again = load(new(parts[3], 6), state, "1 file was added")
    with pytest.raises(hr.StateMismatch, match="2 files here, 3 in the state"):
        new(parts[2], 6).load_state_dict(again.state_dict(), strict=False)


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ({"before": None}, "expected row groups to be added"),
    "no epoch": ({"after": {"row_groups": 12}}, "from which epoch on, found"),
    "an epoch before the first": ({"after": {"row_groups": 12, "epoch": -1}}, "from which epoch on, found"),
    "none before": ({"before": {"row_groups": 0}}, "expected row groups to be added"),
    "fewer": ({"before": {"row_groups": 13}}, "expected row groups to be added"),
    "other numbers": ({"after": {"row_groups": 11, "epoch": 1}}, "11 row groups before data was added"),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_changes_that_cannot_have_been_are_refused(
    parts: list[Corpus], run: tuple[list[hr.Batch], list[dict[str, Any]]], change: dict[str, Any], message: str
) -> None:
    state = run[1][-1]
    first, *others = state["changes"]
    assert first["before"]["row_groups"] < first["after"]["row_groups"] == groups_of(parts[6], 4)
    with pytest.raises(hr.StateMismatch, match=message):
        new(parts[6], 9).load_state_dict(state | {"changes": [first | change, *others]})
    second = others[2]
    after = second["after"] | {"row_groups": 17}
    changes = [first, *others[:2], second | {"after": after}, *others[3:]]
    with pytest.raises(hr.StateMismatch, match="by its changes there are 17 row groups, found 18"):
        new(parts[6], 9).load_state_dict(state | {"changes": changes})
