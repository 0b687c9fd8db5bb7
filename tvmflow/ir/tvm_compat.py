"""Names that differ between the versions of TVM that tvmflow runs on (0.26 and 0.27)."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

# TVM's objects by name. TVM has no type stubs, so a type checker sees Any.
IRModule: TypeAlias = Any
PrimFunc: TypeAlias = Any  # tvm.tirx.PrimFunc
Schedule: TypeAlias = Any  # tvm.s_tir.Schedule
Call: TypeAlias = Any  # tvm.relax.Call, or tvm.tirx.Call within a PrimFunc
Expr: TypeAlias = Any  # tvm.relax.Expr, or tvm.tirx.PrimExpr within a PrimFunc


def constant_value(expression: Any) -> Any | None:
    """Return the tensor of a constant expression, None for anything else."""
    kind = type(expression).__name__
    if kind == "GenericConst":
        return expression.value
    return expression.data if kind == "Constant" else None


def type_of(expression: Any) -> Any:
    """Return the Relax type (shape and dtype) of an expression."""
    ty = getattr(expression, "ty", None)
    return ty if ty is not None else expression.struct_info


def typed(expression: Any, kind: Any) -> Any:
    """Set the Relax type of a new expression, and return it."""
    from tvm.relax import expr

    update = getattr(expr, "_update_type", None) or expr._update_struct_info
    update(expression, kind)
    return expression


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a Relax value of fixed extents."""
    return tuple(int(extent) for extent in type_of(value).shape)


def operator_of(call: Any) -> str:
    """Return the name of a call's operator, '' of anything else."""
    return str(getattr(getattr(call, "op", None), "name", ""))


def buffer_of(function: Any, parameter: Any) -> Any | None:
    """Return the buffer (shape, dtype) of a PrimFunc's parameter, None for a scalar."""
    buffers = getattr(function, "buffer_map", None)
    if buffers is not None:
        return buffers[parameter] if parameter in buffers else None
    try:
        return parameter if parameter.shape is not None else None
    except (AttributeError, TypeError, ValueError):
        return None


def type_arguments(call: Any) -> Any:
    """Return the type arguments of a Relax call."""
    return call.ty_args if hasattr(call, "ty_args") else call.sinfo_args


def variable_name(variable: Any) -> str:
    """Return the name of a Relax variable."""
    return str(variable.name_hint if hasattr(variable, "name_hint") else variable.name)


def linear_factors(expression: Any, variables: list[Any]) -> list[int]:
    """Return the constant factors of variables in a linear expression."""
    return [int(factor) for factor in _linear_parts(expression, variables)[: len(variables)]]


def added_constant(expression: Any, variable: Any) -> int | None:
    """Return c of an expression variable + c, None for any other."""
    parts = _linear_parts(expression, [variable])
    return (
        int(parts[1])
        if len(parts) == 2 and all(hasattr(part, "value") for part in parts) and int(parts[0]) == 1
        else None
    )


def block_class() -> Any:
    """Return the class of a block."""
    from tvm import s_tir, tirx

    return getattr(s_tir, "SBlock", None) or tirx.SBlock


def load_class() -> Any:
    """Return the class of an expression that reads a buffer."""
    from tvm import ir, tirx

    return getattr(ir, "TensorLoad", None) or tirx.BufferLoad


def loaded(load: Any) -> Any:
    """Return the buffer that an expression of `load_class` reads."""
    return load.source if hasattr(load, "source") else load.buffer


def analyzer_class() -> Any:
    """Return the class of TVM's integer analyzer."""
    try:
        from tvm.sym import Analyzer
    except ImportError:
        from tvm.arith import Analyzer
    return Analyzer


def _linear_parts(expression: Any, variables: list[Any]) -> list[Any]:
    try:
        from tvm.sym import detect_linear_equation
    except ImportError:
        from tvm.arith import detect_linear_equation

    return list(detect_linear_equation(expression, variables))


def symbolic_bounds() -> tuple[Any, Any]:
    """Return TVM's classes Analyzer and ConstIntBound."""
    try:
        from tvm.sym import Analyzer, ConstIntBound
    except ImportError:
        from tvm.arith import Analyzer, ConstIntBound

    return Analyzer, ConstIntBound


def iteration_sum(index: Any, extents: dict[Any, int]) -> Any:
    """Return an index over loops of these extents as TVM's sum of parts of the loops with factors."""
    from tvm.ir import Range

    try:
        from tvm.sym import normalize_to_iter_sum
    except ImportError:
        from tvm.arith import normalize_to_iter_sum

    analyzer, ranges = analyzer_class()(), {loop: Range(0, extent) for loop, extent in extents.items()}
    for loop, values in ranges.items():
        analyzer.bind(loop, values)
    return normalize_to_iter_sum(analyzer.simplify(index), ranges)


def tuple_type(parts: list[Any]) -> Any:
    """Return the Relax type of a tuple of these types."""
    from tvm import ir, relax

    made = getattr(relax, "TupleStructInfo", None)
    return made(parts) if made is not None else ir.TupleType(parts)


def return_type(function: Any) -> Any:
    """Return the return type of a Relax function."""
    return function.ret_ty if hasattr(function, "ret_ty") else function.ret_struct_info


def reads_of(function: Any) -> Counter[Any]:
    """Return how often the calls, tuples and bodies of a Relax function read each variable."""
    from tvm import relax

    reads: Counter[Any] = Counter()

    def count(expression: Any) -> None:
        parts = (
            expression.args
            if isinstance(expression, relax.Call)
            else expression.fields
            if isinstance(expression, relax.Tuple)
            else [expression.body]
            if isinstance(expression, relax.SeqExpr)
            else []
        )
        reads.update(part for part in parts if isinstance(part, relax.Var))

    relax.analysis.post_order_visit(function, count)
    return reads


def with_bindings(main: Any, bindings: list[Any]) -> Any:
    """Return a Relax function of one block with its bindings replaced."""
    from tvm import relax

    body = relax.SeqExpr([type(main.body.blocks[0])(bindings)], main.body.body)
    return relax.Function(main.params, body, return_type(main), main.is_pure, main.attrs)


def object_type() -> Any:
    """Return the type of Relax values other than tensors."""
    from tvm import relax

    return relax.ObjectType() if hasattr(relax, "ObjectType") else relax.ObjectStructInfo()


def dtype_of(expression: Any) -> str:
    """Return the dtype of a TensorIR expression, "float32x16" for a vector."""
    ty = getattr(expression, "ty", None)
    return str(ty.dtype if ty is not None else expression.dtype)


def register_intrin_lowering(operator: str, target: str, lower: Any, level: int = 10) -> None:
    """Register a function that lowers an operator of TensorIR for a kind of target."""
    import tvm
    from tvm.tirx import op

    register = getattr(op, "register_intrin_lowering", None) or tvm.ir.register_intrin_lowering
    register(operator, target=target, f=lower, level=level)
