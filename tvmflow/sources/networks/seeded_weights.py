"""Initialize torch networks with seeded weights whose outputs vary over inputs and classes.

Initial weights are made for training, not for inference: batch norms start as the identity, heads and gates at zero,
and a deep network then gives the same output for every input. Every comparison of such outputs would pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tvmflow.sources.data.datasets import varied_inputs

_BATCH = 8
_LEAST_SHARE = 0.2  # least spread over inputs relative to the spread over classes, or the network is changed
_LEAST_TO_AMPLIFY = 0.01  # below it standardizing the head would amplify float32 rounding
_RANGE = (1e-5, 1e3)  # of the spread over inputs, so that float16 can represent it
_LEAST_GATE = 1e-3  # a smaller layer scale disables its block: ConvNeXt starts with 1e-6
_GATE = 0.5


def settle(network: nn.Module, shape: tuple[int, ...], seed: int) -> None:
    """Change the weights of a network in place, deterministically, if its outputs do not vary. shape: of an input.

    Zero weights are drawn. If outputs follow the input too little, the head is standardized: each of its channels gets
    mean 0 and variance 1 over a seeded batch. If they hardly follow it at all, batch norms get the statistics of that
    batch; a network without them gets layers of zero mean and unit variance instead (Mishkin and Matas 2016). That
    comes last because it makes a deep network amplify every rounding error: half of MobileNetV2's int8 outputs would be
    noise.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(varied_inputs(_BATCH, shape, np.random.default_rng(seed)))
    with torch.no_grad(), _one_thread():
        _open_gates(network, generator)
        y = network(x)
        if varies(y):
            return
        norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        layers = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear)) and m.bias is not None]
        if _in_range(y) and _share(y) > _LEAST_TO_AMPLIFY:
            _standardize(layers[-1:], network, x)
            return
        with _statistics_of_the_batch(norms):
            if norms:
                network(x)
        _standardize(layers[-1:] if norms else layers, network, x)


def _open_gates(network: nn.Module, generator: torch.Generator) -> None:
    """Draw weights that are all zero, and reset scales that are near zero."""
    for name, parameter in network.named_parameters():
        if parameter.ndim >= 2 and not parameter.any():
            parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
        elif _is_gate(name, parameter):
            parameter.fill_(_GATE)


def _is_gate(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a scale near zero: a weight, a scalar, or a constant vector."""
    if not (parameter.abs() < _LEAST_GATE).all():
        return False
    is_one_number = parameter.any() and (parameter == parameter.flatten()[0]).all()
    return name.endswith("weight") or parameter.ndim == 0 or bool(is_one_number)


def _share(outputs: torch.Tensor) -> float:
    """Return the spread of outputs (N, classes) over inputs relative to the spread over classes."""
    over_inputs, over_classes = (float(outputs.std(axis).square().mean().sqrt()) for axis in (0, 1))
    return over_inputs / max(over_classes, 1e-30)


def varies(outputs: torch.Tensor) -> bool:
    """Return whether outputs (N, classes) follow the input: in their top-1, and by a fair share of the spread over
    classes.
    """
    return (
        _in_range(outputs)
        and _share(outputs) > _LEAST_SHARE
        and 2 * len(outputs.argmax(1).unique()) >= min(len(outputs), outputs.shape[1])
    )


def _in_range(outputs: torch.Tensor) -> bool:
    """Return whether 16 bits can represent the spread of outputs (N, classes) over inputs."""
    return _RANGE[0] < float(outputs.std(0).square().mean().sqrt()) < _RANGE[1]


@contextlib.contextmanager
def _statistics_of_the_batch(norms: list[nn.BatchNorm2d]) -> Iterator[None]:
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum


def _standardize(layers: list[nn.Conv2d | nn.Linear], network: nn.Module, x: torch.Tensor) -> None:
    """Scale weight and bias of each layer so that every output channel has mean 0 and variance 1 over x."""

    def hook(layer: nn.Conv2d | nn.Linear, _inputs: Any, y: torch.Tensor) -> torch.Tensor:
        channel = 1 if isinstance(layer, nn.Conv2d) else y.ndim - 1
        rest = tuple(axis for axis in range(y.ndim) if axis != channel)
        mean, deviation = y.mean(rest, keepdim=True), y.std(rest, keepdim=True).clamp(min=1e-6)
        layer.weight.div_(deviation.reshape(-1, *[1] * (layer.weight.ndim - 1)))
        assert layer.bias is not None
        layer.bias.copy_((layer.bias - mean.reshape(-1)) / deviation.reshape(-1))
        return (y - mean) / deviation

    handles = [layer.register_forward_hook(hook) for layer in layers]
    network(x)
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run a context on one thread, since the order of sums, and so the weights, depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
