"""Test that values which depend only on a network's shapes are constants after import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.parametrizations import orthogonal

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import UnsupportedOperatorError

_LENGTH, _WIDTH = 12, 16


class Decoder(torch.nn.Module):
    """A layer of a decoder: positions that turn pairs of channels, a causal mask by documents, a cube where GELU is
    written out.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.all = torch.nn.Embedding(50, _WIDTH), torch.nn.Linear(_WIDTH, 3 * _WIDTH)
        self.register_buffer("rates", 10.0 ** (-torch.arange(0, _WIDTH, 2) / _WIDTH), persistent=False)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[1])[:, None] * self.rates
        sine, cosine = (torch.cat([f(angles)] * 2, -1) for f in (torch.sin, torch.cos))
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        q, k, v = self.all(x).chunk(3, -1)
        places = torch.arange(tokens.shape[1])
        document = (places[1:] - places[:-1] != 1).cumsum(0)
        document = torch.cat([document.new_zeros(1), document])
        seen = (document[:, None] == document[None]) & (places[None] <= places[:, None])
        scores = self._turned(q) @ self._turned(k).transpose(1, 2)
        y = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        return 0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * y**3)))


class OfPositions(torch.nn.Module):
    """Encodings of positions that go through dense layers and convolutions before the input meets them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense, self.image = torch.nn.Linear(8, 8), torch.nn.Conv2d(8, 8, 3, padding=1)
        self.line, self.of_input = torch.nn.Conv1d(8, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(30)[:, None] // (torch.arange(8)[None] + 1.0)
        encoded = self.dense(places.sin()).T.view(1, 8, 5, 6)
        return self.of_input(x + self.image(encoded)) * self.line(encoded.flatten(2)).view(1, 8, 5, 6)


def _imported(network: torch.nn.Module, spec: TensorSpec) -> Any:
    return canonicalize(ExportedModel(network.eval(), (spec,)).to_relax())


def _check(network: torch.nn.Module, module: Any, x: np.ndarray[Any, Any]) -> None:
    found = LocalRunner(host_backend().pack(module, None)[0], host_backend()).run(x)[0]
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    assert np.abs(found - expected).max() < 2e-6 * max(np.abs(expected).max(), 1.0)


def test_positions_and_masks_of_a_decoder_are_constants() -> None:
    network = Decoder()
    module = _imported(network, TensorSpec("tokens", (1, _LENGTH), "int64"))
    made = {step.op for step in read_graph(module).steps}
    assert not made & {
        "relax.arange",
        "relax.cumsum",
        "relax.sin",
        "relax.cos",
        "relax.less_equal",
        "relax.bitwise_and",
    }, made
    for seed in range(2):
        _check(network, module, np.random.default_rng(seed).integers(0, 50, (1, _LENGTH)))


def test_what_weights_make_of_positions_is_a_constant() -> None:
    network = OfPositions()
    module = _imported(network, TensorSpec("x", (1, 8, 5, 6)))
    assert sum(step.op == "relax.nn.conv2d" for step in read_graph(module).steps) == 1
    _check(network, module, np.random.default_rng(0).standard_normal((1, 8, 5, 6), dtype=np.float32))


class OfWeights(torch.nn.Module):
    """Weights by operators that have no converter: an exponential of a matrix, a QR decomposition."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense, self.raw = orthogonal(torch.nn.Linear(4, 4)), torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        basis, triangle = torch.linalg.qr(self.raw * 2)
        return self.dense(x) @ basis + self.raw @ triangle


def test_operators_that_only_pytorch_has_compute_weights() -> None:
    network, x = OfWeights().eval(), torch.randn(3, 1, 4)
    model = ExportedModel(network, (TensorSpec("x", (3, 1, 4)),))
    names = {str(node.target) for node in model.exported().run_decompositions().graph.nodes}
    assert {"aten.linalg_matrix_exp.default", "aten.linalg_qr.default"} <= names
    found = LocalRunner.of_plain(canonicalize(model.to_relax()), host_backend()).run(x.numpy())[0]
    with torch.no_grad():
        assert np.abs(found - network(x).numpy()).max() < 1e-5


def test_operators_that_only_pytorch_has_are_refused_on_inputs() -> None:
    class OfInput(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x)

    with pytest.raises(UnsupportedOperatorError, match="linalg_matrix_exp"):
        ExportedModel(OfInput().eval(), (TensorSpec("x", (1, 4, 4)),)).to_relax()
