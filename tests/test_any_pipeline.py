"""What holds for every pipeline that can be built, on pipelines drawn at random."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from kinds import Documents, Kind, Run, tokens_of

SIZES = (88, 66, 50, 9)
"""Documents of the sources, whose numbers begin 100 apart. All but the last fill a large batch with packed tokens."""

BATCH = 12
WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Documents]:
    folder = tmp_path_factory.mktemp("corpora")
    return [
        Documents(folder / str(number), range(100 * number, 100 * number + size)) for number, size in enumerate(SIZES)
    ]


# Stages


def tail(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    """With other draws in each pass; tokens below zero are not stored ones."""
    return sample | {"tokens": [*sample["tokens"], -1 - int(rng.integers(0, 50))]}


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return dict(sample)


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


def pair(samples: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {"id": samples[0]["id"], "other": samples[1]["id"]}


def numbered(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(sample["tokens"][0]) // 100}


STAGES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "map": (lambda data: data.map(same), True),
    "map with draws": (lambda data: data.map(tail), True),
    "filter": (lambda data: data.filter(most), False),
    "filter with draws": (lambda data: data.filter(tossed), False),
    "flat_map": (lambda data: data.flat_map(halves), True),
    "batch_map of 1": (lambda data: data.batch_map(turned, 1), True),
    "batch_map of 3": (lambda data: data.batch_map(turned, 3), True),
}
"""What a stage does to a dataset, and whether all stored tokens are still there."""

stages = st.lists(st.sampled_from(list(STAGES)), max_size=3)

packings = st.one_of(
    st.fixed_dictionaries(
        {"mode": st.just("concat")}, optional={"overlap": st.just(1), "bos_id": st.just(-100), "eos_id": st.just(-101)}
    ),
    st.fixed_dictionaries(
        {"mode": st.just("best_fit"), "lookahead": st.integers(1, 9)}, optional={"max_documents": st.integers(1, 3)}
    ),
    st.just({"mode": "pad"}),
    st.just({"mode": "truncate"}),
)


@dataclass(frozen=True)
class Drawn:
    """A pipeline."""

    make: Callable[[list[Documents]], Any]
    """Opens it anew, so that loaders share nothing."""
    in_lanes: bool
    """Whether rows come lane by lane."""
    once: tuple[str, int] | None = None
    """What each pass holds once: ``"ids"`` or ``"tokens"``, of which corpus; None if functions or weights decide."""
    sources: int = 1
    by_steps: bool = False
    """Whether the number of a step decides which rows there are."""
    grows: bool = False
    """Whether samples may be added behind those that it is made of: not where a state is within a group."""

    @property
    def kind(self) -> Kind:
        """For `Run`: ranks may have no row in the last step of an epoch of samples."""
        counted = not self.in_lanes and self.once is not None and self.once[0] == "ids"
        return Kind(make=lambda _: None, arguments={"allow_empty": True} if counted else {})


def through(names: list[str], data: Any) -> Any:
    for name in names:
        data = STAGES[name][0](data)
    return data


@st.composite
def rows_of_documents(draw: st.DrawFn, source: int, packing: dict[str, Any], seq_len: int) -> Drawn:
    """Packed lane by lane."""
    names = draw(stages)
    lossless = packing["mode"] != "truncate" and all(STAGES[name][1] for name in names)
    return Drawn(
        lambda corpora: through(names, corpora[source].samples).pack(seq_len, **packing),
        True,
        ("tokens", source) if lossless and not packing.get("overlap") else None,
        grows=not _is_grouped(names),
    )


@st.composite
def samples(draw: st.DrawFn, source: int) -> Drawn:
    """Samples as they are stored, or what stages make of them."""
    names = draw(stages)
    is_dynamic = any(name.startswith(("flat", "batch")) for name in names)
    filtered = not all(STAGES[name][1] for name in names)
    return Drawn(
        lambda corpora: through(names, corpora[source].samples).map(_id),
        is_dynamic,
        ("ids", source) if not is_dynamic and not filtered else None,
        grows=not _is_grouped(names),
    )


def _is_grouped(names: list[str]) -> bool:
    return any(name.startswith("batch_map") for name in names)


def _id(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"]}


@st.composite
def single(draw: st.DrawFn) -> Drawn:
    """Of one source, or a zip of two."""
    kind = draw(st.sampled_from(["packed", "rows", "samples", "zip", "stream", "stored documents"]))
    source, seq_len = draw(st.integers(0, 2 if kind == "packed" else 3)), draw(st.integers(3, 6))
    match kind:
        case "packed":
            packing = draw(st.fixed_dictionaries({}, optional={"eos_id": st.just(-100), "boundaries": st.just(True)}))
            return Drawn(
                lambda corpora: hr.open(corpora[source].folder / "parquet").pack(seq_len, **packing),
                False,
                ("tokens", source),
            )
        case "rows":
            return draw(rows_of_documents(source, draw(packings), seq_len))
        case "samples":
            return draw(samples(source))
        case "zip":
            other = draw(st.integers(0, 3))
            return Drawn(
                lambda corpora: hr.zip([corpora[source].ids, corpora[other].ids], pair, length=SIZES[source]),
                False,
                ("ids", source),
                grows=True,
            )
        case "stream":
            return Drawn(lambda corpora: corpora[source].records.sequences(seq_len), False, ("ids", -1))
        case _:
            return Drawn(lambda corpora: corpora[source].records.documents().map(numbered), False, ("ids", source))


@st.composite
def mixtures(draw: st.DrawFn) -> Drawn:
    """Of sources whose rows are alike."""
    kind = draw(st.sampled_from(["packed", "rows", "samples"]))
    numbers = draw(st.lists(st.integers(0, 2 if kind == "packed" else 3), min_size=2, max_size=3, unique=True))
    seq_len, packing = draw(st.integers(3, 6)), draw(packings)
    if kind == "packed":
        parts = [Drawn(partial(_packed, number=number, seq_len=seq_len), False) for number in numbers]
    else:
        of = partial(rows_of_documents, packing=packing, seq_len=seq_len) if kind == "rows" else samples
        parts = [draw(of(number)) for number in numbers]
    weights = [draw(st.sampled_from([1, 2, 0.3, 7])) for _ in numbers]
    arguments: dict[str, Any] = {"per_batch": draw(st.booleans())}
    if draw(st.booleans()):
        shifted = {str(number): weight for number, weight in zip(numbers, reversed(weights), strict=True)}
        arguments["schedule"] = {draw(st.integers(1, 4)): shifted}

    def make(corpora: list[Documents]) -> Any:
        sources = {
            str(number): (part.make(corpora), weight)
            for number, part, weight in zip(numbers, parts, weights, strict=True)
        }
        return hr.mix(sources, **arguments)

    by_steps = arguments["per_batch"] or "schedule" in arguments
    return Drawn(make, kind != "packed", None, len(numbers), by_steps, all(part.grows for part in parts))


def _packed(corpora: list[Documents], number: int, seq_len: int) -> Any:
    return hr.open(corpora[number].folder / "parquet").pack(seq_len)


batches = st.sampled_from([BATCH, {0: BATCH, 2: 2 * BATCH}, {0: 2 * BATCH, 1: BATCH, 3: 3 * BATCH}])


@settings(max_examples=25)
@given(data=st.data())
def test_every_pipeline_keeps_the_promises(corpora: list[Documents], data: st.DataObject) -> None:
    drawn = data.draw(st.one_of(single(), mixtures()), "pipeline")
    batch, seed = data.draw(batches, "batch"), data.draw(st.integers(0, 2**64 - 1), "seed")
    options = {"seed": seed, "shuffle": data.draw(st.booleans(), "shuffle")}
    steps = 6

    def run(batch: Any, world: int, **more: Any) -> Run:
        return Run(drawn.kind, drawn.make(corpora), batch, world, **more)

    first = run(batch, 1, **options)
    states = [first.states]
    whole = first.take(steps)
    states += [step.states for step in whole]
    rows = [step.rows for step in whole]
    assert len(whole) == steps
    # One order.
    for world in WORLDS[1:]:
        other = run(batch, world, **options, num_workers=world % 3, memory="64MiB").take(steps)
        assert [step.rows for step in other] == rows
        assert [hr.State.merge(step.states) for step in other] == [hr.State.merge(state) for state in states[1:]]
    # Exact and elastic resume, from each step; from there again, on other ranks.
    schedule = batch if isinstance(batch, dict) else None
    for step, state in enumerate(states[:-1]):
        world = data.draw(st.sampled_from(WORLDS), "world")
        saved = [hr.State.from_bytes(hr.State.to_bytes(one)) for one in state]
        later = run(schedule, world).load(saved)
        assert hr.State.merge(later.states) == hr.State.merge(state)
        head = later.take(1)
        rest = run(schedule, data.draw(st.sampled_from(WORLDS), "next")).load(head[0].states).take(steps - step - 1)
        assert [one.rows for one in head + rest] == rows[step:]
    # With batches of another size the same rows follow each other.
    if not drawn.by_steps:
        step = data.draw(st.integers(0, steps - 1), "step")
        later = run(3 * BATCH, 3).load(states[step])
        taken = later.take(data.draw(st.integers(0, 1), "taken"))
        again = run(BATCH, 2).load(later.states)
        position = again.loaders[0].position
        assert position == sum(len(one.rows) for one in [*whole[:step], *taken])
        found = [row for one in again.take(3) for row in one.rows]
        flat = [row for one in rows for row in one][position:]
        known = min(len(flat), len(found))
        assert found[:known] == flat[:known]
    # Sources are known, states small.
    loader = first.loaders[0]
    given = next(iter(loader))
    assert len(given.sources()) == len(given.rows)
    assert all(given.sources())
    assert len(hr.State.to_bytes(loader.state_dict())) < 3000 * drawn.sources + 200 * drawn.sources * 3 * BATCH


@dataclass(frozen=True)
class First:
    """The first documents of a corpus: what there is before more are added."""

    corpus: Documents
    count: int

    @property
    def samples(self) -> hr.SampleDataset:
        """See `Documents.samples`."""
        return self.corpus.samples.take(self.count)

    @property
    def ids(self) -> hr.SampleDataset:
        """See `Documents.ids`."""
        return self.samples.select(["id"])


@settings(max_examples=10)
@given(data=st.data())
def test_samples_may_be_added_to_every_pipeline_of_them(corpora: list[Documents], data: st.DataObject) -> None:
    # Of samples that are filtered nothing may be left for a rank.
    drawn = data.draw(
        st.one_of(single(), mixtures()).filter(lambda one: one.grows and (one.in_lanes or one.once is not None)),
        "pipeline",
    )
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 99)), "shuffle": data.draw(st.booleans(), "shuffle")}
    some: list[Any] = [
        First(corpus, data.draw(st.integers(size - size // 4, size - 1)))
        for corpus, size in zip(corpora, SIZES, strict=True)
    ]
    begun = Run(drawn.kind, drawn.make(some), BATCH, data.draw(st.sampled_from(WORLDS), "begun by"), **options)
    before = begun.take(data.draw(st.integers(0, 4), "steps before"))
    state = hr.State.merge(begun.states)
    first = Run(drawn.kind, drawn.make(corpora), BATCH, data.draw(st.sampled_from(WORLDS), "gone on by"))
    for loader in first.loaders:
        with pytest.raises(hr.StateMismatch, match="samples were added"):
            loader.load_state_dict(state)
        with pytest.warns(UserWarning, match="samples were added"):
            loader.load_state_dict(state, strict=False)
    states = [first.states]
    assert {line["kind"] for line in hr.State.merge(first.states)["changes"]} == {"data added"}
    whole = first.take(4)
    states += [step.states for step in whole]
    for step in {0, data.draw(st.integers(1, 3), "restart")}:
        saved = states[step]
        later = Run(drawn.kind, drawn.make(corpora), None, data.draw(st.sampled_from(WORLDS), "world")).load(saved)
        assert hr.State.merge(later.states) == hr.State.merge(saved)
        found = later.take(len(whole) - step)
        assert [one.rows for one in found] == [one.rows for one in whole[step:]]
    if not drawn.in_lanes:
        # The order of all of it is known, on both sides.
        again = Run(drawn.kind, drawn.make(corpora)).load(states[-1])
        again.loaders[0].seek(0)
        assert [one.rows for one in again.take(len(before) + 4)] == [one.rows for one in [*before, *whole]]


@settings(max_examples=25)
@given(data=st.data())
def test_each_pass_holds_everything_once(corpora: list[Documents], data: st.DataObject) -> None:
    drawn = data.draw(single().filter(lambda one: one.once is not None and one.once[1] >= 0), "pipeline")
    assert drawn.once is not None
    what, source = drawn.once
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 99)), "shuffle": data.draw(st.booleans())}
    ending = {"remainder": "pad"} if what == "tokens" else {}
    epochs = data.draw(st.integers(1, 3), "epochs")
    loader = hr.DataLoader(drawn.make(corpora), global_batch_size=4, num_workers=0, epochs=epochs, **ending, **options)
    found: Counter[int] = Counter()
    before = -1
    while loader.step != before:
        before = loader.step
        for batch in islice(loader, 10**6):
            values = batch["tokens"][batch["loss_mask"] > 0] if what == "tokens" else batch["id"]
            found.update(value for value in values.tolist() if value >= 0)
    numbers = corpora[source].numbers
    wanted = [token for number in numbers for token in tokens_of(number)] if what == "tokens" else numbers
    assert found == dict.fromkeys(wanted, epochs)
