"""Save after any batch, load anywhere, any number of times in a row: the rest is byte for byte the unbroken run."""

import gc
import json
from collections import deque
from hashlib import sha256
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
    batches,
    drain,
    equal_documents,
    merged,
    python,
    record,
    seeded,
    stream,
    take,
    take_batches,
)

PACKING: dict[str, Any] = {"seq_len": 6, "overlap": 1, "eos_id": -1}
RUN: dict[str, Any] = {"seed": 4, "lanes": 4, "window": 3, "global_batch_size": 8, "epochs": 3}
RUNS: dict[str, dict[str, Any]] = {
    "lanes": RUN,
    "padded": RUN | {"remainder": "pad"},
    "sequential": {"shuffle": False, "global_batch_size": 6, "epochs": 3},
    "a schedule": RUN | {"global_batch_size": {0: 4, 5: 8, 6: 12, 11: 4}},
    "lanes do not divide batches": RUN | {"lanes": 5, "global_batch_size": 7},
    "one window": RUN | {"window": 100, "global_batch_size": 4},
    "one chunk a window": RUN | {"window": 1, "global_batch_size": 4},
}
"""What an argument does not say comes from the state, so a run goes on with less: see `going_on`."""


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(seeded(21, files=3, groups=4, documents=9, longest=14))


def new(corpus: Corpus, **arguments: Any) -> hr.DataLoader:
    """A loader that shares nothing with another one, but for the files."""
    return hr.DataLoader(corpus.open(**PACKING), **{"num_workers": 2, **arguments})


def going_on(run: dict[str, Any]) -> dict[str, Any]:
    """What a run must be told again: its end, and batch sizes to come."""
    known = ["epochs", "remainder"]
    return {key: value for key, value in run.items() if key in known or isinstance(value, dict)}


def resumed(corpus: Corpus, state: dict[str, Any], **arguments: Any) -> hr.DataLoader:
    """A new loader, with a state that has been JSON."""
    loader = new(corpus, **arguments)
    loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def recorded(loader: hr.DataLoader) -> tuple[list[Record], list[dict[str, Any]]]:
    """All batches of a run, and the states before the first and after each."""
    records, states = [], [loader.state_dict()]
    for batch in batches(loader):
        records.append(record(batch))
        states.append(batch.state)
        assert loader.state_dict() == batch.state
    return records, states


# After every step


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_saved_after_every_step_the_rest_is_that_of_the_unbroken_run(corpus: Corpus, run: dict[str, Any]) -> None:
    unbroken, states = recorded(new(corpus, **run))
    assert len(unbroken) > 20
    assert {one.epoch for one in unbroken} == {0, 1, 2}
    for step, state in enumerate(states):
        loader = resumed(corpus, state, **going_on(run))
        assert loader.state_dict() == state, "saved right after loading"
        rest, later = recorded(loader)
        assert rest == unbroken[step:]
        assert later == states[step:]


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_new_resume_after_each_batch(corpus: Corpus, run: dict[str, Any]) -> None:
    """B001: the second resume fell back to the first row. Here each batch comes from a loader of its own."""
    unbroken, states = recorded(new(corpus, **run))
    state, given_batches = states[0], []
    for step in range(len(unbroken)):
        loader = resumed(corpus, state, **going_on(run))
        given_batches += take(loader, 1)
        state = loader.state_dict()
        assert state == states[step + 1]
    assert given_batches == unbroken
    assert take(resumed(corpus, state, **going_on(run)), 1) == []


@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 2**64 - 1), lanes=st.sampled_from([1, 2, 3, 12]), window=st.integers(1, 13))
def test_chains_of_resumes_on_other_ranks_and_batches(
    corpus: Corpus, data: st.DataObject, seed: int, lanes: int, window: int
) -> None:
    """Each link has other ranks, batch size, threads and memory, and may have fetched more than it has trained."""
    order = {"seed": seed, "lanes": lanes, "window": window}
    every = stream(drain(new(corpus, **order, global_batch_size=1, epochs=4)))
    rows: dict[int, list[int]] = {}
    state = None
    for _ in range(data.draw(st.integers(2, 5), "links")):
        batch = data.draw(st.sampled_from([1, 2, 6, 12, 24]), "batch")
        world = data.draw(st.sampled_from([world for world in (1, 2, 3, 4, 6) if batch % world == 0]), "world")
        steps = data.draw(st.integers(0, 5), "steps")
        ahead = data.draw(st.integers(0, 2), "fetched but not trained")
        engine = {
            "num_workers": data.draw(st.sampled_from([1, 3]), "threads"),
            "memory": data.draw(st.sampled_from(["32MiB", "1GiB"]), "memory"),
        }
        ranks, states = [], []
        for rank in range(world):
            arguments = {**(order if state is None else {}), **engine, "global_batch_size": batch}
            loader = new(corpus, **arguments, rank=rank, world_size=world)
            if state is not None:
                loader.load_state_dict(state)
            before = loader.state_dict()
            fetched = take_batches(loader, steps + ahead)
            ranks.append([record(one) for one in fetched[:steps]])
            states.append(fetched[steps - 1].state if steps else before)
        assert all(other == states[0] for other in states)
        state = states[0]
        rows |= stream(merged(ranks))
        assert state["position"] == len(rows)
        if len(rows) + 6 * 24 > len(every):
            break
    assert list(rows.items()) == list(every.items())[: len(rows)]


# Fresh processes

PROCESS = """
import json, sys
from hashlib import sha256
import headrace as hr

folder, packing, arguments, steps = sys.argv[1], *map(json.loads, sys.argv[2:5])
state = hr.State.from_bytes(sys.stdin.buffer.read()) if "--resume" in sys.argv else None
loader = hr.DataLoader(hr.open(folder).pack(**packing), **arguments)
if state:
    loader.load_state_dict(state)
lines = []
while len(lines) < steps and loader.step < loader.stats()["steps"]:
    for batch in loader:
        lines.append([batch.step, batch.epoch, sha256(batch["tokens"].tobytes()).hexdigest()])
        if len(lines) == steps:
            break
print(json.dumps([lines, hr.State.to_bytes(loader.state_dict()).hex()]))
"""


def test_a_chain_of_fresh_processes(corpus: Corpus, tmp_path: Path) -> None:
    """Saved in one process and loaded in the next, over ends of epochs and at one, until the run's end."""
    unbroken = [
        [batch.step, batch.epoch, sha256(batch["tokens"].tobytes()).hexdigest()]
        for batch in batches(new(corpus, **RUN))
    ]
    first_epoch = sum(1 for _, epoch, _ in unbroken if epoch == 0)
    state = tmp_path / "state"
    given_batches: list[Any] = []
    for link, steps in enumerate([1, first_epoch - 1, 1, first_epoch + 2, len(unbroken), 1]):
        arguments = RUN if link == 0 else {"epochs": 3}
        with state.open("rb") if link else Path("/dev/null").open("rb") as saved:
            out = python(
                PROCESS,
                str(corpus.folder),
                json.dumps(PACKING),
                json.dumps(arguments),
                str(steps),
                *(["--resume"] if link else []),
                stdin=saved,
            )
        lines, saved_hex = json.loads(out)
        given_batches += lines
        state.write_bytes(bytes.fromhex(saved_hex))
    assert given_batches == unbroken


# What a state says


def test_a_batch_carries_the_state_after_it(corpus: Corpus) -> None:
    """Also when it is asked for much later, and when the loader is gone."""
    loader = new(corpus, **RUN)
    kept = [(batch, loader.state_dict()) for batch in batches(loader)]
    del loader
    gc.collect()
    assert [batch.state for batch, _ in kept] == [state for _, state in kept]
    assert [batch.state["step"] for batch, _ in kept] == list(range(1, len(kept) + 1))


def test_a_state_is_a_copy(corpus: Corpus) -> None:
    loader = new(corpus, **RUN)
    before = loader.state_dict()
    changed = loader.state_dict()
    changed["pipeline"]["seq_len"] = 1
    changed["sources"][0]["identity"] = ""
    changed["history"][0][2] = 99
    take(loader, 1)
    assert before["step"] == 0
    assert loader.state_dict()["pipeline"] == before["pipeline"]
    assert loader.state_dict()["sources"] == before["sources"]
    given_state = json.loads(json.dumps(before))
    loader.load_state_dict(given_state)
    given_state["step"] = 77
    given_state["history"][0][2] = 99
    assert loader.state_dict() == before


def test_a_loop_that_prefetches_saves_what_it_has_trained(corpus: Corpus) -> None:
    unbroken = drain(new(corpus, **RUN))
    waiting: deque[hr.Batch] = deque()
    trained: list[Record] = []
    state: dict[str, Any] = {}
    for batch in batches(new(corpus, **RUN)):
        waiting.append(batch)
        if len(waiting) > 3:
            oldest = waiting.popleft()
            trained.append(record(oldest))
            state = oldest.state
        if len(trained) == len(unbroken) // 2:
            break
    assert state["step"] == len(trained) == len(unbroken) // 2
    assert trained + drain(resumed(corpus, state, epochs=3)) == unbroken


def test_a_state_at_the_exact_end_of_an_epoch_begins_the_next(corpus: Corpus) -> None:
    unbroken = drain(new(corpus, **RUN))
    loader = new(corpus, **RUN)
    first = list(loader)
    assert (loader.epoch, first[-1].epoch) == (1, 0)
    again = resumed(corpus, first[-1].state, epochs=3)
    assert again.epoch == 1
    assert len(again) == sum(1 for one in unbroken if one.epoch == 1)
    second = [record(batch) for batch in again]
    assert second == [one for one in unbroken if one.epoch == 1]


def test_a_state_at_the_end_of_the_run_gives_no_batch(corpus: Corpus) -> None:
    loader = new(corpus, **RUN)
    unbroken = drain(loader)
    end = loader.state_dict()
    assert list(loader) == []
    assert loader.state_dict() == end
    for again in (resumed(corpus, end, epochs=3), resumed(corpus, end, **RUN)):
        assert list(again) == []
        assert list(again) == []
        assert (again.step, again.epoch) == (len(unbroken), 3)
        assert again.state_dict() == end


def test_ranks_need_not_divide_batch_sizes_of_the_past(corpus: Corpus) -> None:
    """Neither a batch size that has been, nor one that the state has and an argument replaces."""
    every = stream(drain(new(corpus, **RUN | {"global_batch_size": 1})))
    loader = new(corpus, **RUN | {"global_batch_size": 5})
    head = take(loader, 3)
    ranks = []
    for rank in range(3):
        again = new(corpus, global_batch_size=6, epochs=3, rank=rank, world_size=3)
        again.load_state_dict(loader.state_dict())
        ranks.append(take(again, 4))
    rows = stream(head) | stream(merged(ranks))
    assert list(rows.items()) == list(every.items())[: 15 + 24]


def test_a_run_goes_on_beyond_its_end_with_more_epochs(corpus: Corpus) -> None:
    """Dropping leaves out what did not fill a batch; with another epoch these tokens come."""
    longer = drain(new(corpus, **RUN | {"epochs": 5}))
    loader = new(corpus, **RUN)
    head = drain(loader)
    rest = drain(resumed(corpus, loader.state_dict(), epochs=5))
    assert head + rest == longer


def test_a_state_beyond_the_end_of_a_shorter_run_gives_no_batch(corpus: Corpus) -> None:
    loader = new(corpus, **RUN)
    drain(loader)
    again = resumed(corpus, loader.state_dict(), epochs=1)
    assert list(again) == []
    assert again.epoch == 1


def test_a_run_without_end_goes_on(corpus: Corpus) -> None:
    endless = {key: value for key, value in RUN.items() if key != "epochs"}
    far = take(new(corpus, **endless), 100)
    loader = new(corpus, **endless)
    head = take(loader, 57)
    assert far[-1].epoch > 3
    assert head + take(resumed(corpus, loader.state_dict()), 43) == far


# Moving about


def test_seek_goes_to_any_step(corpus: Corpus) -> None:
    unbroken, states = recorded(new(corpus, **RUN))
    loader = new(corpus, **RUN)
    end = len(unbroken)
    for step in (end - 1, 0, 5, 4, end // 2, end, 1, 1):
        loader.seek(step)
        assert (loader.step, loader.position) == (step, 8 * step)
        assert loader.state_dict() == states[step]
        assert take(loader, 2) == unbroken[step : step + 2]
    loader.seek(3)
    assert drain(loader) == unbroken[3:]
    for wrong in (end + 1, -1):
        with pytest.raises(ValueError, match="step"):
            loader.seek(wrong)
    assert loader.step == end


def test_seek_through_a_schedule(corpus: Corpus) -> None:
    run = RUNS["a schedule"]
    unbroken = drain(new(corpus, **run))
    loader = new(corpus, **run)
    for step in (20, 5, 11, 4, 6, 12, 0):
        loader.seek(step)
        assert take(loader, 3) == unbroken[step : step + 3]


def test_seek_far_into_a_run_without_end(corpus: Corpus) -> None:
    """The cost does not grow with the position: nothing is replayed."""
    loader = new(corpus, seed=4, lanes=4, window=3, global_batch_size=8)
    loader.seek(10**12)
    [far] = take(loader, 1)
    assert far.step == 10**12
    weight = corpus.open(**PACKING).info()["weight"]
    assert far.epoch == 8 * 10**12 * PACKING["seq_len"] // weight, "rows 4k begin with the unit of lane 0, 4k * seq_len"
    assert take(resumed(corpus, loader.state_dict()), 1)[0].step == 10**12 + 1


@pytest.mark.parametrize("skipped", [range(3, 6), range(4), range(2, 30), range(1)])
def test_skipped_steps_are_left_out_and_keep_their_numbers(corpus: Corpus, skipped: range) -> None:
    unbroken = drain(new(corpus, **RUN))
    wanted = [one for one in unbroken if one.step not in skipped]
    loader = new(corpus, **RUN)
    length = len(loader)
    loader.skip(skipped)
    in_first = sum(1 for one in unbroken if one.epoch == 0 and one.step in skipped)
    assert len(loader) == length - in_first
    assert drain(loader) == wanted
    assert new(corpus, **RUN).state_dict()["skipped"] == []


def test_skipping_is_remembered_by_the_state(corpus: Corpus) -> None:
    unbroken = drain(new(corpus, **RUN))
    first_epoch = sum(1 for one in unbroken if one.epoch == 0)
    ranges = [range(4, 6), range(5, 8), range(9, 10), range(first_epoch - 1, first_epoch + 2)]
    wanted = [one for one in unbroken if not any(one.step in skipped for skipped in ranges)]
    loader = new(corpus, **RUN)
    states = [loader.state_dict()]
    for skipped in ranges:
        loader.skip(skipped)
    given_batches: list[Record] = []
    states = [loader.state_dict()]
    for batch in batches(loader):
        given_batches.append(record(batch))
        states.append(batch.state)
    assert given_batches == wanted
    for done, state in enumerate(states):
        again = resumed(corpus, state, epochs=3)
        assert again.state_dict() == state
        assert drain(again) == wanted[done:]


def test_skipping_in_the_midst_of_an_iteration(corpus: Corpus) -> None:
    unbroken = drain(new(corpus, **RUN))
    loader = new(corpus, **RUN, prefetch_factor=4)
    steps = []
    for batch in loader:
        steps.append(batch.step)
        if batch.step == 2:
            loader.skip(range(3, 5))
        if len(steps) == 5:
            break
    assert steps == [0, 1, 2, 5, 6]
    loader.seek(0)
    assert take(loader, 4) == [unbroken[step] for step in (0, 1, 2, 5)]


@pytest.mark.parametrize("wrong", [range(1, 2), range(5, 5), range(4, 9, 2), range(9, 4, -1)])
def test_what_cannot_be_skipped_is_refused(corpus: Corpus, wrong: range) -> None:
    loader = new(corpus, **RUN)
    take(loader, 2)
    before = loader.state_dict()
    with pytest.raises(ValueError, match="skip takes neighbouring steps from 2 on"):
        loader.skip(wrong)
    with pytest.raises(TypeError, match="range"):
        loader.skip([3, 4])  # type: ignore[arg-type]
    assert loader.state_dict() == before


# Iterators


def test_a_state_loaded_after_iteration_began_applies_and_older_iterators_raise(corpus: Corpus) -> None:
    """B014: it had no effect."""
    unbroken, states = recorded(new(corpus, **RUN))
    loader = new(corpus, **RUN)
    old = iter(loader)
    assert record(next(old)) == unbroken[0]
    loader.load_state_dict(states[7])
    assert loader.state_dict() == states[7]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not the loader's latest"):
            next(old)
    with pytest.raises(RuntimeError, match="not the loader's latest"):
        len(old)  # type: ignore[arg-type]
    assert loader.state_dict() == states[7], "an old iterator does not move the loader"
    assert drain(loader) == unbroken[7:]


def test_an_older_iterator_raises_where_a_newer_one_was_made_or_the_loader_moved(corpus: Corpus) -> None:
    loader = new(corpus, **RUN)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second).step == 1, "the newer goes on"
    with pytest.raises(RuntimeError, match="a newer one was made"):
        next(first)
    loader.seek(4)
    with pytest.raises(RuntimeError, match="moved by seek"):
        next(second)
    assert take(loader, 1)[0].step == 4


def test_an_iterator_ends_with_its_epoch_and_stays_ended(corpus: Corpus) -> None:
    loader = new(corpus, **RUN)
    iterator = iter(loader)
    length = len(loader)
    assert sum(1 for _ in iterator) == length
    assert next(iterator, None) is None
    assert (loader.step, loader.epoch) == (length, 1)


def test_a_refused_state_changes_nothing(corpus: Corpus, write: CorpusWriter) -> None:
    unbroken = drain(new(corpus, **RUN))
    loader = new(corpus, **RUN)
    iterator = iter(loader)
    next(iterator)
    before = loader.state_dict()
    other = new(write(seeded(22)), **RUN | {"global_batch_size": 4}).state_dict()
    with pytest.raises(hr.StateMismatch):
        loader.load_state_dict(other)
    with pytest.raises(hr.StateMismatch):
        loader.load_state_dict(before | {"seed": 5})
    assert loader.state_dict() == before
    assert record(next(iterator)) == unbroken[1], "the iterator is still good"
    assert drain(loader) == unbroken[2:]


# CASES resume. B011 and B016, of mixtures and of what is taken more than once, are in test_cases.py; B001 and B014 are
# above, B017 is in test_state.py.


def twelve(write: CorpusWriter) -> Corpus:
    """12 rows of one token in one shard."""
    return write(equal_documents(files=1, groups=1, documents=12, length=1))


def tokens(records: list[Record]) -> list[int]:
    return [token for one in records for row in one.rows.values() for token in row]


def test_twice_read_and_saved_is_row_10(write: CorpusWriter) -> None:
    """B001, to the letter."""
    dataset = twelve(write).open(seq_len=1)

    def sequential() -> hr.DataLoader:
        return hr.DataLoader(dataset, 1, shuffle=False, epochs=1)

    first = sequential()
    assert tokens(take(first, 5)) == [0, 1, 2, 3, 4]
    second = sequential()
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert tokens(take(second, 5)) == [5, 6, 7, 8, 9]
    third = sequential()
    third.load_state_dict(second.state_dict())
    assert tokens(take(third, 1)) == [10]


@pytest.mark.parametrize("stop", range(13))
def test_a_shuffled_shard_neither_loses_nor_repeats(write: CorpusWriter, stop: int) -> None:
    """B002."""
    dataset = twelve(write).open(seq_len=1)
    arguments = {"seed": 8, "epochs": 1}
    unbroken = tokens(drain(hr.DataLoader(dataset, 1, **arguments)))
    assert sorted(unbroken) == list(range(12)) != unbroken
    loader = hr.DataLoader(dataset, 1, **arguments)
    head = take(loader, stop)
    again = hr.DataLoader(dataset, 1, **arguments)
    again.load_state_dict(loader.state_dict())
    assert tokens(head + drain(again)) == unbroken


def test_epochs_after_a_resume_have_their_full_length(corpus: Corpus) -> None:
    """B004: later epochs shrank to what was left of the first."""
    loader = new(corpus, **RUN)
    take(loader, len(loader) - 3)
    again = resumed(corpus, loader.state_dict(), epochs=3)
    whole = new(corpus, **RUN)
    lengths = [len(list(whole)) for _ in range(3)]
    assert len(again) == lengths[0]
    assert [len(list(again)) for _ in range(3)] == [3, *lengths[1:]]


def test_a_dataset_can_be_read_twice(corpus: Corpus) -> None:
    """B005: the second pass over one dataset object was empty. Here, too, with both loaders at work at once."""
    dataset = corpus.open(**PACKING)
    first, second = (hr.DataLoader(dataset, **RUN) for _ in range(2))
    together = [(record(one), record(other)) for one, other in zip(first, second, strict=True)]
    assert together
    assert all(one == other for one, other in together)
    assert drain(hr.DataLoader(dataset, **RUN))[: len(together)] == [one for one, _ in together]


def test_a_state_soon_after_a_resume_is_whole(corpus: Corpus) -> None:
    """B007: asked for before each of 4 workers had given a batch."""
    unbroken, states = recorded(new(corpus, **RUN))
    loader = resumed(corpus, states[1], epochs=3, num_workers=4)
    assert take(loader, 2) == unbroken[1:3]
    assert drain(resumed(corpus, loader.state_dict(), epochs=3, num_workers=4)) == unbroken[3:]


def test_counters_go_on_from_the_state(corpus: Corpus) -> None:
    """B008: one too high after loading."""
    loader = new(corpus, **RUN)
    take(loader, 3)
    loader.load_state_dict(loader.state_dict())
    assert (loader.step, loader.position, loader.stats()["tokens"]) == (3, 24, 144)
    take(loader, 1)
    assert (loader.step, loader.position, loader.stats()["tokens"]) == (4, 32, 192)


def test_a_new_loader_over_a_used_dataset_takes_the_state(corpus: Corpus) -> None:
    """B010."""
    dataset = corpus.open(**PACKING)
    unbroken = drain(hr.DataLoader(dataset, **RUN))
    used = hr.DataLoader(dataset, **RUN)
    for batch in used:
        if batch.step == 4:
            break
    again = hr.DataLoader(dataset, **RUN)
    assert again.step == 0
    again.load_state_dict(used.state_dict())
    assert drain(again) == unbroken[5:]


def test_an_iterator_has_no_state_to_be_forgotten(corpus: Corpus) -> None:
    """B013: a trainer that is given iter(loader) must fail when it saves, not start anew when it loads."""
    iterator = iter(new(corpus, **RUN))
    with pytest.raises(AttributeError):
        iterator.state_dict()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        iterator.load_state_dict({})  # type: ignore[attr-defined]


def test_a_resume_reads_nothing_that_was_passed(write: CorpusWriter) -> None:
    """B019: a resume at 90 % replayed the rest. Counted in windows and bytes, of 200 windows."""
    corpus = write(equal_documents(files=10, groups=20, documents=4, length=300))
    dataset = corpus.open(seq_len=100)
    whole = hr.DataLoader(dataset, global_batch_size=4, lanes=4, window=1, epochs=1)
    whole.seek(9 * len(whole) // 10)
    again = hr.DataLoader(corpus.open(seq_len=100), epochs=1)
    again.load_state_dict(whole.state_dict())
    assert drain(again)
    stats = again.stats()
    size = sum(path.stat().st_size for path in corpus.folder.iterdir())
    assert stats["windows"] <= 21
    assert stats["bytes_read"] < 0.15 * size
