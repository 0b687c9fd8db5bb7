"""Prepare TorchScript modules for their conversion to torch.export programs."""

from __future__ import annotations

from typing import Any

import torch

from tvmflow.frontends.pytorch.script_states import nodes_of

_MODES_OF_GRADIENTS = "torch.autograd.grad_mode."
# Steps on tensors, with the same steps on integers. The third operand of the first two is a factor of the second.
_ON_NUMBERS = {
    "aten::add": "aten::add",
    "aten::sub": "aten::sub",
    "aten::mul": "aten::mul",
    "aten::floor_divide": "aten::floordiv",
    "aten::remainder": "aten::remainder",
}


def prepared(script: Any) -> Any:
    """Return a module without regions such as `with torch.no_grad()`, and that computes sizes as integers."""
    for part in script.modules():
        for name in part._c._method_names():
            graph = part._c._get_method(name).graph
            _drop_modes(graph)
            _compute_sizes_as_integers(graph)
    return script


def named_inputs(script: Any) -> list[str]:
    """Give the inputs of a module's graph the names of its parameters; return these."""
    names = [argument.name for argument in script.forward.schema.arguments]
    for value, name in zip(script.graph.inputs(), names, strict=True):
        value.setDebugName(name)
    return names[1:]


def _compute_sizes_as_integers(graph: Any) -> None:
    """Replace tensors that torch.jit.trace makes of sizes, to compute with them, by the integers."""
    numbers: dict[str, Any] = {}  # name of such a tensor -> the integer
    end = graph.insertPoint()
    for node in list(nodes_of(graph)):
        if node.outputsSize() != 1:
            continue
        graph.setInsertPoint(node)
        name, given = node.output().debugName(), list(node.inputs())
        if node.kind() == "prim::NumToTensor" and given[0].type().kind() == "IntType":
            numbers[name] = given[0]
        elif node.kind() == "prim::Constant" and (number := _integer(node)) is not None:
            numbers[name] = graph.insertConstant(number)
        elif node.kind() in _ON_NUMBERS and all(one.debugName() in numbers for one in given[:2]):
            if len(given) == 2 or given[2].toIValue() == 1:
                made = graph.create(_ON_NUMBERS[node.kind()], [numbers[one.debugName()] for one in given[:2]], 1)
                made.insertBefore(node)
                made.output().setType(torch._C.IntType.get())
                numbers[name] = made.output()
        elif node.kind() in ("aten::Int", "aten::IntImplicit") and given[0].debugName() in numbers:
            node.output().replaceAllUsesWith(numbers[given[0].debugName()])
    graph.setInsertPoint(end)  # of a node that is removed later, PyTorch would end the process


def _integer(node: Any) -> int | None:
    """Return the value of a constant that is a single integer as a tensor."""
    value = node.output().toIValue()
    is_one = isinstance(value, torch.Tensor) and not value.shape and value.dtype == torch.int64
    return int(value) if is_one else None


def _drop_modes(graph: Any) -> None:
    """Drop regions in which gradients are off or on: there are none here."""
    made = [node for node in nodes_of(graph) if node.kind() == "prim::CreateObject"]
    for node in made:
        mode = node.output()
        users = [use.user for use in mode.uses()]
        kinds = ("prim::Enter", "prim::Exit", "prim::CallMethod")
        if _MODES_OF_GRADIENTS in str(mode.type().str()) and all(user.kind() in kinds for user in users):
            for user in users:
                user.destroy()
            node.destroy()
