"""Features of Hugging Face's `datasets`: what columns mean beyond their Arrow types, and values as it gives them.

Features come as plain JSON types from ``dataset_info.json``. Images are decoded by Pillow and sound by soundfile, which
are imported when the first one is met.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import numpy as np

from headrace.errors import DataError

__all__ = ["decoded_columns", "feature_decoder", "feature_text", "shown"]

Decoder = Callable[[Any], Any]

_DEEPEST = 64
"""Features within features: more than any writer nests, few enough for Python's stack."""
_LONGEST = 200
"""Characters of a value that are shown."""
_ORIENTATION = 0x0112
"""The Exif tag that says which side of an image is up."""
_PLAIN = ("Value", "ClassLabel", "Translation", "TranslationVariableLanguages")
_LISTS = ("List", "LargeList", "Sequence")
_AS_STORED = ("Video", "Pdf", "Nifti", "Mesh", "BioSequence", "BioStructure")
"""Files that `datasets` has other packages decode: they stay as they are stored, ``{"bytes", "path"}``."""
_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = {
    **{name: np.dtype(name) for name in (*_NUMBERS, "float16", "float32", "float64")},
    "float": np.dtype("float32"),
    "double": np.dtype("float64"),
    "string": np.dtype("str"),
    "large_string": np.dtype("str"),
}
_ARRAY = re.compile(r"Array([2-9])D")
_HINT = "hint: decode=False leaves values as they are stored"


def feature_decoder(features: Mapping[str, Any], *, decode: bool = True) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What makes a sample of a row as it is stored, in place.

    Args:
        features: each column's feature, as ``dataset_info.json`` has them. A row may lack some.
        decode: False leaves images, sound and JSON as they are stored.

    Returns:
        A function from a row to the same dict with its values replaced: Image by a PIL image; Audio by ``{"array":
        float32 (samples,), the mean of its channels, "sampling_rate": int, "path": str | None}``; Array2D to Array5D
        by a NumPy array of their shape and dtype; Json by what it holds. Others stay, and so does None.

    Raises:
        DataError: if a feature is none that is known, here; if a value is damaged, when its row is decoded.

    Example:
        >>> decode = feature_decoder({"x": {"_type": "Array2D", "shape": [1, 2], "dtype": "int8"}})
        >>> decode({"x": [[1, 2]]})
        {'x': array([[1, 2]], dtype=int8)}
    """
    parts: list[tuple[str, Decoder]] = []
    for name, feature in features.items():
        part = _decoder(feature, f"column {name!r}", decode, 0)
        if part is not None:
            parts.append((name, part))

    def decode_row(row: dict[str, Any]) -> dict[str, Any]:
        for name, part in parts:
            value = row.get(name)
            if value is not None:
                row[name] = part(value)
        return row

    return decode_row


def decoded_columns(features: Mapping[str, Any], *, decode: bool = True) -> frozenset[str]:
    """The columns whose values are not given as they are stored."""
    return frozenset(name for name, part in features.items() if _decoder(part, f"column {name!r}", decode, 0))


def feature_text(feature: Any) -> str:
    """A feature as a schema shows it.

    Example:
        >>> feature_text({"_type": "List", "feature": {"_type": "Value", "dtype": "int32"}})
        'List(int32)'
    """
    if isinstance(feature, list):
        return f"List({', '.join(map(feature_text, cast('list[Any]', feature)))})"
    if not isinstance(feature, dict):
        return shown(feature)
    parts = cast("dict[str, Any]", feature)
    kind = parts.get("_type")
    if not isinstance(kind, str):
        return "{" + ", ".join(f"{name}: {feature_text(part)}" for name, part in parts.items()) + "}"
    if kind == "Value":
        return _text(parts.get("dtype"))
    if kind in _LISTS:
        return f"{kind}({feature_text(parts.get('feature'))})"
    if _ARRAY.fullmatch(kind):
        return f"{kind}({shown(parts.get('shape'))}, {_text(parts.get('dtype'))})"
    return kind


def shown(value: Any) -> str:
    """A value of a file in a message: never long, however much there is of it."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a deeply nested {_type(value)}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else shown(value)


def _decoder(feature: Any, where: str, decode: bool, depth: int) -> Decoder | None:
    """What decodes values of a feature that are not None, or None if they stay as they are."""
    if depth > _DEEPEST:
        raise DataError(f"{where}: expected features nested at most {_DEEPEST} deep, found more")
    if isinstance(feature, list):
        inner = cast("list[Any]", feature)
        if len(inner) != 1:
            raise DataError(f"{where}: expected a list of one feature, found {len(inner)}")
        return _list_decoder(inner[0], where, decode, depth)
    if not isinstance(feature, dict):
        raise DataError(f"{where}: expected a feature, found {shown(feature)}")
    parts = cast("dict[str, Any]", feature)
    kind = parts.get("_type")
    if not isinstance(kind, str):
        return _dict_decoder(parts, where, decode, depth)
    if kind in _LISTS:
        return _list_decoder(parts.get("feature"), where, decode, depth)
    if (match := _ARRAY.fullmatch(kind)) is not None:
        return _array_decoder(parts, where, int(match[1]))
    if kind in _PLAIN or kind in _AS_STORED:
        return None
    if kind not in ("Image", "Audio", "Json"):
        raise DataError(f"{where}: expected a feature that is known, found {shown(kind)}\n{_HINT}")
    if not decode or parts.get("decode") is False:
        return None
    if kind == "Json":
        return _guarded(json.loads, where, "JSON")
    return (_image_decoder if kind == "Image" else _audio_decoder)(parts, where)


def _dict_decoder(parts: Mapping[str, Any], where: str, decode: bool, depth: int) -> Decoder | None:
    inner = [(name, _decoder(part, f"{where}, {name!r}", decode, depth + 1)) for name, part in parts.items()]
    found = [(name, part) for name, part in inner if part is not None]
    if not found:
        return None

    def decode_dict(value: Any) -> Any:
        if not isinstance(value, dict):
            raise DataError(f"{where}: expected a struct, found {_type(value)}")
        given = cast("dict[str, Any]", value)
        for name, part in found:
            if given.get(name) is not None:
                given[name] = part(given[name])
        return given

    return decode_dict


def _list_decoder(feature: Any, where: str, decode: bool, depth: int) -> Decoder | None:
    inner = _decoder(feature, where, decode, depth + 1)
    if inner is None:
        return None

    parts = cast("dict[str, Any]", feature) if isinstance(feature, dict) and "_type" not in feature else {}

    @cache
    def column_decoder(name: str) -> Decoder | None:
        # Made when it is needed: rarely, and features within features would double the work at each level.
        if name not in parts:
            raise DataError(f"{where}: expected lists of {', '.join(map(repr, parts)) or 'none'}, found {name!r}")
        return _list_decoder(parts[name], f"{where}, {name!r}", decode, depth + 1)

    def decode_list(value: Any) -> Any:
        if isinstance(value, dict) and parts:
            # A sequence of structs is a struct of lists where older versions wrote it.
            columns = [(name, each, column_decoder(name)) for name, each in cast("dict[str, Any]", value).items()]
            return {name: each if part is None or each is None else part(each) for name, each, part in columns}
        if not isinstance(value, list | np.ndarray):
            raise DataError(f"{where}: expected a list, found {_type(value)}")
        return [None if each is None else inner(each) for each in cast("list[Any]", value)]

    return decode_list


def _array_decoder(parts: Mapping[str, Any], where: str, dimensions: int) -> Decoder:
    shape: Any = parts.get("shape")
    wanted = parts.get("dtype")
    dtype = _DTYPES.get(wanted) if isinstance(wanted, str) else None
    sizes = cast("list[Any]", shape) if isinstance(shape, list) else []
    if dtype is None or len(sizes) != dimensions or not all(size is None or type(size) is int for size in sizes):
        raise DataError(
            f"{where}: expected an array's shape of {dimensions} sizes and its dtype, found {shown(shape)} and "
            f"{shown(wanted)}"
        )

    def decode_array(value: Any) -> Any:
        array = np.asarray(value, dtype)
        if array.ndim != dimensions and array.size == 0:
            array = array.reshape([0 if size is None else size for size in sizes])
        if len(sizes) != array.ndim or any(a not in (None, b) for a, b in zip(sizes, array.shape, strict=True)):
            raise DataError(f"{where}: expected an array of shape {sizes}, found {list(array.shape)}")
        return array

    return _guarded(decode_array, where, f"an array of {dtype} and shape {sizes}")


def _image_decoder(parts: Mapping[str, Any], where: str) -> Decoder:
    mode = parts.get("mode")

    def decode_image(value: Any) -> Any:
        data, _ = _file(value, where)
        try:
            from PIL import Image, ImageOps
        except ImportError:
            raise ImportError(f"{where} holds images, which Pillow decodes (pip install pillow)\n{_HINT}") from None
        image: Any = Image.open(io.BytesIO(data))
        image.load()
        if image.getexif().get(_ORIENTATION) is not None:
            image = ImageOps.exif_transpose(image)
        return image.convert(mode) if mode and mode != image.mode else image

    return _guarded(decode_image, where, "an image that Pillow reads")


def _audio_decoder(parts: Mapping[str, Any], where: str) -> Decoder:
    wanted = parts.get("sampling_rate")
    if parts.get("stream_index"):
        stream = shown(parts["stream_index"])
        raise DataError(f"{where}: expected sound of one stream, found stream_index {stream}\n{_HINT}")

    def decode_audio(value: Any) -> dict[str, Any]:
        data, path = _file(value, where)
        try:
            import soundfile  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
        except (ImportError, OSError) as error:  # OSError: without the library that it wraps.
            raise ImportError(
                f"{where} holds sound, which soundfile decodes (pip install soundfile): {error}\n{_HINT}"
            ) from None
        samples, rate = cast(Any, soundfile).read(io.BytesIO(data), dtype="float32", always_2d=True)
        if wanted is not None and rate != wanted:
            raise DataError(
                f"{where}: expected sound of {shown(wanted)} samples a second, as its feature says, found {rate}\n"
                f"hint: headrace does not resample; decode=False leaves the file's bytes"
            )
        mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1)
        return {"array": np.ascontiguousarray(mono), "sampling_rate": int(rate), "path": path}

    return _guarded(decode_audio, where, "sound that soundfile reads")


def _type(value: Any) -> str:
    return type(value).__name__


def _file(value: Any, where: str) -> tuple[bytes, str | None]:
    """Bytes and path of a file that is stored as a struct of both."""
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    data, path = given.get("bytes"), given.get("path")
    if not isinstance(data, bytes):
        # Paths of the machine that wrote it: a dataset from elsewhere must not make this one open its own files.
        found = f"only the path {path!r}" if path is not None else "none"
        raise DataError(
            f"{where}: expected the bytes of a file, found {found}\n"
            "hint: save_to_disk of datasets 2 and later stores the bytes"
        )
    return data, path


def _guarded(decode: Decoder, where: str, wanted: str) -> Decoder:
    """A decoder whose faults, of whatever class, are `DataError`."""

    def guarded(value: Any) -> Any:
        try:
            return decode(value)
        except (DataError, ImportError, MemoryError, Warning):
            raise
        except Exception as error:  # Pillow and soundfile raise all sorts for damaged files.
            raise DataError(
                f"{where}: expected {wanted}, found what it cannot read: {type(error).__name__}: {error}"
            ) from error

    return guarded
