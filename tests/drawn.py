"""Pipelines drawn at random, over small corpora: every kind, with all that can be asked of it.

What a pipeline is made of is drawn first, and it is made anew for each loader, so that these share nothing.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import headrace as hr
from kinds import Documents, Kind, Objects
from loading_data import ResumableSampler

SIZES = (88, 66, 50, 9)
"""Documents of the sources, whose numbers begin 100 apart. All but the last fill a large batch with packed tokens."""

BATCH = 12
IN_LANES = (BATCH, 2 * BATCH, 6, 4)
"""Global batches of runs of `BATCH` lanes, of which ranks have whole ones."""
WORLDS = (1, 2, 3, 4)

Corpora = Sequence[Documents]


@dataclass(frozen=True)
class Form:
    """What of a pipeline may be another one after a restart."""

    seq_len: int = 0
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A pipeline."""

    told: str
    make: Callable[[Corpora, Form], Any] = field(repr=False)
    """Opens it anew."""
    form: Form = Form()
    in_lanes: bool = False
    """Whether rows come lane by lane: then ranks divide lanes, and lanes batches, or batches lanes."""
    is_whole: bool = True
    """Whether each step has all of its rows: no function leaves some out."""
    passes: bool = False
    """Whether each pass holds once what reading it from front to back gives."""
    holds: int | None = None
    """The corpus all of whose tokens each pass holds once."""
    sources: int = 1
    """How many of them the states tell of."""
    is_object: bool = False
    """Whether it is none of headrace's, so that states do not know batch sizes, nor rows their sources."""
    by_steps: bool = False
    """Whether the number of a step decides which rows there are."""
    traced: Mapping[int, int] = field(default_factory=dict[int, int])
    """Of sources whose rows hold what is stored, or part of it: of which corpus they are; 0 is that of a single one."""
    changes: frozenset[str] = frozenset()
    """What may be changed at restarts."""
    sizes: tuple[int, ...] = (BATCH, 2 * BATCH, 6, 10)
    """Global batches to which it may be changed."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of loaders, at each restart."""
    fresh: Callable[[], Mapping[str, Any]] = field(default=dict, repr=False)
    """Further ones that are made for each loader."""

    @property
    def kind(self) -> Kind:
        """For `kinds.Run`."""
        return Kind(make=self.make, arguments=self.arguments, fresh=self.fresh)


# Stages


def tail(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """With other draws in each pass; tokens below zero are not stored ones."""
    return sample | {"tokens": [*sample["tokens"], -1 - int(rng.integers(0, 50))]}


def same(sample: Any) -> Any:
    return sample


def most(sample: dict[str, Any]) -> bool:
    """Without shuffling a lane may have every second, third, fourth or sixth item alone: of these some stay."""
    return sample["id"] % 5 != 3


def tossed(sample: dict[str, Any], rng: Any) -> bool:
    return bool(rng.random() < 0.7)


def halves(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """One or two documents of one."""
    cut = len(sample["tokens"]) // 2
    return [sample | {"tokens": part} for part in (sample["tokens"][:cut], sample["tokens"][cut:]) if part]


def turned(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return samples[::-1]


def numbered(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(sample["tokens"][0]) // 100}


def _id(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"]}


@dataclass(frozen=True)
class Stage:
    """What is done to a dataset."""

    do: Callable[[Any], Any]
    keeps: bool = True
    """Whether all stored tokens are still there."""
    documents: bool = False
    """Whether it makes documents of samples, whose sources do not tell which part of them it is."""


STAGES = {
    "map": Stage(lambda data: data.map(same)),
    "map with draws": Stage(lambda data: data.map(tail)),
    "filter": Stage(lambda data: data.filter(most), keeps=False),
    "filter with draws": Stage(lambda data: data.filter(tossed), keeps=False),
    "flat_map": Stage(lambda data: data.flat_map(halves), documents=True),
    "batch_map of 1": Stage(lambda data: data.batch_map(turned, 1), documents=True),
    "batch_map of 3": Stage(lambda data: data.batch_map(turned, 3), documents=True),
}

stages = st.lists(st.sampled_from(list(STAGES)), max_size=3)

packings = st.one_of(
    st.fixed_dictionaries(
        {"mode": st.just("concat")}, optional={"overlap": st.just(1), "bos_id": st.just(-100), "eos_id": st.just(-101)}
    ),
    st.fixed_dictionaries(
        {"mode": st.just("best_fit"), "lookahead": st.integers(1, 9)},
        optional={"max_documents": st.integers(1, 3), "boundaries": st.just(True)},
    ),
    st.fixed_dictionaries({"mode": st.just("pad")}, optional={"boundaries": st.just(True)}),
    st.just({"mode": "truncate"}),
)


def through(names: Sequence[str], data: Any) -> Any:
    for name in names:
        data = STAGES[name].do(data)
    return data


def _do(chosen: Sequence[tuple[str, Callable[[Any], Any]]], data: Any) -> Any:
    for _, do in chosen:
        data = do(data)
    return data


@st.composite
def parts(draw: st.DrawFn) -> list[tuple[str, Callable[[Any], Any]]]:
    """Which samples of a dataset: what is done, in words, and how."""
    found: list[tuple[str, Callable[[Any], Any]]] = []
    for kind in draw(
        st.lists(
            st.sampled_from(["take", "skip", "subset", "split", "subsample", "repeat", "concat", "where"]), max_size=2
        )
    ):
        number, seed = draw(st.integers(1, 20)), draw(st.integers(0, 9))
        found.append(
            {
                "take": ("take", lambda data, number=number: data.take(30 + number)),
                "skip": ("skip", lambda data, number=number: data.skip(min(number, len(data) - 1))),
                "subset": (
                    "subset",
                    lambda data, seed=seed: data.subset(
                        np.random.default_rng(seed).integers(0, len(data), 40).tolist()
                    ),
                ),
                "split": ("split", lambda data, seed=seed: data.split([0.6, 0.4], seed=seed)[0]),
                "subsample": (
                    "subsample",
                    lambda data, number=number, seed=seed: data.subsample(0.5 + number / 10, seed=seed),
                ),
                "repeat": ("repeat", lambda data: data.repeat(2)),
                "concat": ("concat", lambda data, number=number: hr.concat([data, data.take(number)])),
                "where": ("where", lambda data, number=number: data.where(hr.col("id") % 7 != number % 7)),
            }[kind]
        )
    return found


# Single pipelines


@st.composite
def rows_of_documents(draw: st.DrawFn, source: int, packing: dict[str, Any], seq_len: int) -> Drawn:
    """Packed lane by lane."""
    names, chosen = draw(stages), draw(parts())
    # Of 9 documents there may be a lane without one that is left.
    chosen = chosen if source < 3 else []
    is_lossless = packing["mode"] != "truncate" and "overlap" not in packing and not chosen
    is_lossless = is_lossless and all(STAGES[name].keeps for name in names)
    return Drawn(
        f"corpus {source}: {[*(name for name, _ in chosen), *names]}, packed {packing}",
        lambda corpora, form: through(names, _do(chosen, corpora[source].samples)).pack(
            form.seq_len, pad_id=-9, **packing
        ),
        Form(seq_len),
        in_lanes=True,
        sizes=IN_LANES,
        holds=source if is_lossless else None,
        traced={} if any(STAGES[name].documents for name in names) else {0: source},
        changes=frozenset({"batch size", "seq_len", "exclude", "skip", *(() if chosen else ("data added",))}),
    )


@st.composite
def samples(draw: st.DrawFn, source: int, *, ending: bool = False) -> Drawn:
    """Samples as they are stored, or what stages make of them."""
    names = [] if ending else draw(stages)
    chosen = draw(parts()) if source < 3 else []
    is_dynamic = any(STAGES[name].documents for name in names)
    filtered = not all(STAGES[name].keeps for name in names)
    more: dict[str, Any] = {} if is_dynamic else {"allow_empty": True}
    if not is_dynamic and draw(st.booleans()):
        more["drop_last"] = True
    return Drawn(
        f"corpus {source}: {[*(name for name, _ in chosen), *names]}",
        lambda corpora, _: through(names, _do(chosen, corpora[source].samples)).map(_id),
        in_lanes=is_dynamic,
        sizes=IN_LANES if is_dynamic else (BATCH, 6) if "drop_last" in more else Drawn.sizes,
        is_whole=not filtered,
        passes=not is_dynamic and not filtered and "drop_last" not in more,
        traced={} if is_dynamic else {0: source},
        changes=frozenset({"batch size", "exclude", "skip", *(() if chosen else ("data added",))}),
        arguments=more,
    )


_MORE_OR_LESS = st.sampled_from(["data added", "exclude"])
"""Of packed columns: sources tell their documents by whole URLs, and a corpus that grew lies elsewhere."""


@st.composite
def packed(draw: st.DrawFn) -> Drawn:
    """Counted rows of stored tokens."""
    source = draw(st.integers(0, 2))
    packing = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "eos_id": st.just(-100),
                "bos_id": st.just(-101),
                "boundaries": st.just(True),
                "overlap": st.just(1),
            },
        )
    )
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more = {"epochs": draw(st.integers(1, 2)), "remainder": draw(st.sampled_from(["drop", "pad"]))}
    return Drawn(
        f"corpus {source}: packed {packing}, {more}",
        lambda corpora, form: hr.open(corpora[source].folder / "parquet").pack(form.seq_len, pad_id=-9, **packing),
        Form(draw(st.integers(3, 6))),
        holds=None if "overlap" in packing else source,
        traced={0: source},
        changes=frozenset({"batch size", "seq_len", "skip", draw(_MORE_OR_LESS)}),
        arguments=more,
    )


@st.composite
def zips(draw: st.DrawFn) -> Drawn:
    """Tuples of several sources, of any of which there may be fewer than tuples."""
    numbers = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    chosen = [draw(parts()) if number < 3 else [] for number in numbers]
    length = draw(st.sampled_from([None, 20, 66, math.inf]))
    filtered, mapped = draw(st.sampled_from([None, "part", "tuple"])), draw(st.booleans())

    def make(corpora: Corpora, _: Form) -> Any:
        sources = [_do(one, corpora[number].ids) for number, one in zip(numbers, chosen, strict=True)]
        if filtered == "part":
            sources[0] = sources[0].filter(most)
        data = hr.zip(sources, tupled, length=length)
        if filtered == "tuple":
            data = data.filter(low)
        return data.map(same) if mapped else data

    return Drawn(
        f"zip of corpora {numbers}: {[[name for name, _ in one] for one in chosen]}, {length=}, {filtered=}",
        make,
        is_whole=filtered is None,
        changes=frozenset({"batch size", "exclude", "skip", *(() if any(chosen) else ("data added",))}),
        arguments={"allow_empty": True},
    )


def tupled(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {f"id {number}": sample["id"] for number, sample in enumerate(samples)}


def low(sample: dict[str, Any]) -> bool:
    return sample["id 0"] % 5 != 2


@st.composite
def records(draw: st.DrawFn) -> Drawn:
    """Sequences of records, pieces of documents, or whole documents."""
    source, length = draw(st.integers(0, 3)), draw(st.integers(3, 6))
    kind = draw(st.sampled_from(["sequences", "pieces", "documents"]))
    chosen: Callable[[Corpora, Form], Any] = {
        "sequences": lambda corpora, _: corpora[source].records.sequences(length, dtype="int64"),
        "pieces": lambda corpora, _: corpora[source].records.sequences(length, within_documents=True, pad_id=-1),
        "documents": lambda corpora, _: corpora[source].records.documents().map(numbered),
    }[kind]
    more = {"drop_last": True} if draw(st.booleans()) else {}
    return Drawn(
        f"corpus {source}: {kind} of records, {more}",
        chosen,
        passes=not more,
        traced={0: source} if kind == "documents" else {},
        changes=frozenset({"batch size", "exclude", "skip"}),
        sizes=(BATCH, 6) if more else Drawn.sizes,
        arguments={"allow_empty": True, **more},
    )


@st.composite
def single(draw: st.DrawFn) -> Drawn:
    """Of one source, or a zip."""
    match draw(st.sampled_from(["packed", "rows", "samples", "zip", "records"])):
        case "packed":
            return draw(packed())
        case "rows":
            return draw(rows_of_documents(draw(st.integers(0, 3)), draw(packings), draw(st.integers(3, 6))))
        case "samples":
            return draw(samples(draw(st.integers(0, 3))))
        case "zip":
            return draw(zips())
        case _:
            return draw(records())


# Mixtures


@st.composite
def mixtures(draw: st.DrawFn) -> Drawn:
    """Of two or three sources whose rows are alike, by weights that may change, with or without an end."""
    kind = draw(st.sampled_from(["packed", "rows", "samples", "packed and rows", "samples that end"]))
    with_packed = kind.startswith("packed")
    numbers = draw(st.lists(st.integers(0, 2 if with_packed else 3), min_size=2, max_size=3, unique=True))
    seq_len, packing = draw(st.integers(3, 6)), draw(packings)
    packing = {"mode": "concat"} if with_packed else packing
    more_or_less = draw(_MORE_OR_LESS)
    sources: list[Drawn] = []
    for place, number in enumerate(numbers):
        if kind == "packed" or (with_packed and place == 0):
            column, change = partial(_packed, number=number), frozenset({more_or_less})
            sources.append(Drawn(f"corpus {number}: packed", column, traced={0: number}, changes=change))
        elif kind.startswith("samples"):
            sources.append(draw(samples(number, ending=kind == "samples that end")))
        else:
            sources.append(draw(rows_of_documents(number, packing, seq_len)))
    weight = st.sampled_from([1, 2, 0.3, 7, 0])
    weights = draw(st.lists(weight, min_size=len(numbers), max_size=len(numbers)).filter(any))
    arguments: dict[str, Any] = {"per_batch": draw(st.booleans())}
    if kind in ("packed", "samples that end"):
        arguments["on_exhausted"] = draw(st.sampled_from(["repeat", "stop", "drop"]))
        arguments["max_epochs"] = draw(st.dictionaries(st.sampled_from(list(map(str, numbers))), st.integers(1, 3)))
    schedule = draw(st.sampled_from([None, "steps", "tokens", "linear"]))
    if schedule is not None:
        shifted = dict(zip(map(str, numbers), [3, 1, 2], strict=False))
        points = {draw(st.integers(1, 4)): shifted, draw(st.integers(5, 6)): shifted | {str(numbers[0]): 1}}
        over = "tokens" if schedule == "tokens" and kind != "samples" and kind != "samples that end" else "steps"
        arguments["schedule"] = hr.WeightSchedule(
            {at * (BATCH * seq_len if over == "tokens" else 1): one for at, one in points.items()},
            over=over,
            shape="linear" if schedule == "linear" else "constant",
        )

    def make(corpora: Corpora, form: Form) -> Any:
        parts = {
            str(number): (one.make(corpora, form), weight)
            for number, one, weight in zip(numbers, sources, form.weights, strict=True)
        }
        return hr.mix(parts, **arguments)

    ends = arguments.get("on_exhausted") in ("stop", "drop")
    changes = {"batch size", "exclude", "skip"} | (set() if "schedule" in arguments or ends else {"weights"})
    if not kind.startswith("samples") and arguments.get("schedule", hr.WeightSchedule({})).over != "tokens":
        changes.add("seq_len")
    if all("data added" in one.changes for one in sources):
        changes.add("data added")
        if with_packed:
            changes.remove("exclude")
    return Drawn(
        f"mixture of {[one.told for one in sources]} by {arguments}",
        make,
        Form(seq_len, tuple(weights)),
        in_lanes=kind != "packed",
        sizes=(BATCH, 2 * BATCH) if arguments["per_batch"] else Drawn.sizes if kind == "packed" else IN_LANES,
        by_steps=arguments["per_batch"] or "schedule" in arguments,
        sources=len(sources),
        traced={place: one.traced[0] for place, one in enumerate(sources) if one.traced},
        changes=frozenset(changes),
    )


def _packed(corpora: Corpora, form: Form, number: int) -> Any:
    return hr.open(corpora[number].folder / "parquet").pack(form.seq_len, pad_id=-9)


pipelines = st.one_of(single(), mixtures())


# Objects


class Lists(Objects):
    """Takes whole lists of keys."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self.samples[index] for index in indices]


class Seeded:
    """Keys in an order of their own, the same in each epoch."""

    def __init__(self, size: int, seed: int) -> None:
        self.keys = np.random.default_rng(seed).permutation(size).tolist()

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[int]:
        return iter(self.keys)


@st.composite
def objects(draw: st.DrawFn) -> Drawn:
    """What has ``__len__`` and ``__getitem__``, in an order of any kind."""
    source, seed = draw(st.integers(0, 3)), draw(st.integers(0, 99))
    kind = draw(st.sampled_from([Objects, Lists]))
    size = SIZES[source]
    how = draw(st.sampled_from(["order", "shuffle", "list", "sampler", "own sampler", "batches", "drawn batches"]))
    fresh: Callable[[], dict[str, Any]] = {
        "order": dict,
        "shuffle": lambda: {"shuffle": True, "seed": seed},
        "list": lambda: {"sampler": [*Seeded(size, seed), 0, 1, 2]},
        "sampler": lambda: {"sampler": Seeded(size, seed)},
        "own sampler": lambda: {"sampler": ResumableSampler(size)},
        "batches": lambda: {"batch_sampler": _batches(size, seed)},
        "drawn batches": lambda: {"batch_sampler": _Batched(size, seed)},
    }[how]
    in_batches = how.endswith("batches")
    more: dict[str, Any] = {"allow_empty": True}
    if not in_batches and draw(st.booleans()):
        more["drop_last"] = True
    return Drawn(
        f"{kind.__name__} of {size}, {how}, {more}",
        lambda corpora, _: kind(corpora[source]),
        passes="drop_last" not in more and how != "list",
        is_object=True,
        changes=frozenset() if in_batches else frozenset({"batch size"}),
        arguments=more,
        fresh=fresh,
    )


def _batches(size: int, seed: int) -> list[list[int]]:
    """Keys in lists of several lengths, all of which some ranks can share."""
    keys = Seeded(size, seed).keys
    ends = [*range(0, size, 12), size]
    return [keys[begin:end] for begin, end in pairwise(ends) if end > begin]


class _Batched:
    """The same, one by one."""

    def __init__(self, size: int, seed: int) -> None:
        self.lists = _batches(size, seed)

    def __len__(self) -> int:
        return len(self.lists)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.lists)


# Loaders

batches = st.sampled_from([BATCH, {0: BATCH, 2: 2 * BATCH}, {0: 2 * BATCH, 1: BATCH, 3: 3 * BATCH}])
"""Global batch sizes, all of which all numbers of ranks divide."""


@st.composite
def options(draw: st.DrawFn, drawn: Drawn) -> dict[str, Any]:
    """How a run begins: what its states keep."""
    found: dict[str, Any] = {"seed": draw(st.integers(0, 2**64 - 1)), "shuffle": draw(st.booleans())}
    if draw(st.booleans()):
        # Of lanes with documents each rank has whole ones.
        found["lanes"] = BATCH if drawn.in_lanes else draw(st.sampled_from([1, 4, 6, BATCH]))
    if draw(st.booleans()):
        found["window"] = draw(st.integers(1, 3))
    return found
