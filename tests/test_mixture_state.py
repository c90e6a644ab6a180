"""States of mixtures: what they hold, what is refused, and what may be changed on purpose."""

import copy
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from datasets import Corpus, CorpusWriter
from mixtures import corpora, expected, loaders, steps

PACKING: dict[str, Any] = {"seq_len": 7, "eos_id": -1}
WEIGHTS = {"large": 6.0, "middle": 3.0, "one document": 0.5, "tiny documents": 1.5}


@pytest.fixture(scope="module")
def parts(write: CorpusWriter) -> dict[str, Corpus]:
    return corpora(write)


def mixed(parts: dict[str, Corpus], weights: dict[str, float] = WEIGHTS, **arguments: Any) -> hr.MixDataset:
    return hr.mix({name: (parts[name].open(**PACKING), weight) for name, weight in weights.items()}, **arguments)


def test_a_state_is_small_and_plain_and_the_same_after_it_is_loaded(parts: dict[str, Corpus]) -> None:
    [loader] = loaders(mixed(parts), 1, global_batch_size=12, seed=1)
    state = steps([loader], 5)[-1].state
    assert hr.State.from_bytes(hr.State.to_bytes(state)) == state
    assert len(hr.State.to_bytes(state)) < 4000
    assert state["kind"] == "mixture"
    [again] = loaders(mixed(parts), 1, state)
    assert again.state_dict() == state
    assert hr.State.merge([state, again.state_dict()]) == state
    again.load_state_dict([state, state])
    assert again.state_dict() == state


@pytest.mark.parametrize(
    "change, message",
    [
        ({"on_exhausted": "drop"}, "on_exhausted is 'drop' here and 'repeat' in the state"),
        ({"per_batch": True}, "per_batch is True here and False in the state"),
        ({"max_epochs": {"large": 3}}, "max_epochs of source 'large' is 3 here and None in the state"),
        ({"weights": WEIGHTS | {"middle": 2.0}}, "the weight of source 'middle' at 0 is 2.0 here and 3.0 in the state"),
        ({"schedule": {9: WEIGHTS}}, "the schedule has a point at 9 only here"),
        (
            {"schedule": hr.WeightSchedule({}, "tokens")},
            "the schedule's over is 'tokens' here and 'steps' in the state",
        ),
        ({"weights": {"large": 6, "middle": 3, "one document": 0.5}}, "source 'tiny documents' is only in the state"),
    ],
)
def test_another_mixture_is_refused(parts: dict[str, Corpus], change: dict[str, Any], message: str) -> None:
    state = steps(loaders(mixed(parts), 1, global_batch_size=12), 2)[-1].state
    [loader] = loaders(mixed(parts, **change), 1, global_batch_size=12)
    before = loader.state_dict()
    with pytest.raises(hr.StateMismatch, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_another_window_is_refused_and_left_out_comes_from_the_state(parts: dict[str, Corpus]) -> None:
    state = steps(loaders(mixed(parts), 1, global_batch_size=12, window=2), 2)[-1].state
    for window in (None, 2):
        [loader] = loaders(mixed(parts), 1, state, window=window)
        assert [source["window"] for source in loader.state_dict()["sources"]] == [2] * len(parts)
    with pytest.raises(hr.StateMismatch, match="window is 3 here and 2 in the state\nhint: leave window out"):
        loaders(mixed(parts), 1, state, window=3)


def test_another_packing_or_other_data_are_refused_by_name(parts: dict[str, Corpus]) -> None:
    state = steps(loaders(mixed(parts), 1, global_batch_size=12), 2)[-1].state
    other = {
        name: (part.open(**PACKING | {"eos_id": -2 if name == "middle" else -1}), WEIGHTS[name])
        for name, part in parts.items()
    }
    with pytest.raises(hr.StateMismatch, match="eos_id of source 'middle' is -2 here and -1 in the state"):
        loaders(hr.mix(other), 1, state)
    swapped = parts | {"middle": parts["large"]}
    with pytest.raises(
        hr.StateMismatch, match="source 'middle' is not that of the state: 3 files here, 1 in the state"
    ):
        loaders(mixed(swapped), 1, state)


def test_data_that_moved_is_accepted_on_request(parts: dict[str, Corpus], tmp_path: Path) -> None:
    whole = steps(loaders(mixed(parts), 1, global_batch_size=12), 6)
    folder = tmp_path / "moved"
    shutil.copytree(parts["middle"].folder, folder)
    (folder / "f0.parquet").rename(folder / "g0.parquet")
    moved = parts | {"middle": Corpus(folder, parts["middle"].files)}
    [loader] = loaders(mixed(moved), 1, global_batch_size=12)
    with pytest.raises(hr.StateMismatch, match="source 'middle' has other paths than in the state"):
        loader.load_state_dict(whole[1].state)
    with pytest.warns(UserWarning, match="source 'middle' has moved since the state was saved"):
        loader.load_state_dict(whole[1].state, strict=False)
    assert [step.rows for step in steps([loader], 4)] == [step.rows for step in whole[2:]]


def damaged(state: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    state = copy.deepcopy(state)
    place: Any = state
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return state


@pytest.mark.parametrize(
    "path, value, message",
    [
        (("pipeline",), {}, "expected a pipeline of"),
        (("pipeline", "mode"), "concat", "mode is 'mixture' here and 'concat' in the state"),
        (("pipeline", "draws"), 3, "this build draws mixtures by version 2, the state is of version 3"),
        (("pipeline", "max_epochs"), [], "expected a pipeline of"),
        (("pipeline", "max_epochs"), {"huge": 1}, "expected max_epochs of its sources, 1 or more, found 'huge': 1"),
        (("pipeline", "max_epochs"), {"large": 0}, "expected max_epochs of its sources, 1 or more, found 'large': 0"),
        (("sources", 0, "packing"), {}, "mode of source 'large' is 'concat' here and None in the state"),
        (("sources", 0, "packing"), [], "expected sources with"),
        (("pipeline", "weights"), [], "expected weights from round 0 on"),
        (("pipeline", "weights", 0, "round"), 3, "expected weights from round 0 on"),
        (("pipeline", "weights", 0, "points"), [[0, {"large": 1}]], "expected weights from round 0 on"),
        (("pipeline", "weights", 0, "points"), [[0, {"huge": 1.0}]], "expected weights from round 0 on"),
        (("pipeline", "weights", 0, "points", 0, 1, "large"), float("nan"), "expected weights from round 0 on"),
        (("pipeline", "weights", 0, "points", 0, 1, "large"), 7.0, "by its weights source 'large' has given"),
        (("sources", 0), {}, "expected sources with"),
        (("sources", 0, "name"), "middle", "expected sources of different names"),
        (("sources", 0, "lanes"), 5, "the lanes of source 'large' to divide 12, found 5"),
        (("sources", 0, "window"), 0, "expected 'window' of source 'large' to be 1 or more, found 0"),
        (("sources", 0, "given", "rows"), 1, "by its weights source 'large' has given"),
        (("sources", 0, "identity"), "00", "source 'large' has other paths"),
        (("position",), 13, "by its history step 3 begins with row 36, its position is 13"),
        (("window",), 13, "unknown key 'window'"),
        (("kind",), "counted", "expected kind 'mixture', found 'counted'"),
        (("lanes",), 0, "expected 'lanes' in 1"),
    ],
)
def test_a_damaged_state_is_refused(parts: dict[str, Corpus], path: tuple[Any, ...], value: Any, message: str) -> None:
    state = steps(loaders(mixed(parts), 1, global_batch_size=12, seed=1), 3)[-1].state
    weights = {name: WEIGHTS[name] for name in parts}
    if path[-1] == "large" and value == 7.0:
        weights["large"] = 7.0
    with pytest.raises(hr.StateMismatch, match=message):
        loaders(mixed(parts, weights), 1, damaged(state, path, value))


def test_a_state_of_the_first_version_of_draws_is_refused_by_both(parts: dict[str, Corpus]) -> None:
    state = steps(loaders(mixed(parts), 1, global_batch_size=12, seed=1), 3)[-1].state
    del state["pipeline"]["draws"]
    with pytest.raises(hr.StateMismatch, match="this build draws mixtures by version 2, the state is of version 1"):
        loaders(mixed(parts), 1, state)


def test_a_packed_loader_refuses_a_mixtures_state_and_the_other_way_round(parts: dict[str, Corpus]) -> None:
    packed = hr.DataLoader(parts["large"].open(**PACKING), global_batch_size=4)
    [loader] = loaders(mixed(parts), 1, global_batch_size=4)
    with pytest.raises(hr.StateMismatch, match="expected kind 'counted', found 'mixture'"):
        packed.load_state_dict(loader.state_dict())
    with pytest.raises(hr.StateMismatch, match="expected kind 'mixture', found 'counted'"):
        loader.load_state_dict(packed.state_dict())


def changed(dataset: hr.MixDataset, state: dict[str, Any], message: str, world: int = 1) -> list[hr.DataLoader]:
    """Loaders that go on with another mixture than the state's, which they say."""
    ranks = [hr.DataLoader(dataset, rank=rank, world_size=world, num_workers=1) for rank in range(world)]
    for loader in ranks:
        with pytest.raises(hr.StateMismatch, match="strict=False goes on with the mixture as it is here"):
            loader.load_state_dict(state)
        with pytest.warns(UserWarning, match=message):
            loader.load_state_dict(state, strict=False)
    return ranks


def test_weights_changed_by_hand_hold_from_there_on(parts: dict[str, Corpus]) -> None:
    whole = steps(loaders(mixed(parts), 1, global_batch_size=12, seed=1), 8)
    other = {"large": 1.0, "middle": 1.0, "one document": 0.0, "tiny documents": 5.0}
    ranks = changed(mixed(parts, other), whole[3].state, "from row 48 on: the weight of source 'large' at 0", world=3)
    taken = steps(ranks, 6)
    weights = {0: list(WEIGHTS.values()), 4: list(other.values())}
    [fresh] = loaders(mixed(parts), 1, global_batch_size=12, seed=1)
    wanted = expected(list(parts.values()), fresh, weights, 120)
    assert [row for step in taken for row in step.rows.values()] == wanted[48:]
    # What follows is exact again, and the change is in the state.
    assert [entry["round"] for entry in taken[-1].state["pipeline"]["weights"]] == [0, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps(loaders(mixed(parts, other), 2, taken[1].state), 4) == taken[2:]
    # Changed again at the same place, the last change counts.
    again = changed(mixed(parts), taken[-1].state, "the weight of source 'large'")
    assert [entry["round"] for entry in again[0].state_dict()["pipeline"]["weights"]] == [0, 4, 10]


def test_a_source_may_come_and_go(parts: dict[str, Corpus]) -> None:
    first = {name: WEIGHTS[name] for name in ("large", "one document")}
    second = {name: WEIGHTS[name] for name in ("middle", "one document", "tiny documents")}
    whole = steps(loaders(mixed(parts, first), 1, global_batch_size=12, seed=1), 4)
    taken = steps(changed(mixed(parts, second), whole[-1].state, "from row 48 on: source 'middle' is only here"), 5)
    names = [source["name"] for source in taken[-1].state["sources"]]
    assert names == ["large", "one document", "middle", "tiny documents"]
    rows = [row for step in taken for row in step.rows.values()]
    # Their numbers are those of the mixture's own names.
    assert {source for source, _ in rows} == {0, 1, 2}
    assert steps(loaders(mixed(parts, second), 2, taken[1].state), 3) == taken[2:]
    given = {source["name"]: source["given"]["rows"] for source in taken[-1].state["sources"]}
    before = {source["name"]: source["given"]["rows"] for source in whole[-1].state["sources"]}
    assert given["large"] == before["large"]
    assert given["one document"] > before["one document"]
    assert sum(given.values()) == 9 * 12
    # One that was taken out comes back where it was.
    third = steps(changed(mixed(parts, first), taken[-1].state, "source 'large' was taken out before"), 3)
    assert {source for step in third for source, _ in step.rows.values()} == {0, 1}
    after = {source["name"]: source["given"]["rows"] for source in third[-1].state["sources"]}
    assert after["large"] > given["large"]
    assert after["middle"] == given["middle"]


def test_steps_with_rows_of_a_source_that_went_are_refused(parts: dict[str, Corpus]) -> None:
    first = {name: WEIGHTS[name] for name in ("large", "one document")}
    whole = steps(loaders(mixed(parts, first), 1, global_batch_size=12, seed=1), 5)
    fewer = {"one document": 1.0}
    [loader] = changed(mixed(parts, fewer), whole[3].state, "from row 48 on: source 'large' is only in the state")
    loader.seek(2)
    message = "step 2: rows from there on are of source 'large', which was taken out of the mixture before row 48"
    with pytest.raises(ValueError, match=f"{message}\nhint: go to step 4 or a later one"):
        next(iter(loader))
    loader.seek(4)
    batch = next(iter(loader))
    assert batch.step == 4
    # Weights that changed later, and another source that comes, are no matter.
    [later] = changed(
        mixed(parts, fewer | {"middle": 1.0}), batch.state, "from row 60 on: source 'middle' is only here"
    )
    later.seek(2)
    with pytest.raises(ValueError, match=f"{message}\nhint: go to step 4 or a later one"):
        next(iter(later))
    later.seek(4)
    assert next(iter(later))["tokens"].tolist() == batch["tokens"].tolist()


@pytest.mark.parametrize("ends", [{"middle": 1}, {"middle": 3}])
@pytest.mark.parametrize("exhausted", ["repeat", "drop"])
def test_a_source_that_went_keeps_its_max_epochs(
    parts: dict[str, Corpus], ends: dict[str, int], exhausted: Any
) -> None:
    names = ["large", "middle", "tiny documents"]
    some, all_of = ({name: WEIGHTS[name] for name in chosen} for chosen in (names[::2], names))
    both: dict[str, Any] = {"on_exhausted": exhausted}
    first = mixed(parts, all_of, max_epochs=ends, **both)
    state = steps(loaders(first, 1, global_batch_size=6, seed=1), 3)[-1].state
    [without] = changed(mixed(parts, some, **both), state, "'middle' is only in the state")
    state = next(iter(without)).state
    assert state["pipeline"]["max_epochs"] == ends
    [again] = loaders(mixed(parts, some, **both), 1, state)
    assert again.state_dict() == state
    for other in ({}, {"middle": 2}):
        [loader] = loaders(mixed(parts, all_of, max_epochs=other, **both), 1)
        with pytest.raises(hr.StateMismatch, match=f"max_epochs of source 'middle' is {other.get('middle')} here and"):
            loader.load_state_dict(state, strict=False)
    [back] = changed(first, state, "source 'middle' was taken out before")
    [step] = steps([back], 1)
    given = [next(one for one in now["sources"] if one["name"] == "middle") for now in (state, step.state)]
    assert given[0]["limit"] == given[1]["limit"]
    assert given[0]["given"]["rows"] <= given[1]["given"]["rows"]


def test_numbers_of_sources_are_those_of_the_mixtures_names(parts: dict[str, Corpus]) -> None:
    whole = steps(loaders(mixed(parts), 1, global_batch_size=12, seed=1), 5)
    names = list(parts)
    turned = hr.mix({name: (mixed(parts).sources[name], WEIGHTS[name]) for name in reversed(names)})
    [loader] = loaders(turned, 1, whole[1].state)
    for step, batch in zip(whole[2:], loader, strict=False):
        wanted = [source for source, _ in step.rows.values()]
        assert [names.index(turned.names[number]) for number in batch["source"]] == wanted
        # Nor does a batch look there for where its rows come from.
        batch["source"][:] = 0
        assert batch.sources() == loader.sources(batch.step, 0)


def test_a_source_cannot_leave_in_the_middle_of_a_round(parts: dict[str, Corpus]) -> None:
    [loader] = loaders(mixed(parts), 1, global_batch_size=12, seed=1)
    loader.set_global_batch_size(8)
    state = next(iter(loader)).state
    fewer = {name: WEIGHTS[name] for name in list(parts)[1:]}
    other = hr.DataLoader(mixed(parts, fewer), rank=0, world_size=1, global_batch_size=8)
    with pytest.raises(hr.StateMismatch, match=r"source 'large' cannot be taken out here: row 8 .*\nhint: .* row 12"):
        other.load_state_dict(state, strict=False)
