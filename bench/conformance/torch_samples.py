"""Convert samples of PyTorch's operator database (`op_db`, `module_db`) to modules without parameters.

Each sample becomes a module whose tensors are inputs and whose other arguments are constants.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import itertools
import sys
import types
import unittest
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from bench.conformance.torch import DTYPES
from tvmflow.frontends.pytorch.float_ends import FloatEnds, is_other_float
from tvmflow.frontends.source_model import TensorSpec

SAMPLES = 4  # of an operator and dtype
_MOST_ELEMENTS = 4096  # of a sample's input
_MOST_DRAWN = 40  # samples looked at
_RECURRENT = ("RNN", "LSTM", "GRU")


@dataclass(frozen=True)
class Sample:
    """A call of an operator. label: dtype and number; inputs: the tensors of its arguments, in order, of float32 where
    the operator takes another float: the module casts its ends as the importer of files does. exact: the same in
    float32, where the operator takes another float.
    """

    label: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    exact: torch.nn.Module | None = None

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return specs_of(self.inputs)


def specs_of(inputs: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(f"x{place}", tuple(one.shape), str(one.dtype).removeprefix("torch."))
        for place, one in enumerate(inputs)
    )


class Call(torch.nn.Module):  # type: ignore[misc]
    """A call of a function or module with tensors in the places of its arguments."""

    def __init__(self, function: Any, leaves: Sequence[Any], structure: Any) -> None:
        super().__init__()
        self.function, self.structure = function, structure
        self.rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.rest)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = _pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)


class Together(torch.nn.Module):  # type: ignore[misc]
    """Several samples in one program, since a program is compiled at about the price of one."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList([one.module for one in samples])
        self.counts = [len(one.inputs) for one in samples]

    def forward(self, *tensors: torch.Tensor) -> Any:
        outputs, first = [], 0
        for part, count in zip(self.parts, self.counts, strict=True):
            outputs.append(part(*tensors[first : first + count]))
            first += count
        return tuple(outputs)


@functools.cache
def _database() -> tuple[Sequence[Any], Sequence[Any]]:
    """Return op_db and module_db. Their modules import a package for snapshot tests that samples do not need."""
    if importlib.util.find_spec("expecttest") is None:
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    return op_db, module_db


def operator_names() -> list[str]:
    """Return the names of all operators and layers, each once: variants of an operator have a name of their own."""
    operators, layers = _database()
    names = [_name(one) for one in operators]
    return list(dict.fromkeys([*names, *(f"layer {one.name}" for one in layers if not _is_recurrent(one))]))


def _name(operator: Any) -> str:
    return f"{operator.name} ({operator.variant_test_name})" if operator.variant_test_name else str(operator.name)


def _is_recurrent(layer: Any) -> bool:
    return any(word in layer.name for word in _RECURRENT)


def samples_of(name: str, dtypes: Sequence[str] = DTYPES) -> Iterator[Sample]:
    """Yield the first small samples of an operator or layer for each dtype."""
    operators, layers = _database()
    torch.manual_seed(0)
    np.random.seed(0)
    if name.startswith("layer "):
        info = next(one for one in layers if f"layer {one.name}" == name)
        for dtype in dtypes:
            if getattr(torch, dtype) in info.dtypes:
                yield from _first_small(dtype, _layer_calls(info, getattr(torch, dtype)))
        return
    info = next(one for one in operators if _name(one) == name)
    for dtype in dtypes:
        if getattr(torch, dtype) in info.supported_dtypes("cpu"):
            yield from _first_small(dtype, _operator_calls(info, getattr(torch, dtype)))


def _operator_calls(info: Any, dtype: Any) -> Iterator[tuple[Any, Any, Any]]:
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        yield info.op, (sample.input, *sample.args), sample.kwargs


def _layer_calls(info: Any, dtype: Any) -> Iterator[tuple[Any, Any, Any]]:
    made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
    for one in made:
        torch.manual_seed(0)
        layer = info.module_cls(*one.constructor_input.args, **one.constructor_input.kwargs)
        yield layer.to(dtype).eval(), one.forward_input.args, one.forward_input.kwargs


def _first_small(dtype: str, calls: Iterator[tuple[Any, Any, Any]]) -> Iterator[Sample]:
    """Yield the first samples with few elements, each kind of arguments once."""
    seen: set[str] = set()
    for function, args, kwargs in itertools.islice(calls, _MOST_DRAWN):
        leaves, structure = _pytree.tree_flatten((args, dict(kwargs)))
        leaves = [_plain(leaf) for leaf in leaves]
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        layer = function if isinstance(function, torch.nn.Module) else ""
        kind = f"{layer}{[_kind(leaf) for leaf in leaves]}{structure}"
        if sum(one.numel() for one in tensors) > _MOST_ELEMENTS or kind in seen:
            continue
        seen.add(kind)
        label, call = f"{dtype} {len(seen) - 1}", Call(function, leaves, structure).eval()
        if not any(is_other_float(one.dtype) for one in tensors):
            yield Sample(label, call, tensors)
        else:
            inputs = tuple(one.float() if is_other_float(one.dtype) else one for one in tensors)
            yield Sample(
                label, FloatEnds(call, [one.dtype for one in tensors]).eval(), inputs, copy.deepcopy(call).float()
            )
        if len(seen) == SAMPLES:
            return


def _plain(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return leaf
    return leaf.detach().clone().contiguous()


def _kind(leaf: Any) -> Any:
    return (str(leaf.dtype), tuple(leaf.shape)) if isinstance(leaf, torch.Tensor) else leaf
