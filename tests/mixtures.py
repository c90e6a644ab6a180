"""Mixtures of small datasets whose tokens tell the source, and their global batches."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import headrace as hr
from datasets import Corpus, CorpusWriter, numbered, seeded
from mixture_reference import MixtureReference
from reference import Reference

BETWEEN = 1_000_000
"""Tokens of different sources lie this far apart."""


def corpora(write: CorpusWriter) -> dict[str, Corpus]:
    """Sources of different sizes: one of a single document, one of single tokens."""
    shapes = {
        "large": seeded(3, files=3, groups=4, documents=12, longest=20),
        "middle": seeded(4, files=1, groups=3, documents=10, longest=12),
        "one document": numbered([[[5]]]),
        "tiny documents": numbered([[[1] * 9, [1, None, 0, 1]]]),
    }
    shifted = {}
    for number, (name, files) in enumerate(shapes.items()):
        shifted[name] = write(
            {
                file: [
                    [document and [token + number * BETWEEN for token in document] for document in group]
                    for group in groups
                ]
                for file, groups in files.items()
            }
        )
    return shifted


class Step(NamedTuple):
    """A global batch."""

    rows: dict[int, tuple[int, list[int]]]
    """By its number a row's source and tokens."""
    state: dict[str, Any]


def steps(loaders: Sequence[hr.DataLoader], count: int) -> list[Step]:
    """The next steps of a run whose ranks are these loaders, fewer at its end."""
    taken: list[Step] = []
    for parts in islice(zip(*loaders, strict=True), count):
        rows: dict[int, tuple[int, list[int]]] = {}
        for part in parts:
            numbers = part.rows.tolist()
            assert not rows.keys() & set(numbers), "two ranks have the same row"
            rows |= dict(zip(numbers, zip(part["source"].tolist(), part["tokens"].tolist(), strict=True), strict=True))
        states = [part.state for part in parts]
        assert all(state == states[0] for state in states), "ranks have different states"
        taken.append(Step(dict(sorted(rows.items())), states[0]))
    return taken


def loaders(
    mixed: hr.MixDataset, world: int, state: dict[str, Any] | None = None, **arguments: Any
) -> list[hr.DataLoader]:
    """A loader for each rank, perhaps gone on from a state."""
    ranks = [hr.DataLoader(mixed, rank=rank, world_size=world, num_workers=1, **arguments) for rank in range(world)]
    for loader in ranks:
        if state is not None:
            loader.load_state_dict(state)
    return ranks


def expected(
    parts: Sequence[Corpus],
    loader: hr.DataLoader,
    weights: dict[int, list[float]],
    rows: int,
    lengths: dict[int, int] | None = None,
    **arguments: Any,
) -> list[tuple[int, list[int]]]:
    """The rows of a mixture by the reference, with the lanes and windows that a loader has chosen.

    Args:
        parts: its sources, in the order of a state.
        loader: of the mixture.
        weights: from which round on which hold.
        rows: how many.
        lengths: from which round on which seq_len holds; of None the loader's.
        arguments: of the reference.
    """
    state = loader.state_dict()
    sources = state["sources"]
    names = [source["name"] for source in sources]
    first = loader.dataset.sources[loader.dataset.names[0]].packing
    packing = {"seq_len": first.seq_len, "overlap": first.overlap, "bos_id": first.bos_id, "eos_id": first.eos_id}
    single = [
        Reference(
            part.chunks,
            **packing,
            seed=state["seed"],
            shuffle=state["shuffle"],
            lanes=source["lanes"],
            window=source["window"],
            global_batch_size=source["lanes"],
        )
        for part, source in zip(parts, sources, strict=True)
    ]
    mixture = MixtureReference(
        seed=state["seed"],
        lanes=state["lanes"],
        source_lanes=[source["lanes"] for source in sources],
        weights=weights,
        limits=[
            None if passes is None else passes * one.pass_weight
            for one, passes in zip(single, map(loader.dataset.passes, names), strict=True)
        ],
        lengths=lengths or {0: first.seq_len},
        overlap=first.overlap,
        **arguments,
    )
    found: list[tuple[int, list[int]]] = []
    for drawn in mixture.up_to(rows):
        one = single[drawn.source]
        units = one.lane_units(drawn.row % one.lanes, drawn.begin, drawn.begin + drawn.length + first.overlap)
        found.append((drawn.source, [unit.token for unit in units]))
    return found
