"""List the CPU execution variants of a PyTorch module, also for Keras on its torch backend."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tvmflow.frontends.source_model import Arrays, PreparedRun, Variant
from tvmflow.frontends.torch_arrays import to_numpy


def torch_variants(module: Any, arguments: Sequence[Any], exported: Callable[[], Any]) -> tuple[Variant, ...]:
    """Return the variants of a module in evaluation mode. exported: the module as one graph, for the compiler.

    Tracing removes the Python code of the layers, of which Keras has most; freezing folds weights; optimizing for
    inference uses oneDNN layouts, which are slower for small networks.
    """
    traced = functools.cache(lambda: _trace(module, arguments))
    makers = {
        "eager": lambda: module,
        "TorchScript": lambda: _freeze(traced()),
        "TorchScript for inference": lambda: _optimize(_freeze(traced())),
    }
    variants = [Variant(name, functools.partial(_prepare, make, arguments)) for name, make in makers.items()]
    compiled = functools.partial(_prepare, lambda: _compile(exported()), arguments)
    return (*variants, Variant("torch.compile", compiled, compiles_long=True))


def _prepare(make: Callable[[], Any], arguments: Sequence[Any]) -> PreparedRun:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but still faster for small networks
        function = make()

    def run() -> Any:
        with torch.inference_mode():
            return function(*arguments)

    return PreparedRun(run, _read)


def _read(outputs: Any) -> Arrays:
    return tuple(to_numpy(value) for value in torch.utils._pytree.tree_leaves(outputs))


def _trace(module: Any, arguments: Sequence[Any]) -> Any:
    with torch.no_grad():
        return torch.jit.trace(module, tuple(arguments), check_trace=False, strict=False)


def _freeze(traced: Any) -> Any:
    return torch.jit.freeze(traced)


def _optimize(frozen: Any) -> Any:
    return torch.jit.optimize_for_inference(frozen)


def _compile(graph: Any) -> Any:
    """Return a graph compiled by torch.compile, without compiler processes that would disturb measurements."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    return torch.compile(graph, fullgraph=True)
