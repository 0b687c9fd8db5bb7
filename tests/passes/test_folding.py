"""Test FoldBatchNorm: batch norms are folded into both kinds of convolutions, with equal outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize


@pytest.mark.parametrize(("groups", "bias"), [(1, False), (1, True), (2, True)])
def test_a_transposed_convolution_takes_its_batch_norm(groups: int, bias: bool) -> None:
    torch.manual_seed(0)
    up = torch.nn.ConvTranspose2d(6, 8, 4, 2, 1, bias=bias, groups=groups)
    norms = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(4)
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    network = torch.nn.Sequential(up, norms[0], torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3, bias=bias), norms[1])
    model = ExportedModel(network.eval(), one_input("input", (1, 6, 5, 4)))
    module = canonicalize(model.to_relax())
    operators = [step.op.removeprefix("relax.").removeprefix("nn.") for step in read_graph(module).steps]
    assert operators == ["conv2d_transpose", "add", "relu", "conv2d", "add"]
    x = np.random.default_rng(0).standard_normal((1, 6, 5, 4), dtype=np.float32)
    assert np.abs(LocalRunner(module, host_backend()).run(x)[0] - model.run(x)[0]).max() < 1e-5
