"""Loaders of mixtures end what they begin: threads, half-used iterators, forks, and waits."""

import threading
import time
from pathlib import Path

import pytest

import headrace as hr
from datasets import Corpus, CorpusWriter, equal_documents, python
from headrace.testing import check_resume


@pytest.fixture(scope="module")
def corpus(write: CorpusWriter) -> Corpus:
    return write(equal_documents(files=2, groups=4, documents=60, length=30))


def mixed(corpus: Corpus) -> hr.MixDataset:
    return hr.mix({name: (corpus.open(seq_len=16), weight) for name, weight in (("a", 5), ("b", 2), ("c", 1))})


def threads() -> int:
    return sum(thread.startswith("headrace") for thread in _names())


def _names() -> list[str]:
    names: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text(encoding="utf-8"))
        except OSError:
            continue  # it has ended
    return names


def test_a_dropped_iterator_ends_the_threads_of_all_sources(corpus: Corpus) -> None:
    before = threads()
    loader = hr.DataLoader(mixed(corpus), global_batch_size=8, num_workers=2)
    iterator = iter(loader)
    first = next(iterator)["tokens"].copy()
    # One leads each source, and the workers are those of all.
    assert threads() == before + 3 + 2
    del iterator
    assert threads() == before
    loader.seek(0)
    assert (next(iter(loader))["tokens"] == first).all()
    for _ in range(20):
        next(iter(loader))
    assert threads() == before


def test_an_older_iterator_raises_and_another_thread_is_refused(corpus: Corpus) -> None:
    loader = hr.DataLoader(mixed(corpus), global_batch_size=8)
    iterator = iter(loader)
    next(iterator)
    loader.seek(3)
    with pytest.raises(RuntimeError, match="is not the loader's latest"):
        next(iterator)
    found: list[int] = []
    steps = iter(loader)
    ends = [threading.Thread(target=lambda: found.append(next(steps).step)) for _ in range(2)]
    for end in ends:
        end.start()
        end.join()
    assert sorted(found) == [3, 4]


def test_a_forked_child_is_refused_and_ends(corpus: Corpus) -> None:
    script = """
import os, sys
import headrace as hr
folder = sys.argv[1]
mixed = hr.mix({name: (hr.open(folder).pack(16), 1) for name in ("a", "b")})
loader = hr.DataLoader(mixed, global_batch_size=8)
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        print("refused:", str(error).splitlines()[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent:", next(iterator).step, flush=True)
"""
    assert python(script, str(corpus.folder)).splitlines() == [
        "refused: this loader was started in another process: its threads did not survive the fork",
        "parent: 1",
    ]


def test_a_program_that_leaves_a_loader_alone_exits_at_once(corpus: Corpus) -> None:
    script = """
import sys
import headrace as hr
mixed = hr.mix({name: (hr.open(sys.argv[1]).pack(16), 1) for name in ("a", "b")})
loader = hr.DataLoader(mixed, global_batch_size=8)
kept = iter(loader)
print(next(kept).step)
"""
    begin = time.monotonic()
    assert python(script, str(corpus.folder)).strip() == "0"
    assert time.monotonic() - begin < 60


def test_check_resume_passes_for_mixtures_of_either_kind(corpus: Corpus) -> None:
    assert check_resume(mixed(corpus), steps=3, global_batch_size=12, loader={"num_workers": 1}).restarts > 0
    dynamic = {
        name: (hr.open(corpus.folder).select(["tokens"]).pack(16, mode="best_fit"), weight)
        for name, weight in (("a", 2), ("b", 1))
    }
    assert check_resume(hr.mix(dynamic), steps=3, global_batch_size=12).restarts > 0
