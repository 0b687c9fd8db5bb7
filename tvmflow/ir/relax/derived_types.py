"""Check the types of a module that was read from files, and prove its kernels: shapes decide what kernels read.

TVM's JSON holds the type of every value beside it, and most passes believe it: a constant of six numbers with a type
of six million makes a kernel that reads beyond.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from tvmflow.ir.relax.index_bounds import unbounded_index
from tvmflow.ir.relax.kernel_bounds import UnprovenError, prove_bounds
from tvmflow.ir.tvm_compat import (
    Expr,
    IRModule,
    constant_value,
    return_type,
    type_of,
    variable_name,
)
from tvmflow.support.errors import ModelFileError, TvmflowError, last_line


def check_types(mod: IRModule) -> None:
    """Raise ModelFileError unless a module is `main`, with the types that follow from its parameters, and kernels that
    stay inside their buffers.
    """
    try:
        for name, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc):
                prove_bounds(function)
            elif not isinstance(function, relax.Function) or name.name_hint != "main":
                raise UnprovenError(f"a function {name.name_hint} that is no kernel")
        relax.analysis.well_formed(mod)
        _check_main(mod["main"], relax.BlockBuilder(mod))
    except UnprovenError as error:
        raise _not_allowed(str(error)) from error
    except TvmflowError:
        raise
    except Exception as error:  # TVM's own, of IR that no pass would write
        raise _not_allowed(last_line(error)) from error


def _check_main(main: Any, builder: Any) -> None:
    """Check what TVM's own check, which derives the types of calls, takes as it is."""
    for parameter in main.params:
        if not all(hasattr(extent, "value") for extent in type_of(parameter).shape):
            raise UnprovenError(f"an input {variable_name(parameter)} without a fixed shape")
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    for binding in bindings:
        if not isinstance(binding, relax.VarBinding):
            raise UnprovenError(f"a {type(binding).__name__}")
    values = {binding.var: binding.value for binding in bindings}
    for value in values.values():
        _check_value(value, builder)
        reason = unbounded_index(value, lambda part: values.get(part, part))
        if reason:
            raise UnprovenError(reason)
    _check_value(main.body.body, builder)
    for claimed in (type_of(main.body), return_type(main)):
        _check_claim(claimed, type_of(main.body.body), "main")


def _check_value(value: Expr, builder: Any) -> None:
    """Check a value and its operands."""
    for part in value.fields if isinstance(value, relax.Tuple) else getattr(value, "args", ()):
        _check_value(part, builder)
    tensor: Any = constant_value(value)
    if hasattr(tensor, "numpy"):
        shape, dtype = tuple(int(extent.value) for extent in type_of(value).shape), str(type_of(value).dtype)
        if shape != tuple(tensor.shape) or dtype != str(tensor.dtype):
            raise UnprovenError(f"a constant of {dtype} {list(shape)} with {list(tensor.shape)} numbers")
    elif isinstance(value, relax.Tuple):
        _check_claim(type_of(value), type_of(builder.normalize(relax.Tuple(value.fields))), "a tuple")
    elif isinstance(value, relax.TupleGetItem):
        made = relax.TupleGetItem(value.tuple_value, value.index)
        _check_claim(type_of(value), type_of(builder.normalize(made)), "a part of a tuple")


def _check_claim(claimed: Any, derived: Any, what: str) -> None:
    if not claimed.is_base_of(derived):
        raise UnprovenError(f"{what} with the type {str(claimed)[:100]} in place of {str(derived)[:100]}")


def _not_allowed(what: str) -> ModelFileError:
    return ModelFileError(
        f"the IR that was made of the model holds {what}",
        "operators and kernels that stay inside their tensors (what reads a model file is not trusted)",
        "import the model again; if it is the same, report it with the model",
    )
