"""Decompose torch.export programs into core operators.

`run_decompositions` of PyTorch analyses, traces and rebuilds a program, 1.5 s for a network of 300 operators. Most need
a single trace: those of fixed sizes that change no buffer and have no graphs inside.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from tvmflow.frontends.pytorch.decompositions import decompositions
from tvmflow.frontends.pytorch.recurrent import kept_operators


class _WritesError(Exception):
    """The program writes into a buffer or an input."""


def decompose(program: Any) -> Any:
    """Return a torch.export program in core operators. Raises PyTorch's errors."""
    # A table for each: PyTorch takes the composite operators out of it.
    return _traced(program, _table(program)) or program.run_decompositions(_table(program))


class FastProgram(torch.export.ExportedProgram):  # type: ignore[misc]
    """A program that decomposes by a single trace where it can."""

    @classmethod
    def of(cls, program: Any) -> FastProgram:
        fast: FastProgram = _with_graph(program, program.graph, program.graph_signature, cls)
        return fast

    def run_decompositions(self, decomp_table: Any = None, **options: Any) -> Any:
        traced = None if decomp_table is None or options else _traced(self, dict(decomp_table))
        return traced or super().run_decompositions(decomp_table, **options)


def _traced(program: Any, table: Any) -> Any:
    """Return a program that is decomposed by a single trace, None if it cannot be."""
    if all(map(_is_plain, program.graph_module.graph.nodes)):
        with contextlib.suppress(Exception):  # of any operator: PyTorch's own way takes it, or says why not
            graph = _trace(program.graph_module, table)
            if not any(_writes(node) for node in graph.nodes):
                return _with_graph(program, graph, _signature(program, graph))
    return None


def _table(program: Any) -> Any:
    """Return the decompositions for a program."""
    table = decompositions()
    for whole in kept_operators(program):
        table.pop(whole, None)
    return table


def _is_plain(node: Any) -> bool:
    """Return whether a node's value is of fixed size and it runs no other graph."""
    if node.op == "call_function":
        if not (isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem):
            return False
    elif node.op not in ("placeholder", "output"):
        return False
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else [value]
    if node.op == "placeholder" and not isinstance(value, torch.Tensor):
        return False
    return all(isinstance(one, torch.Tensor) and _is_fixed(one) for one in parts if one is not None)


def _is_fixed(value: Any) -> bool:
    return all(isinstance(extent, int) for extent in value.shape)


def _trace(module: Any, table: Any) -> Any:
    """Return the graph of a module in core operators that write nothing, without dead code."""
    given = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = [node.meta["val"] for node in given]
    interpreter, programs = torch.fx.Interpreter(module), torch.export.exported_program
    composite, others = programs._split_decomp_table_to_cia_and_python_decomp(table)

    def run(*inputs: Any) -> Any:
        with FunctionalTensorMode():
            wrapped = [FunctionalTensor.to_functional(value) for value in inputs]
            outputs = torch.utils._pytree.tree_map_only(FunctionalTensor, _unwrapped, interpreter.run(*wrapped))
            if any(torch._functionalize_has_data_mutation(value.elem) for value in wrapped):
                raise _WritesError
        return outputs

    with (
        programs._override_composite_implicit_decomp(composite),
        torch.no_grad(),
        detect_fake_mode(values),
        enable_python_dispatcher(),
        preserve_node_meta(),
    ):
        graph = make_fx(run, decomposition_table=others)(*values).graph
    graph.eliminate_dead_code()
    for node, source in zip((node for node in graph.nodes if node.op == "placeholder"), given, strict=True):
        node.name = node.target = source.name
        node.meta = dict(source.meta)
    return graph


def _unwrapped(value: Any) -> Any:
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


def _writes(node: Any) -> bool:
    """Return whether a node changes a tensor, or holds one that is none of the program's."""
    if node.op == "get_attr":
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _signature(program: Any, graph: Any) -> Any:
    """Return the signature of a program whose outputs are computed by other nodes."""
    kinds = torch.export.graph_signature
    (outputs,) = next(node for node in reversed(graph.nodes) if node.op == "output").args
    specs = [
        kinds.OutputSpec(one.kind, kinds.TensorArgument(node.name), one.target)
        for one, node in zip(program.graph_signature.output_specs, outputs, strict=True)
    ]
    return kinds.ExportGraphSignature(list(program.graph_signature.input_specs), specs)


def _with_graph(program: Any, graph: Any, signature: Any, kind: Any = torch.export.ExportedProgram) -> Any:
    """Return a program with another graph of the same inputs."""
    return kind(
        root=program.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )
