"""Values of samples in a form that compares by type, dtype, shape and every bit; used in both environments."""

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return "scalar", str(value.dtype), value.tobytes()
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return "image", type(value).__name__, value.mode, value.size, value.tobytes()
    return type(value).__name__, value if isinstance(value, bytes | str) else repr(value)
