"""Mixtures of samples, and of rows that are packed lane by lane: the same draws, resumed as exactly."""

import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.testing import check_resume
from lane_mixtures import MAKERS, expected, lines, loaders, mixed, packed, rows_of, steps

COUNTS = {"many": 90, "few": 17, "one": 1}
WEIGHTS = {"many": 5.0, "few": 2.0, "one": 1.0}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, hr.SampleDataset]:
    return lines(tmp_path_factory.mktemp("lines"), COUNTS)


@pytest.mark.parametrize("kind", MAKERS)
def test_rows_are_drawn_as_the_page_says_and_follow_each_source(
    samples: dict[str, hr.SampleDataset], kind: str
) -> None:
    taken = steps(loaders(mixed(samples, WEIGHTS, kind), 1, global_batch_size=12, seed=3), 20)
    weights = {0: list(WEIGHTS.values())}
    assert rows_of(taken) == expected(list(samples.values()), kind, weights, 240, seed=3, lanes=12)


@pytest.mark.parametrize("kind", MAKERS)
def test_any_ranks_go_on_from_any_step(samples: dict[str, hr.SampleDataset], kind: str) -> None:
    dataset = mixed(samples, WEIGHTS, kind)
    run: dict[str, Any] = {"global_batch_size": 12, "seed": 1}
    whole = steps(loaders(dataset, 1, **run), 13)
    rows = [step.rows for step in whole]
    for world in (2, 3, 4):
        assert [step.rows for step in steps(loaders(dataset, world, **run), 13)] == rows
    for at in range(1, 13):
        world = (1, 2, 3, 4)[at % 4]
        rest = steps(loaders(dataset, world, whole[at - 1].parts, global_batch_size=12), 13 - at)
        assert [step.rows for step in rest] == rows[at:], f"from step {at} on {world} ranks"
        # And on from there, with other ranks again.
        again = steps(loaders(dataset, 6, rest[0].parts), 12 - at)
        assert [step.rows for step in again] == rows[at + 1 :]


def test_hundreds_of_sources_share_threads_and_work(tmp_path: Path) -> None:
    many = lines(tmp_path, {str(number): 3 + number % 40 for number in range(300)})
    weights = {name: float(1 + int(name) % 7) for name in many}
    before = threading.active_count()
    dataset = hr.mix({name: (one.map(_four).pack(8), weights[name]) for name, one in many.items()})
    [loader] = loaders(dataset, 1, global_batch_size=8, seed=2, num_workers=2)
    batches = iter(loader)
    taken = [next(batches) for _ in range(40)]
    # Whoever leads, and the workers: none for each source.
    assert threading.active_count() - before < 12
    counts = np.bincount(np.concatenate([batch["source"] for batch in taken]), minlength=300)
    shares = np.array(list(weights.values())) / sum(weights.values())
    assert (abs(counts - shares * 320) < 8).all()
    # What is rarely drawn makes little ahead of use: a row needs about two items.
    assert loader.stats()["items"] < 320 * 2 + 300 * 8
    assert len(hr.State.to_bytes(taken[0].state)) < 150_000
    loader.close()
    dataset = mixed(many, weights, "samples", on_exhausted="stop")
    checked = check_resume(dataset, steps=4, global_batch_size=4, world_sizes=(1, 2), restarts=2)
    assert checked.rows > 0


def _four(sample: dict[str, Any]) -> list[int]:
    return [sample["id"]] * 4


def test_each_batch_is_within_one_row_of_the_weights(samples: dict[str, hr.SampleDataset]) -> None:
    for step in steps(loaders(mixed(samples, WEIGHTS, "rows"), 1, global_batch_size=10), 20):
        counts = np.bincount([source for source, _ in step.rows.values()], minlength=3)
        assert (abs(counts - np.array(list(WEIGHTS.values())) / 8 * 10) < 1).all()


def test_schedules_and_batches_of_one_source(samples: dict[str, hr.SampleDataset]) -> None:
    run: dict[str, Any] = {"global_batch_size": {0: 4, 6: 8}}
    dataset = mixed(samples, WEIGHTS, "rows", per_batch=True)
    whole = steps(loaders(dataset, 1, **run), 20)
    assert all(len({source for source, _ in step.rows.values()}) == 1 for step in whole)
    assert len({source for source, _ in rows_of(whole)}) == 3
    rest = steps(loaders(dataset, 2, whole[7].parts, **run), 5)
    assert [step.rows for step in rest] == [step.rows for step in whole[8:13]]
    points = {0: {"many": 1, "few": 0, "one": 0}, 4: {"many": 0, "few": 1, "one": 0}}
    sources = {name: packed(one) for name, one in samples.items()}
    for schedule in (points, hr.WeightSchedule({at * 30: one for at, one in points.items()}, "tokens")):
        dataset = hr.mix(sources, schedule=schedule)
        whole = steps(loaders(dataset, 1, global_batch_size=4), 9)
        drawn = [{source for source, _ in step.rows.values()} for step in whole]
        assert drawn == [{0}] * 4 + [{1}] * 5
        rest = steps(loaders(dataset, 2, whole[2].parts, global_batch_size=4), 4)
        assert [step.rows for step in rest] == [step.rows for step in whole[3:7]]


def test_stats_tell_the_rows_of_each_source(samples: dict[str, hr.SampleDataset]) -> None:
    loader = hr.DataLoader(mixed(samples, WEIGHTS, "rows"), global_batch_size=8, num_workers=1)
    counts = sum(np.bincount(batch["source"], minlength=3) for batch in islice(loader, 7))
    stats = loader.stats()
    assert [stats["sources"][name]["rows"] for name in samples] == counts.tolist()
    assert stats["sources"]["one"]["weight"] == 1 / 8


def test_provenance_names_the_file_of_each_row(samples: dict[str, hr.SampleDataset]) -> None:
    batch = next(iter(hr.DataLoader(mixed(samples, WEIGHTS, "rows"), global_batch_size=8)))
    for source, parts in zip(batch["source"].tolist(), batch.sources(), strict=True):
        assert {Path(part.file).stem for part in parts} == {list(samples)[source]}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"seq_len": 9}, "seq_len is 8 for source 'many' and 9 for source 'few'|columns is"),
        ({"dtype": "int64"}, "columns is .*int32.* for source 'many' and .*int64.* for source 'few'"),
        ({"boundaries": False}, "boundaries is True for source 'many' and False for source 'few'"),
        ({"pad_id": 3}, "columns is .*pad=0.* for source 'many' and .*pad=3.* for source 'few'"),
    ],
)
def test_rows_that_are_not_alike_are_refused(
    samples: dict[str, hr.SampleDataset], change: dict[str, Any], message: str
) -> None:
    first = packed(samples["many"])
    arguments = {"mode": "best_fit", "boundaries": True} | change
    other = samples["few"].pack(arguments.pop("seq_len", 8), **arguments)
    with pytest.raises(ValueError, match=message):
        hr.mix({"many": (first, 1), "few": (other, 1)})
    with pytest.raises(ValueError, match="must be alike: columns is"):
        hr.mix({"many": (first, 1), "few": (samples["few"], 1)})


@pytest.mark.parametrize("kind", MAKERS)
def test_epochs_are_refused_for_sources_have_each_their_own(samples: dict[str, hr.SampleDataset], kind: str) -> None:
    with pytest.raises(ValueError, match=r"epochs has no meaning for a mixture, .* got 1\nhint: mix\(..., max_epochs"):
        hr.DataLoader(mixed(samples, WEIGHTS, kind), global_batch_size=4, epochs=1)


def test_parts_with_the_name_of_the_sources_are_refused(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = hr.mix({name: (one.map(_named), 1) for name, one in samples.items()})
    with pytest.raises(ValueError, match="must have no part 'source'"):
        next(iter(hr.DataLoader(dataset, global_batch_size=4)))
    over = mixed(samples, WEIGHTS, schedule=hr.WeightSchedule({5: WEIGHTS}, "tokens"))
    with pytest.raises(ValueError, match="a schedule over tokens needs sources that are packed"):
        hr.DataLoader(over, global_batch_size=4)


def _named(sample: dict[str, Any]) -> dict[str, Any]:
    return {"source": sample["id"]}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("world", [1, 2])
def test_states_and_stats_say_what_each_source_gave(
    samples: dict[str, hr.SampleDataset], kind: str, world: int
) -> None:
    dataset = mixed(samples, WEIGHTS, kind)
    ranks = loaders(dataset, world, global_batch_size=6)
    rows = dict.fromkeys(WEIGHTS, 0)
    wanted: dict[str, dict[str, int]] = {}
    parts: list[dict[str, Any]] = []
    for _ in range(5):
        [step] = steps(ranks, 1)
        for source, _ in step.rows.values():
            rows[dataset.names[source]] += 1
        tokens = {name: {"tokens": 8 * count} if kind == "rows" else {} for name, count in rows.items()}
        wanted = {name: {"rows": count} | tokens[name] for name, count in rows.items()}
        parts = step.parts
        for part in parts:
            assert {entry["name"]: entry["given"] for entry in part["sources"]} == wanted
    for loader in ranks:
        told = loader.stats()["sources"]
        for name, given in wanted.items():
            assert {key: told[name][key] for key in told[name] if key not in ("weight", "epoch")} == given
    for part in parts:
        part["sources"][1]["given"]["rows"] += 1
    with pytest.raises(hr.StateMismatch, match=r"source 'few' has given \{'rows': \d+.*, it says \{'rows': \d+"):
        loaders(dataset, 1, parts, global_batch_size=6)
