"""Writes MDS datasets with MosaicML Streaming and what it reads in them: `.venv-peers/bin/python write_mds.py FOLDER`.

Below the folder each dataset has a folder of its own; ``values.pkl`` has the samples of each as `plain` shows them.
"""

import json
import os
import pickle
import shutil
import sys
import warnings
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from plain_values import plain

warnings.filterwarnings("ignore")


def encodings() -> dict[str, list]:
    """Values of each encoding that the package can write."""
    from PIL import Image

    rng = np.random.default_rng(0)

    def image(mode: str, width: int = 9, height: int = 5):
        bands = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "LA": 2}
        if mode in bands:
            shape = (height, width) if mode == "L" else (height, width, bands[mode])
            return Image.fromarray(rng.integers(0, 256, shape, np.uint8), mode=mode)
        if mode == "I":
            return Image.fromarray(rng.integers(-9, 9, (height, width), np.int32))
        if mode == "F":
            return Image.fromarray(rng.random((height, width), np.float32))
        return Image.fromarray(rng.integers(0, 256, (height, width), np.uint8)).convert(mode)

    modes = ["L", "RGB", "RGBA", "CMYK", "LA", "I", "F", "1", "P", "YCbCr", "HSV"]
    found: dict[str, list] = {
        "bytes": [b"", b"\0\xff", b"x" * 1000],
        "str": ["", "text", "ä€\U0001f600\n\0"],
        "int": [0, -(2**63), 2**63 - 1],
        "str_int": [0, -(10**50), 10**50],
        "str_float": [0.1, -1e300, float("inf"), float("nan")],
        "str_decimal": [Decimal("1.10"), Decimal("-1e999"), Decimal("NaN")],
        "pil": [image(mode) for mode in modes],
        "jpeg": [image("RGB"), image("L"), image("CMYK")],
        "png": [image("RGB"), image("RGBA"), image("1"), image("P")],
        "list[pil]": [[], [image("RGB"), image("L")]],
        "list[jpeg]": [[], [image("RGB"), image("L")]],
        "list[png]": [[], [image("RGB"), image("RGBA")]],
        "pkl": [None, {"a": [1, (2, 3)]}, np.arange(3)],
        "json": [None, {"b": 1, "a": [1.5, "ä", True]}, [], float("nan"), np.arange(3)],
        "ndarray": [np.ones(1, np.uint8), np.arange(6, dtype=np.float32).reshape(1, 2, 3), np.ones((300, 2), np.int16)],
        "ndarray:int32": [np.arange(4, dtype=np.int32).reshape(2, 2), np.zeros(70000, np.int32)],
        "ndarray:float64:2,3": [np.arange(6.0).reshape(2, 3), -np.ones((2, 3))],
    }
    for kind in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"):
        bounds = np.iinfo(kind)
        found[kind] = [0, int(bounds.min), int(bounds.max)]
        found["ndarray"].append(np.array([bounds.min, bounds.max], kind))
    for kind in ("float16", "float32", "float64"):
        found[kind] = [0.0, -1.5, float("inf"), float("nan"), float(np.finfo(kind).tiny)]
        found["ndarray"].append(np.array([[1.5, np.nan]], kind))

    for name in ("jpeg_array", "jpegarray"):
        blobs = []
        for mode in ("RGB", "L"):
            out = BytesIO()
            image(mode).save(out, format="JPEG")
            blobs.append(out.getvalue())
        found[name] = [blobs[:1], blobs]
    return found


def main(folder: Path) -> None:
    from streaming import CSVWriter, JSONWriter, LocalDataset, MDSWriter, TSVWriter, XSVWriter
    from streaming.base.compression import decompress, get_compressions
    from streaming.base.format.mds.encodings import get_mds_encodings
    from streaming.base.hashing import get_hashes
    from streaming.base.util import merge_index

    values: dict[str, list] = {}

    def write(name, make, columns, samples, **options):
        with make(columns=columns, out=str(folder / name), **options) as writer:
            for sample in samples:
                writer.write(sample)
        read(name)

    def read(name: str) -> None:
        """Samples by the package's own readers, of shards that the package decompressed."""
        copy = folder / "copies" / name.replace("/", "-")
        shutil.copytree(folder / name, copy)
        for shard in json.loads((copy / "index.json").read_text())["shards"]:
            for part in ("data", "meta"):
                if packed := shard.get(f"zip_{part}"):
                    data = (copy / packed["basename"]).read_bytes()
                    (copy / shard[f"raw_{part}"]["basename"]).write_bytes(decompress(shard["compression"], data))
        data = LocalDataset(local=str(copy))
        values[name] = [plain(data[at]) for at in range(len(data))]

    known = encodings()
    assert {name.partition(":")[0] for name in known} == get_mds_encodings()
    for encoding, cells in known.items():
        name = "encoding-" + encoding.replace(":", "_").replace(",", "x")
        write(name, MDSWriter, {"value": encoding}, [{"value": cell} for cell in cells], hashes=["sha1"])

    longest = max(map(len, known.values()))
    mixed = [{name: cells[at % len(cells)] for name, cells in known.items()} for at in range(longest)]
    write("mixed", MDSWriter, {name: name for name in known}, mixed, size_limit=4000)
    values["mixed encodings"] = sorted(known)

    columns = {"text": "str", "label": "int", "x": "ndarray:float32:3"}
    samples = [{"text": f"text {at}" * (at % 5), "label": at, "x": np.full(3, at, np.float32)} for at in range(40)]
    for compression in sorted(get_compressions()):
        if compression in ("br", "br:3", "bz2", "bz2:1", "gz", "gz:1", "snappy", "zstd", "zstd:3", "zstd:19"):
            write("packed-" + compression, MDSWriter, columns, samples, compression=compression, size_limit=800)
    write("hashed", MDSWriter, columns, samples, compression="zstd:3", hashes=sorted(get_hashes()), size_limit=800)
    with MDSWriter(columns=columns, out=str(folder / "empty")):
        pass  # The package cannot read it back.
    values["hash names"] = sorted(get_hashes())

    texts = {"text": "str", "label": "int", "score": "float"}
    lines = [{"text": f"täxt {at}", "label": -at, "score": at / 8} for at in range(30)]
    for kind, make, options in [
        ("json", JSONWriter, {}),
        ("csv", CSVWriter, {}),
        ("tsv", TSVWriter, {"newline": "\r\n"}),
        ("xsv", XSVWriter, {"separator": "||"}),
    ]:
        write(kind, make, texts, lines, size_limit=300, **options)
        write(f"{kind}-packed", make, texts, lines, size_limit=300, compression="zstd:5", hashes=["md5"], **options)

    for part in range(3):
        write(f"merged/part-{part}", MDSWriter, columns, samples[part * 5 : part * 5 + 5], size_limit=300)
    merge_index(str(folder / "merged"), keep_local=True)
    read("merged")

    shutil.rmtree(folder / "copies")
    (folder / "values.pkl").write_bytes(pickle.dumps(values))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # Streaming's threads and clients are of no interest here.
