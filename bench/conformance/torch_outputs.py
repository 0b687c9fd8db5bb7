"""Compute the outputs of PyTorch's operators, and compare others with them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np


def outputs_of(module: Any, inputs: Sequence[Any]) -> tuple[Any, ...] | str:
    """Return PyTorch's outputs, or why they cannot be compared."""
    import torch
    from torch.utils import _pytree

    from tvmflow.frontends.torch_arrays import to_numpy

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            leaves = _pytree.tree_leaves(module(*(one.clone() for one in inputs)))
    except Exception as error:
        return f"PyTorch: {first_line(error)}"
    if not leaves or not all(isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided for leaf in leaves):
        return "an output that is no tensor"
    if any(leaf.is_complex() for leaf in leaves):
        return "complex"
    if any(leaf.is_quantized for leaf in leaves):
        return "quantized"
    if not any(leaf.numel() for leaf in leaves):
        return "outputs without elements"
    return tuple(map(to_numpy, leaves))


_OF_ANY_PLACE = {"aten.topk.default", "aten.kthvalue.default", "aten.median.dim", "aten.mode.default"}


def with_places(sample: Any, found: Sequence[Any], wanted: Sequence[Any], calls: set[str]) -> Sequence[Any]:
    """Return outputs with PyTorch's places of equal values, where ours hold the same: it promises none of them."""
    if not calls & _OF_ANY_PLACE or len(found) != 2 or found[1].shape != wanted[1].shape or not found[1].ndim:
        return found
    data = sample.inputs[0].numpy()
    for axis in range(data.ndim):
        lone = np.expand_dims(found[0], axis) if found[0].ndim < data.ndim else found[0]
        places = np.expand_dims(found[1], axis) if found[1].ndim < data.ndim else found[1]
        around = [extent for at, extent in enumerate(data.shape) if at != axis]
        if [extent for at, extent in enumerate(lone.shape) if at != axis] != around or places.max() >= data.shape[axis]:
            continue
        if np.array_equal(np.take_along_axis(data, places, axis), lone):
            return (found[0], wanted[1])
    return found


# Of a result, relative and absolute: a few roundings of the operator's type.
_TOLERANCES = {"float16": (4e-3, 1e-3), "bfloat16": (3e-2, 1e-2)}


def apart_from(sample: Any, found: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """Return how outputs differ from PyTorch's, and from those that it computes in float32 where there are such.

    Its kernels of 16 bits round after each step, ours at the end.
    """
    tolerance = _TOLERANCES.get(sample.label.split()[0], (1e-4, 1e-5))
    difference = difference_of(found, wanted, tolerance)
    if difference is None or sample.exact is None:
        return difference
    exact = outputs_of(sample.exact, sample.inputs)
    return difference if isinstance(exact, str) or difference_of(found, exact, tolerance) else None


def difference_of(
    found: Sequence[Any], wanted: Sequence[Any], tolerance: tuple[float, float] = (1e-4, 1e-5)
) -> str | None:
    """Return how outputs differ from PyTorch's; None if they do not."""
    if len(found) != len(wanted):
        return f"{len(found)} outputs, not {len(wanted)}"
    for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"output {place}: {ours.dtype} {list(ours.shape)}, not {theirs.dtype} {list(theirs.shape)}"
        if not _equal(ours, theirs, tolerance):
            apart = np.argwhere(~np.isclose(ours, theirs, *tolerance, equal_nan=True))
            at = tuple(apart[0]) if len(apart) else (0,) * ours.ndim
            return f"output {place} at {[int(x) for x in at]}: {ours[at]}, not {theirs[at]}"
    return None


def _equal(ours: Any, theirs: Any, tolerance: tuple[float, float]) -> bool:
    if theirs.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    relative, absolute = tolerance
    finite = np.abs(theirs[np.isfinite(theirs)])
    scale = min(1.0, float(finite.max())) if finite.size else 1.0
    return bool(np.allclose(ours, theirs, rtol=relative, atol=absolute * max(scale, 0.1), equal_nan=True))


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return (lines[0] if len(lines) < 2 or len(lines[0]) > 30 else f"{lines[0]} {lines[1]}")[:240]
