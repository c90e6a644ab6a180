"""What went wrong for users of other loaders, tried on every kind of pipeline.

The ids in docstrings are those of the collected cases. Those that concern one kind alone are tested beside it.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.loading import mixture_run, packed_run, sample_run
from headrace.loading.lanes.run import LaneRun
from kinds import DOCUMENTS, KINDS, SEQ_LEN, Documents, Kind, Objects, Run, Step

BATCH = 4
STEPS = DOCUMENTS // BATCH


def of_kinds(names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrizes a test by kinds of pipelines."""
    return pytest.mark.parametrize("kind", [pytest.param(KINDS[name], id=name) for name in names])


every_kind = of_kinds(KINDS)
ending_kind = of_kinds(name for name, kind in KINDS.items() if kind.ends)
stating_kind = of_kinds(name for name, kind in KINDS.items() if kind.states)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    return Documents(tmp_path_factory.mktemp("documents") / "all")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """Other documents, as many."""
    return Documents(tmp_path_factory.mktemp("documents") / "others", range(1000, 1000 + DOCUMENTS))


def small(tmp_path: Path, count: int) -> Documents:
    """Few documents, of six tokens each: as many rows."""
    return Documents(tmp_path / "small", [2 + 11 * number for number in range(count)])


def run_of(kind: Kind, documents: Documents, **arguments: Any) -> Run:
    return Run(kind, kind.make(documents), BATCH, **arguments)


def again(kind: Kind, documents: Documents, states: Any, world: int = 1, **arguments: Any) -> Run:
    """A run that goes on from states; objects have their batch size from the arguments, others from the state."""
    return Run(kind, kind.make(documents), None if kind.states else BATCH, world, **arguments).load(states)


def rows(steps: list[Step]) -> list[list[Any]]:
    return [step.rows for step in steps]


# Resume


@every_kind
def test_read_save_load_again_and_again(kind: Kind, documents: Documents) -> None:
    """B001, B007, B008: row 0 after a second resume, lost workers' parts, counters one too high."""
    whole = run_of(kind, documents).take(9)
    run = again(kind, documents, run_of(kind, documents).states)
    found: list[Step] = []
    for count in (3, 1, 2, 3):
        before = run.states
        run = again(kind, documents, before, num_workers=2)
        assert run.states == before
        found += run.take(count)
        assert run.loaders[0].step == len(found)
        assert run.loaders[0].position == BATCH * len(found)
    assert rows(found) == rows(whole)


@every_kind
@pytest.mark.parametrize("stop", [0, 1, STEPS - 1, STEPS, STEPS + 1])
def test_a_shuffled_run_neither_loses_nor_repeats(kind: Kind, documents: Documents, stop: int) -> None:
    """B002, B016: at an epoch's end, and behind it."""
    whole = run_of(kind, documents).take(2 * STEPS + 1)
    run = run_of(kind, documents)
    head = run.take(stop)
    found = head + again(kind, documents, run.states).take(2 * STEPS + 1 - stop)
    assert rows(found) == rows(whole)
    if kind.ends:
        for first in (0, STEPS):
            pass_of_it = [row for step in found[first : first + STEPS] for row in step.rows]
            assert len(set(pass_of_it)) == DOCUMENTS


@ending_kind
def test_later_epochs_have_their_full_length(kind: Kind, documents: Documents) -> None:
    """B004, B038: epochs shrank to what was left of the first, or hung."""
    run = run_of(kind, documents, world=2, num_workers=1)
    run.take(STEPS - 3)
    run = again(kind, documents, run.states, world=2, num_workers=1)
    assert [len(list(run.epoch())) for _ in range(3)] == [3, STEPS, STEPS]


@every_kind
def test_a_dataset_can_be_loaded_twice(kind: Kind, documents: Documents) -> None:
    """B005, B010: the second pass over one object was empty, or began where the first was left."""
    data = kind.make(documents)
    used = Run(kind, data, BATCH)
    whole = rows(Run(kind, data, BATCH).take(9))
    assert rows(used.take(5)) == whole[:5]
    other = Run(kind, data, None if kind.states else BATCH).load(used.states)
    assert rows(other.take(4)) == whole[5:]


@of_kinds(["samples", "map over samples", "stream", "stored documents"])
def test_a_source_may_be_repeated(kind: Kind, documents: Documents) -> None:
    """B011: a resume past the first epoch of a source that is taken twice, and of one that is taken in part."""
    data = kind.make(documents)
    for changed, once, twice in (
        (hr.concat([data, data.take(20)]), DOCUMENTS - 20, 20),
        (data.repeat(2), 0, DOCUMENTS),
        (data.take(20), 20, 0),
    ):
        run = Run(kind, changed, BATCH)
        count = len(changed) // BATCH
        whole = run.take(2 * count)
        given = Counter(row for step in whole[:count] for row in step.rows)
        assert Counter(given.values()) == +Counter({1: once, 2: twice})
        later = Run(kind, changed).load(whole[count + 1].states)
        assert rows(later.take(count - 2)) == rows(whole[count + 2 :])


@every_kind
def test_an_iterator_has_no_state_to_be_forgotten(kind: Kind, documents: Documents) -> None:
    """B013: a trainer that is given iter(loader) fails when it saves."""
    iterator: Any = iter(run_of(kind, documents).loaders[0])
    with pytest.raises(AttributeError):
        iterator.load_state_dict({})
    with pytest.raises(AttributeError):
        iterator.state_dict()


@every_kind
def test_a_state_loaded_after_iteration_began_applies(kind: Kind, documents: Documents) -> None:
    """B014: it had no effect. An older iterator that would give something else raises."""
    whole = run_of(kind, documents).take(8)
    run = run_of(kind, documents)
    iterator = iter(run.loaders[0])
    next(iterator)
    run.load(whole[5].states)
    assert run.states == whole[5].states
    with pytest.raises(RuntimeError):
        next(iterator)
    assert rows(run.take(2)) == rows(whole[6:])


@every_kind
def test_the_state_of_other_data_is_refused_by_name(kind: Kind, documents: Documents, others: Documents) -> None:
    """B017: a deep traceback. Objects tell nothing of themselves but their length."""
    run = run_of(kind, documents)
    run.take(1)
    data = kind.make(others)
    if isinstance(data, Objects):
        data.samples.append({"id": -1})
    fresh = Run(kind, data, None if kind.states else BATCH)
    with pytest.raises(hr.StateMismatch, match=r"not that of the state|the dataset has \d+ samples|length") as refusal:
        fresh.load(run.states)
    assert len(str(refusal.value)) < 1000
    # It can still begin anew.
    assert len(Run(kind, data, BATCH).take(1)) == 1


def test_a_resume_calls_no_function_for_what_was_given(documents: Documents) -> None:
    """B019: a resume at 90 % replayed the rest. For lanes it is what their buffers hold, and what is made ahead."""
    count, ahead = 400, 1100
    calls: list[int] = []
    lock = threading.Lock()

    def counted(sample: dict[str, Any]) -> dict[str, Any]:
        with lock:
            calls.append(sample["id"])
        return sample

    mapped: Callable[[Documents], Any] = lambda documents: documents.samples.map(counted)  # noqa: E731
    makers: dict[str, tuple[Callable[[Documents], Any], int]] = {
        "samples": (lambda documents: mapped(documents).select(["id"]), BATCH),
        "zip": (lambda documents: hr.zip([mapped(documents), documents.ids], _first), BATCH),
        "concat": (lambda documents: mapped(documents).pack(SEQ_LEN), ahead),
        "best_fit": (lambda documents: mapped(documents).pack(SEQ_LEN, mode="best_fit", lookahead=4), ahead),
        "mixture": (lambda documents: hr.mix({"one": (mapped(documents).pack(SEQ_LEN), 1)}), ahead),
    }
    for name, (make, most) in makers.items():
        kind = Kind(make=make)
        run = run_of(kind, documents)
        run.take(count)
        states = run.states
        later = again(kind, documents, states)
        calls.clear()
        later.take(1)
        assert 1 <= len(calls) <= most < BATCH * count, name


def _first(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"id": samples[0]["id"]}


# Elastic resume, ranks and workers


@every_kind
def test_any_number_of_ranks_goes_on(kind: Kind, documents: Documents) -> None:
    """B020, B025, B028, B031, B034: positions were lost, ranks starved or had the same rows."""
    whole = run_of(kind, documents).take(3 * STEPS)
    found: list[Step] = []
    states = run_of(kind, documents).states
    for world, count in ((2, 5), (4, STEPS), (1, 3), (4, 2), (2, STEPS)):
        run = again(kind, documents, states, world, num_workers=world % 3)
        found += run.take(count)
        states = run.states
    assert rows(found) == rows(whole)[: len(found)]
    assert [step.number for step in found] == list(range(len(found)))
    if kind.in_lanes:
        with pytest.raises(hr.StateMismatch, match="lacks lanes of rank 0"):
            again(kind, documents, states[1])


@every_kind
def test_too_few_rows_for_the_ranks_get_a_plain_message(kind: Kind, tmp_path: Path) -> None:
    """B022, B037: two samples on 64 ranks became 33 batches, or failed to reshape."""
    data = kind.make(small(tmp_path, 2))
    if kind.in_lanes or isinstance(data, hr.MixDataset):
        # They run on from pass to pass.
        assert len(Run(kind, data, 64, world=64).take(1)[0].rows) == 64
        return
    message = r"[23] samples cannot be shared out among 64 ranks|a pass holds 22 tokens, .* a global batch needs 64"
    with pytest.raises(ValueError, match=message + r"\nhint: "):
        Run(kind, data, 64, world=64).take(1)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_sources_of_few_rows_leave_no_worker_waiting(tmp_path: Path, workers: int) -> None:
    """B023, B029, B031: a source of two documents, or of one, beside others."""
    few, many = Documents(tmp_path / "few", [2, 13]), Documents(tmp_path / "many", range(24))
    for name, make in {
        "packed": lambda one: one.packed,
        "samples": lambda one: one.ids,
        "rows": lambda one: one.samples.pack(SEQ_LEN, mode="best_fit"),
    }.items():
        data = hr.mix({"few": (make(few), 1), "many": (make(many), 3)})
        kind = KINDS["mixture of packed"]
        alone = Run(kind, data, 12, lanes=1 if name == "packed" else 12).take(6)
        found = Run(kind, data, 12, num_workers=workers, lanes=1 if name == "packed" else 12).take(6)
        assert rows(found) == rows(alone)
        sources = Counter(int(row.rsplit(" ", 1)[1].rstrip(")")) for step in found for row in step.rows)
        assert sources == {0: 18, 1: 54}, name


@stating_kind
def test_steps_passed_over_keep_ranks_apart(kind: Kind, documents: Documents) -> None:
    """B026: a skip after the split into ranks undid it."""
    whole = rows(run_of(kind, documents).take(8))
    run = run_of(kind, documents, world=2)
    for loader in run.loaders:
        loader.skip(range(1, 4))
    found = run.take(4)
    assert [step.number for step in found] == [0, 4, 5, 6]
    assert rows(found) == [whole[0], *whole[4:7]]


@every_kind
@pytest.mark.parametrize("workers", [1, 16])
def test_steps_do_not_depend_on_workers(kind: Kind, documents: Documents, workers: int) -> None:
    """B028, B029, B032: other rows, or more steps, with more workers."""
    alone = run_of(kind, documents)
    run = run_of(kind, documents, num_workers=workers)
    if kind.ends:
        assert len(run.loaders[0]) == len(alone.loaders[0]) == STEPS
        assert rows(list(run.epoch())) == rows(list(alone.epoch()))
    assert rows(run.take(3)) == rows(alone.take(3))


@every_kind
def test_no_loader_makes_a_process_group(kind: Kind, documents: Documents) -> None:
    """B035: it hung the trainer's own call."""
    import torch.distributed as dist

    run_of(kind, documents, world=2).take(2)
    assert not dist.is_initialized()


@stating_kind
def test_states_are_made_only_when_asked_for(kind: Kind, documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of many lanes costs as much as a batch. Objects have none with their batches."""
    loader = run_of(kind, documents).loaders[0]
    made: list[Any] = []
    for run in (packed_run.Run, mixture_run.Run, sample_run.Run, LaneRun):
        monkeypatch.setattr(run, "state", _noting(run.state, made))
    batches = list(islice(loader, STEPS - 1))
    assert made == []
    assert batches[3].state["step"] == 4
    assert len(made) == 1


def _noting(state: Callable[..., Any], made: list[Any]) -> Callable[..., Any]:
    def noting(run: Any, position: Any) -> Any:
        made.append(position)
        return state(run, position)

    return noting


# Shuffle and seeds


@every_kind
def test_epochs_differ_and_come_again(kind: Kind, documents: Documents) -> None:
    """B040, B043, B046, B047: one order for all epochs, epochs mixed into each other, rows twice in one."""
    found = rows(run_of(kind, documents).take(2 * STEPS))
    assert found == rows(run_of(kind, documents).take(2 * STEPS))
    first, second = found[:STEPS], found[STEPS:]
    assert first != second
    assert found != rows(run_of(kind, documents, seed=1).take(2 * STEPS))
    if kind.ends:
        for epoch in (first, second):
            assert len({row for step in epoch for row in step}) == DOCUMENTS


@every_kind
@pytest.mark.parametrize("seed", [2**32 - 1, 2**64 - 1])
def test_seeds_use_all_their_bits(kind: Kind, documents: Documents, seed: int) -> None:
    """B044: seed plus index left 32 bits."""
    found = rows(run_of(kind, documents, seed=seed).take(STEPS + 2))
    assert found == rows(run_of(kind, documents, seed=seed).take(STEPS + 2))
    assert found != rows(run_of(kind, documents, seed=seed ^ 2**31).take(STEPS + 2))


@every_kind
def test_the_first_rows_come_from_many_chunks(kind: Kind, documents: Documents) -> None:
    """B041: a buffer that was filled from one file shuffled that file alone."""
    found = [row for step in run_of(kind, documents).take(3) for row in step.rows]
    numbers = [int(re.findall(r"\d+", row)[0]) for row in found]
    chunks = {(number // 100 if number >= DOCUMENTS else number) * 4 // DOCUMENTS for number in numbers}
    assert len(chunks) >= 3


# Mixtures

MIXED = {
    "packed": lambda one: one.packed,
    "samples": lambda one: one.ids,
    "best_fit": lambda one: one.samples.pack(SEQ_LEN, mode="best_fit"),
    "documents": lambda one: one.ids.flat_map(_listed),
}


def _listed(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample]


def drawn(data: Any, batch: int, steps: int, **arguments: Any) -> Counter[int]:
    """How many rows each source gave."""
    loader = hr.DataLoader(data, global_batch_size=batch, num_workers=0, **arguments)
    return Counter(source for one in islice(loader, steps) for source in one["source"].tolist())


@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED)
def test_weights_that_say_nothing_or_almost_nothing(make: Callable[[Documents], Any], documents: Documents) -> None:
    """B050, B052, B053: a weight of 0 never ended, one of .999 went past the end, one of 1e-9 was a size error."""
    one = make(documents)
    assert drawn(hr.mix({"all": (one, 1), "none": (one, 0)}), 4, 20) == {0: 80}
    assert drawn(hr.mix({"rare": (one, 0.001), "rest": (one, 0.999)}), 4, 40).total() == 160
    counts = drawn(hr.mix({"one": (one, 1), "two": (one, 1), "never": (one, 1e-9)}), 4, 20)
    assert counts == {0: 40, 1: 40}
    with pytest.raises(ValueError, match="weight"):
        hr.mix({"one": (one, 0), "two": (one, 0)})


@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED)
def test_three_hundred_sources(make: Callable[[Documents], Any], documents: Documents) -> None:
    """B056: more than 255 did not fit the type of their numbers."""
    one = make(documents)
    counts = drawn(hr.mix({f"source {number}": (one, 1) for number in range(300)}), 300, 8, lanes=4)
    # Eight rows of each; a lane of four is a few rows from that.
    assert set(counts) == set(range(300))
    assert counts.total() == 2400


def test_a_source_of_nothing_changes_nothing(documents: Documents, tmp_path: Path) -> None:
    """B049: an empty source in turns with another gave the wrong rows."""
    nothing = documents.ids.take(0)
    data = hr.mix({"none": (nothing, 0), "all": (documents.ids, 1)})
    assert drawn(data, 4, 5) == {1: 20}
    with pytest.raises(ValueError, match=r"'none'|no samples|no row"):
        drawn(hr.mix({"none": (nothing, 1), "all": (documents.ids, 1)}), 4, 5)


# Lengths


@ending_kind
def test_an_epoch_has_the_rows_that_its_length_says(kind: Kind, documents: Documents) -> None:
    """B055, B148, B149: rounded up by repeating rows, the dropped batch counted, no length at all."""
    for batch, world, length in ((4, 1, 11), (4, 2, 11), (6, 3, 7), (10, 1, 4)):
        # Packed tokens have no last batch that is smaller, nor do others here.
        ending = {"epochs": 1} if isinstance(kind.make(documents), hr.PackedDataset) else {"drop_last": True}
        run = Run(kind, kind.make(documents), batch, world, **ending)
        assert {len(loader) for loader in run.loaders} == {length}
        found = list(run.epoch())
        assert len(found) == length
        assert len({row for step in found for row in step.rows}) == batch * length


@every_kind
def test_a_length_that_only_reading_tells_is_refused(kind: Kind, documents: Documents) -> None:
    """B149: known from the index, or a TypeError that says what is known."""
    loader = run_of(kind, documents).loaders[0]
    if kind.ends:
        assert len(loader) == STEPS
    else:
        with pytest.raises(TypeError, match=r"len\(\)|has no length"):
            len(loader)


GROUPS = {
    "resume": "001 002 004 005 007 008 010 011 013 014 016 017 019",
    "elastic": "020 022 023",
    "ranks": "025 026 028 029 031 032 034 035 037 038",
    "shuffle": "040 041 043 044 046 047",
    "mix": "049 050 052 053 055 056",
    "pack": "058 059 061 062 064 065 067 068 070 071",
    "dtype": "073 074 076 077",
    "len": "148 149",
}


@pytest.mark.parametrize("group", GROUPS)
def test_each_case_is_named_by_a_test(group: str) -> None:
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    assert len(texts) > 100
    docstrings = [found for text in texts for found in re.findall(r"def test_[^\n]*(?:\n[^\n]*){1,6}", text)]
    missing = [case for case in GROUPS[group].split() if not any(f"B{case}" in one for one in docstrings)]
    assert missing == []
