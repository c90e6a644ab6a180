"""Opening: which files a dataset consists of, in which order, under which names; and the index that is kept of them."""

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from files import assert_same, count_up, environment, loaded, stored, write


def make(folder: Path, *names: str) -> list[str]:
    """Files of one document of one token each: its number among `names`."""
    return [write(folder / name, [[number]]) for number, name in enumerate(names)]


# What is opened


def test_a_folder_is_read_with_all_below_it_in_the_order_of_paths(tmp_path: Path) -> None:
    names = [
        "b.parquet",
        "a/z.parquet",
        "a.parquet",
        "a/b/c.parquet",
        "B.parquet",
        "a-1.parquet",
        "a10.parquet",
        "a9.parquet",
    ]
    make(tmp_path, *names)
    dataset = hr.open(tmp_path)
    wanted = sorted(names, key=str.encode)
    assert dataset.files == [str(tmp_path / name) for name in wanted]
    assert loaded(dataset.pack(1)).tokens.tolist() == [names.index(name) for name in wanted]
    assert [source[0] for source in loaded(dataset.pack(1)).sources] == dataset.files


def test_a_file_a_glob_a_list_and_a_url_are_the_same_dataset(tmp_path: Path) -> None:
    paths = make(tmp_path, "x/a.parquet", "x/b.parquet")
    folder = tmp_path / "x"
    wanted = stored(paths)
    cases = [
        folder,
        str(folder),
        f"{folder}/",
        f"{folder}/*.parquet",
        f"{tmp_path}/*/*.parquet",
        f"{tmp_path}/**/*.parquet",
    ]
    cases += [f"{folder}/[ab].parquet", f"{folder}/?.parquet", paths, [Path(path) for path in paths], reversed(paths)]
    cases += [f"file://{folder}", f"file://localhost{folder}", [f"file://{path}" for path in paths], tmp_path]
    cases += [
        [folder / "a.parquet", f"{folder}/b*"],
        iter(paths),
        f"{tmp_path}/y/../x" if (tmp_path / "y").mkdir() is None else "",
    ]
    for urls in cases:
        assert_same(loaded(hr.open(urls).pack(1)), wanted)
    assert hr.open(paths[0]).files == [paths[0]]


def test_a_path_relative_to_the_working_folder_and_to_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(tmp_path, "x/a.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("x", "./x", "x/a.parquet", "x/*", "~/x", "~/x/a.parquet"):
        assert hr.open(url).files == paths, url
    monkeypatch.chdir(tmp_path / "x")
    assert hr.open("a.parquet").files == paths
    assert hr.open(".").files == paths


def test_the_same_files_have_one_identity_from_everywhere(tmp_path: Path) -> None:
    """A state moves with the data only by strict=False, but spelling the same place otherwise is no move."""
    make(tmp_path, "x/a.parquet", "x/b.parquet")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "x")
    first = hr.DataLoader(hr.open(tmp_path / "x").pack(1), 1, seed=0)
    for url in (f"file://{tmp_path}/x", f"{tmp_path}/./x/", f"{tmp_path}/x/*.parquet", link):
        hr.DataLoader(hr.open(url).pack(1), 1).load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    "name", [".hidden.parquet", "_temporary.parquet", ".git/a.parquet", "_spark/a.parquet", "x/_SUCCESS"]
)
def test_hidden_files_are_left_out(tmp_path: Path, name: str) -> None:
    (visible,) = make(tmp_path, "visible.parquet")
    make(tmp_path, name)
    assert hr.open(tmp_path).files == [visible]
    assert hr.open(f"{tmp_path}/**/*").files == [visible]
    # Named in full it is taken, if it holds data.
    assert hr.open(tmp_path / name).files == [str(tmp_path / name)]


def test_a_hidden_folder_above_the_root_hides_nothing(tmp_path: Path) -> None:
    paths = make(tmp_path / ".cache" / "_data", "a.parquet")
    assert hr.open(tmp_path / ".cache" / "_data").files == paths
    assert hr.open(f"{tmp_path}/.cache/_data/*").files == paths


def test_markers_and_other_files_are_left_out(tmp_path: Path) -> None:
    paths = make(tmp_path, "a.parquet", "b.PARQUET", "c.parq", "d.pq")
    for name in ("_SUCCESS", "done", "README.md", "a.parquet.crc", "notes.txt"):
        (tmp_path / name).write_text("" if name in ("_SUCCESS", "done") else "text")
    assert hr.open(tmp_path).files == paths


def test_files_without_a_suffix_are_taken_if_none_has_one(tmp_path: Path) -> None:
    # B094: a dot in a base name is no suffix.
    paths = make(tmp_path, "part-00000", "part-00001.c000", "v1.2")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "empty").touch()
    assert hr.open(tmp_path).files == paths


def test_a_dot_in_a_folders_name_means_nothing(tmp_path: Path) -> None:
    # B095.
    paths = make(tmp_path, "22.0/1.1.parquet", "22.0/1.2.parquet", "a.parquet/part-0.parquet")
    assert hr.open(tmp_path).files == paths
    assert hr.open(tmp_path / "a.parquet").files == paths[2:]


def test_a_torn_file_of_no_bytes_is_an_error(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").touch()
    for url in (tmp_path, tmp_path / "b.parquet"):
        with pytest.raises(hr.DataError, match=r"b\.parquet.*found 0"):
            hr.open(url)


@pytest.mark.parametrize(
    "content", [b"no Parquet", b"PAR1", b"PAR1" * 3, b"x" * 100_000, b"PAR1" + b"\xff" * 60 + b"PAR1"]
)
def test_a_file_that_is_no_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    make(tmp_path, "a.parquet", "c.parquet")
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(hr.DataError, match=r"b\.parquet") as caught:
        hr.open(tmp_path)
    assert "expected" in str(caught.value)


# Names


ODD = [
    "a b",
    "50%25",
    "%2F",
    "#1",
    "wh?t",
    "a[1]",
    "ü-日本",
    "new\nline",
    "a+b&c=d",
    "{x}",
    "back\\slash",
    "~",
    "'q'",
    '"',
    "*",
    "😀",
]
HIVE = "time=2024-01-01 00:00:00"


@pytest.mark.parametrize("name", [*ODD, HIVE, "x" * 200])
def test_any_name_works_for_files_and_folders(tmp_path: Path, name: str) -> None:
    # B097.
    (path,) = make(tmp_path, f"{name}.parquet")
    (below,) = make(tmp_path / "in" / name, "a.parquet")
    assert hr.open(path).files == [path]
    assert hr.open(tmp_path / "in").files == [below]
    assert hr.open(tmp_path / "in" / name).files == [below]
    both = hr.open(tmp_path)
    assert sorted(both.files) == sorted([path, below])
    assert sorted(source[0] for source in loaded(both.pack(1)).sources) == sorted([path, below])
    # Opened a second time, from the saved index.
    assert hr.open(tmp_path).files == both.files


def test_a_file_url_is_decoded_once(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a b%20#ü.parquet")
    assert hr.open(f"file://{tmp_path}/a%20b%2520%23%C3%BC.parquet").files == [path]


def test_a_name_that_is_a_pattern_wins_over_what_it_would_match(tmp_path: Path) -> None:
    make(tmp_path, "a1.parquet", "a[1].parquet")
    assert hr.open(tmp_path / "a[1].parquet").files == [str(tmp_path / "a[1].parquet")]


def test_a_name_that_is_not_unicode_is_an_error_or_works(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.parquet")
    odd = os.fsencode(tmp_path) + b"/b\xff.parquet"
    shutil.copy(path, odd)
    with pytest.raises((ValueError, hr.HeadraceError), match="UTF-8") as caught:
        hr.open(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert hr.open(tmp_path / "a*").files == [path]
    for path in (Path(os.fsdecode(odd)), tmp_path / "*\udcff*"):
        with pytest.raises(ValueError, match=r"\\udcff.*: the path is not UTF-8"):
            hr.open(path)


# Links


def test_links_are_followed_once(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    make(data, "a.parquet")
    make(other, "b.parquet", "c.parquet")
    (data / "loop").symlink_to(data)
    (data / "more").symlink_to(other)
    (data / "again").symlink_to(other)
    (other / "back").symlink_to(data)
    (data / "d.parquet").symlink_to(other / "c.parquet")
    files = hr.open(data).files
    real = [os.path.realpath(file) for file in files]
    assert str(data / "a.parquet") in files
    assert str(data / "d.parquet") in files
    # Each folder once, by whichever name; d is a file of its own beside c.
    assert sorted(real) == sorted(
        str(path) for path in [data / "a.parquet", other / "b.parquet", other / "c.parquet", other / "c.parquet"]
    )
    assert hr.open(data).files == files, "the same name each time"


def test_a_link_is_opened_under_its_own_name(tmp_path: Path) -> None:
    (path,) = make(tmp_path / "data", "blob")
    file, folder = tmp_path / "link.parquet", tmp_path / "folder"
    file.symlink_to(path)
    folder.symlink_to(tmp_path / "data")
    assert hr.open(file).files == [str(file)]
    assert hr.open(folder).files == [str(folder / "blob")]


def test_a_dangling_link_is_an_error_that_names_it(tmp_path: Path) -> None:
    make(tmp_path, "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "gone")
    with pytest.raises((hr.StoreError, hr.DataError), match=r"b\.parquet"):
        hr.open(tmp_path)


def test_a_pipe_among_the_files_does_not_hang(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.parquet")
    os.mkfifo(tmp_path / "pipe")
    assert hr.open(tmp_path).files == [path]
    with pytest.raises(ValueError, match="pipe"):
        hr.open(tmp_path / "pipe")


# Refusals


def test_what_matches_nothing_is_an_error(tmp_path: Path) -> None:
    # B098.
    make(tmp_path, "train.parquet")
    (tmp_path / "empty").mkdir()
    for url, part in [
        (f"{tmp_path}/test-*", "test-"),
        (f"{tmp_path}/train-.*", "train-"),
        (f"{tmp_path}/*/x.parquet", "x.parquet"),
        (tmp_path / "empty", "empty"),
    ]:
        with pytest.raises(ValueError, match=part):
            hr.open(url)
        # One that matches does not hide one that does not.
        with pytest.raises(ValueError, match=part):
            hr.open([tmp_path / "train.parquet", url])


def test_a_missing_path_is_an_error_that_names_it(tmp_path: Path) -> None:
    for url in (tmp_path / "gone", tmp_path / "gone.parquet", f"file://{tmp_path}/gone", f"{tmp_path}/gone/*.parquet"):
        with pytest.raises(hr.MissingError, match="gone"):
            hr.open(url)
        with pytest.raises(FileNotFoundError):
            hr.open(url)


def test_a_file_is_given_once(tmp_path: Path) -> None:
    (path,) = make(tmp_path, "a.parquet")
    for urls in (
        [path, path],
        [path, tmp_path],
        [tmp_path, tmp_path],
        [path, f"file://{path}"],
        [f"{tmp_path}/*", path],
    ):
        with pytest.raises(ValueError, match=r"a\.parquet.*twice|given twice"):
            hr.open(urls)


@pytest.mark.parametrize(
    "urls, error, part",
    [
        ([], ValueError, "none"),
        ("", ValueError, "non-empty"),
        ([""], ValueError, "non-empty"),
        (5, TypeError, "5|int"),
        ([None], TypeError, "None"),
        (b"data", (TypeError, ValueError), "text|bytes"),
        ("nobody://bucket/x", ValueError, 'unknown scheme "nobody"'),
        ("file://elsewhere/x", ValueError, "elsewhere"),
        ("a\0b", ValueError, "NUL"),
    ],
)
def test_wrong_paths_are_refused(urls: object, error: type[Exception], part: str) -> None:
    with pytest.raises(error, match=part):
        hr.open(urls)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options, error, part",
    [
        ({"format": "csv"}, ValueError, "format"),
        ({"columns": "tokens"}, TypeError, "columns"),
        ({"storage_options": {"region": 5}}, TypeError, "storage_options"),
        ({"columns": [5]}, TypeError, "columns"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict, error: type[Exception], part: str) -> None:
    make(tmp_path, "a.parquet")
    with pytest.raises(error, match=part):
        hr.open(tmp_path, **options)


# The index


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "a cache"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    make(folder, "a.parquet", "b.parquet", "c.parquet")
    return folder


def index_file(cache: Path) -> Path:
    (path,) = (cache / "index").iterdir()
    return path


def stamp(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def footers_read(dataset: hr.TableDataset) -> int:
    """Reads of the dataset's store so far, of which a footer takes at least one."""
    loader = hr.DataLoader(dataset.pack(1), 1, shuffle=False, epochs=1)
    batches = len(list(loader))
    assert batches == len(dataset)
    return loader.stats()["requests"] - batches


def test_an_index_is_kept_and_used_again(data: Path, cache: Path) -> None:
    first = hr.open(data, cache_dir=cache)
    before = stamp(index_file(cache))
    again = hr.open(data, cache_dir=cache)
    assert stamp(index_file(cache)) == before
    assert (again.files, again.info(), dict(again.schema)) == (first.files, first.info(), dict(first.schema))
    fresh, saved = hr.open(data, cache_dir=cache, index="rebuild"), hr.open(data, cache_dir=cache)
    assert footers_read(fresh) - footers_read(saved) >= 3, "no footer is read for a saved index"
    assert stamp(index_file(cache)) != before, "rebuild writes it anew"


def test_the_cache_folder_comes_from_the_environment(data: Path, tmp_path: Path) -> None:
    with environment(HEADRACE_CACHE=str(tmp_path / "own")):
        hr.open(data)
    assert index_file(tmp_path / "own").is_file()
    with environment(HEADRACE_CACHE=None, XDG_CACHE_HOME=str(tmp_path / "xdg")):
        hr.open(data)
    assert index_file(tmp_path / "xdg" / "headrace").is_file()
    with environment(HEADRACE_CACHE=None, XDG_CACHE_HOME=None, HOME=str(tmp_path / "home")):
        hr.open(data)
    assert index_file(tmp_path / "home" / ".cache" / "headrace").is_file()


def test_a_file_changed_under_its_name_is_read_anew(data: Path, cache: Path) -> None:
    # B124.
    hr.open(data, cache_dir=cache)
    write(data / "b.parquet", [[7, 8, 9]])
    assert loaded(hr.open(data, cache_dir=cache).pack(1)).tokens.tolist() == [0, 7, 8, 9, 2]
    # Of the same size, by its modification time.
    time_before = (data / "b.parquet").stat().st_mtime_ns
    write(data / "b.parquet", [[7, 8, 6]])
    os.utime(data / "b.parquet", ns=(time_before + 1, time_before + 1))
    assert loaded(hr.open(data, cache_dir=cache).pack(1)).tokens.tolist() == [0, 7, 8, 6, 2]


def test_only_changed_files_are_read_anew(data: Path, cache: Path) -> None:
    hr.open(data, cache_dir=cache)
    saved = footers_read(hr.open(data, cache_dir=cache))
    write(data / "b.parquet", [[7]])
    assert footers_read(hr.open(data, cache_dir=cache)) - saved in (1, 2)


def test_files_added_and_removed(data: Path, cache: Path) -> None:
    hr.open(data, cache_dir=cache)
    write(data / "aa.parquet", [[11]])
    assert loaded(hr.open(data, cache_dir=cache).pack(1)).tokens.tolist() == [0, 11, 1, 2]
    (data / "a.parquet").unlink()
    assert loaded(hr.open(data, cache_dir=cache).pack(1)).tokens.tolist() == [11, 1, 2]
    (data / "c.parquet").rename(data / "0.parquet")
    assert loaded(hr.open(data, cache_dir=cache).pack(1)).tokens.tolist() == [2, 11, 1]
    before = stamp(index_file(cache))
    hr.open(data, cache_dir=cache)
    assert stamp(index_file(cache)) == before


@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "other", "zeros"])
def test_a_damaged_index_is_built_anew(data: Path, cache: Path, damage: str) -> None:
    hr.open(data, cache_dir=cache)
    path = index_file(cache)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 16
    broken = {
        "empty": b"",
        "cut": whole[:-100],
        "flip": flipped,
        "other": b"some text\n" * 50,
        "zeros": bytes(len(whole)),
    }
    path.write_bytes(broken[damage])
    dataset = hr.open(data, cache_dir=cache)
    assert loaded(dataset.pack(1)).tokens.tolist() == [0, 1, 2]
    assert any(str(path) in note for note in dataset.info()["notes"])
    assert path.read_bytes() == whole, "it is mended"
    assert hr.open(data, cache_dir=cache).info()["notes"] == []


def test_a_cache_folder_that_cannot_be_written_hinders_nothing(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    dataset = hr.open(data, cache_dir=tmp_path / "file" / "cache")
    assert any("not saved" in note for note in dataset.info()["notes"])
    assert loaded(dataset.pack(1)).tokens.tolist() == [0, 1, 2]
    hr.DataLoader(dataset.pack(1), 1).state_dict()


def test_an_index_at_a_path(data: Path, cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "my.index"
    hr.open(data, cache_dir=cache, index=path)
    before = stamp(path)
    assert not cache.exists() or not list(cache.rglob("*.arrow"))
    dataset = hr.open(data, cache_dir=cache, index=str(path))
    assert stamp(path) == before
    assert loaded(dataset.pack(1)).tokens.tolist() == [0, 1, 2]
    write(data / "d.parquet", [[3]])
    assert loaded(hr.open(data, index=path).pack(1)).tokens.tolist() == [0, 1, 2, 3]
    assert stamp(path) != before


def test_an_index_path_that_cannot_be_used_is_an_error(data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "thesis.txt"
    mine.write_text("years of work")
    with pytest.raises(ValueError, match=r"thesis\.txt"):
        hr.open(data, index=mine)
    assert mine.read_text() == "years of work"
    with pytest.raises(hr.StoreError, match=r"thesis\.txt"):
        hr.open(data, index=mine / "below" / "a.index")
    with pytest.raises(hr.StoreError, match="data"):
        hr.open(data, index=data)


def test_an_index_next_to_the_data(data: Path, tmp_path: Path) -> None:
    written = hr.open(data, cache_dir=tmp_path / "one").save_index()
    assert written == str(data / "_headrace" / "index.arrow")
    assert Path(written).is_file()
    # A copy elsewhere that keeps its times, opened without a cache, needs no footer.
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    fresh = footers_read(hr.open(copy, cache_dir=tmp_path / "two", index="rebuild"))
    (tmp_path / "file").touch()
    found = hr.open(copy, cache_dir=tmp_path / "file" / "nowhere")
    assert found.files == [str(copy / name) for name in ("a.parquet", "b.parquet", "c.parquet")]
    assert footers_read(found) < fresh
    assert loaded(found.pack(1)).tokens.tolist() == [0, 1, 2]
    # It is checked like any other.
    write(copy / "b.parquet", [[5]])
    assert loaded(hr.open(copy, cache_dir=tmp_path / "three").pack(1)).tokens.tolist() == [0, 5, 2]
    Path(copy / "_headrace" / "index.arrow").write_bytes(b"damage")
    assert loaded(hr.open(copy, cache_dir=tmp_path / "four").pack(1)).tokens.tolist() == [0, 5, 2]


def test_no_index_next_to_what_is_no_folder(data: Path) -> None:
    for urls in (f"{data}/*.parquet", data / "a.parquet", [data / "a.parquet", data / "b.parquet"]):
        with pytest.raises(ValueError, match="folder"):
            hr.open(urls).save_index()


def test_one_folder_opened_twice_at_once(data: Path) -> None:
    # B133.
    one, two = hr.open(data).pack(1), hr.open(data).pack(1)
    first, second = (iter(hr.DataLoader(packed, 1, shuffle=False, epochs=1)) for packed in (one, two))
    pairs = [(next(first)["tokens"].item(), next(second)["tokens"].item()) for _ in range(3)]
    assert pairs == [(0, 0), (1, 1), (2, 2)]


# What is said of a dataset


def test_length_schema_and_info(tmp_path: Path) -> None:
    column = pa.array([[1, 2, 3], [], None, [4]], pa.large_list(pa.uint16()))
    table = pa.table({"id": pa.array(range(4), pa.int64()), "tokens": column, "text": ["a", "b", "c", "d"]})
    for name in ("a", "b"):
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=3, compression="zstd")
    dataset = hr.open(tmp_path)
    assert len(dataset) == 8
    assert list(dataset.schema) == ["id", "tokens", "text"]
    assert len(dataset.schema) == 3
    assert pa.schema(dataset.schema) == pq.read_schema(tmp_path / "a.parquet").remove_metadata()
    assert "tokens" in repr(dataset.schema)
    with pytest.raises(KeyError):
        dataset.schema["other"]
    info = dataset.info()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert {key: info[key] for key in ("url", "files", "row_groups", "rows", "bytes")} == {
        "url": str(tmp_path),
        "files": 2,
        "row_groups": 4,
        "rows": 8,
        "bytes": size,
    }
    assert list(info["columns"]) == ["tokens"]
    column_info = info["columns"]["tokens"]
    assert column_info["type"] == "uint16"
    assert column_info["codecs"] == ["zstd"]
    assert column_info["tokens"] in (8, None)
    assert column_info["documents"] in (4, None)
    packed = dataset.pack(3, eos_id=0)
    assert (packed.tokens, packed.weight, len(packed)) == (8, 12, 4)
    packed_info = packed.info()
    assert (packed_info["tokens"], packed_info["weight"], packed_info["seq_len"], packed_info["rows"]) == (8, 12, 3, 8)
    for text in (repr(dataset), repr(packed)):
        assert str(tmp_path) in text
        assert "8" in text
        assert len(text) < 300


def test_len_of_a_packed_dataset_is_known_from_the_index(tmp_path: Path) -> None:
    # B149.
    write(tmp_path / "a.parquet", count_up(10, 7))
    packed = hr.open(tmp_path).pack(4)
    assert len(packed) == 17
    assert len(hr.DataLoader(packed, 2, epochs=1)) == len(list(hr.DataLoader(packed, 2, epochs=1)))


# Changes during a run


@pytest.mark.parametrize("change", ["rewritten", "shorter", "longer", "touched", "removed"])
def test_a_file_that_changes_during_a_run_is_an_error(tmp_path: Path, change: str) -> None:
    # B110.
    paths = [write(tmp_path / f"{number:02}.parquet", count_up(50, 4, start=200 * number)) for number in range(60)]
    loader = hr.DataLoader(
        hr.open(tmp_path).pack(100), 1, shuffle=False, window=1, num_workers=1, prefetch_factor=1, epochs=1
    )
    iterator = iter(loader)
    seen = [next(iterator)["tokens"]]
    last = Path(paths[-1])
    if change == "rewritten":
        write(last, count_up(50, 4, start=0))
    elif change == "shorter":
        write(last, count_up(10, 4))
    elif change == "longer":
        write(last, count_up(500, 4))
    elif change == "touched":
        os.utime(last, ns=(1, 1))
    else:
        last.unlink()
    error, part = (hr.MissingError, "59") if change == "removed" else (hr.DataError, "changed")
    with pytest.raises(error, match=part) as caught:
        seen.extend(batch["tokens"] for batch in iterator)
    assert str(last) in str(caught.value)
    # What was given before was right.
    assert [tokens.ravel()[0] for tokens in seen] == [100 * number for number in range(len(seen))]


def test_a_file_replaced_before_the_run_is_an_error_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, count_up(50))
    packed = hr.open(path).pack(10)
    write(path, count_up(60))
    with pytest.raises(hr.DataError, match=r"a\.parquet: changed"):
        next(iter(hr.DataLoader(packed, 1)))


# Many files


def test_many_small_files_index_in_a_few_times_their_listing(tmp_path: Path) -> None:
    # B112.
    content = Path(write(tmp_path / "one.parquet", [[1, 2]], store_schema=False)).read_bytes()
    folder, count = tmp_path / "data", 20_000
    for number in range(count):
        if number % 200 == 0:
            (folder / f"{number:05}").mkdir(parents=True)
        (folder / f"{number - number % 200:05}" / f"{number}.parquet").write_bytes(content)
    start = time.perf_counter()
    for path in folder.rglob("*.parquet"):
        with path.open("rb") as file:
            file.read(8)
    listing = time.perf_counter() - start
    start = time.perf_counter()
    dataset = hr.open(folder, cache_dir=tmp_path / "cache")
    building = time.perf_counter() - start
    assert (dataset.info()["files"], len(dataset)) == (count, count)
    start = time.perf_counter()
    assert len(hr.open(folder, cache_dir=tmp_path / "cache")) == count
    saved = time.perf_counter() - start
    assert building < 10 * listing, f"{building:.1f} s for the index, {listing:.1f} s for listing and opening"
    assert saved < 10 * listing
