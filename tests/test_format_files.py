"""Raw files: each comes whole, groups are what their names say, and nothing is read that was not asked for."""

import doctest
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace._files import File, Store
from headrace.errors import DataError
from headrace.formats import files
from headrace.formats.files import FilesSource


class ListedStore(Store):
    """A store without files below it: what it is said to hold is its paths' names."""

    url = "memory:"
    is_remote = False
    core: Any = None

    def __init__(self, paths: list[str], size: int = 10) -> None:
        super().__init__([], {})
        self.files = [File(path, size, "m1") for path in sorted(paths, key=lambda path: path.encode("utf-8"))]
        self.reads: list[str] = []

    def uri(self, path: str) -> str:
        return f"memory:/{path}"

    def read(self, file: File, start: int = 0, stop: int | None = None) -> bytes:
        self.reads.append(file.path)
        return file.path.encode()

    def __reduce__(self) -> Any:
        return ListedStore, ([],)


def open_folder(folder: Path, **options: Any) -> FilesSource:
    return FilesSource.open(Store([str(folder)], {}), **options)


def write(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def samples(source: FilesSource, columns: tuple[str, ...] | None = None) -> list[Any]:
    found = []
    for chunk, size in enumerate(source.sizes):
        loaded = source.load(chunk, columns)
        assert len(loaded) == size
        assert loaded.nbytes == 0
        one_by_one = [loaded[row] for row in range(len(loaded))]
        assert loaded.take(range(len(loaded))) == one_by_one
        found += one_by_one
    return found


def test_each_file_is_a_sample(tmp_path: Path) -> None:
    names = sorted(["a", "b.bin", "c/d.txt", "c/e é.txt", "c.0/100%.png"], key=str.encode)
    source = open_folder(write(tmp_path, names))
    assert samples(source) == [{"path": name, "data": name.encode()} for name in names]
    assert source.schema == {"path": "str", "data": "bytes"}
    assert source.random_access
    assert source.stored.sum() == sum(len(name.encode()) for name in names)
    assert [source.place(0, row).file for row in range(5)] == names
    assert source.file(0) == names[0]
    assert samples(source, ("data",)) == [{"data": name.encode()} for name in names]


def test_empty_files_are_samples(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert samples(open_folder(tmp_path)) == [{"path": "a", "data": b""}]


def test_no_files_are_no_samples(tmp_path: Path) -> None:
    store = ListedStore([])
    for group in (None, "stem"):
        source = FilesSource.open(store, group=group)
        assert len(source.sizes) == len(source.stored) == 0
        assert source.identity()


def test_chunks_hold_neighbours_and_read_nothing_before_they_must() -> None:
    store = ListedStore([f"{number:04}.txt" for number in range(600)])
    source = FilesSource.open(store)
    assert source.sizes.tolist() == [256, 256, 88]
    assert source.stored.tolist() == [2560, 2560, 880]
    chunk = source.load(1)
    assert samples(source, ("path",))[300] == {"path": "0300.txt"}
    assert chunk.arrays(["path"])["path"][0] == "0256.txt"
    assert not store.reads
    assert chunk[44] == {"path": "0300.txt", "data": b"0300.txt"}
    assert chunk.arrays(["data"])["data"][3] == b"0259.txt"
    assert len(store.reads) == 257
    assert str(source.place(2, 1)) == "0513.txt, chunk 2, row 1"


def test_files_of_one_stem_are_a_sample(tmp_path: Path) -> None:
    source = open_folder(
        write(tmp_path, ["x/1.jpg", "x/1.txt", "x/2.txt", "x/2.jpg", "y/1.jpg", "y/1.txt"]), group="stem"
    )
    assert samples(source) == [
        {"key": key, "jpg": f"{key}.jpg".encode(), "txt": f"{key}.txt".encode()} for key in ("x/1", "x/2", "y/1")
    ]
    assert list(samples(source)[1]) == ["key", "jpg", "txt"]
    assert source.schema == {"key": "str", "jpg": "bytes", "txt": "bytes"}
    assert samples(source, ("txt", "key"))[2] == {"txt": b"y/1.txt", "key": "y/1"}
    assert source.place(0, 1).file == "x/2.jpg"
    assert source.stored.sum() == 42


def test_a_stem_ends_at_the_last_dot_of_the_name() -> None:
    """B094: "Track 2.0 (x).mp3" beside its json; B095: dots in the names of folders."""
    names = [
        "22.0/1.1.png",
        "22.0/1.1.json",
        "22.0/1.2.png",
        "22.0/1.2.json",
        "Track 2.0 (x).png",
        "Track 2.0 (x).json",
    ]
    found = samples(FilesSource.open(ListedStore(names), group="stem"))
    assert [sample["key"] for sample in found] == ["22.0/1.1", "22.0/1.2", "Track 2.0 (x)"]
    assert found[0]["png"] == b"22.0/1.1.png"


def test_members_need_not_be_neighbours_in_the_listing() -> None:
    found = samples(FilesSource.open(ListedStore(["a.b.c", "a.b.c.e", "a.b.d", "a.b.c.f"]), group="stem", partial=True))
    assert [(sample["key"], {name for name, part in sample.items() if part}) for sample in found] == [
        ("a.b", {"key", "c", "d"}),
        ("a.b.c", {"key", "e", "f"}),
    ]


def test_a_broken_pair_is_named() -> None:
    """B094: error when a pair is broken."""
    names = ["a/1.jpg", "a/1.txt", "a/Track 2.0.jpg", "a/Track 2.0 (x).txt"]
    with pytest.raises(DataError) as error:
        FilesSource.open(ListedStore(names), group="stem")
    assert "'jpg', 'txt'" in str(error.value)
    assert "found 'a/Track 2.0 (x).txt' only: 'jpg' missing" in str(error.value)
    assert "hint" in str(error.value)
    source = FilesSource.open(ListedStore(names), group="stem", partial=True)
    assert source.schema == {"key": "str", "jpg": "bytes?", "txt": "bytes?"}
    assert [(sample["key"], sample["jpg"], sample["txt"]) for sample in samples(source)] == [
        ("a/1", b"a/1.jpg", b"a/1.txt"),
        ("a/Track 2.0 (x)", None, b"a/Track 2.0 (x).txt"),
        ("a/Track 2.0", b"a/Track 2.0.jpg", None),
    ]


def test_partial_groups_that_are_whole_are_known_to_be() -> None:
    source = FilesSource.open(ListedStore(["1.a", "1.b"]), group="stem", partial=True)
    assert source.schema == {"key": "str", "a": "bytes", "b": "bytes"}


@pytest.mark.parametrize("name", ["README", "x/README", "x/a.", "x.y/a", "a.key", ".jpg"])
def test_a_name_without_an_extension_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"expected a name with an extension(.|\n)*hint: "):
        FilesSource.open(ListedStore(["1.jpg", "2.jpg", name]), group="stem")


def test_extensions_are_taken_as_they_are_written() -> None:
    with pytest.raises(DataError, match=r"'JPG', 'jpg'.*'jpg' missing"):
        FilesSource.open(ListedStore(["1.JPG", "2.jpg"]), group="stem")


def by_number(path: str) -> tuple[str, str] | None:
    folder, _, name = path.partition("/")
    return None if name == "notes.txt" else (name.partition(".")[0], folder)


def test_a_function_says_what_belongs_together() -> None:
    store = ListedStore(["images/1.png", "images/2.png", "masks/1.png", "masks/2.png", "masks/notes.txt"])
    source = FilesSource.open(store, group=by_number)
    assert samples(source) == [
        {"key": number, "images": f"images/{number}.png".encode(), "masks": f"masks/{number}.png".encode()}
        for number in ("1", "2")
    ]
    assert source.stored.tolist() == [40]


def test_a_function_that_gives_a_key_leaves_the_extension_as_name() -> None:
    store = ListedStore(["a/1.png", "b/1.txt", "a/2.png", "b/2.txt", "c"])
    source = FilesSource.open(store, group=lambda path: None if path == "c" else path[2:3])
    assert samples(source)[1] == {"key": "2", "png": b"a/2.png", "txt": b"b/2.txt"}
    copy = pickle.loads(pickle.dumps(source))
    assert copy.identity() == source.identity(), "the function is not needed any more"


def test_two_files_for_one_place_are_named() -> None:
    with pytest.raises(
        DataError, match=r"memory:/a/1.png: expected one file for 'png' of '1', found also 'b/1.png'\nhint"
    ):
        FilesSource.open(ListedStore(["a/1.png", "a/2.png", "b/1.png"]), group=lambda path: path[2:3])


def test_a_function_that_gives_something_else_is_told() -> None:
    for wrong in (5, ("a",), ("a", 5), ["a", "b"], b"a"):
        with pytest.raises(TypeError, match="group must give a key"):
            FilesSource.open(ListedStore(["a.b"]), group=lambda path, wrong=wrong: wrong)  # type: ignore
    with pytest.raises(ValueError, match="group must be None"):
        FilesSource.open(ListedStore(["a.b"]), group="name")  # type: ignore
    with pytest.raises(ZeroDivisionError):
        FilesSource.open(ListedStore(["a.b"]), group=lambda path: str(1 // 0))


def test_names_taken_for_extensions_are_told() -> None:
    with pytest.raises(DataError, match="at most 1000 different extensions"):
        FilesSource.open(ListedStore([f"a.{number}" for number in range(2000)]), group="stem", partial=True)


names = st.text(st.sampled_from("ab.é\U0001f600/"), min_size=1, max_size=6)


@given(st.sets(names, max_size=30))
@example({"a.b", "a.c", "a..b", "a/.b", "/a.b"})
def test_groups_hold_each_file_once(paths: set[str]) -> None:
    usable = [path for path in paths if path.rpartition("/")[2].rpartition(".")[0] and not path.endswith(".")]
    store = ListedStore(usable)
    source = FilesSource.open(store, group="stem", partial=True)
    found = samples(source)
    wanted: dict[str, dict[str, bytes]] = {}
    for file in store.files:
        head, _, extension = file.path.rpartition(".")
        wanted.setdefault(head, {})[extension] = file.path.encode()
    assert [sample.pop("key") for sample in found] == list(wanted)
    assert [{name: data for name, data in sample.items() if data is not None} for sample in found] == list(
        wanted.values()
    )
    assert [list(sample) for sample in found] == [sorted({file.path.rpartition(".")[2] for file in store.files})] * len(
        found
    )
    assert source.stored.sum() == 10 * len(usable)


def test_identity_is_of_names_sizes_and_groups(tmp_path: Path) -> None:
    folder = write(tmp_path / "1", ["1.a", "1.b", "2.a", "2.b"])
    other = write(tmp_path / "2", ["1.a", "1.b", "2.a", "2.b"])
    os.utime(other / "1.a", (5, 5))
    assert open_folder(folder).identity() == open_folder(other).identity()
    assert open_folder(folder, group="stem").identity() == open_folder(other, group="stem").identity()
    assert open_folder(folder, group="stem").identity() != open_folder(folder).identity()
    assert open_folder(folder, group=lambda path: path[0]).identity() == open_folder(folder, group="stem").identity()
    assert (
        open_folder(folder, group=lambda path: ("x", path.replace(".", ""))).identity()
        != open_folder(folder, group="stem").identity()
    )
    (other / "2.b").write_bytes(b"another size")
    assert open_folder(folder).identity() != open_folder(other).identity()
    (other / "2.b").rename(other / "2.c")
    assert open_folder(folder).identity() != open_folder(other).identity()


def test_a_changed_file_is_told(tmp_path: Path) -> None:
    source = open_folder(write(tmp_path, ["a", "b"]))
    (tmp_path / "a").write_bytes(b"longer than it was")
    with pytest.raises(DataError, match="/a"):
        source.load(0)[0]
    assert source.load(0)[1] == {"path": "b", "data": b"b"}


def test_a_source_goes_to_other_processes(tmp_path: Path) -> None:
    source = open_folder(write(tmp_path, ["1.a", "1.b", "2.a", "2.b"]), group="stem")
    copy = pickle.loads(pickle.dumps(source))
    assert samples(copy) == samples(source)
    assert copy.identity() == source.identity()
    # It keeps to what there was when it was opened.
    write(tmp_path, ["3.a"])
    assert samples(pickle.loads(pickle.dumps(copy))) == samples(source)


class SlowStore(ListedStore):
    """Whose reads wait for each other, as far as a call makes them at once."""

    is_remote = True

    def __init__(self, paths: list[str], wait_for: int) -> None:
        super().__init__(paths)
        self.barrier = threading.Barrier(wait_for, timeout=20)
        self.most, self.now, self.lock = 0, 0, threading.Lock()

    def read(self, file: File, start: int = 0, stop: int | None = None) -> bytes:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.barrier.wait()
        with self.lock:
            self.now -= 1
        if "bad" in file.path:
            raise DataError(f"{file.path} is bad")
        return super().read(file, start, stop)


def test_remote_files_are_read_at_the_same_time() -> None:
    store = SlowStore([f"{number:03}" for number in range(64)], 16)
    chunk = FilesSource.open(store).load(0)
    rows = list(range(63, -1, -1))
    assert [sample["path"] for sample in chunk.take(rows)] == [f"{row:03}" for row in rows]
    assert store.most == 16
    store.reads.clear()
    assert FilesSource.open(store).load(0, ("path",)).take([5, 6]) == [{"path": "005"}, {"path": "006"}]
    assert not store.reads


def test_a_fault_of_a_remote_file_reaches_the_caller() -> None:
    chunk = FilesSource.open(SlowStore(["a", "bad"], 2)).load(0)
    with pytest.raises(DataError, match="bad is bad"):
        chunk.take([0, 1])


@pytest.mark.parametrize("group", [None, "stem"])
def test_a_hundred_thousand_files_open_in_seconds(group: Any) -> None:
    store = ListedStore(
        [f"folder {number % 100}/{number:06}.{end}" for number in range(50_000) for end in ("jpg", "txt")]
    )
    start = time.perf_counter()
    source = FilesSource.open(store, group=group)
    elapsed = time.perf_counter() - start
    assert source.sizes.sum() == (100_000 if group is None else 50_000)
    # Half a second on one quiet core.
    assert elapsed < 10
    assert len(pickle.dumps(source)) < 100 * 100_000


def test_examples_run(tmp_path: Path) -> None:
    write(tmp_path, ["cats/1.jpg", "cats/1.txt"])
    store = Store([str(tmp_path)], {})
    assert doctest.testmod(files, extraglobs={"store": store}) == (0, 2)
