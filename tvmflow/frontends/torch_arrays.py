"""Convert between arrays and PyTorch's tensors, of bfloat16 too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from tvmflow.frontends.source_model import Array


def from_numpy(array: Any) -> torch.Tensor:
    """Return an array as a tensor, of bfloat16 too, which PyTorch does not read from numpy."""
    kept = np.array(array, order="C")
    if kept.dtype.name == "bfloat16":
        return torch.from_numpy(kept.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(kept)


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array, of bfloat16 too."""
    plain = tensor.detach().cpu()
    if plain.dtype == torch.bfloat16:
        return np.asarray(plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(plain.numpy())
