"""Name the dtypes of arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype of a name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
