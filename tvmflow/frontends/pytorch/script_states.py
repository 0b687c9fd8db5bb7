"""Turn TorchScript modules into modules of one recorded run, which keep values between runs in buffers.

A run is recorded with the tensors among a script's attributes as inputs. Its other attributes (flags, the last sampling
rate) have the values that they settle at, which decide between its branches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch

from tvmflow.frontends.pytorch.fixed_inputs import script_value
from tvmflow.frontends.pytorch.scripts import nodes_of, recorded
from tvmflow.frontends.pytorch.states import lasting
from tvmflow.frontends.source_model import FixedSpec, TensorSpec, input_positions, open_names
from tvmflow.support.errors import UnsupportedOperatorError

_MOST_RUNS = 4  # until the attributes are settled

Place = tuple[str, str]  # of an attribute: the path of its module, and its name


def changes_attributes(script: Any) -> bool:
    """Return whether `forward` of a script may change attributes that it reads."""
    graph = _inlined(script)
    nodes = list(nodes_of(graph))
    read, changed = (
        {node.s("name") for node in nodes if node.kind() == f"prim::{kind}Attr"} for kind in ("Get", "Set")
    )
    if changed & read:
        return True
    parameters = {name.rpartition(".")[2] for name, _ in script.named_parameters()}
    shared: set[str] = set()  # values that share the memory of an attribute
    for node in nodes:
        outputs = list(node.outputs())
        if node.kind() == "prim::GetAttr":
            if outputs[0].type().kind() not in ("ClassType", "InterfaceType") and node.s("name") not in parameters:
                shared.add(outputs[0].debugName())
            continue
        if node.schema() == "(no schema)":
            continue
        schema = torch._C.parse_schema(node.schema())
        for argument, value in zip(schema.arguments, node.inputs(), strict=False):
            if argument.alias_info is not None and value.debugName() in shared:
                if argument.alias_info.is_write:
                    return True
                shared |= {output.debugName() for output in outputs}
    return False


def _inlined(script: Any) -> Any:
    graph = script.graph.copy()
    torch._C._jit_pass_inline(graph)
    return graph


@dataclass(frozen=True)
class _Attributes:
    """The attributes that `forward` of a script uses. tensors: those that are no parameters; others: the rest."""

    script: Any
    tensors: tuple[Place, ...]
    others: tuple[Place, ...]

    def values(self) -> list[Any]:
        return [self._value(place) for place in self.tensors]

    def other_values(self) -> list[Any]:
        return [self._value(place) for place in self.others]

    def set(self, values: Sequence[Any]) -> None:
        for (owner, name), value in zip(self.tensors, values, strict=True):
            setattr(_module_at(self.script, owner), name, value)

    def _value(self, place: Place) -> Any:
        return getattr(_module_at(self.script, place[0]), place[1])


def recorded_module(
    load: Callable[[], Any],
    inputs: Sequence[TensorSpec],
    types: Sequence[torch.dtype],
    fixed: Sequence[FixedSpec],
    what: str,
) -> tuple[Any, Callable[[], Any] | None]:
    """Return a module of a script's run with the values that it keeps as buffers, and if it keeps any, what returns
    the script itself at the beginning of a stream. load: reads the script. Raises UnsupportedOperatorError.
    """
    script = load()
    parameters = {one.name: str(one.type) for one in script.forward.schema.arguments[1:]}
    numbers = {spec.name: script_value(spec, parameters[spec.name], what) for spec in fixed if spec.name in parameters}
    needed = [one.name for one in script.forward.schema.arguments[1:] if not one.has_default_value()]
    names = open_names(what, list(parameters), fixed)
    names = [name for at, name in enumerate(names) if at < len(inputs) or name in needed]
    order = input_positions(what, names, inputs)
    example = [torch.zeros(inputs[at].shape, dtype=types[at]) for at in map(order.index, range(len(names)))]

    def call(module: Any, given: Sequence[Any]) -> Any:
        return module.forward(**dict(zip(names, given, strict=True)), **numbers)

    has_states = changes_attributes(script)
    with torch.no_grad(), torch.jit.optimized_execution(False):
        attributes, initial = _Attributes(script, (), ()), list[torch.Tensor]()
        if has_states:
            attributes, initial = _settle(script, partial(call, script, example), what)

        def run(given: list[Any], states: list[Any]) -> Any:
            attributes.set(states)
            return call(script, given), attributes.values()

        before = attributes.other_values()
        traced = recorded(script, run, example, initial, what)
        _check_settled(attributes, before, what)
    module = _with_buffers(traced, names, attributes, initial)
    module.example = tuple(example)
    return module, (lambda: _Script(load(), call)) if has_states else None


def _settle(script: Any, run: Callable[[], Any], what: str) -> tuple[_Attributes, list[torch.Tensor]]:
    """Run a script until its attributes keep their values, tensors their shapes and types.

    Returns them, and the values of the tensors that a stream begins with: those of the file, or zeros if they get
    another shape in the first run. `fetch` compares a stream with the script's own.
    """
    places = _places_in(script, what)
    first = _kinds_of(script, places)
    begun = first
    for _ in range(_MOST_RUNS):
        run()
        last, first = first, _kinds_of(script, places)
        if lasting(last) == lasting(first):
            break
    tensors = tuple(place for place in places if isinstance(first[place], torch.Tensor))
    attributes = _Attributes(script, tensors, tuple(place for place in places if place not in tensors))
    if lasting(last) != lasting(first):
        raise _unsettled(what, [place for place in places if lasting(last[place]) != lasting(first[place])])
    initial = [
        begun[place] if lasting(begun[place]) == lasting(first[place]) else torch.zeros_like(first[place])
        for place in tensors
    ]
    return attributes, initial


def _module_at(script: Any, path: str) -> Any:
    return reduce(getattr, filter(None, path.split(".")), script)


def _kinds_of(script: Any, places: Sequence[Place]) -> dict[Place, Any]:
    """Return the values of attributes; tensors are copies."""
    values = {place: getattr(_module_at(script, place[0]), place[1]) for place in places}
    return {place: value.clone() if isinstance(value, torch.Tensor) else value for place, value in values.items()}


def _check_settled(attributes: _Attributes, before: Sequence[Any], what: str) -> None:
    pairs = zip(attributes.others, before, attributes.other_values(), strict=True)
    changed = [place for place, old, new in pairs if lasting(old) != lasting(new)]
    lists = [place for place, old in zip(attributes.others, before, strict=True) if _holds_tensors(old)]
    if changed or lists:
        raise _unsettled(what, [*changed, *lists])


def _holds_tensors(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(isinstance(item, torch.Tensor) or _holds_tensors(item) for item in items)


def _unsettled(what: str, places: Sequence[Place]) -> UnsupportedOperatorError:
    shown = ", ".join(".".join(filter(None, place)) for place in places)
    return UnsupportedOperatorError(
        f"the TorchScript model {what} keeps numbers, lists or tensors of changing shapes between runs: {shown[:300]}",
        "tensors of one shape, and other attributes that settle after a few runs",
        "export its inner network, with these values as inputs and outputs; state: then carries them",
    )


def _places_in(script: Any, what: str) -> list[Place]:
    """Return the attributes that `forward` reads or changes, without parameters and modules."""
    parameters, modules = ({name for name, _ in of} for of in (script.named_parameters(), script.named_modules()))
    found: dict[Place, None] = {}
    for node in nodes_of(_inlined(script)):
        if node.kind() not in ("prim::GetAttr", "prim::SetAttr"):
            continue
        owner = _path_of(next(node.inputs()))
        if owner is None or owner not in modules:
            raise _unsettled(what, [("", node.s("name"))])
        place = ".".join(filter(None, (owner, node.s("name"))))
        if place not in parameters and place not in modules:
            found[owner, node.s("name")] = None
    return list(found)


def _path_of(value: Any) -> str | None:
    """Return the path of a module in the graph of another; None for a value that is no attribute of it."""
    node = value.node()
    if node.kind() == "prim::Param":
        return ""
    if node.kind() != "prim::GetAttr":
        return None
    owner = _path_of(next(node.inputs()))
    return None if owner is None else ".".join(filter(None, (owner, node.s("name"))))


def _with_buffers(traced: Any, names: Sequence[str], attributes: _Attributes, initial: Sequence[torch.Tensor]) -> Any:
    """Return a module of a recorded run of inputs and states, with the states as buffers."""
    given = [node for node in traced.graph.nodes if node.op == "placeholder"][len(names) :]
    last = next(node for node in traced.graph.nodes if node.op == "output")
    leaves = torch.utils._pytree.tree_leaves(last.args)
    made = leaves[len(leaves) - len(given) :]
    buffers = ["_".join(filter(None, (*owner.split("."), name))) for owner, name in attributes.tensors]
    changed = [at for at, (old, new) in enumerate(zip(given, made, strict=True)) if old is not new]

    class Traced(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.recorded, self.training = traced, False
            for name, value in zip(buffers, initial, strict=True):
                self.register_buffer(name, value)

        def forward(self, *inputs: torch.Tensor) -> Any:
            held = [getattr(self, name) for name in buffers]
            outputs, states = self.recorded(list(inputs), held)
            for at in changed:
                held[at].copy_(states[at])
            return outputs

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in ("self", *names)])
    Traced.forward.__signature__ = signature  # type: ignore[attr-defined]
    return Traced()


class _Script(torch.nn.Module):  # type: ignore[misc]
    """A script that keeps its values itself."""

    def __init__(self, script: Any, call: Callable[[Any, Sequence[Any]], Any]) -> None:
        super().__init__()
        self.inner, self.call, self.training = script, call, False

    def forward(self, *given: torch.Tensor) -> Any:
        return self.call(self.inner, given)
