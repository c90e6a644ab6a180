"""Random numbers for functions: what they depend on, and the generators that give them."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

__all__ = ["GENERATORS", "Draws", "Key", "seed_of"]

_SPREAD: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: multiples of it lie far from each other modulo 2^64."""

_PYTHON: Final = 2**62
_TORCH: Final = 2**63
"""Where the seeds of other generators are drawn: numbers that a NumPy generator does not come to."""


@dataclass(frozen=True, slots=True)
class Key:
    """What random numbers for a sample, or for what was made of it, depend on."""

    seed: int
    epoch: int
    position: int
    """The sample's number in the dataset that is loaded."""
    document: int = 0
    """Tells apart what begins with the same sample: see docs/order.md."""

    def part(self, number: int) -> int:
        """What tells apart one of several documents of this key."""
        return (self.document * _SPREAD + number) % 2**64


def seed_of(seed: int, number: int) -> int:
    """The seed of a zip's source with a number, and with the number of sources that of its own functions."""
    return (seed + number * _SPREAD) % 2**64


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers for one call of a function: for one sample or group at one stage."""

    key: Key
    stage: int
    number: int
    """Of one of several documents of the key."""

    def numpy(self) -> "np.random.Generator":
        """Philox 4x64, its key (seed, stage), its counter (0, part, position, epoch)."""
        return np.random.Generator(self._philox(0))

    def python(self) -> random.Random:
        """Python's generator, its seed the first 256 bits from counter (2^62, part, position, epoch) on."""
        return random.Random(
            sum(int(word) << 64 * place for place, word in enumerate(self._philox(_PYTHON).random_raw(4)))
        )

    def torch(self) -> Any:
        """PyTorch's generator on the CPU, its seed the first 64 bits from counter (2^63, part, position, epoch) on."""
        import torch  # not with `import headrace`, which needs nothing but NumPy

        generator = torch.Generator()
        generator.manual_seed(int(self._philox(_TORCH).random_raw()))
        return generator

    def _philox(self, first: int) -> "np.random.Philox":
        key = np.array([self.key.seed, self.stage], dtype=np.uint64)
        counter = [first, self.key.part(self.number), self.key.position, self.key.epoch]
        return np.random.Philox(key=key, counter=np.array(counter, dtype=np.uint64))


GENERATORS: Final[dict[str, Callable[[Draws], Any]]] = {
    "rng": Draws.numpy,
    "python_rng": Draws.python,
    "torch_rng": Draws.torch,
}
"""By the names of the arguments with which functions ask for them."""
