"""Find what a network of the user's own code keeps between runs: its buffers, and tensors that are plain attributes."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tvmflow.frontends.pytorch.float_ends import output_types, with_float_ends
from tvmflow.frontends.pytorch.running import Model, TorchModel
from tvmflow.frontends.pytorch.states import States, explicit_states, is_statistic, lasting, with_values
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.support.errors import UnsupportedOperatorError

_OWN = frozenset(vars(torch.nn.Module()))  # attributes of every module


def with_states(kind: type[Model], module: Any, network: Any, inputs: tuple[TensorSpec, ...], what: str) -> Model:
    """Return a model whose states are the tensors that `network`, a part of `module`, changes. Raises
    UnsupportedOperatorError for anything else that it changes.
    """
    _register_tensors(network)
    plain = kind(module, inputs)
    prefix = next(name for name, part in module.named_modules() if part is network)
    _check_other_attributes(plain, network, what)
    if all(is_statistic(name) for name, _ in network.named_buffers()):
        return plain
    program = TorchModel(_Copying(module, network), inputs).exported()
    functional, explicit = explicit_states(program, what)
    if explicit is None:
        return plain

    def begin() -> Any:
        return with_values(module, [name.removeprefix("inner.") for name in explicit.changed], explicit.initial)

    names = [name.removeprefix("inner.").removeprefix(f"{prefix}.") for name in explicit.changed]
    kept = States(names, explicit.initial, [spec.name for spec in inputs], begin)
    stored = [*(None for _ in inputs), *(value.dtype for value in explicit.initial)]
    ends = with_float_ends(explicit, [*inputs, *kept.specs], stored, output_types(functional))
    return kind(ends, inputs, kept=kept)


class _Copying(torch.nn.Module):  # type: ignore[misc]
    """A module that copies new values into the buffers of `network` where its code replaces them: torch.export loses
    what is assigned to buffers of inner modules.
    """

    def __init__(self, module: Any, network: Any) -> None:
        super().__init__()
        self.inner, self.training = module, False
        self.owners = tuple(network.modules())

    def forward(self, *given: torch.Tensor) -> Any:
        before = [dict(owner._buffers) for owner in self.owners]
        outputs = self.inner(*given)
        for owner, held in zip(self.owners, before, strict=True):
            for name, value in held.items():
                if value is not None and owner._buffers[name] is not value:
                    value.copy_(owner._buffers[name])
                    owner._buffers[name] = value
        return outputs


def _register_tensors(network: Any) -> None:
    """Make tensors that are plain attributes of modules buffers: torch.export forgets changes of others."""
    for module in network.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and not hasattr(type(module), name):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)


def _check_other_attributes(plain: TorchModel, network: Any, what: str) -> None:
    """Run a network once, and raise UnsupportedOperatorError if other attributes than the values of tensors change."""
    buffers = [(module, name, value.clone()) for module, name, value in _buffers(network)]
    before = _attributes(network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.run(*(spec.zeros() for spec in plain.inputs))
    after = _attributes(network)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        raise UnsupportedOperatorError(
            f"network {what} keeps numbers, lists or tensors of changing shapes between runs: "
            + ", ".join(changed)[:300],
            "tensors of one shape, which stay between runs",
            "keep them in buffers: register_buffer(name, torch.zeros(shape))",
        )
    for module, name, value in buffers:
        setattr(module, name, value)


def _buffers(network: Any) -> list[tuple[Any, str, torch.Tensor]]:
    return [
        (module, name, value)
        for module in network.modules()
        for name, value in module._buffers.items()
        if value is not None
    ]


def _attributes(network: Any) -> dict[str, Any]:
    """Return what must stay the same of all attributes, by their paths."""
    return {
        f"{path}.{name}".removeprefix("."): lasting(value)
        for path, module in network.named_modules()
        for name, value in (vars(module) | module._buffers).items()
        if name not in _OWN
    }
