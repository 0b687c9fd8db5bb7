"""A program that is decomposed by one trace has the operators and the values of PyTorch's own decomposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tvmflow.frontends.pytorch.decomposing import _table, decompose

_SKIPPED = {"aten.clone.default", "aten.alias.default"}  # copies of dropout in evaluation mode


class _Net(nn.Module):
    def __init__(self, function: Callable[[_Net, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.conv, self.norm, self.dense = nn.Conv2d(4, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.Linear(8, 8)
        self.lstm, self.projected = nn.LSTM(8, 8), nn.LSTM(8, 8, proj_size=4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def _write_into_views(_net: _Net, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1].add_(1)
    y.view(-1)[::3] = 0.5
    z = y.permute(0, 2, 3, 1)
    z.mul_(y.sum())
    return y + z.permute(0, 3, 1, 2)


def _attend(net: _Net, x: torch.Tensor) -> torch.Tensor:
    y = net.dense(x.reshape(1, 4, 8, 8))
    return functional.scaled_dot_product_attention(y, y, y, is_causal=True)


def _count(net: _Net, x: torch.Tensor) -> torch.Tensor:
    net.count.add_(1)
    return x.mean((2, 3)) + net.count


def _write_into_the_input(_net: _Net, x: torch.Tensor) -> torch.Tensor:
    return x.clamp_(min=0) + 1


ONE_TRACE: dict[str, Callable[[_Net, torch.Tensor], Any]] = {
    "a convolution": lambda net, x: functional.relu_(net.norm(net.conv(x))).flatten(1),
    "gates": lambda net, x: functional.hardswish(net.conv(x), inplace=True) * functional.silu(net.conv(x)),
    "writes into views": _write_into_views,
    "attention": _attend,
    "the input itself": lambda _, x: (x, x + 1, x),
    "a parameter and a view": lambda net, x: {"bias": net.dense.bias, "part": x[:, 1:3]},
    "several outputs": lambda _, x: [*torch.topk(x, 2), *x.split(2, 1)],
    "a constant of the code": lambda _, x: x + torch.tensor([[1.0], [2.0]]).repeat(4, 8).reshape(8, 8),
    "a dropout": lambda net, x: functional.dropout(net.conv(x), 0.5, training=net.training) + 1,
    "a resize of pixels": lambda _, x: functional.interpolate((x * 50).to(torch.uint8), (11, 13), mode="bilinear"),
    "a resize by a factor": lambda _, x: functional.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "norms": lambda net, x: functional.group_norm(functional.layer_norm(net.dense(x), (8,)), 2),
    "a recurrent layer": lambda net, x: net.lstm(x.reshape(8, 4, 8))[0],
    "a recurrent layer with a projection": lambda net, x: net.projected(x.reshape(8, 4, 8))[0],
    "a mask": lambda _, x: x.masked_fill(torch.ones(8, 8).triu(1).bool(), -1.0).softmax(-1),
}
ANOTHER: dict[str, Callable[[_Net, torch.Tensor], Any]] = {
    "a buffer that is written": _count,
    "an input that is written": _write_into_the_input,
}


@pytest.mark.parametrize("name", [*ONE_TRACE, *ANOTHER])
def test_values_and_operators_are_those_of_pytorch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = _Net({**ONE_TRACE, **ANOTHER}[name]).eval()
    x = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        program = torch.export.export(net, (torch.zeros_like(x),))
        expected = torch.utils._pytree.tree_leaves(net(x.clone()))
    net.count.zero_()
    theirs, whole = type(program).run_decompositions, []
    monkeypatch.setattr(type(program), "run_decompositions", lambda self, table: whole.append(1) or theirs(self, table))
    ours = decompose(program)
    assert bool(whole) == (name in ANOTHER)
    found = torch.utils._pytree.tree_leaves(ours.module()(x.clone()))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    if name in ONE_TRACE:
        assert _operators(ours) == _operators(theirs(program, _table(program)))


def _operators(program: Any) -> list[str]:
    program.graph.eliminate_dead_code()
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [target for target in targets if target not in _SKIPPED]
