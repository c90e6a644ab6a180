"""Packed tokens whose rows become longer or shorter in mid-run: each lane goes on with its very next token."""

import json
import warnings
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import Corpus, CorpusWriter, Record, drain, merged, record, seeded, stream, take, take_batches

PAD = -9
EPOCHS = 3


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(17, files=3, groups=5, documents=9, longest=14))


@dataclass
class Cut:
    """What a run has to give: the lanes' streams of tokens, cut into rows."""

    lanes: list[list[int]]
    weight: int
    """Tokens of a pass."""
    overlap: int
    lengths: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """From which row of each lane on which seq_len holds."""

    def length(self, number: int) -> int:
        return [length for begin, length in self.lengths if begin <= number][-1]

    def start(self, number: int) -> int:
        ends = [*(begin for begin, _ in self.lengths[1:]), number]
        return sum(
            length * max(0, min(end, number) - begin) for (begin, length), end in zip(self.lengths, ends, strict=True)
        )

    def row(self, row: int) -> list[int]:
        """The tokens of a row; fewer than it has places only at the end."""
        lane, number = self.lanes[row % len(self.lanes)], row // len(self.lanes)
        tokens = lane[self.start(number) : self.start(number) + self.length(number) + self.overlap]
        return tokens if len(tokens) > self.overlap else []

    def check(self, given: list[Record], remainder: str) -> None:
        for one in given:
            first = min(one.rows)
            lanes = len(self.lanes)
            assert one.epoch == (self.start(first // lanes) * lanes + first % lanes) // self.weight
            for row, tokens in one.rows.items():
                wanted = self.row(row)
                missing = self.length(row // lanes) + self.overlap - len(wanted)
                assert remainder == "pad" or not missing
                assert tokens == wanted + [PAD] * missing, f"row {row}"

    def rows(self) -> int:
        """Rows that are full."""
        lanes = len(self.lanes)
        return next(row for row in count() if len(self.row(row)) < self.length(row // lanes) + self.overlap)


def cut_of(corpus: Corpus, packing: dict[str, Any], order: dict[str, Any]) -> Cut:
    """The streams of a run that was never changed, token by token."""
    data = corpus.open(**packing | {"seq_len": 1, "overlap": 0})
    tokens = stream(drain(hr.DataLoader(data, **order, global_batch_size=60, epochs=EPOCHS, remainder="pad")))
    lanes: list[list[int]] = [[] for _ in range(order["lanes"])]
    for row in sorted(tokens):
        lanes[row % len(lanes)] += [token for token in tokens[row] if token != PAD]
    return Cut(lanes, data.weight, packing["overlap"])


class Loaders:
    """All ranks of a run."""

    def __init__(self, corpus: Corpus, world: int, packing: dict[str, Any], **arguments: Any) -> None:
        self.all = [
            hr.DataLoader(corpus.open(**packing), **arguments, rank=rank, world_size=world, num_workers=1)
            for rank in range(world)
        ]

    def load(self, state: dict[str, Any], change: tuple[int, int] | None) -> None:
        """Loads a state that has been JSON, and expects a warning of a change and no other."""
        for one in self.all:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                one.load_state_dict(json.loads(json.dumps(state)), strict=change is None)
            expected = (
                []
                if change is None
                else [f"headrace: seq_len changes from {change[0]} to {change[1]} from row {state['position']} on"]
            )
            assert [str(one.message) for one in caught] == expected
            assert all(one.filename == __file__ for one in caught)

    def take(self, wanted: int) -> list[Record]:
        return merged([take(one, wanted) for one in self.all])

    def drain(self) -> list[Record]:
        return merged([drain(one) for one in self.all])

    @property
    def state(self) -> dict[str, Any]:
        return hr.State.merge([one.state_dict() for one in self.all])


@settings(max_examples=30, deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 2**64 - 1),
    lanes=st.sampled_from([1, 2, 3, 6]),
    window=st.integers(1, 8),
    overlap=st.integers(0, 2),
    remainder=st.sampled_from(["drop", "pad"]),
)
def test_chains_of_changes_give_each_lane_s_next_tokens(
    corpus: Corpus, data: st.DataObject, seed: int, lanes: int, window: int, overlap: int, remainder: str
) -> None:
    """Each link has other rows, ranks and batches than the one before."""
    order: dict[str, Any] = {"seed": seed, "lanes": lanes, "window": window}
    packing: dict[str, Any] = {"overlap": overlap, "eos_id": -1, "bos_id": -2, "pad_id": PAD, "boundaries": True}
    cut = cut_of(corpus, packing, order)
    given_steps: list[Record] = []
    state: dict[str, Any] | None = None
    seq_len, changes = 0, []
    for _ in range(data.draw(st.integers(2, 5), "links")):
        batch = data.draw(st.sampled_from([1, 2, 3, 6, 12]), "batch")
        world = data.draw(st.sampled_from([world for world in (1, 2, 3) if batch % world == 0]), "world")
        before, seq_len = seq_len, data.draw(st.integers(max(1, overlap), 12), "seq_len")
        here = packing | {"seq_len": seq_len}
        loaders = Loaders(corpus, world, here, global_batch_size=batch, epochs=EPOCHS, remainder=remainder, **order)
        if state is None:
            cut.lengths.append((0, seq_len))
        elif seq_len != before and state["position"] % lanes:
            row = state["position"]
            with pytest.raises(
                hr.StateMismatch,
                match=f"seq_len cannot change from {before} to {seq_len} here: row {row} is in the middle of a round "
                f"of {lanes} rows\nhint: change it where a round begins, as at row {row + lanes - row % lanes}",
            ):
                loaders.all[0].load_state_dict(state, strict=False)
            here = packing | {"seq_len": before}
            loaders = Loaders(corpus, world, here, global_batch_size=batch, epochs=EPOCHS, remainder=remainder)
            loaders.load(state, None)
            seq_len = before
        else:
            loaders.load(state, (before, seq_len) if seq_len != before else None)
            if seq_len != before:
                cut.lengths.append((state["position"] // lanes, seq_len))
                changes.append((state["step"], state["position"], before, seq_len))
            assert [
                (one["step"], one["row"], one["before"], one["after"]) for one in lengths_in(loaders.state)
            ] == changes
        given_steps += loaders.take(data.draw(st.integers(0, 5), "steps"))
        state = loaders.state
        tokens = sum(cut.length(row // lanes) for row in range(state["position"]))
        assert loaders.all[0].stats()["tokens"] == tokens
    rest = loaders.drain()
    given_steps += rest
    cut.check(given_steps, remainder)
    rows = [row for one in given_steps for row in one.rows]
    assert sorted(rows) == list(range(len(rows)))
    steps = loaders.all[0].stats()["steps"]
    assert steps == len(given_steps)
    left = [max(0, len(lane) - _reached(cut, number, len(rows))) for number, lane in enumerate(cut.lanes)]
    assert loaders.all[0].stats()["remainder_tokens"] == sum(left)
    if remainder == "drop":
        assert 0 <= cut.rows() - len(rows) < batch
    else:
        assert sum(left) == 0 or not rest


def _reached(cut: Cut, lane: int, rows: int) -> int:
    """Tokens of a lane that the first rows hold."""
    given_rows = len(range(lane, rows, len(cut.lanes)))
    return cut.start(given_rows) + cut.overlap if given_rows else 0


def lengths_in(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in state["changes"] if line["kind"] == "seq_len"]


PACKING: dict[str, Any] = {"overlap": 1, "eos_id": -1, "boundaries": True}
ORDER: dict[str, Any] = {"seed": 4, "lanes": 4, "window": 3}
LINKS = ((6, 8, 5), (17, 4, 4), (6, 8, 6))
"""seq_len, global batch size and steps of each part of a run."""


def new(corpus: Corpus, seq_len: int, batch: int | None = None, **arguments: Any) -> hr.DataLoader:
    data = corpus.open(seq_len=seq_len, **PACKING)
    return hr.DataLoader(data, global_batch_size=batch, epochs=EPOCHS, num_workers=1, **arguments)


def changed(state: dict[str, Any], loader: hr.DataLoader) -> hr.DataLoader:
    with pytest.warns(UserWarning, match="headrace: seq_len changes from") as caught:
        loader.load_state_dict(state, strict=False)
    assert len(caught) == 1
    return loader


@pytest.fixture(scope="module")
def run(corpus: Corpus) -> tuple[list[hr.Batch], list[dict[str, Any]]]:
    """The batches of a run whose rows become longer and shorter again, and the states before each and after all."""
    found: list[hr.Batch] = []
    states: list[dict[str, Any]] = []
    loader = new(corpus, LINKS[0][0], LINKS[0][1], **ORDER)
    for number, (seq_len, batch, steps) in enumerate(LINKS):
        if number:
            loader = changed(loader.state_dict(), new(corpus, seq_len, batch))
        states.append(loader.state_dict())
        found += (taken := take_batches(loader, steps))
        states += [one.state for one in taken[:-1]]
    return found, [*states, loader.state_dict()]


def test_states_before_and_behind_changes_go_on(
    corpus: Corpus, run: tuple[list[hr.Batch], list[dict[str, Any]]]
) -> None:
    found, states = run
    ends = [5, 9, 15]
    for step, state in enumerate(states[:-1]):
        end = next(end for end in ends if step < end)
        seq_len, batch, _ = LINKS[ends.index(end)]
        for world in (1, 2, 4):
            loaders = [new(corpus, seq_len, rank=rank, world_size=world) for rank in range(world)]
            for one in loaders:
                one.load_state_dict(state)
                assert one.state_dict() == state
                assert one.global_batch_size == batch
            parts = [take_batches(one, end - step) for one in loaders]
            assert merged([list(map(record, part)) for part in parts]) == list(map(record, found[step:end]))
            # But for the last one, which another length follows on.
            assert [one.state for one in parts[0][:-1]] == states[step + 1 : end]


def test_a_state_tells_of_all_changes(run: tuple[list[hr.Batch], list[dict[str, Any]]]) -> None:
    found, states = run
    kinds = [(one["kind"], one["step"], one["row"], one["before"], one["after"]) for one in states[-1]["changes"]]
    assert kinds == [
        ("seq_len", 5, 40, 6, 17),
        ("batch size", 5, 40, 8, 4),
        ("seq_len", 9, 56, 17, 6),
        ("batch size", 9, 56, 4, 8),
    ]
    for batch in found:
        seq_len = 17 if 5 <= batch.step < 9 else 6
        rows = len(batch.rows)
        assert batch["tokens"].shape == batch["document_ids"].shape == (rows, seq_len + 1)
        assert batch["cu_seqlens"][-1] == rows * seq_len


def test_sources_are_told_of_any_step(corpus: Corpus, run: tuple[list[hr.Batch], list[dict[str, Any]]]) -> None:
    found, states = run
    loader = new(corpus, 6, rank=1, world_size=2)
    loader.load_state_dict(states[-1])
    for batch in found:
        both = [loader.sources(batch.step, rank) for rank in range(2)]
        assert sorted(map(str, both[0] + both[1])) == sorted(map(str, batch.sources()))


def test_steps_before_a_change_are_no_place_to_go_on(
    corpus: Corpus, run: tuple[list[hr.Batch], list[dict[str, Any]]]
) -> None:
    found, states = run
    loader = new(corpus, 6)
    loader.load_state_dict(states[-1])
    for step in (0, 4, 8):
        with pytest.raises(
            ValueError,
            match=f"step {step} lies before step 9, where seq_len changed from 17 to 6\nhint: load a state that was",
        ):
            loader.seek(step)
    assert loader.step == 15
    loader.seek(9)
    assert take(loader, 6) == list(map(record, found[9:]))


def test_a_length_that_was_never_used_leaves_no_trace_in_rows(corpus: Corpus) -> None:
    loader = new(corpus, 6, 8, **ORDER)
    take(loader, 3)
    straight = changed(loader.state_dict(), new(corpus, 5))
    around = changed(changed(loader.state_dict(), new(corpus, 11)).state_dict(), new(corpus, 5))
    assert [one["after"] for one in around.state_dict()["changes"]] == [11, 5]
    assert take(around, 4) == take(straight, 4)


def test_a_run_in_the_order_of_storage(corpus: Corpus) -> None:
    loader = new(corpus, 6, 3, shuffle=False)
    tokens = [row[:6] for one in take(loader, 5) for row in one.rows.values()]
    longer = changed(loader.state_dict(), new(corpus, 9))
    tokens += [row[:9] for one in take(longer, 5) for row in one.rows.values()]
    whole = [token for chunk in corpus.chunks for document in chunk if document for token in [*document, -1]]
    assert [token for row in tokens for token in row] == whole[: 15 * 6 + 15 * 9]


def test_another_length_is_refused_unless_it_is_asked_for(corpus: Corpus) -> None:
    loader = new(corpus, 6, 8, **ORDER)
    take(loader, 3)
    state = loader.state_dict()
    other = new(corpus, 9)
    with pytest.raises(
        hr.StateMismatch,
        match="seq_len is 9 here and 6 in the state\nhint: strict=False goes on with the next tokens, in rows of 9",
    ):
        other.load_state_dict(state)
    # Not together with what never changes.
    data = corpus.open(seq_len=9, **PACKING | {"overlap": 2})
    with pytest.raises(hr.StateMismatch, match="overlap is 2 here and 1 in the state"):
        hr.DataLoader(data, epochs=EPOCHS).load_state_dict(state, strict=False)
    # Rows that a pass cannot fill a batch with.
    with pytest.raises(ValueError, match="too little data"):
        new(corpus, 500).load_state_dict(state, strict=False)


WRONG: dict[str, Any] = {
    "not a count": ({"before": "6"}, "expected a change of seq_len from '6' on"),
    "no length": ({"after": 0}, "expected a change of seq_len from 6 on"),
    "in a round": ({"row": 41}, "where steps and rounds begin, found .*'row': 41"),
    "at another step": ({"step": 4}, "where steps and rounds begin, found .*'step': 4"),
    "to come": ({"step": 6, "row": 48}, "where steps and rounds begin"),
    "elsewhere": ({"after": 16}, "by its changes seq_len is 16, its pipeline says 17"),
}


@pytest.mark.parametrize("change, message", WRONG.values(), ids=WRONG)
def test_changes_that_cannot_have_been_are_refused(
    corpus: Corpus, run: tuple[list[hr.Batch], list[dict[str, Any]]], change: dict[str, Any], message: str
) -> None:
    state = run[1][5]
    assert [one["kind"] for one in state["changes"]] == ["seq_len", "batch size"]
    line, *others = state["changes"]
    with pytest.raises(hr.StateMismatch, match=message):
        new(corpus, 17).load_state_dict(state | {"changes": sorted([line | change, *others], key=_step)})


def _step(line: dict[str, Any]) -> int:
    return line["step"]
