"""Give PyTorch modules of other floats inputs and outputs of float32, by casts around them.

Modules of float16, bfloat16 and float64 have their inputs and outputs in the same type. Data, libraries and apps hold
float32: the casts belong to the model, for PyTorch as for the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tvmflow.frontends.source_model import TensorSpec


def with_float_ends(
    module: Any,
    inputs: Sequence[TensorSpec],
    stored: Sequence[torch.dtype | None],
    outputs: Sequence[torch.dtype],
) -> Any:
    """Return a module whose floats at its ends are float32: itself if they are.

    inputs: as described, in the order of the parameters; stored: what the module takes for each, None if not known;
    outputs: the types of its outputs.
    """
    taken = tuple(
        dtype if spec.dtype == "float32" and is_other_float(dtype) else None
        for spec, dtype in zip(inputs, stored, strict=True)
    )
    return FloatEnds(module, taken) if any(taken) or any(map(is_other_float, outputs)) else module


def is_other_float(dtype: torch.dtype | None) -> bool:
    return dtype is not None and dtype.is_floating_point and dtype != torch.float32


class FloatEnds(torch.nn.Module):  # type: ignore[misc]
    """A module between casts. Inputs of float64 stay as they are, so that a copy in float64 computes in it."""

    def __init__(self, module: Any, taken: Sequence[torch.dtype | None]) -> None:
        super().__init__()
        self.inner, self.taken, self.training = module, taken, False  # a program's module cannot be switched

    def forward(self, *given: torch.Tensor) -> Any:
        values = [
            x if dtype is None or x.dtype != torch.float32 else x.to(dtype)
            for x, dtype in zip(given, self.taken, strict=True)
        ]
        exact = any(x.dtype == torch.float64 for x in given)
        return torch.utils._pytree.tree_map(lambda value: value if exact else _in_float32(value), self.inner(*values))


def _in_float32(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.float() if is_float else value


def common_float(module: Any) -> torch.dtype | None:
    """Return the type of a module's floating-point parameters and buffers; None without any, or for several."""
    values = [*module.parameters(), *module.buffers()]
    found = {value.dtype for value in values if value.is_floating_point()}
    return next(iter(found)) if len(found) == 1 else None


def output_types(program: Any) -> list[torch.dtype]:
    """Return the types of the tensors that a torch.export program returns."""
    last = next(node for node in program.graph.nodes if node.op == "output")
    values = [node.meta.get("val") for node in last.all_input_nodes]
    return [value.dtype for value in values if isinstance(value, torch.Tensor)]
