"""A packed dataset goes to other processes, which open the same files again."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from torch.utils.data import DataLoader as TorchLoader

import headrace as hr
from datasets import Corpus, CorpusWriter
from packed_steps import PackedSteps, steps_of


@pytest.fixture
def corpus(write: CorpusWriter) -> Corpus:
    """Two files of four row groups, each of nine documents."""
    groups = [[list(range(9 * group + row, 9 * group + row + 7)) for row in range(9)] for group in range(4)]
    return write({"a.parquet": groups[:2], "b.parquet": groups[2:]})


@pytest.fixture
def packed(corpus: Corpus) -> hr.PackedDataset:
    return hr.open(corpus.folder).pack(8, eos_id=0, bos_id=1, overlap=1, name="tokens", dtype="int64")


def test_it_is_the_same_dataset_again(packed: hr.PackedDataset) -> None:
    again = pickle.loads(pickle.dumps(packed))
    assert (again.info(), again.packing, len(again)) == (packed.info(), packed.packing, len(packed))
    loader = hr.DataLoader(packed, 4)
    batches = [batch["tokens"].tolist() for batch in loader]
    other = hr.DataLoader(again, 4)
    assert [batch["tokens"].tolist() for batch in other] == batches
    assert other.state_dict() == loader.state_dict()
    # Once more, and into the middle of a run.
    third = hr.DataLoader(pickle.loads(pickle.dumps(again)), 4)
    loader.seek(3)
    third.load_state_dict(loader.state_dict())
    assert next(iter(third))["tokens"].tolist() == batches[3]


def test_a_spawned_process_gives_its_rank(packed: hr.PackedDataset) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        parts = [pool.submit(steps_of, packed, rank, 2) for rank in range(2)]
        found = [part.result(timeout=120) for part in parts]
    assert found == [steps_of(packed, rank, 2) for rank in range(2)]
    assert found[0] != found[1]


def test_workers_of_torch_make_loaders_of_their_own(packed: hr.PackedDataset) -> None:
    steps = PackedSteps(packed, 4)
    loader = TorchLoader(steps, batch_size=None, num_workers=2, multiprocessing_context="spawn", timeout=120)  # type: ignore[arg-type]
    expected = [batch["tokens"].tolist() for batch in hr.DataLoader(packed, 4)]
    assert len(steps) == len(expected)
    assert [step.tolist() for step in loader] == expected


def test_a_relative_path_means_the_same_from_another_folder(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus.folder
    monkeypatch.chdir(folder.parent)
    for url in (folder.name, f"{folder.name}/*.parquet", f"local:{folder.name}"):
        monkeypatch.chdir(folder.parent)
        data = hr.open(url, cache_dir="cache", index="kept/index.arrow")
        saved = pickle.dumps((data, data.pack(8)))
        monkeypatch.chdir(tmp_path)
        samples, packed = pickle.loads(saved)
        assert len(samples) == len(data)
        assert len(list(hr.DataLoader(packed, 4, epochs=1))) > 0
    assert list(tmp_path.iterdir()) == []


def test_files_that_changed_are_an_error(corpus: Corpus, packed: hr.PackedDataset) -> None:
    saved = pickle.dumps(packed)
    corpus.write("b.parquet", [[[1, 2, 3]]])
    with pytest.raises(hr.DataError, match=r"changed since it was opened: .* found other files"):
        pickle.loads(saved)


def test_options_go_along_as_they_were_given_and_the_environment_does_not(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    options = {"aws_secret_access_key": "as-it-was-given"}
    data = hr.open(corpus.folder, storage_options=options, cache_dir=tmp_path / "cache")
    saved = pickle.dumps(data.pack(8))
    assert b"as-it-was-given" in saved
    assert b"of-the-environment" not in saved
    assert b"as-it-was-given" not in repr(data.pack(8)).encode()
    again = pickle.loads(saved)
    assert again.cache == tmp_path / "cache"
