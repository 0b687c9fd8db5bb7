"""List the layers of a torch.export program that multiply by weights, under the names of their modules."""

from __future__ import annotations

from typing import Any

from tvmflow.frontends.source_model import WeightedLayer

_WEIGHTED = ("conv", "linear", "addmm", "mm", "matmul")
_VIEWS = ("t.", "transpose.", "permute.", "view.", "reshape.", "detach.", "to.", "_to_copy.", "clone.")


def weighted_layers(program: Any) -> list[WeightedLayer]:
    """Return the layers in the order of the program. A weight used without a module is named after itself."""
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    stored |= signature.inputs_to_lifted_tensor_constants
    found = []
    for node in program.graph.nodes:
        operator = str(node.target).removeprefix("aten.")
        if node.op != "call_function" or not operator.startswith(_WEIGHTED):
            continue
        weights = [given for given in map(_viewed, node.all_input_nodes) if given.name in stored]
        weights = [given for given in weights if given.meta["val"].dim() > 1]
        if weights:
            # A recorded run of TorchScript has the weights of the script.
            name = _module(node) or stored[weights[0].name].removeprefix("recorded.").removesuffix(".weight")
            size = int(weights[0].meta["val"].numel())
            found.append(WeightedLayer(name, operator.partition(".")[0], size, str(node.name)))
    return found


def _viewed(node: Any) -> Any:
    """Return the node whose elements another node has, in another shape or type."""
    while node.op == "call_function" and str(node.target).removeprefix("aten.").startswith(_VIEWS):
        node = node.all_input_nodes[0]
    return node


def _module(node: Any) -> str:
    """Return the path of the innermost module that computes a node, "" for the outermost."""
    paths = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return paths[-1] if paths else ""
