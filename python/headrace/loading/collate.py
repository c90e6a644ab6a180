"""Makes one batch of samples. Needs NumPy alone: other libraries' types are known if those were imported.

The rules, by the type of the samples at one place:

- NumPy arrays and scalars: an array with one more dimension in front. Their shapes must be equal.
- int, float, bool, complex: an array of int64, float64, bool, complex128. Numbers may be mixed.
- torch tensors: ``torch.stack``.
- dict and other mappings, lists, tuples, named tuples, other sequences, dataclasses: the same type, with its parts
  collated. Keys and lengths must be equal.
- str, bytes, bytearray, PIL images, encoded media (`headrace.Audio` and the like): a list. With str and bytes, None may
  be among them.
- None everywhere: a list of None. Where only some are None, an error.
- PyG's data objects: ``torch_geometric.data.Batch``.
- what `register_collate` was told; it goes before the rules above.
"""

import copy
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar, cast

import numpy as np

from headrace.media import Encoded

from .pool import add_note

__all__ = ["default_collate", "register_collate", "registered"]

_Path = tuple["_Path", str] | None
_Rule = Callable[[list[Any], _Path], Any]
_Sample = TypeVar("_Sample")

_HINT: Final = "hint: fill in what is missing with map, pass collate_fn=..., or use headrace.register_collate"
_HINT_RAGGED: Final = "hint: bring them to one shape (pad or crop) in the dataset, or pass collate_fn=..."

_registered: dict[type, Callable[[list[Any]], Any]] = {}
_rules: dict[type, _Rule] = {}
"""What was found for a type, so that it is looked for once."""


def default_collate(samples: Sequence[Any]) -> Any:
    """One batch of samples, by the rules of this module; of none an empty list.

    Raises:
        ValueError: if samples do not fit together; it names the place, such as ``["image"][2]``.
        TypeError: if there is no rule for their type.

    Example:
        >>> default_collate([{"x": 1, "name": "a"}, {"x": 2, "name": "b"}])
        {'x': array([1, 2]), 'name': ['a', 'b']}
    """
    if not isinstance(samples, list):
        samples = list(samples)
    return _collate(samples, None) if samples else []


def register_collate(kind: type[_Sample], function: Callable[[list[_Sample]], Any]) -> None:
    """Has samples of a type, and of its subclasses, collated by a function that takes a list of them.

    Example:
        >>> from fractions import Fraction
        >>> register_collate(Fraction, lambda samples: np.array([float(sample) for sample in samples]))
        >>> default_collate([Fraction(1, 2), Fraction(1, 4)])
        array([0.5 , 0.25])
    """
    if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"register_collate takes a type, got {kind!r}")
    if not callable(function):
        raise TypeError(f"register_collate takes a function for {kind.__name__}, got {function!r}")
    _registered[kind] = function
    _rules.clear()


def registered() -> dict[type, Callable[[list[Any]], Any]]:
    """What `register_collate` was told, for processes that are started."""
    return dict(_registered)


def _collate(samples: list[Any], path: _Path) -> Any:
    kind = _kind(samples[0])
    return (_rules.get(kind) or _find_rule(kind))(samples, path)


def _find_rule(kind: type[Any]) -> _Rule:
    rule = _rules[kind] = _own_rule(kind) or _builtin_rule(kind)
    return rule


def _own_rule(kind: type[Any]) -> _Rule | None:
    function = next((_registered[base] for base in kind.__mro__ if base in _registered), None)
    if function is None:
        return None

    def own(samples: list[Any], path: _Path) -> Any:
        try:
            return function(samples)
        except Exception as error:
            add_note(error, f"while collating {_show(path)} with the function registered for {kind.__name__}")
            raise

    return own


def _builtin_rule(kind: type[Any]) -> _Rule:
    if kind is type(None):
        return _nones
    if _is_text(kind):
        return _texts
    if issubclass(kind, Encoded):
        return _media
    if issubclass(kind, np.ndarray):
        return _arrays
    if issubclass(kind, np.generic | int | float | complex):
        return _numbers
    if _is_of(kind, "torch", "Tensor"):
        return _tensors
    if _is_of(kind, "torch_geometric.data.data", "BaseData"):
        return _graphs
    if _is_of(kind, "PIL.Image", "Image"):
        return _images
    if issubclass(kind, Mapping):
        return _mappings
    if is_dataclass(kind):
        return _dataclasses
    if issubclass(kind, Sequence):
        return _sequences
    return _unknown


def _kind(sample: Any) -> Any:
    return type(sample)  # pyright: ignore[reportUnknownVariableType]


def _is_of(kind: type[Any], module: str, name: str) -> bool:
    """Whether it is a class of a library. There can be no such object if nobody imported that."""
    base = getattr(sys.modules.get(module), name, None)
    return isinstance(base, type) and issubclass(kind, base)


def _numbers(samples: list[Any], path: _Path) -> Any:
    try:
        array = np.array(samples)
    except (ValueError, OverflowError):
        raise _misfit(samples, path) from None
    # An int beyond int64 makes it unsigned, or a float that is not that number.
    if array.ndim != 1 or (array.dtype != np.int64 and array.dtype.kind not in "bf"):
        return _unusual_numbers(samples, array, path)
    if array.dtype.kind == "f" and type(samples[0]) is int and all(isinstance(sample, int) for sample in samples):
        return _unusual_numbers(samples, array, path)
    return array


def _unusual_numbers(samples: list[Any], array: Any, path: _Path) -> Any:
    """Small types, complex numbers, times; and all that is none of them."""
    if array.ndim == 1 and array.dtype.kind in "iucmM" and not any(type(sample) is int for sample in samples):
        return array
    if array.ndim == 1 and array.dtype.kind in "ic":
        return array
    for number, sample in enumerate(samples):
        if isinstance(sample, int) and not -(2**63) <= sample < 2**63:
            raise ValueError(
                f"cannot collate {_show(path)}: sample {number} is {sample}, which int64 cannot hold\n{_HINT}"
            )
    if array.ndim == 1 and array.dtype.kind in "uV":
        return array
    raise _misfit(samples, path)


def _arrays(samples: list[Any], path: _Path) -> Any:
    first = samples[0]
    try:
        shapes = {sample.shape for sample in samples}
    except AttributeError:
        raise _misfit(samples, path) from None
    if not _all(samples, (np.ndarray, np.generic)):
        raise _misfit(samples, path)
    if len(shapes) > 1:
        raise _ragged(samples, path)
    if isinstance(first, np.ma.MaskedArray):
        return np.ma.stack(samples)  # pyright: ignore[reportUnknownMemberType]
    if first.ndim == 0:
        return np.stack(samples)
    # np.stack spends longer on a small array than copying takes.
    return np.concatenate(samples).reshape((len(samples), *first.shape))


def _tensors(samples: list[Any], path: _Path) -> Any:
    torch = sys.modules["torch"]
    if not _all(samples, torch.Tensor):
        raise _misfit(samples, path)
    shape = samples[0].shape
    if any(sample.shape != shape for sample in samples):
        raise _ragged(samples, path)
    try:
        return torch.stack(samples)
    except Exception as error:
        add_note(error, f"while collating {_show(path)}")
        raise


def _graphs(samples: list[Any], path: _Path) -> Any:
    try:
        return sys.modules["torch_geometric.data"].Batch.from_data_list(samples)
    except Exception as error:
        add_note(error, f"while collating {_show(path)}")
        raise


def _mappings(samples: list[Any], path: _Path) -> Any:
    first: Mapping[Any, Any] = samples[0]
    kind = _kind(first)
    if not _all(samples, Mapping):
        raise _misfit(samples, path)
    if len(set(map(len, samples))) > 1:
        size = len(first)
        raise _other_keys(samples, next(number for number, sample in enumerate(samples) if len(sample) != size), path)
    batch: dict[Any, Any] = {}
    for key in first:
        try:
            column = [sample[key] for sample in samples]
        except KeyError:
            number = next(number for number, sample in enumerate(samples) if key not in sample)
            raise _other_keys(samples, number, path) from None
        batch[key] = _collate(column, (path, f"[{key!r}]"))
    if kind is dict:
        return batch
    if issubclass(kind, MutableMapping):
        # What else such a mapping has is kept: the default of a defaultdict, attributes.
        clone = copy.copy(cast("MutableMapping[Any, Any]", first))
        clone.update(batch)
        return clone
    try:
        return kind(batch)
    except TypeError:
        return batch


def _dataclasses(samples: list[Any], path: _Path) -> Any:
    kind = _kind(samples[0])
    if len(set(map(type, samples))) > 1:
        raise _misfit(samples, path)
    # Not through __init__: what it checks or derives is meant for one sample.
    batch = copy.copy(samples[0])
    for field in fields(kind):
        column = [getattr(sample, field.name) for sample in samples]
        object.__setattr__(batch, field.name, _collate(column, (path, f".{field.name}")))
    return batch


def _sequences(samples: list[Any], path: _Path) -> Any:
    kind = _kind(samples[0])
    if not _all(samples, Sequence) or any(map(_is_text, set(map(type, samples)))):
        raise _misfit(samples, path)
    if len(set(map(len, samples))) > 1:
        size = len(samples[0])
        number = next(number for number, sample in enumerate(samples) if len(sample) != size)
        raise ValueError(
            f"cannot collate {_show(path)}: sample 0 has {size} entries, sample {number} has {len(samples[number])}\n"
            f"{_HINT_RAGGED}"
        )
    columns = [_collate(list(column), (path, f"[{place}]")) for place, column in enumerate(zip(*samples, strict=True))]
    if kind is list:
        return columns
    if kind is tuple:
        return tuple(columns)
    if hasattr(kind, "_fields") and hasattr(kind, "_make"):
        return kind._make(columns)
    try:
        return kind(columns)
    except TypeError:
        return columns


def _texts(samples: list[Any], path: _Path) -> list[Any]:
    if not _all(samples, (str, bytes, bytearray, type(None))):
        raise _misfit(samples, path)
    return samples


def _nones(samples: list[Any], path: _Path) -> list[Any]:
    return _texts(samples, path)


def _media(samples: list[Any], path: _Path) -> list[Any]:
    if not _all(samples, Encoded):
        raise _misfit(samples, path)
    return samples


def _images(samples: list[Any], path: _Path) -> list[Any]:
    base: type[Any] = sys.modules["PIL.Image"].Image
    if not _all(samples, base):
        raise _misfit(samples, path)
    return samples


def _unknown(samples: list[Any], path: _Path) -> Any:
    raise TypeError(f"cannot collate {_show(path)}: no rule for {_type_name(samples[0])}\n{_HINT}")


def _all(samples: list[Any], kinds: Any) -> bool:
    """Whether they all are of some types: asked once for each type that there is."""
    return all(issubclass(kind, kinds) for kind in set(map(type, samples)))


def _is_text(kind: type[Any]) -> bool:
    return issubclass(kind, (str, bytes, bytearray))


def _misfit(samples: list[Any], path: _Path) -> Exception:
    """The error for samples of types that do not go together."""
    kind = _kind(samples[0])
    number = next((number for number, sample in enumerate(samples) if type(sample) is not kind), None)
    if number is None:
        return TypeError(f"cannot collate {_show(path)}: no array can be made of {_type_name(samples[0])}\n{_HINT}")
    return ValueError(
        f"cannot collate {_show(path)}: sample 0 is {_type_name(samples[0])}, sample {number} is "
        f"{_type_name(samples[number])}\n{_HINT}"
    )


def _ragged(samples: list[Any], path: _Path) -> ValueError:
    shape = tuple(samples[0].shape)
    number = next(number for number, sample in enumerate(samples) if tuple(sample.shape) != shape)
    return ValueError(
        f"cannot collate {_show(path)}: sample 0 has shape {shape}, sample {number} has shape "
        f"{tuple(samples[number].shape)}\n{_HINT_RAGGED}"
    )


def _other_keys(samples: list[Any], number: int, path: _Path) -> ValueError:
    missing = [key for key in samples[0] if key not in samples[number]]
    extra = [key for key in samples[number] if key not in samples[0]]
    difference = f"lacks {missing[0]!r}, which sample 0 has" if missing else f"has {extra[0]!r}, which sample 0 lacks"
    return ValueError(f"cannot collate {_show(path)}: sample {number} {difference}\n{_HINT}")


def _show(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return "".join(reversed(parts)) or "the samples"


def _type_name(sample: Any) -> str:
    return "None" if sample is None else type(sample).__name__
