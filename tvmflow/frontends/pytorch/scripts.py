"""Prepare TorchScript modules for their conversion to torch.export programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvmflow.frontends.pytorch.fixed_inputs import fix_script
from tvmflow.frontends.source_model import FixedSpec
from tvmflow.support.errors import UnsupportedOperatorError

_MODES_OF_GRADIENTS = "torch.autograd.grad_mode."


def prepare_script(script: Any, fixed: Sequence[FixedSpec], what: str) -> Any:
    """Return a module of the parameters that are not fixed, without regions such as `with torch.no_grad()`.

    Raises UnsupportedOperatorError for a module that changes attributes that it reads: they would stay as they are.
    """
    import torch

    for part in script.modules():
        for name in part._c._method_names():
            _drop_modes(part._c._get_method(name).graph)
    script = fix_script(script, fixed, what)
    graph = script.graph.copy()
    torch._C._jit_pass_inline(graph)
    changed, read = (
        {node.s("name") for node in _nodes(graph) if node.kind() == kind} for kind in ("prim::SetAttr", "prim::GetAttr")
    )
    if changed & read:
        raise UnsupportedOperatorError(
            f"the TorchScript model {what} keeps values between runs: {', '.join(sorted(changed & read))[:300]}",
            "a model whose outputs depend on its inputs only",
            "export its inner network, with these values as inputs and outputs; state: then carries them",
        )
    return script


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _drop_modes(graph: Any) -> None:
    """Drop regions in which gradients are off or on: there are none here."""
    made = [node for node in _nodes(graph) if node.kind() == "prim::CreateObject"]
    for node in made:
        mode = node.output()
        users = [use.user for use in mode.uses()]
        kinds = ("prim::Enter", "prim::Exit", "prim::CallMethod")
        if _MODES_OF_GRADIENTS in str(mode.type().str()) and all(user.kind() in kinds for user in users):
            for user in users:
                user.destroy()
            node.destroy()
