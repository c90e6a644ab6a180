"""What holds for every pipeline that can be built, and for every object, on such as are drawn at random."""

import itertools
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given, reject, settings
from hypothesis import strategies as st

import headrace as hr
from drawn import BATCH, SIZES, WORLDS, Corpora, Drawn, Form, batches, objects, options, pipelines, single
from kinds import Documents, Run, Step

STEPS = 6

EXAMPLES = settings().max_examples
"""40, or what the profile says: see conftest."""


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    folder = tmp_path_factory.mktemp("corpora")
    return [
        Documents(folder / str(number), range(100 * number, 100 * number + size)) for number, size in enumerate(SIZES)
    ]


@pytest.fixture(scope="module")
def grown(corpora: Corpora, tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    """The same with half as many documents more."""
    folder = tmp_path_factory.mktemp("grown")
    return [
        one.grown(folder / str(number), range(600 + 50 * number, 600 + 50 * number + len(one.numbers) // 2))
        for number, one in enumerate(corpora)
    ]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    """One document more in each, and none of them the same."""
    folder = tmp_path_factory.mktemp("others")
    return [
        Documents(folder / str(number), range(1000 + 100 * number, 1001 + 100 * number + size))
        for number, size in enumerate(SIZES)
    ]


def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return hr.State.merge(states)


@dataclass(frozen=True)
class Pipeline:
    """One that was drawn, and how its runs begin."""

    drawn: Drawn
    corpora: Corpora
    batch: Any
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def begin(self, world: int, **more: Any) -> Run:
        """All ranks of a run."""
        return Run(self.drawn.kind, self._data(self.drawn.form), self.batch, world, **self.options, **more)

    def go_on(self, states: Any, world: int, **more: Any) -> Run:
        """The same from states, which hold what it began with, but for the part of a schedule that lies ahead."""
        return self.loaders(world, **more).load(states)

    def loaders(self, world: int, *, form: Form | None = None, batch: Any = None, **more: Any) -> Run:
        """All ranks of a run that a state will be loaded to."""
        kept = isinstance(self.batch, int) and not self.drawn.is_object
        return Run(
            self.drawn.kind,
            self._data(form or self.drawn.form),
            batch or (None if kept else self.batch),
            world,
            **more,
        )

    def _data(self, form: Form) -> Any:
        return self.drawn.make(self.corpora, form)


@st.composite
def made(draw: st.DrawFn, corpora: Corpora, drawn: st.SearchStrategy[Drawn] = pipelines) -> Pipeline:
    """Any pipeline of which a run can begin."""
    one = draw(drawn)
    event("object" if one.is_object else one.told.split()[0])
    if one.is_object:
        return Pipeline(one, corpora, BATCH if one.changes else None)
    # Of what is left out at an epoch's end there must be less than all.
    sizes = st.just(BATCH) if "drop_last" in one.arguments else batches
    found = Pipeline(one, corpora, draw(sizes), draw(options(one)))
    # Lanes and windows are not of all orders.
    for how in (found.options, {key: found.options[key] for key in ("seed", "shuffle")}):
        begun = replace(found, options=how)
        try:
            begun.begin(1)
        except ValueError as refusal:
            if "must be left out" in str(refusal):
                continue
            if "too little data" not in str(refusal) and "less than a global batch" not in str(refusal):
                raise
            reject()
        return begun
    raise AssertionError(f"refused without lanes and windows, too: {found}")


def tried(run: Iterator[Step], count: int) -> list[Step]:
    """The next steps; none is tried of a run for which functions leave nothing to a lane."""
    try:
        return list(islice(run, count))
    except hr.DataError as error:
        if "nothing is left of its items" not in str(error):
            raise
        reject()


def rows(steps: Sequence[Step]) -> list[list[Any]]:
    return [step.rows for step in steps]


def keeps_the_promises(one: Pipeline, others: Corpora, data: st.DataObject) -> None:
    """Tries all those that can be tried without a change."""
    drawn = one.drawn
    first = one.begin(1)
    states = [first.states]
    whole = tried(first.steps(), STEPS)
    states += [step.states for step in whole]
    # One order.
    for world in WORLDS[1:]:
        memory = {} if drawn.is_object else {"memory": "64MiB"}
        other = one.begin(world, num_workers=world % 3, **memory).take(STEPS)
        assert rows(other) == rows(whole)
        assert [merged(step.states) for step in other] == [merged(state) for state in states[1:]]
    # Exact and elastic resume, from each step; from there again, on other ranks.
    for step, state in enumerate(states):
        saved = [hr.State.from_bytes(hr.State.to_bytes(part)) for part in state]
        later = one.go_on(saved, data.draw(st.sampled_from(WORLDS), "world"))
        assert merged(later.states) == merged(state)
        head = later.take(1)
        deeper = one.go_on(head[0].states if head else later.states, data.draw(st.sampled_from(WORLDS), "next"))
        rest = head + deeper.take(max(0, STEPS - step - 1))
        assert rows(rest)[: STEPS - step] == rows(whole[step:])
        if len(whole) < STEPS:
            assert len(rest) == len(whole) - step, "a run ends where it ends"
    # Rows have sources, states are small.
    if not drawn.is_object:
        check_sources(one)
        assert len(hr.State.to_bytes(merged(states[-1]))) < 1500 * drawn.sources * (3 + BATCH)
    # A state of other data is refused, and changes nothing.
    stranger = replace(one, corpora=others).loaders(1, batch=one.batch)
    before = stranger.states
    with pytest.raises(hr.StateMismatch) as refusal:
        stranger.load(states[-1])
    assert len(str(refusal.value)) < 1000
    assert stranger.states == before


def check_sources(one: Pipeline) -> None:
    """Whether rows hold what their sources say."""
    [loader] = one.begin(1).loaders
    for batch in islice(loader, 3):
        if batch == []:
            continue
        sources = batch.sources()
        assert len(sources) == len(batch.rows)
        if not one.drawn.in_lanes and one.drawn.is_whole:
            assert loader.sources(batch.step) == sources
        for row, place in enumerate(sources):
            number = int(batch["source"][row]) if "source" in batch else 0
            if number not in one.drawn.traced:
                continue
            documents = one.corpora[one.drawn.traced[number]]
            if "tokens" in batch:
                stored = [token for part in place for token in documents.tokens_at(part) if token >= 0]
                assert stored == [token for token in batch["tokens"][row].tolist() if token >= 0]
            else:
                assert documents.numbers[documents.place_of(place)] == batch["id"][row]


@settings(max_examples=EXAMPLES // 2)
@given(data=st.data())
def test_every_pipeline_keeps_the_promises(corpora: Corpora, others: Corpora, data: st.DataObject) -> None:
    keeps_the_promises(data.draw(made(corpora), "pipeline"), others, data)


@settings(max_examples=EXAMPLES // 4)
@given(data=st.data())
def test_every_object_keeps_the_promises(corpora: Corpora, others: Corpora, data: st.DataObject) -> None:
    keeps_the_promises(data.draw(made(corpora, objects()), "object"), others, data)


# Each pass


@settings(max_examples=EXAMPLES // 2)
@given(data=st.data())
def test_each_pass_holds_everything_once(corpora: Corpora, data: st.DataObject) -> None:
    drawn = data.draw(st.one_of(single(), objects()).filter(lambda one: one.passes or one.holds is not None))
    epochs = data.draw(st.integers(1, 3), "epochs")
    dataset = drawn.make(corpora, drawn.form)
    how: dict[str, Any] = {"num_workers": 0, **drawn.arguments, **drawn.fresh()}
    if not drawn.is_object:
        how |= {"epochs": epochs, "seed": data.draw(st.integers(0, 99)), "shuffle": data.draw(st.booleans())}
    if drawn.holds is not None:
        how["remainder"] = "pad"
        stored = [token for tokens in corpora[drawn.holds].tokens for token in tokens]
    else:
        stored = [value for sample in dataset for value in given_by(sample)]
    loader = hr.DataLoader(dataset, global_batch_size=None if "batch_sampler" in how else 4, **how)
    found = Counter[int]()
    for _ in range(epochs):
        for batch in loader:
            found.update(given_by(batch))
    assert loader.epoch in (epochs, epochs - 1)
    assert found == {value: epochs * count for value, count in Counter(stored).items()}


def given_by(held: Mapping[str, Any]) -> list[int]:
    """The ids, or the tokens that are no padding and were not added, of a sample or a batch."""
    values = np.asarray(held["id"] if "id" in held else held["tokens"])
    if "loss_mask" in held:
        values = values[held["loss_mask"] > 0]
    return [value for value in values.ravel().tolist() if value >= 0]


# Changes at restarts


class Walk:
    """A run that is saved and goes on, now and then changed.

    Args:
        one: what runs.
        grown: its corpora with more data.
        script: what is changed before which step: what, and to what.
        worlds: the numbers of ranks that follow each other.
        every_step: whether it is saved and goes on at every step, not only where it is changed.
    """

    def __init__(
        self,
        one: Pipeline,
        grown: Corpora,
        script: Mapping[int, tuple[str, Any]],
        worlds: Iterator[int],
        *,
        every_step: bool,
    ) -> None:
        self._one, self._grown, self._worlds = one, grown, worlds
        self._form, self._excluded = one.drawn.form, list[str]()
        self.refused: dict[int, str] = {}
        """What was not changed, and why."""
        self.steps: list[Step] = []
        self.states: list[dict[str, Any]] = []
        run = one.begin(next(worlds))
        begun = run.steps()
        for step in range(STEPS):
            if step and (every_step or step in script):
                run = self._again(run.states, step, *script.get(step, ("", None)))
                begun = run.steps()
            given = tried(begun, 1)
            if not given:
                break
            self.steps += given
            self.states.append(merged(given[0].states))
        self._end = run.states

    def _again(self, states: Any, step: int, change: str, value: Any) -> Run:
        if not change:
            return self._loaders().load(states)
        before = self._one, self._form, self._excluded
        match change:
            case "data added":
                self._one = replace(self._one, corpora=self._grown)
            case "seq_len" | "weights":
                self._form = replace(self._form, **{change: value})
            case "exclude":
                self._excluded = value
            case "batch size":
                self._one = replace(self._one, batch=value)
        is_named = change not in ("batch size", "skip") and before != (self._one, self._form, self._excluded)
        run = self._loaders(value if change == "batch size" else None)
        if is_named:
            with pytest.raises(hr.StateMismatch):
                run.load(states)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run.load(states, strict=not is_named)
        except hr.StateMismatch as refusal:
            self.refused[step] = str(refusal)
            self._one, self._form, self._excluded = before
            return self._loaders().load(states)
        assert bool(caught) == is_named, [str(one.message) for one in caught]
        if change == "skip":
            for loader in run.loaders:
                loader.skip(range(loader.step, loader.step + value))
        return run

    def _loaders(self, batch: int | None = None) -> Run:
        """On as many ranks as all batches can be shared among."""
        sizes = batch or self._one.batch or BATCH
        sizes = [sizes] if isinstance(sizes, int) else [*sizes.values()]
        world = next(world for world in self._worlds if all(size % world == 0 for size in sizes))
        more = {"exclude": self._excluded} if self._excluded else {}
        return self._one.loaders(world, form=self._form, batch=batch, **more)

    def from_the_beginning(self) -> list[Step]:
        """The same steps again, from the last state alone."""
        run = self._loaders().load(self._end)
        for loader in run.loaders:
            loader.seek(0)
        return run.take(self.steps[-1].number + 1)


@settings(max_examples=EXAMPLES // 2)
@given(data=st.data())
def test_what_is_changed_at_restarts_is_the_same_on_any_ranks(
    corpora: Corpora, grown: Corpora, data: st.DataObject
) -> None:
    one = data.draw(made(corpora, st.one_of(pipelines, objects())), "pipeline")
    drawn = one.drawn
    assume(drawn.changes)
    whole = tried(one.begin(1).steps(), 4 * STEPS)
    assume(len(whole) > 1)
    script: dict[int, tuple[str, Any]] = {}
    excluded = 0
    documents = [] if drawn.is_object else documents_of(one)
    for step in sorted(data.draw(st.sets(st.integers(1, STEPS - 1), min_size=1, max_size=3), "changed")):
        change = data.draw(st.sampled_from(sorted(drawn.changes)), "change")
        if change == "exclude":
            excluded = min(excluded + data.draw(st.integers(1, 3)), len(documents))
        script[step] = change, data.draw(value_of(change, drawn, documents[:excluded]), "value")
    plain = Walk(one, grown, script, repeating([1]), every_step=False)
    worlds = data.draw(st.lists(st.sampled_from(WORLDS), min_size=2, max_size=4), "worlds")
    other = Walk(one, grown, script, repeating([*worlds, 1]), every_step=True)
    assert other.refused == plain.refused
    assert [step.number for step in other.steps] == [step.number for step in plain.steps]
    assert rows(other.steps) == rows(plain.steps)
    assert other.states == plain.states
    done = {change for step, (change, _) in script.items() if step not in plain.refused}
    event(" and ".join(sorted(done)) or "nothing")
    told = {line["kind"] for line in plain.states[-1]["changes"]}
    # A schedule changes batch sizes, and of a zip that has more data epochs may be longer.
    follows = {"batch size", "excluded", *(("length",) if "data added" in done else ())}
    assert told <= done | follows, "what was changed and what follows from it, and nothing else"
    check_rows(one, whole, plain.steps, done)
    if not (drawn.in_lanes or drawn.is_object or "seq_len" in done):
        # Where rows are counted a state knows the whole run.
        again = {step.number: step for step in other.from_the_beginning()}
        assert all(unmasked_of(again[step.number]) == unmasked_of(step) for step in plain.steps)


def repeating(worlds: Sequence[int]) -> Iterator[int]:
    return itertools.cycle(worlds)


def documents_of(one: Pipeline) -> list[str]:
    """The names of the documents in the first step, each once."""
    batch = next((batch for batch in one.begin(1).loaders[0] if batch != []), None)
    return list(dict.fromkeys(names_of(batch.sources()))) if batch is not None else []


def names_of(sources: Any) -> Iterator[str]:
    if hasattr(sources, "id"):
        yield sources.id
    else:
        for one in sources:
            yield from names_of(one)


def value_of(change: str, drawn: Drawn, documents: list[str]) -> st.SearchStrategy[Any]:
    """What something may be changed to."""
    match change:
        case "batch size":
            return st.sampled_from(drawn.sizes)
        case "seq_len":
            return st.integers(3, 8)
        case "weights":
            count = len(drawn.form.weights)
            return st.lists(st.sampled_from([1, 3, 0.5, 0]), min_size=count, max_size=count).filter(any).map(tuple)
        case "exclude":
            return st.just(documents)
        case "skip":
            return st.integers(1, 2)
        case _:
            return st.none()


def check_rows(one: Pipeline, whole: Sequence[Step], found: Sequence[Step], done: set[str]) -> None:
    """Whether rows are where they are in the unbroken run, where a change moves none of them."""
    if done <= {"batch size", "skip", "exclude"} and not one.drawn.by_steps and not one.drawn.is_object:
        known = {number: held for step in whole for number, held in step.columns.items()}
        given = {number: held for step in found for number, held in step.columns.items()}
        assert given.keys() & known.keys() or not given
        for number in given.keys() & known.keys():
            assert unmasked(given[number]) == unmasked(known[number])
    if done <= {"batch size"} and one.drawn.is_object and "drop_last" not in one.drawn.arguments:
        known_rows = [row for step in whole for row in step.rows]
        given_rows = [row for step in found for row in step.rows]
        count = min(len(known_rows), len(given_rows))
        assert given_rows[:count] == known_rows[:count]


def unmasked_of(step: Step) -> dict[Any, dict[str, Any]]:
    return {number: unmasked(held) for number, held in step.columns.items()}


def unmasked(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in held.items() if name != "loss_mask"}
