"""Prepare TorchScript modules for their conversion to torch.export programs."""

from __future__ import annotations

from typing import Any

from tvmflow.frontends.pytorch.script_states import nodes_of

_MODES_OF_GRADIENTS = "torch.autograd.grad_mode."


def without_modes(script: Any) -> Any:
    """Return a module without regions such as `with torch.no_grad()`."""
    for part in script.modules():
        for name in part._c._method_names():
            _drop_modes(part._c._get_method(name).graph)
    return script


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
