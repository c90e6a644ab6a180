"""Rows of dynamic pipelines are those of the reference, for any pipeline, worker and number of ranks."""

from typing import Any

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from lane_pipelines import SIZES, check_row, dataset_of, loader_of, packings, reference_of, rows_given, steps_of
from lane_reference import Starved


def tokens_of(documents: list[Any]) -> dict[str, Any]:
    return {"tokens": [document["tokens"] for document in documents]}


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
