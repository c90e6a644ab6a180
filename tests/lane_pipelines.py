"""Pipelines that tests of lanes are about, as the library has them and as the reference has them."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from hypothesis import strategies as st

import headrace as hr
from headrace import _core
from headrace.loading.lanes.documents import DocumentPlan
from headrace.loading.lanes.source import Setup
from headrace.samples.dynamic_dataset import DynamicDataset
from lane_reference import LaneReference, Packing, Step, Token
from sample_sources import made_up, sample_of

SIZES = (5, 1, 7, 0, 4, 9, 3)
"""Items of each chunk."""


def begin(sample: dict[str, Any]) -> dict[str, Any]:
    """A document of 0 to 16 tokens, some of them without one."""
    number = sample["id"]
    length = (number * 7 + number // 3) % 17 if number % 5 else 0
    return {"id": number, "tokens": np.arange(length, dtype=np.int64) + 1000 * (number + 1)}


def grow(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"tokens": np.concatenate([document["tokens"], [7]])}


def noisy(document: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return document | {"tokens": np.concatenate([document["tokens"], rng.integers(0, 50, rng.integers(0, 4))])}


def keep(document: dict[str, Any]) -> bool:
    return len(document["tokens"]) % 3 != 1


def toss(document: dict[str, Any], rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.6)


def cut(document: dict[str, Any]) -> list[dict[str, Any]]:
    """None, one or several: by five tokens each."""
    tokens = document["tokens"]
    return [document | {"tokens": tokens[at : at + 5]} for at in range(0, len(tokens), 5)]


def copies(document: dict[str, Any], rng: np.random.Generator) -> Any:
    """A generator, of 0 to 2 documents, each with a token of its own."""
    for _ in range(int(rng.integers(0, 3))):
        yield document | {"tokens": np.concatenate([document["tokens"], rng.integers(0, 50, 1)])}


def join(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All of a group's tokens as one document, and its ids as another."""
    return [
        {"id": documents[0]["id"], "tokens": np.concatenate([one["tokens"] for one in documents])},
        {"id": documents[0]["id"], "tokens": np.array([one["id"] for one in documents], dtype=np.int64)},
    ]


def mixed(documents: list[dict[str, Any]], rng: np.random.Generator) -> list[dict[str, Any]]:
    """A group in another order, now and then without some."""
    return [documents[place] for place in rng.permutation(len(documents))[: int(rng.integers(0, len(documents) + 1))]]


STEPS = (
    Step("map", grow),
    Step("map", noisy, random=True),
    Step("filter", keep),
    Step("filter", toss, random=True),
    Step("flat_map", cut),
    Step("flat_map", copies, random=True),
    *(Step("batch_map", join, size) for size in (1, 3)),
    *(Step("batch_map", mixed, size, random=True) for size in (2, 5)),
)

steps_of = st.lists(st.sampled_from(STEPS), max_size=4)
packings = st.one_of(
    st.builds(
        Packing,
        mode=st.just("concat"),
        seq_len=st.integers(1, 24),
        overlap=st.integers(0, 1),
        bos_id=st.none() | st.just(1),
        eos_id=st.none() | st.just(2),
    ),
    st.builds(
        Packing,
        mode=st.just("best_fit"),
        seq_len=st.integers(1, 24),
        eos_id=st.none() | st.just(2),
        lookahead=st.integers(1, 9),
        long=st.sampled_from(["split", "drop"]),
        max_documents=st.none() | st.integers(1, 3),
    ),
    st.builds(
        Packing,
        mode=st.sampled_from(["pad"]),
        seq_len=st.integers(1, 24),
        bos_id=st.none() | st.just(1),
        long=st.sampled_from(["split", "drop"]),
    ),
    st.builds(Packing, mode=st.just("truncate"), seq_len=st.integers(1, 24)),
    st.just(Packing(mode=None)),
)


def dataset_of(sizes: Sequence[int], steps: Sequence[Step], packing: Packing, **options: Any) -> Any:
    """The dataset that a loader is made of."""
    data: Any = made_up(sizes, **options).map(begin)
    for step in steps:
        data = data.batch_map(step.fn, step.size) if step.kind == "batch_map" else getattr(data, step.kind)(step.fn)
    if packing.mode is None:
        # A dataset of samples alone would count steps as if nothing were dropped.
        return data if isinstance(data, DynamicDataset) else data.flat_map(one)
    settings: dict[str, Any] = {"mode": packing.mode, "bos_id": packing.bos_id, "eos_id": packing.eos_id}
    if packing.mode == "concat":
        settings["overlap"] = packing.overlap
    if packing.mode == "best_fit":
        settings |= {"lookahead": packing.lookahead, "max_documents": packing.max_documents}
    if packing.mode in ("best_fit", "pad"):
        settings["long"] = packing.long
    return data.pack(packing.seq_len, **settings)


def one(document: Any) -> list[Any]:
    return [document]


def reference_of(
    data: Any,
    sizes: Sequence[int],
    steps: Sequence[Step],
    packing: Packing,
    *,
    lanes: int,
    seed: int = 0,
    shuffle: bool = True,
    window: int | None = None,
    epochs: int | None = None,
    pad: bool = False,
) -> LaneReference:
    """The same run, slowly."""
    setup = Setup(
        seed=seed,
        shuffle=shuffle,
        lanes=lanes,
        window=window,
        epochs=epochs,
        pad=pad,
        skips=False,
        steps=_core.Steps([(0, 0, lanes)]),
    )
    plan = DocumentPlan(data.pipeline, setup)
    return LaneReference(
        items=[begin(sample_of(number)) for number in range(sum(sizes))],
        order=plan.order,
        lanes=lanes,
        seed=seed,
        steps=[Step("map", _same), *steps],
        packing=packing,
        epochs=epochs,
        pad=pad,
    )


def _same(document: Any) -> Any:
    """Stands for `begin`, which the reference's items went through: it has a number among the stages."""
    return document


def loader_of(data: Any, batch: int, **options: Any) -> hr.DataLoader:
    return hr.DataLoader(data, global_batch_size=batch, **{"num_workers": 0, **options})


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
