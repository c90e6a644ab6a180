"""Mixtures whose rows come lane by lane, and what may be changed of them on purpose."""

import copy
import warnings
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import check_resume
from lane_mixtures import MAKERS, expected, lines, loaders, mixed, rows_of, steps

COUNTS = {"many": 90, "middle": 41, "few": 17, "one": 1}
WEIGHTS = {"many": 6.0, "middle": 3.0, "few": 1.5, "one": 0.5}
RUN: dict[str, Any] = {"global_batch_size": 12, "seed": 1}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, hr.SampleDataset]:
    return lines(tmp_path_factory.mktemp("lines"), COUNTS)


def whole_of(dataset: hr.MixDataset, count: int, **arguments: Any) -> list[Any]:
    return steps(loaders(dataset, 1, **RUN | arguments), count)


def changed(dataset: hr.MixDataset, state: Any, message: str, world: int = 1) -> list[hr.DataLoader]:
    """Loaders that go on with another mixture than the state's, which they say."""
    ranks = loaders(dataset, world)
    for loader in ranks:
        with pytest.raises(hr.StateMismatch, match="strict=False goes on with the mixture as it is here"):
            loader.load_state_dict(state)
        with pytest.warns(UserWarning, match=message):
            loader.load_state_dict(state, strict=False)
    return ranks


@pytest.mark.parametrize("kind", MAKERS)
def test_weights_changed_by_hand_hold_from_there_on(samples: dict[str, hr.SampleDataset], kind: str) -> None:
    whole = whole_of(mixed(samples, WEIGHTS, kind), 8)
    other = {"many": 1.0, "middle": 1.0, "few": 0.0, "one": 5.0}
    dataset = mixed(samples, other, kind)
    ranks = changed(dataset, whole[3].parts, "from row 48 on: the weight of source 'many' at 0", world=3)
    taken = steps(ranks, 6)
    weights = {0: list(WEIGHTS.values()), 4: list(other.values())}
    assert rows_of(taken) == expected(list(samples.values()), kind, weights, 120, seed=1, lanes=12)[48:]
    # What follows is exact again, and the change is in the state.
    assert [entry["round"] for entry in taken[-1].parts[0]["pipeline"]["weights"]] == [0, 4]
    assert [line["kind"] for line in taken[-1].parts[0]["changes"]] == ["weights"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = steps(loaders(dataset, 2, taken[1].parts), 4)
    assert [step.rows for step in again] == [step.rows for step in taken[2:]]
    assert hr.State.merge(again[-1].parts) == hr.State.merge(taken[-1].parts)
    # Changed again at the same place, the last change counts.
    [once] = changed(mixed(samples, WEIGHTS, kind), taken[-1].parts, "the weight of source 'many'")
    assert [entry["round"] for entry in once.state_dict()["pipeline"]["weights"]] == [0, 4, 10]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_source_may_come_and_go(samples: dict[str, hr.SampleDataset], kind: str) -> None:
    first = {name: WEIGHTS[name] for name in ("many", "one")}
    second = {name: WEIGHTS[name] for name in ("middle", "one", "few")}
    whole = whole_of(mixed(samples, first, kind), 4)
    dataset = mixed(samples, second, kind)
    taken = steps(changed(dataset, whole[-1].parts, "from row 48 on: source 'middle' is only here", world=2), 5)
    state = hr.State.merge(taken[-1].parts)
    assert [source["name"] for source in state["sources"]] == ["many", "one", "middle", "few"]
    assert [line["kind"] for line in state["changes"]] == ["sources"]
    # In the run sources are numbered as they came, in batches as in the mixture's own names.
    order = ["many", "one", "middle", "few"]
    weights = {0: [6.0, 0.5, 0.0, 0.0], 4: [0.0, 0.5, 3.0, 1.5]}
    wanted = expected([samples[name] for name in order], kind, weights, 108, seed=1, lanes=12)
    shown = [(dataset.names.index(order[source]), row) for source, row in wanted[48:]]
    assert rows_of(taken) == shown
    rest = steps(loaders(dataset, 3, taken[1].parts), 3)
    assert [step.rows for step in rest] == [step.rows for step in taken[2:]]
    assert hr.State.merge(rest[-1].parts) == state
    # One that was taken out comes back where it was.
    third = steps(changed(mixed(samples, first, kind), state, "source 'many' was taken out before"), 3)
    weights[9] = [6.0, 0.5, 0.0, 0.0]
    wanted = expected([samples[name] for name in order], kind, weights, 144, seed=1, lanes=12)
    assert rows_of(third) == wanted[108:]


@pytest.mark.parametrize("ends, exhausted", [({"few": 1}, "repeat"), ({"few": 3}, "drop"), ({"few": 3}, "stop")])
def test_a_source_that_went_keeps_its_max_epochs(
    samples: dict[str, hr.SampleDataset], ends: dict[str, int], exhausted: Any
) -> None:
    names = ["many", "middle", "few"]
    some, all_of = ({name: WEIGHTS[name] for name in chosen} for chosen in (names[:2], names))
    both: dict[str, Any] = {"on_exhausted": exhausted}
    state = whole_of(mixed(samples, all_of, max_epochs=ends, **both), 2, global_batch_size=4)[-1].parts
    [without] = changed(mixed(samples, some, **both), state, "'few' is only in the state")
    state = steps([without], 1)[-1].parts
    assert state[0]["pipeline"]["max_epochs"] == ends
    [again] = loaders(mixed(samples, some, **both), 1, state)
    assert again.state_dict() == state[0]
    for other in ({}, {"few": 2}):
        with pytest.raises(hr.StateMismatch, match=f"max_epochs of source 'few' is {other.get('few')} here and"):
            loaders(mixed(samples, all_of, max_epochs=other, **both), 1)[0].load_state_dict(state, strict=False)
    [back] = changed(mixed(samples, all_of, max_epochs=ends, **both), state, "source 'few' was taken out before")
    taken = steps([back], 2)
    by_number = {begin: [*list(WEIGHTS.values())[:2], weight] for begin, weight in ((0, 1.5), (2, 0.0), (3, 1.5))}
    limits = [one["limit"] for one in taken[-1].parts[0]["sources"]]
    wanted = expected([samples[name] for name in names], "samples", by_number, 20, seed=1, lanes=4, limits=limits)
    assert rows_of(taken) == wanted[12:]


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_changes_at_any_rounds_are_those_of_the_page(
    samples: dict[str, hr.SampleDataset], data: st.DataObject
) -> None:
    names: list[str] = []
    phases: dict[int, dict[str, float]] = {}
    state: Any = None
    taken: list[Any] = []
    at = 0
    for part in range(3):
        weights = data.draw(
            st.dictionaries(st.sampled_from(list(COUNTS)), st.sampled_from([0.0, 0.3, 1.0, 4.0]), min_size=1).filter(
                lambda found: any(found.values())
            ),
            label=f"weights {part}",
        )
        dataset = mixed(samples, weights)
        world = data.draw(st.sampled_from([1, 2, 3]), label="ranks")
        ranks = loaders(dataset, world, global_batch_size=6, seed=7, num_workers=0)
        if state is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for loader in ranks:
                    loader.load_state_dict(state, strict=False)
        count = data.draw(st.integers(1, 4), label="steps")
        found = steps(ranks, count)
        taken += [(dataset.names[source], row) for source, row in rows_of(found)]
        names = list(dict.fromkeys([*names, *weights]))
        phases[at] = weights
        at += count
        state = found[-1].parts
    by_number = {begin: [weights.get(name, 0.0) for name in names] for begin, weights in phases.items()}
    wanted = expected([samples[name] for name in names], "samples", by_number, at * 6, seed=7, lanes=6)
    assert taken == [(names[source], row) for source, row in wanted]


def test_a_mixture_that_was_changed_resumes_exactly(samples: dict[str, hr.SampleDataset]) -> None:
    first = mixed(samples, {"many": 2.0, "few": 1.0}, max_epochs={"few": 2})
    second = mixed(samples, {"few": 1.0, "middle": 4.0, "one": 0.0}, max_epochs={"few": 2})
    state = whole_of(first, 3)[-1].parts[0]
    [loader] = changed(second, state, "source 'middle' is only here")
    # From here on it is a run like any other, up to where a source leaves it, and beyond.
    state = loader.state_dict()
    whole = steps([loader], 14)
    assert {source for source, _ in rows_of(whole[:3])} == {0, 1}
    assert {source for source, _ in rows_of(whole[-3:])} == {1}
    for at in range(0, 13, 3):
        before = state if at == 0 else whole[at - 1].parts
        for world in (2, 4):
            rest = steps(loaders(second, world, before), 14 - at)
            assert [step.rows for step in rest] == [step.rows for step in whole[at:]]
    check_resume(second, steps=4)


def test_a_mixture_may_begin_to_end(samples: dict[str, hr.SampleDataset]) -> None:
    for name, ends_at_once in (("middle", False), ("few", True)):
        ends: Any = {"max_epochs": {name: 1}}
        whole = whole_of(mixed(samples, {"many": 3.0, name: 1.0}, **ends), 3)
        [loader] = changed(mixed(samples, {name: 1.0}, **ends), whole[-1].parts, "'many' is only in the state")
        rest = steps([loader])
        # It ends where a lane of the small one has no row left.
        taken = Counter(row % 12 for step in whole for row, (source, _) in step.rows.items() if source == 1)
        assert len(rest) == min(len(range(lane, COUNTS[name], 12)) - taken[lane] for lane in range(12))
        assert (len(rest) == 0) == ends_at_once
        given = [value for source, value in rows_of(whole) if source == 1] + [value for _, value in rows_of(rest)]
        assert len(given) == len(set(given)) > COUNTS[name] / 3
        assert len(loader) == 3 + len(rest)


def test_a_source_cannot_leave_in_the_middle_of_a_round(samples: dict[str, hr.SampleDataset]) -> None:
    [loader] = loaders(mixed(samples, WEIGHTS), 1, **RUN | {"global_batch_size": 6, "lanes": 12})
    state = next(iter(loader)).state
    fewer = {name: WEIGHTS[name] for name in list(samples)[1:]}
    [other] = loaders(mixed(samples, fewer), 1)
    before = r"'many' cannot be taken out here: row 6 is in the middle of a round of 12 rows.*\nhint: .* as at row 12"
    with pytest.raises(hr.StateMismatch, match=before):
        other.load_state_dict(state, strict=False)
    # Weights may change there: they hold from the next round on.
    [same] = changed(mixed(samples, WEIGHTS | {"one": 9.0}), state, "from row 12 on")
    taken = rows_of(steps([same], 5))
    weights = {0: list(WEIGHTS.values()), 1: [6.0, 3.0, 1.5, 9.0]}
    assert taken == expected(list(samples.values()), "samples", weights, 36, seed=1, lanes=12)[6:]


def test_functions_may_have_other_names_on_request(samples: dict[str, hr.SampleDataset]) -> None:
    state = whole_of(mixed(samples, WEIGHTS), 2)[-1].parts
    other = hr.mix({name: (samples[name].map(_renamed), weight) for name, weight in WEIGHTS.items()})
    [loader] = loaders(other, 1)
    with pytest.raises(hr.StateMismatch, match=r"functions of source 'many' have other names .*: map\(_renamed\) here"):
        loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="have other names than in the state") as told:
        loader.load_state_dict(state, strict=False)
    assert [str(one.message).split(" have ")[0] for one in told] == [
        f"headrace: the functions of source {name!r}" for name in WEIGHTS
    ]
    [line] = loader.state_dict()["changes"]
    assert line["kind"] == "functions"
    assert line["after"] == {name: ["map(_renamed)"] for name in WEIGHTS}


def _renamed(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"]}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"on_exhausted": "drop"}, "on_exhausted is 'drop' here and 'repeat' in the state"),
        ({"per_batch": True}, "per_batch is True here and False in the state"),
        ({"max_epochs": {"many": 3}}, "max_epochs of source 'many' is 3 here and None in the state"),
        ({"weights": WEIGHTS | {"few": 2.0}}, "the weight of source 'few' at 0 is 2.0 here and 1.5 in the state"),
        ({"schedule": {9: WEIGHTS}}, "the schedule has a point at 9 only here"),
        ({"weights": {"many": 6, "middle": 3, "few": 0.5}}, "source 'one' is only in the state"),
        ({"kind": "rows"}, "the pipeline of source 'many' is not that of the state: stages is "),
    ],
)
def test_another_mixture_is_refused(samples: dict[str, hr.SampleDataset], change: dict[str, Any], message: str) -> None:
    state = whole_of(mixed(samples, WEIGHTS), 2)[-1].parts
    arguments: dict[str, Any] = {"weights": WEIGHTS} | change
    [loader] = loaders(mixed(samples, **arguments), 1, **RUN)
    before = loader.state_dict()
    with pytest.raises(hr.StateMismatch, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_other_data_and_other_pipelines_are_refused(samples: dict[str, hr.SampleDataset]) -> None:
    state = whole_of(mixed(samples, WEIGHTS), 2)[-1].parts[0]
    swapped = samples | {"few": samples["middle"]}
    with pytest.raises(hr.StateMismatch, match="pipeline of source 'few' is not that of the state: samples is 41 here"):
        loaders(mixed(swapped, WEIGHTS), 1, state)
    alone = MAKERS["rows"](samples["many"])
    [loader] = [hr.DataLoader(alone, global_batch_size=12)]
    with pytest.raises(hr.StateMismatch, match=r"the pipeline is not that of the state: order is .* and None in the"):
        loader.load_state_dict(state)
    with pytest.raises(hr.StateMismatch, match="mode is 'mixture' here and 'best_fit' in the state"):
        loaders(mixed(samples, WEIGHTS), 1, loader.state_dict())


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("pipeline", "weights"), [], "expected weights from round 0 on"),
        (("pipeline", "weights", 0, "points"), [[0, {"huge": 1.0}]], "expected weights from round 0 on"),
        (("sources", 0), {}, "expected sources with name, limit, pipeline, functions, sources, given, found {}"),
        (("sources", 0, "limit"), -1, "expected 'limit' of source 'many' to be 0 or more, found -1"),
        (("sources", 0, "name"), "few", "expected sources of different names"),
        (
            ("sources", 0, "sources", 0, "identity"),
            "00",
            "the data of source 'many' is not that of the state: identity",
        ),
        (("sources", 0, "sources"), [], "the data of source 'many' is not that of the state: 1 sources here, 0 in"),
        (("lane_states", "0"), [], "expected lane 0 to have a row"),
        (("lane_states", "0", "row"), -1, "expected lane 0 to have a row"),
        (("lane_states", "0", "sources"), [None], "expected lane 0 to have 4 sources"),
        (("lane_states", "0", "sources", 1), "3/-1", "lane 0: expected a document"),
    ],
)
def test_a_damaged_state_is_refused(
    samples: dict[str, hr.SampleDataset], path: tuple[Any, ...], value: Any, message: str
) -> None:
    state = copy.deepcopy(whole_of(mixed(samples, WEIGHTS), 3)[-1].parts[0])
    place: Any = state
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(hr.StateMismatch, match=message):
        loaders(mixed(samples, WEIGHTS), 1, state)
