"""Fold values of a torch.export program that depend on neither inputs nor parameters, by PyTorch itself.

Text networks recompute positions, masks and sine tables in every call, by operators that importers rarely support: sums
of booleans, comparisons of indices, integer quotients. Their values are constants of the network. So are those that
operators without a converter compute from parameters alone, such as an orthogonal weight.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from tvmflow.frontends.pytorch.converters import NO_CONVERTER, reason_against
from tvmflow.frontends.pytorch.decomposing import decompose

_MOST_ELEMENTS = 1 << 24  # of a value that is kept: tables of positions and masks have fewer


def fold_known_values(program: Any) -> Any:
    """Return a torch.export program, decomposed into core operators, with such values as constants. Raises PyTorch's
    errors.
    """
    program = decompose(program)
    graph = program.graph_module.graph
    known = _find_known_values(program)
    first, spec = next(iter(graph.nodes)), torch.export.graph_signature
    added = []  # constants, in the order in which they stand before all else
    for node, value in list(known.items()):
        used = [user for user in node.users if user not in known]
        if node.op == "placeholder" or not used or not isinstance(value, torch.Tensor):
            continue
        name = f"known_{node.name}"
        with graph.inserting_before(first):
            constant = graph.placeholder(name)
        constant.meta = dict(node.meta)
        for user in used:
            user.replace_input_with(node, constant)
        added.append(spec.InputSpec(spec.InputKind.CONSTANT_TENSOR, spec.TensorArgument(constant.name), name))
        program.constants[name] = value.detach().clone().contiguous()
    program.graph_signature.input_specs[:0] = added
    for node in reversed(list(graph.nodes)):
        if _asserts(node) or (node in known and node.op != "placeholder" and not node.users):
            graph.erase_node(node)
    return program


def _asserts(node: Any) -> bool:
    """Return whether a node only checks values."""
    return node.op == "call_function" and getattr(node.target, "__name__", "").startswith("_assert_") and not node.users


def _find_known_values(program: Any) -> dict[Any, Any]:
    """Return the values that do not depend on inputs or parameters, by node, in order, and those of parameters alone
    that only PyTorch can compute.
    """
    kinds = torch.export.graph_signature.InputKind
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    changed = {spec.target for spec in program.graph_signature.output_specs}  # buffers that the program writes
    known: dict[Any, Any] = {}
    of_weights: dict[Any, Any] = {}  # what depends on parameters and known values alone
    with torch.no_grad():
        for node in program.graph_module.graph.nodes:
            if _is_empty(node):
                known[node] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
            elif node.op == "placeholder":
                spec = specs.get(node.name)
                if spec and spec.kind in (kinds.BUFFER, kinds.CONSTANT_TENSOR) and spec.target not in changed:
                    held = program.constants if spec.target in program.constants else program.state_dict
                    known[node] = held[spec.target]
                elif spec and spec.kind == kinds.PARAMETER:
                    of_weights[node] = program.state_dict[spec.target]
            elif _is_computed(node) and all(part in known for part in node.all_input_nodes):
                value = _value(node, known)
                if value is not None and not getattr(value, "is_complex", bool)():
                    known[node] = value
            elif _is_computed(node) and all(part in known or part in of_weights for part in node.all_input_nodes):
                of_weights[node] = None  # not computed yet
                if (reason_against(getattr(node.target, "__name__", "")) or "") == NO_CONVERTER:
                    value = _computed(node, known, of_weights)
                    known |= {} if value is None else {node: value}
    return known


def _computed(node: Any, known: dict[Any, Any], of_weights: dict[Any, Any]) -> Any:
    """Return the value of a node of parameters and known values, None if PyTorch cannot compute it."""
    for part in node.all_input_nodes:
        if part not in known and of_weights[part] is None:
            of_weights[part] = _computed(part, known, of_weights)
        if part not in known and of_weights[part] is None:
            return None
    return _value(node, of_weights | known)


def _is_empty(node: Any) -> bool:
    """Return whether a node's value has no elements: there is one such value."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(extent, int) for extent in value.shape):
        return False
    return value.numel() == 0 and value.layout is torch.strided


def _is_computed(node: Any) -> bool:
    """Return whether a node is deterministic and has no side effects."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == "aten"
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )


def _value(node: Any, known: dict[Any, Any]) -> Any:
    """Return the value of a node; None if PyTorch cannot compute it or it is too large."""
    meant = node.meta.get("val")
    if isinstance(meant, torch.Tensor) and not (
        all(isinstance(extent, int) for extent in meant.shape) and meant.numel() <= _MOST_ELEMENTS
    ):
        return None
    arguments, options = torch.fx.node.map_arg((node.args, node.kwargs), lambda part: known[part])
    try:
        return node.target(*arguments, **options)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return None
