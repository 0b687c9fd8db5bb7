"""Record runs of TorchScript modules as graphs of torch.fx.

A run is recorded on zeros: branches and loops by sizes, flags and numbers are followed, and what depends on values of
the inputs is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError, last_line

Run = Callable[[list[Any], list[Any]], Any]
_MADE_OF_NUMBERS = ("prim::NumToTensor", "aten::tensor", "aten::as_tensor")
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, torch.jit.Error)


def nodes_of(block: Any) -> Iterator[Any]:
    """Yield the nodes of a TorchScript graph and of all its blocks."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def keep_numbers(script: Any) -> Any:
    """Let the tensors that a script makes of numbers be constants of a recorded run.

    PyTorch fills them without an operator that a recorder sees; torch.jit.trace computes sizes with them.
    """
    _keep_operator()
    for part in script.modules():
        for name in part._c._method_names():
            graph = part._c._get_method(name).graph
            end = graph.insertPoint()
            for node in [one for one in nodes_of(graph) if one.kind() in _MADE_OF_NUMBERS]:
                made = node.output()
                for kind in ("tvmflow::keep", "aten::lift_fresh_copy"):  # the second: Python may read a single number
                    kept = graph.create(kind, [made], 1)
                    kept.insertAfter(made.node())
                    made.replaceAllUsesAfterNodeWith(kept, kept.output())
                    made = kept.output()
            graph.setInsertPoint(end)
    return script


@functools.cache
def _keep_operator() -> tuple[Any, Any, list[torch.Tensor]]:
    """Return an operator, the library that it lives in, and the list to which it adds a copy of what it is given."""
    kept: list[torch.Tensor] = []

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept.append(value.detach().clone())
        return value.clone()

    library = torch.library.Library("tvmflow", "DEF")
    library.define("keep(Tensor value) -> Tensor")
    library.impl("keep", keep, "CompositeExplicitAutograd")
    operator = torch.ops.tvmflow.keep.default
    torch.fx.node.has_side_effect(operator)  # all its calls stay in a recorded graph, in order
    return operator, library, kept


def recorded(script: Any, run: Run, example: Sequence[Any], states: Sequence[Any], what: str) -> Any:
    """Return the graph of a run of inputs and states. Raises ModelFileError for inputs that the script rejects, and
    UnsupportedOperatorError.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    # With gradients, PyTorch takes no fused operators of whole layers, which have no converters.
    for weight in script.parameters():
        weight.requires_grad_(weight.is_floating_point())
    with torch.enable_grad():
        tracked = [x.clone().requires_grad_().clone() if x.is_floating_point() else x.clone() for x in example]
    operator, _, kept = _keep_operator()
    kept.clear()
    try:
        with torch.enable_grad():
            traced = make_fx(run, pre_dispatch=True)(tracked, [value.clone() for value in states])
    except _FAILURES as error:
        if (failure := _failure(run, example, states)) is None:
            raise UnsupportedOperatorError(
                f"the TorchScript model {what} decides by values of its inputs{_place(error)}",
                "branches, loops and assertions that depend on sizes, flags and numbers only",
                "split the model there: save its parts as models of their own, and decide between them in your program",
            ) from error
        if any(
            not x.is_floating_point() and x.numel() and not x.any() for x in example
        ):  # 0 may divide, or be a length
            ones = [x if x.is_floating_point() else torch.ones_like(x) for x in example]
            return recorded(script, run, ones, states, what)
        raise ModelFileError(
            f"the TorchScript model {what} rejects inputs of zeros{_place(failure)}: {last_line(failure)}",
            "a model that runs for inputs of the shapes and types in params.yaml",
            "correct input.shape (or inputs) of the model in params.yaml, or the model",
        ) from failure
    for at, (node, value) in enumerate(
        zip(traced.graph.find_nodes(op="call_function", target=operator), kept, strict=True)
    ):
        traced.register_buffer(f"number{at}", value)
        with traced.graph.inserting_before(node):
            node.replace_all_uses_with(traced.graph.get_attr(f"number{at}"))
        traced.graph.erase_node(node)
    traced.graph.eliminate_dead_code()
    _name_weights(traced, script)
    return traced


def _failure(run: Run, example: Sequence[Any], states: Sequence[Any]) -> Exception | None:
    """Return the error of a run that is not recorded."""
    try:
        with torch.no_grad():
            run([x.clone() for x in example], [value.clone() for value in states])
    except _FAILURES as error:
        return error
    return None


def _place(error: Exception) -> str:
    """Return where a script failed: the innermost line that TorchScript marks, with its file and number if known."""
    lines = str(error).splitlines()
    marks = [at for at, line in enumerate(lines) if line.rstrip().endswith("<--- HERE") and at]
    if not marks:
        return ""
    mark = marks[-1]
    places = [re.search(r'File "(?:.*/)?([^"/]*)", line (\d+)', line) for line in lines[:mark]]
    known = [one for one in places if one is not None and one[1]]
    code = lines[mark - 1].strip()
    return f" at {known[-1][1]}:{known[-1][2]} ({code[:120]})" if known else f" at {code[:120]}"


def _name_weights(traced: Any, script: Any) -> None:
    """Give the weights of a recorded run the names that they have in the script."""
    names = {_memory(value): name for name, value in (*script.named_buffers(), *script.named_parameters())}
    for node in traced.graph.find_nodes(op="get_attr"):
        value = getattr(traced, node.target)
        name = names.get(_memory(value)) if value.numel() else None
        if name is None or hasattr(torch.fx.GraphModule, name.partition(".")[0]):
            continue
        *path, last = name.split(".")
        owner = traced
        for part in path:
            if part not in dict(owner.named_children()):
                owner.add_module(part, torch.nn.Module())
            owner = owner.get_submodule(part)
        owner.register_buffer(last, value.detach())
        node.target = name
    used = {node.target for node in traced.graph.find_nodes(op="get_attr")}
    for name in [one for one, _ in (*traced.named_buffers(), *traced.named_parameters()) if one not in used]:
        delattr(traced, name)  # what the recorder called a weight
    traced.recompile()


def _memory(value: torch.Tensor) -> tuple[Any, ...]:
    return value.data_ptr(), value.shape, value.stride(), value.dtype
