"""Bind parameters of PyTorch modules to one value: numbers as Python numbers, other values as tensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from tvmflow.frontends.source_model import FixedSpec, open_names
from tvmflow.support.errors import ModelFileError


def fix_parameters(module: Any, inputs: int, fixed: Sequence[FixedSpec], what: str) -> Any:
    """Return a module whose parameters are the first `inputs` ones of `module` that are not fixed."""
    if not fixed:
        return module
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = {name: one for name, one in inspect.signature(module.forward).parameters.items() if one.kind in kinds}
    names = open_names(what, list(parameters), fixed)
    return _fixed_module(module, names[:inputs], {spec.name: _value(spec) for spec in fixed})


def fix_places(module: Any, names: Sequence[str], fixed: Sequence[FixedSpec], kinds: Mapping[str, Any]) -> Any:
    """Return a module without the fixed ones of its positional parameters. kinds: the tensors that those take."""
    import torch

    values = {spec.name: torch.from_numpy(spec.value).to(kinds[spec.name].dtype) for spec in fixed}
    return _fixed_module(module, names, values, positional=True) if fixed else module


def script_value(spec: FixedSpec, kind: str, what: str) -> Any:
    """Return the value of a parameter of a TorchScript module: a tensor, or a number as its type `kind` says."""
    import torch

    if "Tensor" in kind:
        return torch.from_numpy(spec.value)
    _check_number(spec, kind, what)
    return spec.value.item()


def _check_number(spec: FixedSpec, kind: str, what: str) -> None:
    own = {"bool": "bool", "f": "float"}.get(spec.dtype if spec.dtype == "bool" else spec.value.dtype.kind, "int")
    if spec.shape or kind.removeprefix("Optional[").removesuffix("]") not in (own, "number"):
        raise ModelFileError(
            f"parameter {spec.name} of {what} is {kind}",
            f"{own} of shape {list(spec.shape)}, the value in params.yaml",
            f"correct the value of inputs.{spec.name} in params.yaml",
        )


def _value(spec: FixedSpec) -> Any:
    import torch

    return torch.from_numpy(spec.value) if spec.shape else spec.value.item()


def _fixed_module(module: Any, names: Sequence[str], values: dict[str, Any], positional: bool = False) -> Any:
    """Return a module of some parameters. names: of all (positional), or of those that stay."""
    import torch

    class Fixed(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.training = module, False  # a program's module cannot be switched
            for at, value in enumerate(values.values()):
                if isinstance(value, torch.Tensor):
                    self.register_buffer(f"fixed{at}", value, persistent=False)

        def forward(self, *given: Any) -> Any:
            set_ones = {
                name: getattr(self, f"fixed{at}") if isinstance(value, torch.Tensor) else value
                for at, (name, value) in enumerate(values.items())
            }
            if not positional:
                return self.inner(**dict(zip(names, given, strict=True)), **set_ones)
            rest = iter(given)
            return self.inner(*(set_ones[name] if name in set_ones else next(rest) for name in names))

    return Fixed()
