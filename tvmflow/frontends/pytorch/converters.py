"""List the converters of PyTorch operators: ours, and TVM's for the rest.

What cannot be converted is recorded, and the import goes on with zeros in its place, so that one error names all of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.arithmetic import ARITHMETIC
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, has_dynamic_sizes, shape_of
from tvmflow.frontends.pytorch.complex_numbers import complex_converter, is_complex, names_of_complex
from tvmflow.frontends.pytorch.convolutions import CONVOLUTIONS
from tvmflow.frontends.pytorch.functions import FUNCTIONS
from tvmflow.frontends.pytorch.images import IMAGES
from tvmflow.frontends.pytorch.indexing import INDEXING
from tvmflow.frontends.pytorch.layers import LAYERS
from tvmflow.frontends.pytorch.reductions import REDUCTIONS
from tvmflow.support.errors import first_line

Converter = Callable[[Any, Any], Any]

_BY_VALUES = "its shape depends on values"
_RANDOM = "random numbers"
_TRAINING = "training"
REFUSED = {
    "nonzero": _BY_VALUES,
    "masked_select": _BY_VALUES,
    "unique_dim": _BY_VALUES,
    "_unique2": _BY_VALUES,
    "unique_consecutive": _BY_VALUES,
    "_local_scalar_dense": "a number that depends on values",
    "item": "a number that depends on values",
    "resize_": "it changes a tensor in place",
    **dict.fromkeys(("rand", "randn", "randperm", "bernoulli", "native_dropout", "exponential"), _RANDOM),
    **dict.fromkeys(("randn_like", "rand_like", "multinomial", "normal", "uniform"), _RANDOM),
    **dict.fromkeys(("_native_batch_norm_legit.default", "_native_batch_norm_legit_functional.default"), _TRAINING),
    **dict.fromkeys(("_sparse_mm", "_sparse_addmm", "to_sparse"), "sparse tensors"),
}  # by name, without overload if it holds for all: why an operator is refused, whatever its arguments
NO_CONVERTER = "it has no converter"
_OF_SIZES = "it depends on sizes that are open"


@dataclass(frozen=True)
class Refusal:
    """An operator of a program that cannot be converted."""

    node: Any
    reason: str

    def __str__(self) -> str:
        where = _source_line(self.node)
        return f"{self.node.target} ({self.node.name}{', ' + where if where else ''}): {self.reason}"


def _source_line(node: Any) -> str:
    """Return the file and line of the model that called an operator, '' if the exporter does not know."""
    lines = [line for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File")]
    if not lines:
        return ""
    found = re.search(r'File "(?:.*/)?([^"/]+)", line (\d+)', lines[-1])
    return f"{found[1]}:{found[2]}" if found else ""


@functools.cache
def operators_of_tvm() -> frozenset[str]:
    """Return the names, with overloads, of the operators that TVM's importer converts."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return frozenset(name for name in ExportedProgramImporter().create_convert_map() if isinstance(name, str))


@functools.cache
def converters() -> dict[str, Convert]:
    """Return our converters by the names of operators, with overloads."""
    return {**ARITHMETIC, **FUNCTIONS, **REDUCTIONS, **INDEXING, **IMAGES, **LAYERS, **CONVOLUTIONS}


def reason_against(name: str) -> str | None:
    """Return why an operator is refused whatever its arguments; None if it is not."""
    stem = name.split(".")[0]
    if (known := REFUSED.get(name, REFUSED.get(stem))) is not None:
        return known
    if name in converters() or name in operators_of_tvm() or stem in names_of_complex():
        return None
    if "backward" in stem:
        return _TRAINING
    return _OF_SIZES if stem.startswith("sym_") else NO_CONVERTER


def recording_converters(program: Any, refused: list[Refusal]) -> dict[str, Converter]:
    """Return a converter of each operator of a program, which adds what it refuses to `refused`."""
    names = {
        node.target.__name__
        for node in program.graph_module.graph.nodes
        if node.op == "call_function" and hasattr(node.target, "_schema")
    }
    return {name: functools.partial(_convert, name, refused) for name in names}


def _convert(name: str, refused: list[Refusal], node: Any, importer: Any) -> Any:
    try:
        if (reason := reason_against(name)) is not None:
            raise NotImplementedError(reason)
        call = Call(node, importer)
        own = None if has_dynamic_sizes(node) else converters().get(name)
        own = complex_converter(name, own) if is_complex(node) else own
        value = call.by_tvm() if own is None else own(call)
        return _as_described(call, value)
    except (AssertionError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        refused.append(Refusal(node, first_line(error) or type(error).__name__))
        return _zeros(node, importer)


def _as_described(call: Call, value: Any) -> Any:
    """Return a value in the type that PyTorch's exporter states. Raises ValueError for another shape."""
    wanted = call.node.meta.get("val")
    if has_dynamic_sizes(call.node) or not hasattr(wanted, "shape") or isinstance(value, (tuple, list)):
        return value
    if shape_of(value) != tuple(wanted.shape):
        raise ValueError(f"shape {list(shape_of(value))} where PyTorch has {list(wanted.shape)}")
    dtype = str(wanted.dtype).removeprefix("torch.")
    return value if type_name(value) == dtype else call.r.cast(value, dtype)


def _zeros(node: Any, importer: Any) -> Any:
    """Return zeros in the shape of a node's value, or several."""

    def of(one: Any) -> Any:
        shape = [extent if isinstance(extent, int) else 1 for extent in getattr(one, "shape", ())]
        dtype = str(getattr(one, "dtype", "torch.float32")).removeprefix("torch.")
        call = Call(node, importer)
        return call.r.expanded(constant(0, "float32" if "complex" in dtype else dtype), shape)

    found = node.meta.get("val")
    return tuple(of(one) for one in found) if isinstance(found, (tuple, list)) else of(found)
