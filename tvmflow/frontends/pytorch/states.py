"""Make the buffers that a torch.export program changes explicit: states, which a run takes and returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import numpy as np
import torch

from tvmflow.frontends.source_model import Array, State, TensorSpec
from tvmflow.frontends.torch_arrays import to_numpy
from tvmflow.support.errors import UnsupportedOperatorError

_TRAINED = ("running_mean", "running_var", "num_batches_tracked")
_EXACT = 1 << 53  # integers beyond it are not stored exactly as the floats that describe initial states


def explicit_states(program: Any, what: str) -> tuple[Any, ExplicitStates | None]:
    """Return a program and, if it changes buffers, the module that takes and returns them.

    The program is in functional form then. Raises UnsupportedOperatorError for a program in training mode, and for
    changed tensors that are no buffers.
    """
    written = _written_targets(program)
    if not written:
        return program, None
    constants = {spec.target for spec in program.graph_signature.input_specs if spec.kind.name == "CONSTANT_TENSOR"}
    if written & constants:
        raise _refused(
            f"{what} changes {', '.join(sorted(written & constants))[:300]}, tensors that are no buffers",
            "values that stay between runs in buffers",
            "call register_buffer(name, tensor) for them in the module, and export it again",
        )
    program = program.run_decompositions({})
    changed = changed_buffers(program)
    refuse_training(changed, what)
    return program, ExplicitStates(program, changed) if changed else None


def changed_buffers(program: Any) -> tuple[str, ...]:
    """Return the names of the buffers that a program in functional form changes."""
    return tuple(dict.fromkeys(program.graph_signature.buffers_to_mutate.values()))


def refuse_training(changed: Sequence[str], what: str) -> None:
    """Raise UnsupportedOperatorError if the statistics of norms are among the changed buffers."""
    trained = [name for name in changed if is_statistic(name)]
    if trained:
        raise _refused(
            f"{what} updates statistics of its norms: {', '.join(trained)[:300]}",
            "a model in evaluation mode",
            "call model.eval(), and export it again",
        )


def is_statistic(name: str) -> bool:
    """Return whether a buffer is a statistic that norms update in training."""
    return name.rpartition(".")[2] in _TRAINED


def lasting(value: Any) -> Any:
    """Return what must stay the same of an attribute from run to run: of a tensor its type and shape."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        return [lasting(item) for item in value]
    return value if isinstance(value, int | float | bool | str | NoneType) else type(value)


class ExplicitStates(torch.nn.Module):  # type: ignore[misc]
    """A program in functional form as a module of its inputs and, behind them, its changed buffers.

    Returns the outputs of the program, and a tuple of the next values of the buffers.
    """

    def __init__(self, program: Any, changed: Sequence[str]) -> None:
        super().__init__()
        self.inner, self.changed, self.training = program.graph_module, tuple(changed), False
        self.user_inputs = list(program.graph_signature.user_inputs)
        self.structure = program.call_spec.out_spec
        values = {**program.state_dict, **program.constants}
        self.initial = [values[name].detach().clone() for name in changed]
        self.places: list[tuple[str, Any]] = []  # of each parameter of the graph: where its value is
        for at, spec in enumerate(program.graph_signature.input_specs):
            if spec.kind.name == "USER_INPUT":
                self.places.append(("given", self.user_inputs.index(getattr(spec.arg, "name", None) or spec.arg.value)))
            elif spec.target in self.changed:
                self.places.append(("given", len(self.user_inputs) + self.changed.index(spec.target)))
            else:
                self.register_buffer(f"held{at}", values[spec.target].detach(), persistent=False)
                self.places.append(("held", f"held{at}"))
        self.made = [
            ("next", self.changed.index(spec.target)) if spec.kind.name == "BUFFER_MUTATION" else (spec.kind.name, 0)
            for spec in program.graph_signature.output_specs
        ]

    def forward(self, *given: torch.Tensor) -> tuple[Any, tuple[torch.Tensor, ...]]:
        values = self.inner(*(given[at] if kind == "given" else getattr(self, at) for kind, at in self.places))
        states: list[Any] = [None] * len(self.changed)
        outputs = []
        for (kind, at), value in zip(self.made, values, strict=True):
            if kind == "next":
                states[at] = value
            elif kind == "USER_OUTPUT":
                outputs.append(value)
        return torch.utils._pytree.tree_unflatten(outputs, self.structure), tuple(states)


def with_values(module: Any, names: Sequence[str], values: Sequence[torch.Tensor]) -> Any:
    """Return a module after its buffers are set to copies of values."""
    for name, value in zip(names, values, strict=True):
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, value.clone())
    return module


class States:
    """The states of a module: their description, and how a stream begins.

    original: returns the module as it was, which changes its own buffers.
    """

    def __init__(
        self, names: Sequence[str], initial: Sequence[torch.Tensor], others: Sequence[str], original: Callable[[], Any]
    ) -> None:
        self.names, self.original = _distinct(names, others), original
        self.initial = [to_numpy(value.float() if value.is_floating_point() else value) for value in initial]

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Return the states as inputs of the model."""
        return tuple(
            TensorSpec(name, value.shape, value.dtype.name)
            for name, value in zip(self.names, self.initial, strict=True)
        )

    @property
    def declared(self) -> tuple[State, ...]:
        """Return the states as the description of a model has them."""
        return tuple(
            State(name, f"{name}_next", _numbers(name, value))
            for name, value in zip(self.names, self.initial, strict=True)
        )


def _written_targets(program: Any) -> set[str]:
    """Return the buffers and constants that operators of a program may write, directly or through views of them."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    held: dict[Any, set[str]] = {}  # node -> those whose memory it shares
    written = set(program.graph_signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        spec = specs.get(node.name)
        if node.op == "placeholder":
            if spec is not None and spec.kind.name in ("BUFFER", "CONSTANT_TENSOR"):
                held[node] = {spec.target}
            continue
        shared = set().union(*(held.get(part, set()) for part in node.all_input_nodes))
        schema = getattr(node.target, "_schema", None)
        if not shared or node.op != "call_function":
            continue
        if schema is None:  # an item of a tuple
            held[node] = shared
            continue
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.fx.Node):
                written |= held.get(value, set())
        if any(result.alias_info is not None for result in schema.returns):
            held[node] = shared
    return written


def _numbers(name: str, value: Array) -> tuple[float, ...]:
    if value.dtype.kind in "iu" and value.size and int(np.abs(value).max()) > _EXACT:
        raise _refused(
            f"state {name} begins with {int(np.abs(value).max())}", f"integers up to {_EXACT}", "store it as floats"
        )
    if not np.any(value):
        return ()
    numbers = tuple(float(number) for number in value.reshape(-1))
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def _distinct(names: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return names that no other input has."""
    taken, found = set(others), []
    for name in names:
        while name in taken:
            name += "_state"
        taken.add(name)
        found.append(name)
    return tuple(found)


def _refused(found: str, expected: str, hint: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(found, expected, hint)
