"""A mixture's rows are those of the order's page, on any ranks, from any step on."""

import json
from itertools import chain
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from datasets import Corpus, CorpusWriter, equal_documents, take_batches
from golden import make_mixture
from headrace import _core
from mixture_reference import linear, points
from mixtures import BETWEEN, Step, corpora, expected, loaders, steps

PACKING: dict[str, Any] = {"seq_len": 7, "overlap": 1}
WEIGHTS = {"large": 6.0, "middle": 3.0, "one document": 0.5, "tiny documents": 1.5}


@pytest.fixture(scope="module")
def parts(write: CorpusWriter) -> dict[str, Corpus]:
    return corpora(write)


def mixed(parts: dict[str, Corpus], weights: dict[str, float] = WEIGHTS, **arguments: Any) -> hr.MixDataset:
    sources = {name: (part.open(**PACKING), weights[name]) for name, part in parts.items()}
    return hr.mix(sources, **arguments)


def rows_of(taken: list[Step]) -> list[tuple[int, list[int]]]:
    return list(chain.from_iterable(step.rows.values() for step in taken))


@pytest.mark.parametrize(
    "arguments",
    [
        {"global_batch_size": 12, "seed": 1},
        {"global_batch_size": 12, "seed": 2**64 - 1, "lanes": 6},
        {"global_batch_size": 12, "shuffle": False},
        {"global_batch_size": 5, "seed": 3, "window": 2},
        {"global_batch_size": {0: 4, 3: 8, 7: 12}, "seed": 4},
        {"global_batch_size": 8, "lanes": 12},
    ],
)
def test_rows_are_those_of_the_page(parts: dict[str, Corpus], arguments: dict[str, Any]) -> None:
    [loader] = loaders(mixed(parts), 1, **arguments)
    wanted = expected(list(parts.values()), loader, {0: list(WEIGHTS.values())}, 96)
    assert rows_of(steps([loader], 96))[:96] == wanted


def test_tokens_are_those_of_the_source_that_a_row_names(parts: dict[str, Corpus]) -> None:
    for step in steps(loaders(mixed(parts), 1, global_batch_size=12, seed=5), 10):
        for source, tokens in step.rows.values():
            assert {token // BETWEEN for token in tokens} == {source}


@pytest.mark.parametrize("arguments", [{"seed": 1}, {"lanes": 12, "seed": 7}, {"shuffle": False}])
def test_any_ranks_go_on_from_any_step(parts: dict[str, Corpus], arguments: dict[str, Any]) -> None:
    dataset = mixed(parts)
    whole = steps(loaders(dataset, 1, global_batch_size=12, **arguments), 14)
    for world in (2, 3, 4, 6, 12):
        assert steps(loaders(dataset, world, global_batch_size=12, **arguments), 14) == whole
    for number, step in enumerate(whole[:-1]):
        world = (1, 2, 3, 4)[number % 4]
        tail = steps(loaders(dataset, world, step.state, global_batch_size=12), 13 - number)
        assert tail == whole[number + 1 :], f"from step {number + 1} on {world} ranks"


def test_a_run_is_saved_and_resumed_again_and_again_with_other_batches(parts: dict[str, Corpus]) -> None:
    dataset = mixed(parts)
    wanted = rows_of(steps(loaders(dataset, 1, global_batch_size=12, seed=8, lanes=12), 12))
    found: list[tuple[int, list[int]]] = []
    state: dict[str, Any] | None = None
    for world, batch in ((1, 12), (2, 24), (4, 12), (3, 6), (1, 5), (2, 20)):
        arguments = {"seed": 8, "lanes": 12} if state is None else {}
        taken = steps(loaders(dataset, world, state, global_batch_size=batch, **arguments), 2)
        found += rows_of(taken)
        state = hr.State.from_bytes(hr.State.to_bytes(taken[-1].state))
    assert found[:144] == wanted[: len(found)]


def test_steps_are_sought_and_skipped_without_a_replay(parts: dict[str, Corpus]) -> None:
    dataset = mixed(parts)
    whole = steps(loaders(dataset, 1, global_batch_size=12, seed=1), 20)
    [loader] = loaders(dataset, 1, global_batch_size=12, seed=1)
    for step in (17, 3, 0):
        loader.seek(step)
        assert steps([loader], 2) == whole[step : step + 2]
    loader.seek(2)
    loader.skip(range(4, 9))
    assert [next(iter(step.rows)) for step in steps([loader], 3)] == [24, 36, 108]
    loader.seek(10**9)
    assert next(iter(loader)).rows[0] == 12 * 10**9


def test_a_changed_batch_size_changes_no_row(parts: dict[str, Corpus]) -> None:
    dataset = mixed(parts)
    wanted = rows_of(steps(loaders(dataset, 1, global_batch_size=12, seed=1), 10))
    [loader] = loaders(dataset, 1, global_batch_size=12, seed=1)
    found = rows_of(steps([loader], 3))
    loader.set_global_batch_size(24)
    found += rows_of(steps([loader], 3))
    assert found == wanted[: len(found)]


@given(
    weights=st.lists(st.one_of(st.floats(0.01, 1), st.just(0.0), st.floats(1e-9, 1e-3)), min_size=2, max_size=4).filter(
        any
    ),
    batch=st.sampled_from([6, 12, 16]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=15)
def test_each_batch_is_within_one_row_of_the_weights(
    parts: dict[str, Corpus], weights: list[float], batch: int, seed: int
) -> None:
    some = dict(list(parts.items())[: len(weights)])
    dataset = mixed(some, dict(zip(some, weights, strict=True)))
    shares = np.array(points(weights)) / 2**48
    for step in steps(loaders(dataset, 1, global_batch_size=batch, seed=seed), 6):
        counts = np.bincount([source for source, _ in step.rows.values()], minlength=len(weights))
        assert (abs(counts - shares * batch) < 1).all()
        assert not counts[np.array(weights) == 0].any()


def mixture_of(weights: list[float], *, seed: int, lanes: int) -> _core.Mixture:
    return _core.Mixture(
        seed=seed,
        lanes=lanes,
        together=False,
        source_lanes=[lanes] * len(weights),
        phases=[(0, 0, 1, weights)],
        limits=[None] * len(weights),
        stop=False,
    )


def counts_of_batches(weights: list[float], *, seed: int, lanes: int, rounds: int, batches: int) -> Any:
    """int64, (batches, sources): rows of each source in batches of some rounds."""
    core = mixture_of(weights, seed=seed, lanes=lanes)
    rows = np.frombuffer(memoryview(core.sources(0, batches * rounds * lanes)), dtype=np.uint32)
    drawn = rows.reshape(batches, rounds * lanes)
    return np.stack([(drawn == source).sum(axis=1) for source in range(len(weights))], axis=1)


@given(
    weights=st.lists(st.one_of(st.floats(0.01, 1), st.just(0.0), st.floats(1e-9, 1e-3)), min_size=1, max_size=6).filter(
        any
    ),
    lanes=st.integers(1, 150),
    rounds=st.integers(1, 64),
    seed=st.integers(0, 2**64 - 1),
)
def test_each_doubling_of_a_batch_adds_at_most_half_a_row_to_what_it_errs(
    weights: list[float], lanes: int, rounds: int, seed: int
) -> None:
    shares = points(weights)
    for counts in counts_of_batches(weights, seed=seed, lanes=lanes, rounds=rounds, batches=10).tolist():
        # In whole numbers of 2**-48 rows.
        errors = [count * 2**48 - share * lanes * rounds for count, share in zip(counts, shares, strict=True)]
        assert max(map(abs, errors)) <= (1 + log2(rounds) / 2) * 2**48


@pytest.mark.parametrize("lanes", [1, 7, 34, 55, 64, 89, 144, 512])
def test_no_number_of_lanes_makes_rounds_err_alike(lanes: int) -> None:
    for rounds, most in ((2, 1.5), (8, 2.5), (64, 4)):
        worst = 0.0
        for share in np.linspace(0.05, 0.95, 37).tolist():
            counts = counts_of_batches([share, 1 - share], seed=1, lanes=lanes, rounds=rounds, batches=16)
            worst = max(worst, float(abs(counts[:, 0] - rounds * lanes * share).max()))
        assert 0.8 < worst < most


@pytest.mark.parametrize("lanes", [7, 12, 89, 256])
def test_each_lane_stays_within_eight_rows_of_the_weights(lanes: int) -> None:
    weights = [1.0, 2.0, 4.0, 1e-3, 0.5, 0.5, 7.0]
    core = mixture_of(weights, seed=3, lanes=lanes)
    rounds = 500_000 // lanes
    rows = np.frombuffer(memoryview(core.sources(0, rounds * lanes)), dtype=np.uint32).reshape(rounds, lanes)
    past = np.arange(1, rounds + 1)[:, None]
    for source, share in enumerate(points(weights)):
        off = (rows == source).cumsum(axis=0) - past * (share / 2**48)
        assert abs(off).max() < 8


def test_stats_and_state_tell_what_each_source_has_given(parts: dict[str, Corpus]) -> None:
    [loader] = loaders(mixed(parts), 1, global_batch_size=12, seed=1)
    taken = steps([loader], 9)
    counts = np.bincount([source for source, _ in rows_of(taken)], minlength=4).tolist()
    stats = loader.stats()
    assert [stats["sources"][name]["rows"] for name in parts] == counts
    given_ = [source["given"] for source in taken[-1].state["sources"]]
    for rows, said, part in zip(counts, given_, parts.values(), strict=True):
        tokens = len(part.tokens)
        assert said == {"rows": rows, "tokens": rows * 7, "epoch": rows * 7 // tokens}
    assert stats["tokens"] == 108 * 7
    assert sum(one["weight"] for one in stats["sources"].values()) == pytest.approx(1)
    # Few documents are in few lanes, so that they are whole.
    assert stats["sources"]["one document"]["lanes"] == 1
    assert stats["sources"]["one document"]["documents_cut"] == 0


def test_a_source_of_few_documents_gives_the_rows_that_it_gives_alone(parts: dict[str, Corpus]) -> None:
    taken = rows_of(steps(loaders(mixed(parts), 2, global_batch_size=12, seed=6), 30))
    rows = [tokens for source, tokens in taken if source == 3]
    alone = hr.DataLoader(parts["tiny documents"].open(**PACKING), global_batch_size=1, seed=6)
    assert rows == [batch["tokens"][0].tolist() for batch in take_batches(alone, len(rows))]


def test_provenance_and_boundaries_are_those_of_each_source(parts: dict[str, Corpus]) -> None:
    sources = {name: (part.open(**PACKING, boundaries=True), WEIGHTS[name]) for name, part in parts.items()}
    dataset = hr.mix(sources)
    [loader] = loaders(dataset, 1, global_batch_size=12, seed=2)
    for batch in (next(iter(loader)) for _ in range(8)):
        found = batch.sources()
        assert found == loader.sources(batch.step)
        cut: list[int] = []
        for row, source, ids in zip(found, batch["source"], batch["document_ids"], strict=True):
            folder = list(parts.values())[source].folder
            assert all(Path(part.file).parent == folder for part in row)
            assert np.bincount(ids).tolist() == [part.tokens for part in row]
            cut += np.bincount(ids[:7]).tolist()
        assert batch["cu_seqlens"].tolist() == [0, *np.cumsum(cut).tolist()]
        assert batch["max_seqlen"] == max(cut)


def test_arrow_shows_the_source_of_each_row(parts: dict[str, Corpus]) -> None:
    batch = next(iter(loaders(mixed(parts), 1, global_batch_size=12)[0]))
    table = pa.record_batch(batch)
    assert table.column("source").to_pylist() == batch["source"].tolist()
    assert table.column("tokens").to_pylist() == batch["tokens"].tolist()
    assert batch["source"].dtype == np.int32


def test_batches_of_one_source(parts: dict[str, Corpus]) -> None:
    dataset = mixed(parts, per_batch=True)
    schedule = {0: 6, 5: 12}
    [loader] = loaders(dataset, 1, global_batch_size=schedule, seed=3)
    whole = steps([loader], 40)
    assert all(len({source for source, _ in step.rows.values()}) == 1 for step in whole)
    draws = [*range(5)] + [5 + number // 2 for number in range(70)]
    wanted = expected(list(parts.values()), loader, {0: list(WEIGHTS.values())}, 300, draws=draws)
    assert rows_of(whole)[:300] == wanted
    share = np.bincount([next(iter(step.rows.values()))[0] for step in whole], minlength=4) / 40
    assert (abs(share - np.array(list(WEIGHTS.values())) / 11) < 0.08).all()
    for number in (2, 4, 7):
        tail = steps(loaders(dataset, 2, whole[number].state, global_batch_size=schedule), 5)
        assert tail == whole[number + 1 : number + 6]
    with pytest.raises(ValueError, match="must be a multiple of lanes=4, got 6"):
        loaders(dataset, 1, global_batch_size=6, lanes=4)


@pytest.mark.parametrize(
    "schedule, batch, changes",
    [
        ({0: [1, 0, 1, 1], 5: [0, 1, 1, 1]}, 12, {0: [1, 0, 1, 1], 5: [0, 1, 1, 1]}),
        ({0: [1, 0, 1, 1], 4: [0, 1, 1, 1]}, {0: 6, 2: 12}, {0: [1, 0, 1, 1], 6: [0, 1, 1, 1]}),
    ],
)
def test_weights_change_at_steps(
    parts: dict[str, Corpus], schedule: dict[int, list[float]], batch: Any, changes: dict[int, list[float]]
) -> None:
    points_ = {at: dict(zip(parts, weights, strict=True)) for at, weights in schedule.items()}
    dataset = hr.mix({name: part.open(**PACKING) for name, part in parts.items()}, schedule=points_)
    [loader] = loaders(dataset, 1, global_batch_size=batch, seed=3)
    whole = steps([loader], 16)
    rows = rows_of(whole)
    assert rows == expected(list(parts.values()), loader, changes, len(rows))
    for number in (1, 3, 5, 9):
        assert (
            steps(loaders(dataset, 2, whole[number].state, global_batch_size=batch), 4)
            == whole[number + 1 : number + 5]
        )


def test_weights_change_evenly_over_tokens(parts: dict[str, Corpus]) -> None:
    first, last = [1.0, 1.0, 0.0, 2.0], [0.0, 1.0, 0.5, 0.5]
    schedule = hr.WeightSchedule(
        {0: dict(zip(parts, first, strict=True)), 2000: dict(zip(parts, last, strict=True))}, "tokens", "linear"
    )
    dataset = hr.mix({name: part.open(**PACKING) for name, part in parts.items()}, schedule=schedule)
    [loader] = loaders(dataset, 1, global_batch_size=12, seed=3)
    rows = rows_of(steps([loader], 40))
    # A round is 84 tokens: of the pieces that begin in one the last holds from the next one on.
    pieces = linear(0, first, 2000, last) | {2000: last}
    changes = {ceil(ceil(tokens / 7) / 12): weights for tokens, weights in sorted(pieces.items())}
    assert rows == expected(list(parts.values()), loader, changes, len(rows))


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_exhausted": "stop", "max_epochs": {"one document": 90, "middle": 9, "tiny documents": 90}},
        {"on_exhausted": "drop"},
        {"on_exhausted": "stop", "max_epochs": {"one document": 50, "tiny documents": 20}},
        {"on_exhausted": "drop", "max_epochs": {"middle": 3}},
        {"max_epochs": {"middle": 2, "one document": 9, "large": 1, "tiny documents": 1}},
    ],
)
@pytest.mark.parametrize("batch", [6, 9])
def test_sources_end_by_rule_on_all_ranks_alike(
    parts: dict[str, Corpus], arguments: dict[str, Any], batch: int
) -> None:
    dataset = mixed(parts, **arguments)
    [loader] = loaders(dataset, 1, global_batch_size=batch, lanes=3, seed=2)
    rule = "stop" if arguments.get("on_exhausted") == "stop" else "drop"
    wanted = expected(list(parts.values()), loader, {0: list(WEIGHTS.values())}, 10**6, exhausted=rule)
    length = len(loader)
    assert length == len(wanted) // batch == loader.stats()["steps"]
    assert len(iter(loader)) == length
    whole = steps([loader], 10**6)
    assert rows_of(whole) == wanted[: length * batch]
    assert (loader.epoch, list(loader), len(iter(loader))) == (1, [], 0)
    for number in {0, length // 2, length - 2} & set(range(length)):
        assert steps(loaders(dataset, 3, whole[number].state), 10**6) == whole[number + 1 :]
    with pytest.raises(ValueError, match=f"step must be in 0..{length}"):
        loader.seek(length + 1)


def test_one_that_repeats_has_no_length(parts: dict[str, Corpus]) -> None:
    [loader] = loaders(mixed(parts), 1, global_batch_size=12)
    with pytest.raises(TypeError, match="a mixture whose sources repeat has no length"):
        len(loader)
    assert loader.epoch == 0


def test_three_hundred_sources_of_one_row(write: CorpusWriter) -> None:
    one = [write({"a.parquet": [[[number] * 8]]}).open(seq_len=8) for number in range(300)]
    dataset = hr.mix({f"s{number}": (part, 1.0) for number, part in enumerate(one)}, on_exhausted="drop")
    [loader] = loaders(dataset, 1, global_batch_size=10, seed=1, memory="256MiB")
    taken = rows_of(steps([loader], 10**6))
    assert len(loader) == 30
    assert [tokens for _, tokens in taken] == [[source] * 8 for source, _ in taken]
    # Each has one row, and gives it.
    assert sorted(source for source, _ in taken) == list(range(300))


def test_memory_is_shared_out_by_weight_and_spilled_where_it_is_too_little(parts: dict[str, Corpus]) -> None:
    dataset = mixed(parts)
    wanted = steps(loaders(dataset, 1, global_batch_size=12, seed=1), 8)
    with pytest.raises(hr.BudgetError) as refusal:
        next(iter(loaders(dataset, 1, global_batch_size=12, seed=1, memory=1)[0]))
    needed = int(str(refusal.value).split("needs ")[1].split(" ")[0])
    [loader] = loaders(dataset, 1, global_batch_size=12, seed=1, memory=needed + 64)
    assert steps([loader], 8) == wanted
    assert loader.stats()["windows_spilled"] > 0


def test_a_damaged_source_is_named_and_the_rows_before_it_are_given(write: CorpusWriter) -> None:
    good = write(equal_documents(files=1, groups=2, documents=50, length=20))
    bad = write(equal_documents(files=1, groups=2, documents=50, length=20))
    dataset = hr.mix({"good": (good.open(seq_len=8), 1), "bad": (bad.open(seq_len=8), 1)})
    path = bad.folder / "f0.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = b"\xff" * 196
    path.write_bytes(data)
    [loader] = loaders(dataset, 1, global_batch_size=4)
    with pytest.raises(hr.DataError, match=r"f0\.parquet"):
        steps([loader], 100)


def test_the_reference_gives_the_golden_mixtures() -> None:
    """Byte for byte what `python tests/golden/make_mixture.py` writes."""
    assert make_mixture.PATH.read_text(encoding="utf-8") == make_mixture.text(make_mixture.golden())


def test_golden_mixtures() -> None:
    cases = json.loads(make_mixture.PATH.read_text(encoding="utf-8"))
    assert len(cases) == 5
    for case in cases:
        draws = case.get("draws")
        weights = [(int(at), weights) for at, weights in case["weights"].items()]
        mixture = _core.Mixture(
            seed=case["seed"],
            lanes=case["lanes"],
            together=draws is not None,
            source_lanes=case["source_lanes"],
            phases=[(at, at, 1 if draws is None else 2, one) for at, one in weights],
            limits=case.get("limits", [None] * len(case["source_lanes"])),
            stop=False,
        )
        assert [_core.weight_points(one) for _, one in weights] == case["points"]
        sources = np.frombuffer(memoryview(mixture.sources(0, 60)), dtype=np.uint32)
        assert sources.tolist() == [source for source, _ in case["rows"]]
        assert mixture.counts(60) == np.bincount(sources, minlength=len(case["source_lanes"])).tolist()
