"""Writes folders with the real `datasets`, and what it reads in them: `python -P huggingface_writer.py FOLDER`.

A program of its own, as `datasets` is also the name of a module of these tests. Each case becomes a folder, and beside
it a pickle of its rows with images as (mode, size, pixels).
"""

import datetime
import decimal
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import soundfile

import datasets as hf

ROWS = 7


def main(folder: Path) -> None:
    hf.disable_progress_bars()
    for name, (features, row) in cases().items():
        data = {column: [row(number)[column] for number in range(ROWS)] for column in features}
        data = {
            column: [None if number == 3 else value for number, value in enumerate(values)]
            for column, values in data.items()
        }
        dataset = hf.Dataset.from_dict(data, features=hf.Features(features), split="train")
        save(dataset, folder / name, num_shards=2)
    text = hf.Dataset.from_dict({"a": list(range(2500)), "b": [str(number) for number in range(2500)]})
    save(text, folder / "batches", num_shards=3)
    save(text.shuffle(seed=1).select(range(50)), folder / "shuffled")
    save(text.with_format("python", columns=["b"]), folder / "format_columns")
    save(text.with_format("python", columns=["b"], output_all_columns=True), folder / "format_all_columns")
    text.select([]).save_to_disk(folder / "empty")  # Which `datasets` itself does not read.
    hf.DatasetDict({"train": text, "test": text.select([1])}).save_to_disk(folder / "splits")
    sounds(folder)


def save(dataset: hf.Dataset, path: Path, **options: Any) -> None:
    dataset.save_to_disk(path, **options)
    rows = [plain(row) for row in hf.load_from_disk(path)]
    path.with_suffix(".pickle").write_bytes(pickle.dumps(rows))


def sounds(folder: Path) -> None:
    """Columns of bytes that are declared to be sound: encoding sound needs a package of its own."""
    files = [sound(channels, subtype) for channels, subtype in ((1, "PCM_16"), (2, "PCM_16"), (1, "FLOAT"))]
    stored = {"bytes": hf.Value("binary"), "path": hf.Value("string")}
    rows = [{"bytes": data, "path": f"{number}.wav"} for number, data in enumerate(files)]
    rows.append(None)
    dataset = hf.Dataset.from_dict(
        {"audio": rows, "rate": rows}, features=hf.Features({"audio": stored, "rate": stored})
    )
    save(dataset, folder / "audio")
    info = folder / "audio" / "dataset_info.json"
    described = json.loads(info.read_text())
    described["features"] = {
        "audio": {"_type": "Audio"},
        "rate": {"_type": "Audio", "sampling_rate": 16000, "decode": True},
    }
    info.write_text(json.dumps(described))


def sound(channels: int, subtype: str) -> bytes:
    file = io.BytesIO()
    samples = np.sin(np.arange(200 * channels) / 9).reshape(-1, channels) * 0.7
    soundfile.write(file, samples, 16000, format="WAV", subtype=subtype)
    return file.getvalue()


def plain(value: Any) -> Any:
    if isinstance(value, PIL.Image.Image):
        return ("image", value.mode, value.size, value.tobytes())
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def image(number: int, mode: str = "RGB") -> PIL.Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (4, 3 + number, 3), np.uint8)
    return PIL.Image.fromarray(pixels).convert(mode)


def turned(number: int) -> dict[str, Any]:
    """A JPEG whose Exif data says that it lies on its side."""
    file = io.BytesIO()
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    image(number).save(file, "JPEG", exif=exif)
    return {"bytes": file.getvalue(), "path": f"{number}.jpg"}


def cases() -> dict[str, Any]:
    day = datetime.datetime(2020, 1, 2, 3, 4, 5)
    numbers = [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ]
    times = {
        "timestamp[s]": day,
        "timestamp[us]": day,
        "timestamp[ms, tz=UTC]": day.replace(tzinfo=datetime.timezone.utc),  # noqa: UP017
        "date32": day.date(),
        "time32[s]": day.time(),
        "time64[us]": day.time(),
        "duration[ms]": datetime.timedelta(seconds=5),
    }
    value = hf.Value
    return {
        "numbers": ({name: value(name) for name in numbers}, lambda number: dict.fromkeys(numbers, number)),
        "values": (
            {
                "bool": value("bool"),
                "string": value("string"),
                "large_string": value("large_string"),
                "binary": value("binary"),
                "large_binary": value("large_binary"),
                "decimal": value("decimal128(10, 2)"),
                "null": value("null"),
                "label": hf.ClassLabel(names=["no", "yes"]),
            },
            lambda number: {
                "bool": number % 2 == 0,
                "string": "é" * number,
                "large_string": "b" * number,
                "binary": bytes([0, 255]) * number,
                "large_binary": b"d",
                "decimal": decimal.Decimal(number) / 4,
                "null": None,
                "label": number % 2,
            },
        ),
        "times": ({name: value(name) for name in times}, lambda number: times),
        "lists": (
            {
                "list": hf.List(value("int32")),
                "large": hf.LargeList(value("float32")),
                "fixed": hf.List(value("int64"), length=3),
                "old": [value("string")],
                "structs": hf.List({"a": value("int32"), "b": value("string")}),
                "columns": hf.Sequence({"a": value("int32"), "b": value("string")}),
                "lists": hf.List(hf.List(value("int16"))),
            },
            lambda number: {
                "list": list(range(number)),
                "large": [0.5] * number,
                "fixed": [number] * 3,
                "old": ["x", ""][:number],
                "structs": [{"a": part, "b": "y"} for part in range(number)],
                "columns": {"a": [1] * number, "b": ["z"] * number},
                "lists": [[1], [], [number] * number],
            },
        ),
        "nested": (
            {"outer": {"inner": {"a": value("int32"), "b": [{"c": value("string")}]}, "d": value("bool")}},
            lambda number: {"outer": {"inner": {"a": number, "b": [{"c": "x"}] * number}, "d": True}},
        ),
        "arrays": (
            {
                "2": hf.Array2D((2, 3), "int32"),
                "3": hf.Array3D((1, 2, 2), "uint8"),
                "4": hf.Array4D((1, 1, 2, 1), "float32"),
                "5": hf.Array5D((1, 1, 1, 1, 2), "float64"),
                "ragged": hf.Array2D((None, 2), "int64"),
            },
            lambda number: {
                "2": np.full((2, 3), number, np.int32),
                "3": np.full((1, 2, 2), number, np.uint8),
                "4": np.full((1, 1, 2, 1), number, np.float32),
                "5": np.full((1, 1, 1, 1, 2), number, np.float64),
                "ragged": np.full((number + 1, 2), number, np.int64),
            },
        ),
        "translation": (
            {"pair": hf.Translation(["en", "fr"])},
            lambda number: {"pair": {"en": "a" * number, "fr": "b"}},
        ),
        "translations": (
            {"some": hf.TranslationVariableLanguages(["en", "fr"])},
            lambda number: {"some": {"en": ["a", "b"], "fr": "c"}},
        ),
        "images": (
            {
                "png": hf.Image(),
                "grey": hf.Image(mode="L"),
                "turned": hf.Image(),
                "stored": hf.Image(decode=False),
                "list": hf.List(hf.Image()),
                "nested": {"image": hf.Image(), "number": value("int32")},
                "structs": [{"image": hf.Image()}],
            },
            lambda number: {
                "png": image(number, ["RGB", "L", "RGBA", "P", "1"][number % 5]),
                "grey": image(number),
                "turned": turned(number),
                "stored": image(number),
                "list": [image(part) for part in range(number)],
                "nested": {"image": image(number), "number": number},
                "structs": [{"image": image(number)}] * 2,
            },
        ),
        "json": (
            {"json": hf.Json(), "list": hf.List(hf.Json())},
            lambda number: {"json": [{"a": [1, None, {}]}, 5, "x", [1]][number % 4], "list": [{"b": number}, number]},
        ),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
