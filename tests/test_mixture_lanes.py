"""Mixtures of samples, and of rows that are packed lane by lane: the same draws, resumed as exactly."""

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace import _core

COUNTS = {"many": 90, "few": 17, "one": 1}
WEIGHTS = {"many": 5.0, "few": 2.0, "one": 1.0}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, hr.SampleDataset]:
    folder = tmp_path_factory.mktemp("lines")
    found: dict[str, hr.SampleDataset] = {}
    for number, (name, count) in enumerate(COUNTS.items()):
        path = folder / f"{name}.jsonl"
        rng = random.Random(number)
        lines = [
            {"id": number * 1000 + row, "tokens": [number * 1000 + row] * rng.randint(0, 9)} for row in range(count)
        ]
        lines[0]["tokens"] = [number * 1000] * 5
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found[name] = hr.open(path)
    return found


def packed(one: hr.SampleDataset, **arguments: Any) -> Any:
    """Rows of one to two copies of each document."""
    return one.flat_map(_again).pack(8, **{"mode": "best_fit", "boundaries": True} | arguments)


def _again(sample: dict[str, Any]) -> list[list[int]]:
    return [sample["tokens"]] * (1 + sample["id"] % 2)


def mixed(samples: dict[str, hr.SampleDataset], make: Any, **arguments: Any) -> hr.MixDataset:
    return hr.mix({name: (make(one), WEIGHTS[name]) for name, one in samples.items()}, **arguments)


def run(
    dataset: hr.MixDataset, world: int, count: int, state: Any = None, **arguments: Any
) -> tuple[list[dict[int, tuple[int, Any]]], list[list[dict[str, Any]]]]:
    """Steps of all ranks, rows by their numbers; and the parts of the state after each."""
    loaders = [hr.DataLoader(dataset, rank=rank, world_size=world, num_workers=1, **arguments) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    found: list[dict[int, tuple[int, Any]]] = []
    states: list[list[dict[str, Any]]] = []
    for parts in islice(zip(*loaders, strict=True), count):
        rows: dict[int, tuple[int, Any]] = {}
        for part in parts:
            values = part["tokens"].tolist() if "loss_mask" in part else part["id"].tolist()
            rows |= dict(zip(part.rows.tolist(), zip(part["source"].tolist(), values, strict=True), strict=True))
        assert len(rows) == sum(len(part.rows) for part in parts)
        found.append(dict(sorted(rows.items())))
        states.append([part.state for part in parts])
    return found, states


MAKERS = {"samples": lambda one: one.select(["id"]), "rows": packed}


@pytest.mark.parametrize("kind", MAKERS)
def test_rows_are_drawn_as_the_page_says_and_follow_each_source(
    samples: dict[str, hr.SampleDataset], kind: str
) -> None:
    dataset = mixed(samples, MAKERS[kind])
    found, _ = run(dataset, 1, 20, global_batch_size=12, seed=3)
    rows = [row for step in found for row in step.values()]
    core = _core.Mixture(
        seed=3,
        lanes=12,
        together=False,
        source_lanes=[12] * 3,
        phases=[(0, 0, 1, list(WEIGHTS.values()))],
        limits=[None] * 3,
        stop=False,
    )
    sources = np.frombuffer(memoryview(core.sources(0, 240)), dtype=np.uint32).tolist()
    assert [source for source, _ in rows] == sources
    # Lane by lane the rows of a source are those that it gives alone.
    for number, one in enumerate(samples.values()):
        loader = hr.DataLoader(MAKERS[kind](one), global_batch_size=12, lanes=12, seed=3) if kind == "rows" else None
        if loader is None:
            loader = hr.DataLoader(MAKERS[kind](one).flat_map(_one), global_batch_size=12, lanes=12, seed=3)
        alone: list[list[Any]] = [[] for _ in range(12)]
        for batch in islice(loader, 20):
            for row, value in zip(
                batch.rows.tolist(), batch["tokens" if kind == "rows" else "id"].tolist(), strict=True
            ):
                alone[row % 12].append(value)
        for lane in range(12):
            given = [value for row, (source, value) in enumerate(rows) if row % 12 == lane and source == number]
            assert given == alone[lane][: len(given)]


def _one(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample]


@pytest.mark.parametrize("kind", MAKERS)
def test_any_ranks_go_on_from_any_step(samples: dict[str, hr.SampleDataset], kind: str) -> None:
    dataset = mixed(samples, MAKERS[kind])
    whole, states = run(dataset, 1, 13, global_batch_size=12, seed=1)
    for world in (2, 3, 4):
        assert run(dataset, world, 13, global_batch_size=12, seed=1)[0] == whole
    for step in range(12):
        world = (1, 2, 3, 4)[step % 4]
        rest, parts = run(dataset, world, 12 - step, states[step], global_batch_size=12)
        assert rest == whole[step + 1 :], f"from step {step + 1} on {world} ranks"
        # And on from there, with other ranks again.
        if rest[1:]:
            again, _ = run(dataset, 6, len(rest) - 1, parts[0], global_batch_size=12)
            assert again == rest[1:]


def test_each_batch_is_within_one_row_of_the_weights(samples: dict[str, hr.SampleDataset]) -> None:
    found, _ = run(mixed(samples, packed), 1, 20, global_batch_size=10)
    for step in found:
        counts = np.bincount([source for source, _ in step.values()], minlength=3)
        assert (abs(counts - np.array(list(WEIGHTS.values())) / 8 * 10) < 1).all()


def test_schedules_and_batches_of_one_source(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = mixed(samples, packed, per_batch=True)
    found, states = run(dataset, 1, 20, global_batch_size={0: 4, 6: 8})
    assert all(len({source for source, _ in step.values()}) == 1 for step in found)
    assert len({source for step in found for source, _ in step.values()}) == 3
    assert run(dataset, 2, 5, states[7], global_batch_size={0: 4, 6: 8})[0] == found[8:13]
    points = {0: {"many": 1, "few": 0, "one": 0}, 4: {"many": 0, "few": 1, "one": 0}}
    sources = {name: packed(one) for name, one in samples.items()}
    for schedule, begin in (
        (points, 4),
        (hr.WeightSchedule({at * 30: one for at, one in points.items()}, "tokens"), 4),
    ):
        found, states = run(hr.mix(sources, schedule=schedule), 1, 9, global_batch_size=4)
        drawn = [{source for source, _ in step.values()} for step in found]
        assert drawn == [{0}] * begin + [{1}] * (9 - begin)
        assert run(hr.mix(sources, schedule=schedule), 2, 4, states[2], global_batch_size=4)[0] == found[3:7]


def test_stats_tell_the_rows_of_each_source(samples: dict[str, hr.SampleDataset]) -> None:
    loader = hr.DataLoader(mixed(samples, packed), global_batch_size=8, num_workers=1)
    counts = sum(np.bincount(batch["source"], minlength=3) for batch in islice(loader, 7))
    stats = loader.stats()
    assert [stats["sources"][name]["rows"] for name in samples] == counts.tolist()
    assert stats["sources"]["one"]["weight"] == 1 / 8


def test_provenance_names_the_file_of_each_row(samples: dict[str, hr.SampleDataset]) -> None:
    batch = next(iter(hr.DataLoader(mixed(samples, packed), global_batch_size=8)))
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
    other = samples["few"].flat_map(_again).pack(arguments.pop("seq_len", 8), **arguments)
    with pytest.raises(ValueError, match=message):
        hr.mix({"many": (first, 1), "few": (other, 1)})
    with pytest.raises(ValueError, match="must be alike: columns is"):
        hr.mix({"many": (first, 1), "few": (samples["few"], 1)})


def test_another_mixture_or_a_damaged_state_is_refused(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = mixed(samples, packed)
    _, states = run(dataset, 1, 3, global_batch_size=12)
    state = states[-1][0]
    other = hr.mix({name: (packed(one), 1.0) for name, one in samples.items()})
    with pytest.raises(hr.StateMismatch, match=r"the weight of source 'many' at 0 is 1\.0 here and 5\.0 in the state"):
        run(other, 1, 1, state)
    for lane, message in (
        ({"row": -1, "sources": []}, "expected lane 0 to have a row"),
        ([], "expected lane 0 to have a row"),
        ({"row": 1, "sources": [None]}, "expected lane 0 to have 3 sources"),
    ):
        damaged = state | {"lane_states": state["lane_states"] | {"0": lane}}
        with pytest.raises(hr.StateMismatch, match=message):
            run(dataset, 1, 1, damaged)


@pytest.mark.parametrize("kind", MAKERS)
def test_epochs_are_refused_for_sources_have_each_their_own(samples: dict[str, hr.SampleDataset], kind: str) -> None:
    with pytest.raises(ValueError, match=r"epochs has no meaning for a mixture, .* got 1\nhint: mix\(..., max_epochs"):
        hr.DataLoader(mixed(samples, MAKERS[kind]), global_batch_size=4, epochs=1)


def test_parts_with_the_name_of_the_sources_are_refused(samples: dict[str, hr.SampleDataset]) -> None:
    dataset = mixed(samples, lambda one: one.map(_named))
    with pytest.raises(ValueError, match="must have no part 'source'"):
        next(iter(hr.DataLoader(dataset, global_batch_size=4)))
    over = mixed(samples, lambda one: one, schedule=hr.WeightSchedule({5: WEIGHTS}, "tokens"))
    with pytest.raises(ValueError, match="a schedule over tokens needs sources that are packed"):
        hr.DataLoader(over, global_batch_size=4)


def _named(sample: dict[str, Any]) -> dict[str, Any]:
    return {"source": sample["id"]}
