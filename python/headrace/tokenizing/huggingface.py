"""Tokenizers of the packages `tokenizers` and `transformers`."""

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import MissingError

from .backend import BOS_NAMES, EOS_NAMES, Backend, Part, digest

__all__ = ["CalledTransformer", "Tokenizers", "fast_transformer", "read_file"]

_FILE = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"


class Tokenizers(Backend):
    """A ``tokenizers.Tokenizer``.

    What it may pad or cut off is left out: documents keep all of their tokens, and no others.

    Args:
        tokenizer: of the package. It is not changed.
        special: ids of the bos and eos tokens, where something beside it says them; None if that says there is none.
    """

    def __init__(self, tokenizer: Any, special: Mapping[Part, int | None] | None = None) -> None:
        if tokenizer.padding is not None or tokenizer.truncation is not None:
            tokenizer = _made(tokenizer.to_str(), tokenizer.encode_special_tokens)
            tokenizer.no_padding()
            tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._special = dict(special or {})
        self.name = f"tokenizers {type(tokenizer.model).__name__}"
        self._vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def vocab_size(self) -> int | None:
        """See `Backend.vocab_size`."""
        return self._vocab_size

    def ids(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See `Backend.ids`."""
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        # One list at a time, so that it is gone before the next: a list of Python's takes 16 times the memory of ids.
        return np.fromiter(chain.from_iterable(one.ids for one in found), np.uint32, int(lengths.sum())), lengths

    def find(self, part: Part) -> int:
        """See `Backend.find`."""
        if part in self._special:
            known = self._special[part]
            if known is None:
                raise ValueError(
                    f"{self.name}: expected a {part} token, found that its settings have none\n"
                    f"hint: give its id, {part}=<id>, or leave it out with {part}=False"
                )
            return known
        ids = {name: self._tokenizer.token_to_id(name) for name in (*BOS_NAMES, *EOS_NAMES)}
        return self.named(part, {name: number for name, number in ids.items() if number is not None})

    def digest(self) -> str:
        """See `Backend.digest`."""
        return digest([self._tokenizer.to_str().encode(), bytes([self._tokenizer.encode_special_tokens])])

    def __reduce__(self) -> Any:
        # Its own pickle forgets what is to become of texts that spell special tokens.
        return _again, (self._tokenizer.to_str(), self._tokenizer.encode_special_tokens, self._special)


class CalledTransformer(Backend):
    """A tokenizer of ``transformers`` that is written in Python.

    Args:
        tokenizer: of the package; it has to pickle.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.name = f"transformers {type(tokenizer).__name__}"
        self._vocab: dict[str, int] = tokenizer.get_vocab()

    @property
    def vocab_size(self) -> int | None:
        """See `Backend.vocab_size`."""
        return max(len(self._tokenizer), 1 + max(self._vocab.values(), default=-1))

    def ids(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See `Backend.ids`."""
        call = self._tokenizer
        found: list[list[int]] = call(
            list(texts), add_special_tokens=False, padding=False, truncation=False, verbose=False
        )["input_ids"]
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return np.fromiter(chain.from_iterable(found), np.int64, int(lengths.sum())), lengths

    def find(self, part: Part) -> int:
        """See `Backend.find`."""
        found = _special_of(self._tokenizer)[part]
        if found is None:
            raise ValueError(
                f"{self.name}: expected a {part} token, found that {part}_token is None\n"
                f"hint: give its id, {part}=<id>, or leave it out with {part}=False"
            )
        return found

    def digest(self) -> str:
        """See `Backend.digest`."""
        parts = [self.name.encode(), json.dumps(sorted(self._vocab.items())).encode()]
        with tempfile.TemporaryDirectory() as folder:
            # Merges, rules and settings: how else they are kept is a matter of each class.
            with contextlib.suppress(NotImplementedError):
                self._tokenizer.save_pretrained(folder)
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    parts += [str(path.relative_to(folder)).encode(), path.read_bytes()]
        return digest(parts)


def read_file(path: Path) -> Tokenizers:
    """The tokenizer of a ``tokenizer.json``, or of a folder that has one.

    Which tokens are bos and eos is said by the ``tokenizer_config.json`` beside it, if there is one.

    Raises:
        ImportError: if `tokenizers` is not installed.
        ValueError: if the file is none of its kind.
        MissingError: if there is no such file.
    """
    file = path / _FILE if path.is_dir() else path
    if not file.exists():
        raise MissingError(f"{file}: expected a tokenizers JSON file, found none")
    try:
        tokenizer = _made(file.read_text(encoding="utf-8"), False)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(f"{file}: expected a tokenizers JSON file: {error}") from None
    return Tokenizers(tokenizer, _settings(file.with_name(_SETTINGS), tokenizer))


def fast_transformer(tokenizer: Any) -> Tokenizers:
    """A tokenizer of ``transformers`` that runs on ``tokenizers``."""
    backend = tokenizer.backend_tokenizer
    # Said anew to the backend by each call of the tokenizer.
    if tokenizer.split_special_tokens != backend.encode_special_tokens:
        backend = _made(backend.to_str(), tokenizer.split_special_tokens)
    return Tokenizers(backend, _special_of(tokenizer))


def _special_of(tokenizer: Any) -> dict[Part, int | None]:
    return {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}


def _settings(path: Path, tokenizer: Any) -> dict[Part, int | None]:
    """What the settings of a model say of bos and eos; nothing of what they do not mention."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
        tokens: dict[Part, Any] = {part: found[f"{part}_token"] for part in ("bos", "eos") if f"{part}_token" in found}
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: expected the settings of a tokenizer as JSON: {error}") from None
    special: dict[Part, int | None] = {}
    for part, token in tokens.items():
        text = token.get("content") if isinstance(token, dict) else token  # pyright: ignore
        special[part] = None if text is None else tokenizer.token_to_id(text)
        if text is not None and special[part] is None:
            raise ValueError(f"{path}: expected a {part}_token that {_FILE} has, found {text!r}")
    return special


def _made(text: str, encode_special_tokens: bool) -> Any:
    try:
        import tokenizers  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ImportError(
            "reading a tokenizer.json needs tokenizers\nhint: pip install 'headrace[tokenize]'"
        ) from error
    package: Any = tokenizers
    tokenizer = package.Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = encode_special_tokens
    return tokenizer


def _again(text: str, encode_special_tokens: bool, special: Mapping[Part, int | None]) -> Tokenizers:
    return Tokenizers(_made(text, encode_special_tokens), special)
