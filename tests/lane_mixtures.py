"""Mixtures whose rows come lane by lane, and their rows by the slow implementation of mixtures."""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import headrace as hr
from mixture_reference import MixtureReference

BETWEEN = 1000
"""Numbers of samples of different sources lie this far apart."""


class Step(NamedTuple):
    """A global batch."""

    rows: dict[int, tuple[int, Any]]
    """By its number a row's source and sample or tokens."""
    parts: list[dict[str, Any]]
    """The state after it, of each rank."""


def lines(folder: Path, counts: Mapping[str, int]) -> dict[str, hr.SampleDataset]:
    """Samples with an ``id``, which tells their source, and up to nine ``tokens``."""
    found: dict[str, hr.SampleDataset] = {}
    for number, (name, count) in enumerate(counts.items()):
        path = folder / f"{name}.jsonl"
        ids = range(number * BETWEEN, number * BETWEEN + count)
        path.write_text("".join(json.dumps({"id": one, "tokens": [one] * ((one * 7 + 3) % 10)}) + "\n" for one in ids))
        found[name] = hr.open(path, format="jsonl")
    return found


def plain(one: hr.SampleDataset) -> Any:
    """Samples without their tokens."""
    return one.map(_without_tokens)


def _without_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"]}


def packed(one: hr.SampleDataset) -> Any:
    """Rows of one to two copies of each document."""
    return one.flat_map(_again).pack(8, mode="best_fit", boundaries=True)


def _again(sample: dict[str, Any]) -> list[list[int]]:
    return [sample["tokens"]] * (1 + sample["id"] % 2)


def one_each(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """A sample as a list."""
    return [sample]


MAKERS = {"samples": plain, "rows": packed}


def mixed(
    samples: Mapping[str, hr.SampleDataset], weights: Mapping[str, float], kind: str = "samples", **arguments: Any
) -> hr.MixDataset:
    """A mixture of some of the sources."""
    return hr.mix({name: (MAKERS[kind](samples[name]), weight) for name, weight in weights.items()}, **arguments)


def loaders(dataset: hr.MixDataset, world: int, state: Any = None, **arguments: Any) -> list[hr.DataLoader]:
    """A loader for each rank, perhaps gone on from a state or parts of one."""
    given: dict[str, Any] = {"num_workers": 1} | arguments
    ranks = [hr.DataLoader(dataset, rank=rank, world_size=world, **given) for rank in range(world)]
    for loader in ranks:
        if state is not None:
            loader.load_state_dict(state)
    return ranks


def steps(ranks: Sequence[hr.DataLoader], count: int | None = None) -> list[Step]:
    """The next steps of a run whose ranks are these loaders; all of them without a count."""
    taken: list[Step] = []
    for parts in islice(zip(*ranks, strict=True), count):
        rows: dict[int, tuple[int, Any]] = {}
        for part in parts:
            values = part["tokens"].tolist() if "tokens" in part else part["id"].tolist()
            rows |= dict(zip(part.rows.tolist(), zip(part["source"].tolist(), values, strict=True), strict=True))
        assert len(rows) == sum(len(part.rows) for part in parts), "two ranks have the same row"
        taken.append(Step(dict(sorted(rows.items())), [part.state for part in parts]))
    return taken


def rows_of(taken: Sequence[Step]) -> list[tuple[int, Any]]:
    """The rows of some steps in their order."""
    return [row for step in taken for row in step.rows.values()]


def expected(
    samples: Sequence[hr.SampleDataset],
    kind: str,
    weights: Mapping[int, Sequence[float]],
    rows: int,
    *,
    seed: int,
    lanes: int,
    limits: Sequence[int | None] | None = None,
    exhausted: Literal["stop", "drop"] = "drop",
) -> list[tuple[int, Any]]:
    """Rows of a mixture by the slow implementation, which the sources give alone: fewer if it ends."""
    reference = MixtureReference(
        seed=seed,
        lanes=lanes,
        source_lanes=[lanes] * len(samples),
        weights=weights,
        limits=limits,
        exhausted=exhausted,
    )
    drawn = reference.up_to(rows)
    alone: list[list[Any]] = []
    for source, one in enumerate(samples):
        made = plain(one).flat_map(one_each) if kind == "samples" else packed(one)
        most = max((row.row // lanes + 1 for row in drawn if row.source == source), default=0)
        loader = hr.DataLoader(made, global_batch_size=lanes, lanes=lanes, seed=seed, num_workers=0)
        key = "id" if kind == "samples" else "tokens"
        alone.append([value for batch in islice(loader, most) for value in batch[key].tolist()])
    return [(row.source, alone[row.source][row.row]) for row in drawn]
