"""Rows of dynamic pipelines are those of the reference, for any pipeline, worker and number of ranks."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from hypothesis import given, reject, settings
from hypothesis import strategies as st

import headrace as hr
from lane_pipelines import dataset_of, loader_of, packings, reference_of, steps_of
from lane_reference import Packing, Starved, Token

SIZES = (5, 1, 7, 0, 4, 9, 3)


def tokens_of(documents: list[Any]) -> dict[str, Any]:
    return {"tokens": [document["tokens"] for document in documents]}


def rows_given(loader: hr.DataLoader, count: int) -> dict[int, Any]:
    """Rows of the next batches by number: what they hold, and their sources."""
    found: dict[int, Any] = {}
    for batch in islice(iter(loader), count):
        values = [value.tolist() for value in batch["tokens"]]
        found |= dict(zip(batch.rows.tolist(), zip(values, batch.sources(), strict=True), strict=True))
    return found


def check_row(found: Any, wanted: Any, packing: Packing, sizes: Sequence[int]) -> None:
    values, sources = found
    if packing.mode is None:
        assert values == wanted.document["tokens"].tolist()
        assert sum(sizes[: sources.chunk]) + sources.row == wanted.position
        return
    width = packing.seq_len + packing.overlap
    assert values == [token.value for token in wanted] + [0] * (width - len(wanted))
    spans = [(sum(sizes[: one.row_group]) + one.row, one.first_token, one.tokens) for one in sources]
    assert spans == spans_of(wanted, packing)


def spans_of(row: list[Token], packing: Packing) -> list[tuple[int, int, int]]:
    """The parts of a row: their item, their first stored token, and how many stored tokens they have."""
    parts: list[list[Token]] = []
    for token in row:
        before = parts[-1][-1] if parts else None
        if before is not None and (before.number, before.place + 1) == (token.number, token.place):
            parts[-1].append(token)
        else:
            parts.append([token])
    added = int(packing.bos_id is not None)
    spans: list[tuple[int, int, int]] = []
    for part in parts:
        places = [token.place - added for token in part if 0 <= token.place - added < token.stored]
        # A part that holds nothing but a bos or eos begins where that stands.
        first = places[0] if places else min(max(0, part[0].place - added), part[0].stored)
        spans.append((part[0].item, first, len(places)))
    return spans


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_rows_are_those_of_the_reference(data: st.DataObject) -> None:
    steps = data.draw(steps_of)
    packing = data.draw(packings)
    lanes = data.draw(st.sampled_from([1, 2, 6, 12]))
    shuffle, seed = data.draw(st.booleans()), data.draw(st.sampled_from([0, 9, 2**64 - 1]))
    random_access = data.draw(st.booleans())
    dataset = dataset_of(SIZES, steps, packing, random_access=random_access)
    reference = reference_of(dataset, SIZES, steps, packing, lanes=lanes, seed=seed, shuffle=shuffle)
    options: dict[str, Any] = {} if packing.mode else {"collate_fn": tokens_of}
    loader = loader_of(dataset, 12, lanes=lanes, seed=seed, shuffle=shuffle, **options)
    try:
        wanted = [reference.row(number) for number in range(24)]
    except Starved:
        reject()
    found = rows_given(loader, 2)
    assert sorted(found) == list(range(24))
    for number, row in found.items():
        check_row(row, wanted[number], packing, SIZES)
