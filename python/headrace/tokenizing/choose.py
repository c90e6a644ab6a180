"""From whatever stands for a tokenizer to an `Encoder`."""

import os
import sys
from pathlib import Path
from typing import Any, SupportsIndex

from headrace._units import as_int

from .backend import Backend
from .encoder import Encoder

__all__ = ["encoder_of"]

_TIKTOKEN = "tiktoken:"


def encoder_of(
    tokenizer: Any,
    *,
    bos: bool | SupportsIndex = False,
    eos: bool | SupportsIndex = True,
    vocab_size: SupportsIndex | None = None,
) -> Encoder:
    """An encoder of any tokenizer.

    Args:
        tokenizer: the path of a ``tokenizer.json`` of `tokenizers`, or of a folder with one (the
            ``tokenizer_config.json`` beside it, if there is one, says which tokens are bos and eos); a
            ``tokenizers.Tokenizer``; a tokenizer of `transformers`; a ``tiktoken.Encoding`` or the name of one,
            ``"tiktoken:gpt2"``; or a function from a text to its ids.
        bos: whether a document begins with the tokenizer's bos token, or the id of the token it begins with.
        eos: likewise for its end.
        vocab_size: one more than the largest id, if the tokenizer cannot say (a function), or there are to be more.

    Raises:
        ImportError: if the package of the tokenizer is not installed.
        MissingError: if there is no such file.
        TypeError: if it is nothing of these.
        ValueError: if a file is no tokenizer, or a token is not to be found.

    Example:
        >>> encoder_of(lambda text: list(text.encode()), eos=0, vocab_size=256)
        Encoder(<lambda>: 256 ids, bos None, eos 0)
    """
    return Encoder(
        _backend(tokenizer),
        bos=bos if isinstance(bos, bool) else as_int(bos, "bos", least=0),
        eos=eos if isinstance(eos, bool) else as_int(eos, "eos", least=0),
        vocab_size=None if vocab_size is None else as_int(vocab_size, "vocab_size", least=1, most=2**63),
    )


def _backend(tokenizer: Any) -> Backend:
    if isinstance(tokenizer, str | os.PathLike):
        text = os.fspath(tokenizer)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if not isinstance(text, str):
            raise TypeError(f"tokenizer must be a path as text, got {text!r}")
        if text.startswith(_TIKTOKEN):
            from .tiktoken import named_encoding

            return named_encoding(text.removeprefix(_TIKTOKEN))
        from .huggingface import read_file

        return read_file(Path(text))
    # Whoever has such an object has imported its package.
    if _is(tokenizer, "tokenizers", "Tokenizer"):
        from .huggingface import Tokenizers

        return Tokenizers(tokenizer)
    if _is(tokenizer, "tokenizers.implementations", "BaseTokenizer"):
        from .huggingface import Tokenizers

        return Tokenizers(tokenizer._tokenizer)
    if _is(tokenizer, "transformers", "PreTrainedTokenizerBase"):
        from .huggingface import CalledTransformer, fast_transformer

        return fast_transformer(tokenizer) if tokenizer.is_fast else CalledTransformer(tokenizer)
    if _is(tokenizer, "tiktoken", "Encoding"):
        from .tiktoken import Tiktoken

        return Tiktoken(tokenizer)
    if callable(tokenizer):
        from .functions import Function

        return Function(tokenizer)
    raise TypeError(
        "tokenizer must be the path of a tokenizer.json, a tokenizer of tokenizers, transformers or tiktoken, or a "
        f"function from a text to its ids, got a {type(tokenizer).__name__}"
    )


def _is(value: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
