"""The command line, run as a user runs it: its numbers beside pyarrow's, its exit codes, its messages."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SEQ_LEN = 64
GROUP = 25


class Data:
    """Three files of several row groups, in a folder with a space and other trouble in its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a b #1% [x]"
        self.folder.mkdir(parents=True)
        self.cache = folder / "cache"
        draw = random.Random(5)
        self.documents: list[list[list[int]]] = []
        for number in range(3):
            lengths = [draw.choice([0, 1, draw.randrange(300), draw.randrange(3000)]) for _ in range(100)]
            documents = [[draw.randrange(1, 5000) for _ in range(length)] for length in lengths]
            self.documents.append(documents)
            write(self.file(number), documents)

    def file(self, number: int) -> Path:
        return self.folder / f"part {number}.parquet"

    @property
    def lengths(self) -> list[int]:
        return [len(document) for file in self.documents for document in file]

    def run(self, *arguments: str | Path, code: int = 0, module: bool = False) -> subprocess.CompletedProcess[str]:
        """Runs a command, which must end with `code`."""
        program = [sys.executable, "-m", "headrace"] if module else [str(Path(sys.executable).parent / "headrace")]
        environment = os.environ | {"HEADRACE_CACHE": str(self.cache), "COLUMNS": "200"}
        for name in ("RANK", "WORLD_SIZE"):
            environment.pop(name, None)
        command = [*program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str | Path, code: int = 0) -> Any:
        """Runs a command with --json, which must print JSON and nothing else."""
        done = self.run(*arguments, "--json", code=code)
        return json.loads(done.stdout)


def write(path: Path, documents: list[list[int]], **options: Any) -> None:
    count = len(documents)
    table = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "text": [None if number % 7 == 0 else f"document {number}" * (number % 5) for number in range(count)],
            "meta": [{"scores": [0.5, None] * (number % 3), "flag": number % 2 == 0} for number in range(count)],
            "tokens": pa.array(documents, pa.list_(pa.int32())),
        }
    )
    options = {"row_group_size": GROUP, "compression": "zstd", "write_page_checksum": True} | options
    pq.write_table(table, path, **options)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Data that no test changes."""
    return Data(tmp_path_factory.mktemp("whole"))


def column_bytes(path: Path, column: int = -1) -> list[int]:
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [group.column(group.num_columns + column).total_compressed_size for group in groups]


# inspect


def test_inspect_counts_what_pyarrow_reads(whole: Data) -> None:
    report = whole.json("inspect", whole.folder)
    lengths = sorted(whole.lengths)
    assert (report["files"], report["row_groups"], report["documents"]) == (3, 12, 300)
    assert report["tokens"] == sum(lengths)
    assert report["bytes"] == sum(path.stat().st_size for path in whole.folder.iterdir())
    info = report["columns"]["tokens"]
    assert (info["type"], info["codecs"]) == ("int32", ["zstd"])
    assert info["bytes"] == sum(sum(column_bytes(whole.file(number))) for number in range(3))
    assert list(report["schema"]) == ["id", "text", "meta", "tokens"]
    found = report["lengths"]
    assert (found["documents"], found["empty"], found["tokens"]) == (300, lengths.count(0), sum(lengths))
    assert (found["min"], found["max"]) == (lengths[0], lengths[-1])
    assert found["mean"] == pytest.approx(sum(lengths) / 300)
    for bucket in found["histogram"]:
        inside = [length for length in lengths if bucket["from"] <= length <= bucket["to"]]
        assert (bucket["documents"], bucket["tokens"]) == (len(inside), sum(inside))
    assert sum(bucket["documents"] for bucket in found["histogram"]) == 300
    for name, quantile in found["quantiles"].items():
        exact = lengths[-(-300 * float(name[1:]) // 100).__int__() - 1]
        assert exact * 255 // 256 <= quantile <= exact


def test_inspect_prints_tables(whole: Data) -> None:
    done = whole.run("inspect", whole.folder)
    assert str(whole.folder) in done.stdout
    assert f"{sum(whole.lengths):,} in column 'tokens'" in done.stdout
    assert "document lengths" in done.stdout
    assert done.stderr == ""


def test_inspect_without_lengths_reads_footers_only(whole: Data) -> None:
    report = whole.json("inspect", whole.folder, "--no-lengths")
    assert report["lengths"] is None
    assert report["documents"] == 300


def test_inspect_of_data_without_tokens(data: Data) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), data.folder / "other.parquet")
    report = data.json("inspect", data.folder / "other.parquet")
    assert (report["column"], report["lengths"], report["documents"]) == (None, None, 2)
    assert "no column is a list of integers" in data.run("inspect", data.folder / "other.parquet").stdout
    done = data.run("inspect", data.folder / "other.parquet", "--column", "a", code=2)
    assert 'expected column "a" to be a list of integers' in done.stderr
    done = data.run("inspect", data.folder, code=2)
    assert "other.parquet" in done.stderr


def test_a_column_is_chosen_if_it_is_the_only_one(data: Data) -> None:
    path = data.folder / "ids.parquet"
    pq.write_table(pa.table({"ids": [[1, 2], [3]]}), path)
    assert data.json("inspect", path)["column"] == "ids"
    pq.write_table(pa.table({"ids": [[1, 2], [3]], "mask": [[1], [2]]}), path)
    done = data.run("inspect", path, code=2)
    assert "ids, mask" in done.stderr
    assert "--column" in done.stderr
    assert data.json("inspect", path, "--column", "mask")["tokens"] == 2


# verify


def test_verify_of_sound_files(whole: Data) -> None:
    report = whole.json("verify", whole.folder)
    wanted = {"files": 3, "row_groups": 12, "documents": 300, "tokens": sum(whole.lengths), "faults": []}
    assert report == wanted
    assert whole.run("verify", whole.folder).stdout.endswith("no fault\n")


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_verify_reads_every_type_and_codec(tmp_path: Path, compression: str, version: str) -> None:
    data = Data(tmp_path)
    count = 3000
    columns: dict[str, Any] = {
        "bool": pa.array([None if n % 5 == 0 else n % 2 == 0 for n in range(count)]),
        "int8": pa.array([n % 100 for n in range(count)], pa.int8()),
        "int64": pa.array(range(count), pa.int64()),
        "float": pa.array([n / 7 for n in range(count)], pa.float32()),
        "double": pa.array([n / 7 for n in range(count)], pa.float64()),
        "half": pa.array([b"ab"] * count, pa.binary(2)),
        "binary": pa.array([bytes([n % 256]) * (n % 20) for n in range(count)]),
        "string": pa.array(["ä" * (n % 9) for n in range(count)]),
        "nothing": pa.array([None] * count, pa.string()),
        "decimal": pa.array(list(range(count)), pa.decimal128(20, 2)),
        "time": pa.array(range(count), pa.timestamp("us")),
        "lists": pa.array([[str(n)] * (n % 4) for n in range(count)]),
        "map": pa.array([[("k", n)] for n in range(count)], pa.map_(pa.string(), pa.int64())),
        "tokens": pa.array([list(range(n % 10)) for n in range(count)]),
    }
    path = data.folder / "types.parquet"
    pq.write_table(
        pa.table(columns),
        path,
        row_group_size=1000,
        compression=compression,
        data_page_version=version,
        data_page_size=2000,
        use_dictionary=["string", "int8", "tokens"],
        column_encoding={"int64": "DELTA_BINARY_PACKED", "binary": "DELTA_BYTE_ARRAY", "float": "BYTE_STREAM_SPLIT"},
    )
    report = data.json("verify", path)
    assert report["faults"] == []
    assert (report["row_groups"], report["documents"]) == (3, count)
    assert report["tokens"] == sum(n % 10 for n in range(count))


def test_verify_finds_every_fault(data: Data) -> None:
    cut, magic, empty, head = (
        data.folder / name for name in ("cut.parquet", "magic.parquet", "zero.parquet", "head.parquet")
    )
    whole = data.file(0).read_bytes()
    cut.write_bytes(whole[:-1000])
    magic.write_bytes(whole[:-4] + b"PORK")
    empty.write_bytes(b"")
    head.write_bytes(b"PORK" + whole[4:])
    # A byte in a page of the tokens of row group 2, and one in the texts of row group 1.
    metadata = pq.ParquetFile(data.file(1)).metadata
    damaged = bytearray(data.file(1).read_bytes())
    for group, name in ((2, "tokens.list.element"), (1, "text")):
        columns = [metadata.row_group(group).column(number) for number in range(metadata.row_group(group).num_columns)]
        column = next(column for column in columns if column.path_in_schema == name)
        start = column.dictionary_page_offset or column.data_page_offset
        damaged[start + column.total_compressed_size - 3] ^= 0x10
    data.file(1).write_bytes(damaged)
    report = data.json("verify", data.folder, code=1)
    faults = {(Path(fault["file"]).name, fault["row_group"], fault["column"]): fault for fault in report["faults"]}
    assert set(faults) == {
        ("cut.parquet", None, None),
        ("magic.parquet", None, None),
        ("zero.parquet", None, None),
        ("head.parquet", None, None),
        ("part 1.parquet", 1, "text"),
        ("part 1.parquet", 2, "tokens"),
    }
    assert "PAR1" in faults["magic.parquet", None, None]["message"]
    assert "PAR1" in faults["head.parquet", None, None]["message"]
    assert "0" in faults["zero.parquet", None, None]["message"]
    assert (report["files"], report["row_groups"]) == (7, 16)
    # What is sound is read all the same.
    lengths = [len(document) for document in data.documents[1]]
    lost = sum(lengths[2 * GROUP : 3 * GROUP])
    assert report["tokens"] == sum(data.lengths) + sum(map(len, data.documents[0])) - lost
    done = data.run("verify", data.folder, code=1)
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    assert lines[-1].endswith("6 faults")
    assert any("part 1.parquet, column 'tokens', row group 2: page at byte" in line for line in lines)


def test_verify_without_checksums_never_crashes(data: Data) -> None:
    """Bytes flipped anywhere: faults or none, but an answer."""
    write(data.file(0), data.documents[0], write_page_checksum=False)
    whole = data.file(0).read_bytes()
    data.file(1).unlink()
    data.file(2).unlink()
    draw = random.Random(11)
    codes = set()
    for _ in range(12):
        damaged = bytearray(whole)
        for _ in range(8):
            damaged[draw.randrange(4, len(damaged))] ^= 1 << draw.randrange(8)
        data.file(0).write_bytes(damaged)
        program = str(Path(sys.executable).parent / "headrace")
        done = subprocess.run(
            [program, "verify", str(data.folder), "--json"], capture_output=True, timeout=60, check=False
        )
        report = json.loads(done.stdout)
        assert done.returncode == (1 if report["faults"] else 0)
        assert b"Traceback" not in done.stderr
        codes.add(done.returncode)
    assert 1 in codes


def test_verify_with_a_column_reads_others_as_they_are(data: Data) -> None:
    """A list of large integers is no fault unless it is meant for tokens."""
    path = data.folder / "large.parquet"
    pq.write_table(pa.table({"tokens": [[1, 2]], "spans": [[2**40, None]]}), path)
    assert [fault["column"] for fault in data.json("verify", path, code=1)["faults"]] == ["spans"]
    assert data.json("verify", path, "--column", "tokens")["faults"] == []
    (fault,) = data.json("verify", path, "--column", "nope", code=1)["faults"]
    assert (fault["column"], fault["row_group"]) == ("nope", None)


def test_verify_of_text_that_is_not_utf8(data: Data) -> None:
    path = data.folder / "text.parquet"
    text = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\x01\0\0\0\x02\0\0\0"), pa.py_buffer(b"a\xff"))
    pq.write_table(pa.table({"text": text}), path)
    (fault,) = data.json("verify", path, code=1)["faults"]
    assert fault["column"] == "text"
    assert "UTF-8" in fault["message"]


# plan


@pytest.mark.parametrize("world", [1, 4])
def test_plan_agrees_with_the_loader(whole: Data, world: int) -> None:
    import headrace

    report = whole.json(
        "plan", whole.folder, "--seq-len", str(SEQ_LEN), "--batch", "8", "--world", str(world), "--eos-id", "0"
    )
    weight = sum(whole.lengths) + sum(1 for length in whole.lengths if length)
    assert report["tokens_per_pass"] == weight
    packed = headrace.open(whole.folder, cache_dir=whole.cache).pack(SEQ_LEN, eos_id=0)
    loader = headrace.DataLoader(packed, global_batch_size=8, seed=0)
    assert report["steps"] == len(loader)
    assert report["tokens"] == len(loader) * 8 * SEQ_LEN
    stats = loader.stats()
    assert (report["lanes"], report["window"]) == (stats["lanes"], min(stats["window"], 12))
    assert report["documents_cut"] == pytest.approx(stats["documents_cut"])
    stored = sum(sum(column_bytes(whole.file(number))) for number in range(3))
    assert report["column_bytes"] == stored
    assert len(report["bytes_by_rank"]) == world
    assert report["bytes_all_ranks"] == sum(report["bytes_by_rank"])
    assert report["read_amplification"] == pytest.approx(report["bytes_all_ranks"] / stored)
    assert report["read_amplification_bound"] == pytest.approx(1 + (world - 1) / report["window"])
    largest = sorted((size for number in range(3) for size in column_bytes(whole.file(number))), reverse=True)
    assert stored <= report["bytes_all_ranks"] <= stored + sum(largest[: world - 1])
    assert bool(report["warnings"]) == (world * 8 > report["window"] and world > 1)


def test_plan_says_what_a_rank_reads(whole: Data) -> None:
    """The bytes that are planned are those that the engine asks for in one pass."""
    import headrace

    options = [
        "--seq-len",
        str(SEQ_LEN),
        "--batch",
        "4",
        "--world",
        "2",
        "--window",
        "3",
        "--lanes",
        "4",
        "--seed",
        "7",
    ]
    report = whole.json("plan", whole.folder, *options)
    packed = headrace.open(whole.folder, cache_dir=whole.cache).pack(SEQ_LEN)
    for rank in range(2):
        loader = headrace.DataLoader(
            packed, global_batch_size=4, seed=7, window=3, lanes=4, rank=rank, world_size=2, epochs=1
        )
        for _ in loader:
            pass
        assert loader.stats()["chunk_bytes"] == report["bytes_by_rank"][rank]
    assert report["windows"] == 4


def test_plan_of_many_ranks_plans_the_first(whole: Data) -> None:
    report = whole.json("plan", whole.folder, "--seq-len", "1", "--batch", "100000", "--world", "100000")
    assert report["ranks_planned"] == "0"
    assert (len(report["bytes_by_rank"]), report["bytes_all_ranks"]) == (1, None)
    done = whole.run("plan", whole.folder, "--seq-len", "1", "--batch", "100000", "--world", "100000")
    assert "by rank 0, the only one planned" in done.stdout
    assert "warning" in done.stderr


def test_plan_refuses_what_cannot_run(whole: Data) -> None:
    common = ("plan", whole.folder, "--seq-len", "64")
    done = whole.run(*common, "--batch", "9", "--world", "2", code=2)
    assert "multiple of world_size=2, got 9\nhint: 8 or 10 would do" in done.stderr
    done = whole.run(*common, "--batch", "8", "--memory", "1kB", code=2)
    assert "too small" in done.stderr
    done = whole.run(*common, "--batch", "8", "--memory", "plenty", code=2)
    assert '"2GiB"' in done.stderr
    done = whole.run("plan", whole.folder, "--seq-len", "1000000", "--batch", "8", code=2)
    assert done.stdout == ""


# show


def test_show_gives_the_loaders_row(whole: Data) -> None:
    import headrace

    packed = headrace.open(whole.folder, cache_dir=whole.cache).pack(SEQ_LEN, eos_id=0, bos_id=5001)
    loader = headrace.DataLoader(packed, global_batch_size=6, seed=3, rank=0, world_size=1)
    loader.seek(20)
    batch = next(iter(loader))
    options = ["--seq-len", str(SEQ_LEN), "--batch", "6", "--seed", "3", "--eos-id", "0", "--bos-id", "5001"]
    for row in (0, 5):
        report = whole.json("show", whole.folder, *options, "--step", "20", "--row", str(row))
        assert report["tokens"] == batch["tokens"][row].tolist()
        assert (report["number"], report["epoch"]) == (batch.rows[row], batch.epoch)
        at = 0
        for document, source in zip(report["documents"], batch.sources()[row], strict=True):
            assert (document["file"], document["row_group"], document["row"]) == source[:3]
            assert document["start"] == at
            at = document["end"]
            part = report["tokens"][document["start"] : at]
            number = int(Path(document["file"]).stem.split()[-1])
            stored = whole.documents[number][document["row_group"] * GROUP + document["row"]]
            first = document["first_token"]
            own = [token for token in part if token not in (0, 5001)]
            assert own == stored[first : first + document["tokens"]]
        assert at == SEQ_LEN


def test_show_prints_documents_and_text(data: Data) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"[b]{number}": number for number in range(5002)}
    model = tokenizers.models.WordLevel(words, unk_token="[b]0")
    file = data.folder.parent / "tokenizer file.json"
    tokenizers.Tokenizer(model).save(str(file))
    options = ["--seq-len", str(SEQ_LEN), "--batch", "4", "--step", "2", "--row", "1"]
    report = data.json("show", data.folder, *options, "--tokenizer", file)
    assert report["text"] == " ".join(f"[b]{token}" for token in report["tokens"])
    for document in report["documents"]:
        assert document["text"] == " ".join(
            f"[b]{token}" for token in report["tokens"][document["start"] : document["end"]]
        )
    done = data.run("show", data.folder, *options, "--tokenizer", file)
    assert f"  | {report['documents'][0]['text']}" in done.stdout
    assert report["documents"][0]["file"] in done.stdout
    done = data.run("show", data.folder, *options, "--tokenizer", data.folder / "none.json", code=2)
    assert "none of that name" in done.stderr
    done = data.run("show", data.folder, *options, "--tokenizer", data.file(0), code=2)
    assert "expected a tokenizers JSON file" in done.stderr


def test_show_without_the_tokenizers_package(data: Data) -> None:
    block = "import sys; sys.modules['tokenizers'] = None; from headrace.cli import app; app(prog_name='headrace')"
    options = ["--seq-len", "8", "--batch", "1", "--step", "0", "--row", "0", "--tokenizer", "x.json"]
    command = [sys.executable, "-c", block, "show", str(data.folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "hint: pip install tokenizers" in done.stderr
    assert "Traceback" not in done.stderr


def test_show_refuses_a_row_that_is_none(whole: Data) -> None:
    done = whole.run("show", whole.folder, "--seq-len", "8", "--batch", "4", "--step", "0", "--row", "4", code=2)
    assert "--row must be in 0..3" in done.stderr


# index, and the program


def test_index_in_place_is_found_again(data: Data) -> None:
    report = data.json("index", data.folder, "--in-place", "--column", "tokens")
    written = data.folder / "_headrace" / "index.arrow"
    assert report["written"] == str(written)
    assert written.stat().st_size > 0
    assert (report["files"], report["row_groups"], report["documents"]) == (3, 12, 300)
    assert data.json("inspect", data.folder)["files"] == 3
    done = data.run("index", data.file(0), "--in-place", code=2)
    assert "one folder" in done.stderr
    assert data.json("index", data.file(0))["written"] is None


@pytest.mark.parametrize("command", ["inspect", "verify", "index"])
def test_what_is_not_there_is_one_message(whole: Data, command: str) -> None:
    done = whole.run(command, whole.folder / "none", code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"headrace {command}: ")
    assert "none" in done.stderr


def test_damaged_data_is_one_message(data: Data) -> None:
    data.file(1).write_bytes(data.file(1).read_bytes()[:-300])
    done = data.run("inspect", data.folder, "--json", code=2)
    assert done.stdout == ""
    assert "part 1.parquet" in done.stderr


def test_wrong_arguments(whole: Data) -> None:
    whole.run("inspect", code=2)
    whole.run("plan", whole.folder, code=2)
    whole.run("plan", whole.folder, "--seq-len", "0", "--batch", "1", code=2)
    whole.run("nothing", code=2)
    done = whole.run("inspect", whole.folder, "--storage-option", "secret", code=2)
    assert "KEY=VALUE" in done.stderr
    assert "secret" not in done.stderr


def test_version_and_help(whole: Data) -> None:
    import headrace

    for module in (False, True):
        assert whole.run("--version", module=module).stdout == f"headrace {headrace.__version__}\n"
        shown = whole.run("--help", module=module).stdout
        for command in ("inspect", "verify", "plan", "show", "index", "demo"):
            assert f"  {command} " in shown


def test_help_imports_little(whole: Data) -> None:
    code = (
        "import sys; from headrace.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'rich', 'pyarrow', 'torch', 'tokenizers', 'headrace.demo.run'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("[]\n"), done.stdout


# headrace cache


def test_cache_shows_and_empties_its_folder(tmp_path: Path) -> None:
    data = Data(tmp_path)
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "a.bin").write_bytes(bytes(50_000))
    program = "import headrace, sys; headrace.open(f'local:{sys.argv[1]}', cache_size=10**9, cache_dir=sys.argv[2])[0]"
    subprocess.run([sys.executable, "-c", program, str(mount), str(data.cache)], check=True, timeout=120)
    data.run("index", data.folder)
    assert data.run("cache", "path").stdout == f"{data.cache}\n"
    assert data.json("cache", "path") == {"path": str(data.cache)}
    held = data.json("cache", "info")
    assert held["path"] == str(data.cache)
    assert held["data"] == {"files": 1, "bytes": 50_040}
    assert held["index"]["files"] == 1
    assert "48.9 KiB in 1 file" in data.run("cache", "info").stdout
    (data.cache / "mine.txt").write_text("not headrace's")
    assert data.json("cache", "clear")["data"] == held["data"]
    left = data.json("cache", "info")
    assert left["data"] == {"files": 0, "bytes": 0}
    assert left["index"] == held["index"]
    assert data.json("cache", "clear", "--all")["index"] == held["index"]
    assert data.json("cache", "info")["index"]["files"] == 0
    assert (data.cache / "mine.txt").exists()
    other = tmp_path / "other"
    assert data.json("cache", "info", "--cache-dir", other)["data"] == {"files": 0, "bytes": 0}
    assert not other.exists()
