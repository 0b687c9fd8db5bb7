"""Read a Relax function to a list of steps with names and arrays.

Quantization and passes work on this list; `numpy_interpreter` evaluates it and `emit` writes it back. It knows nothing
of scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmflow.ir.tvm_compat import Call, Expr, IRModule, PrimFunc, constant_value, type_of, variable_name
from tvmflow.support.errors import UnsupportedOperatorError
from tvmflow.support.samples import batch_of

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]


def operators_named(names: str) -> frozenset[str]:
    """Return the operators of Relax with these names, which are separated by white space."""
    return frozenset(f"relax.{name}" for name in names.split())


@dataclass(frozen=True)
class Ref:
    """A reference to the value of an earlier step or of an input."""

    name: str


@dataclass(frozen=True)
class Other:
    """An argument other than a tensor: a shape, a number, a type."""

    expression: Expr


def scalar_of(argument: Any) -> float:
    """Return a scalar argument of a step as a number."""
    expression: Any = argument.expression if isinstance(argument, Other) else argument
    return float(getattr(expression, "value", expression))


Argument = Ref | Array | Other | tuple["Argument", ...]


@dataclass(frozen=True)
class Step:
    """An operator call. shape is empty for a tuple (`split`); `call` is the original Relax expression.

    kernel: the TIR function of a call_tir, which importers emit for operators that Relax lacks.
    """

    name: str
    op: str
    args: tuple[Argument, ...]
    call: Call
    shape: tuple[int, ...]
    dtype: str
    kernel: PrimFunc | None = field(default=None, kw_only=True)

    @property
    def refs(self) -> tuple[str, ...]:
        return tuple(_refs(self.args))


def _refs(arguments: tuple[Argument, ...]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument.name
        elif isinstance(argument, tuple):
            yield from _refs(argument)


def axes_of_permutation(step: Step) -> list[int]:
    """Return the axes of a permute_dims, empty for the reverse order."""
    axes = step.call.attrs.axes
    return [int(axis) for axis in axes] if axes is not None else []


def is_concat(step: Step, axis: int | None = None) -> bool:
    """Whether a step concatenates values only, along `axis` or any; constants would be missing in its `refs`."""
    if step.op != "relax.concat" or not isinstance(step.args[0], tuple):
        return False
    along = int(step.call.attrs.axis) % len(step.shape)
    return axis in (None, along) and all(isinstance(part, Ref) for part in step.args[0])


@dataclass(frozen=True)
class TensorKind:
    """Shape and dtype of a value."""

    shape: tuple[int, ...]
    dtype: str


@dataclass
class Graph:
    """Inputs, steps in order, and the names of the output values."""

    inputs: dict[str, TensorKind]
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[str, ...] = ()

    @property
    def batch(self) -> int:
        """Return how many samples a run takes, or WHOLE."""
        return batch_of([kind.shape for kind in self.inputs.values()])

    def kinds(self) -> dict[str, TensorKind]:
        """Return shape and dtype of every value."""
        return {**self.inputs, **{step.name: TensorKind(step.shape, step.dtype) for step in self.steps}}

    def kind(self, name: str) -> TensorKind:
        """Return shape and dtype of one value."""
        if name in self.inputs:
            return self.inputs[name]
        step = self.step(name)
        return TensorKind(step.shape, step.dtype)

    def users(self) -> dict[str, list[Step]]:
        """Return the steps that read each value."""
        users: dict[str, list[Step]] = {name: [] for name in (*self.inputs, *(step.name for step in self.steps))}
        for step in self.steps:
            for name in step.refs:
                users[name].append(step)
        return users

    def kernels(self) -> dict[Expr, PrimFunc]:
        """Return the TIR functions that steps call, by their GlobalVar."""
        return {
            step.args[0].expression: step.kernel
            for step in self.steps
            if step.kernel is not None and isinstance(step.args[0], Other)
        }

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


def static_shape(expression: Expr) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of a tensor, ((), 'tuple') for anything else.

    Raises UnsupportedOperatorError for a dynamic shape.
    """
    kind = type_of(expression)
    if not hasattr(kind, "shape") or not hasattr(kind, "dtype"):
        return (), "tuple"
    if kind.shape is None or not all(hasattr(d, "value") for d in kind.shape):
        raise UnsupportedOperatorError(
            f"a tensor of shape {kind.shape} in the model", "shapes that are fixed numbers", "give input.shape in full"
        )
    return tuple(int(d.value) for d in kind.shape), str(kind.dtype)


def reorder_inputs(mod: IRModule, order: Sequence[int]) -> Any:
    """Return a module whose main has its parameters reordered: `order[i]` is the current position of parameter i."""
    import tvm
    from tvm import relax

    if list(order) == list(range(len(order))):
        return mod
    function = mod["main"]
    parameters = [function.params[index] for index in order]
    main = relax.Function(parameters, function.body, None, function.is_pure, function.attrs)
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): main}, attrs=mod.attrs)


def read_graph(mod: IRModule) -> Graph:
    """Read `main` of a module: straight-line code of operator calls."""
    from tvm import relax

    function = mod["main"]
    names: dict[Any, str] = {}
    taken: set[str] = set()

    def name_of(variable: Any) -> str:
        name, stem, count = variable_name(variable), variable_name(variable), 1
        while name in taken:
            name, count = f"{stem}.{count}", count + 1
        taken.add(name)
        names[variable] = name
        return name

    def argument(expression: Expr) -> Argument:
        if isinstance(expression, relax.Var):
            return Ref(names[expression])
        tensor = constant_value(expression)
        if tensor is not None and hasattr(tensor, "numpy"):
            return np.asarray(tensor.numpy())
        if isinstance(expression, relax.Tuple):
            return tuple(argument(item) for item in expression.fields)
        return Other(expression)

    graph = Graph({name_of(parameter): TensorKind(*static_shape(parameter)) for parameter in function.params})
    tuples: dict[Any, tuple[Any, ...]] = {}  # tuples that the model builds from named values
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Var):
                names[binding.var] = names[value]
                continue
            if isinstance(value, relax.Tuple) and len(value.fields) != 1:
                tuples[binding.var] = tuple(value.fields)
                continue
            if isinstance(value, relax.TupleGetItem):
                op, args = f"get_item.{value.index}", (Ref(names[value.tuple_value]),)
            elif isinstance(value, relax.Call) and hasattr(value.op, "name"):
                op, args = str(value.op.name), tuple(argument(item) for item in value.args)  # type: ignore[assignment]
            elif (constant := constant_value(value)) is not None:
                op, args = "constant", (np.asarray(constant.numpy()),)  # type: ignore[assignment]
            elif isinstance(value, relax.Tuple) and len(value.fields) == 1:
                names[binding.var] = names[value.fields[0]]
                continue
            else:
                found = f"{type(value).__name__} in the model"
                raise UnsupportedOperatorError(found, "operator calls, one after the other")
            shape, dtype = static_shape(binding.var)
            kernel = mod[value.args[0]] if op == "relax.call_tir" else None
            graph.steps.append(Step(name_of(binding.var), op, args, value, shape, dtype, kernel=kernel))
    output = function.body.body
    fields = tuple(output.fields) if isinstance(output, relax.Tuple) else tuples.get(output, (output,))
    for place, value in enumerate(fields):
        if value not in names and (made := _constant_output(value, place)) is not None:
            names[value] = made.name
            graph.steps.append(made)
    graph.outputs = tuple(names[value] for value in fields)
    return graph


def _constant_output(value: Expr, place: int) -> Step | None:
    """Return a step for an output that depends on no input, None for any other."""
    tensor = constant_value(value)
    if tensor is None:
        return None
    shape, dtype = static_shape(value)
    return Step(f"constant_output.{place}", "constant", (np.asarray(tensor.numpy()),), value, shape, dtype)
