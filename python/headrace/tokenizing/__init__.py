"""Text to tokens, by whatever tokenizer the user has.

`encoder_of` takes a tokenizer and gives an `Encoder`. What packages offer is brought to the one form of `backend`, a
module for each; none of them is imported before a tokenizer of its kind is there.
"""

from .choose import encoder_of
from .encoder import Encoded, Encoder

__all__ = ["Encoded", "Encoder", "encoder_of"]
