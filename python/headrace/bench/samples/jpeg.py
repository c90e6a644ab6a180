"""Images as JPEG, the same on every machine with the same encoder; and how every loader decodes them: by Pillow."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["SIZE", "decoded", "encoded"]

SIZE = 224  # pixels in each direction
QUALITY = 90


def encoded(number: int) -> bytes:
    """An image of smooth noise, coarse and fine, as JPEG: about as many bytes as a photograph of this size has."""
    random = np.random.PCG64([SIZE, number])
    layers = [_noise(random, side) for side in (8, 28, 112)]
    image = Image.blend(Image.blend(layers[0], layers[1], 0.35), layers[2], 0.2)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def decoded(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with its image as an array: uint8, (224, 224, 3)."""
    return {"id": sample["id"], "image": np.asarray(Image.open(io.BytesIO(sample["image"])))}


def _noise(random: np.random.PCG64, side: int) -> Image.Image:
    raw = random.random_raw(-(-side * side * 3 // 8)).view(np.uint8)[: side * side * 3]
    return Image.fromarray(raw.reshape(side, side, 3)).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
