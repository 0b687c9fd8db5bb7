"""Ways to run a PyTorch module on a CPU, fast ones among them; Keras runs the same on its torch backend."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmflow.frontends.source_model import Arrays, PreparedRun, Variant


def torch_variants(module: Any, arguments: Sequence[Any], exported: Callable[[], Any]) -> tuple[Variant, ...]:
    """Return the ways to run a module in evaluation mode. exported: the same as one graph, for the compiler.

    Tracing leaves out the Python of the layers, of which Keras has most; freezing folds weights, and what optimizes for
    inference lays them out for oneDNN, which is slower for small networks.
    """
    traced = functools.cache(lambda: _traced(module, arguments))
    makers = {
        "eager": lambda: module,
        "TorchScript": lambda: _frozen(traced()),
        "TorchScript for inference": lambda: _optimized(_frozen(traced())),
    }
    ways = [Variant(name, functools.partial(_prepared, make, arguments)) for name, make in makers.items()]
    compiled = functools.partial(_prepared, lambda: _compiled(exported()), arguments)
    return (*ways, Variant("torch.compile", compiled, compiles_long=True))


def _prepared(make: Callable[[], Any], arguments: Sequence[Any]) -> PreparedRun:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and still the faster one for small networks
        function = make()

    def run() -> Any:
        with torch.inference_mode():
            return function(*arguments)

    return PreparedRun(run, _read)


def _read(outputs: Any) -> Arrays:
    import torch

    return tuple(np.asarray(value.cpu().numpy()) for value in torch.utils._pytree.tree_leaves(outputs))


def _traced(module: Any, arguments: Sequence[Any]) -> Any:
    import torch

    with torch.no_grad():
        return torch.jit.trace(module, tuple(arguments), check_trace=False, strict=False)


def _frozen(traced: Any) -> Any:
    import torch

    return torch.jit.freeze(traced)


def _optimized(frozen: Any) -> Any:
    import torch

    return torch.jit.optimize_for_inference(frozen)


def _compiled(graph: Any) -> Any:
    """Return what torch.compile makes of a graph; no processes that compile stay beside what is measured."""
    import torch
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    return torch.compile(graph, fullgraph=True)
