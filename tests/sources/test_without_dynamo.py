"""Test that torchvision does not import TorchDynamo until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAD = """
import sys
from tvmflow.sources.networks.torch_zoo import torchvision_models
"""
_ALONE = """
torchvision_models()
assert "torch._dynamo" not in sys.modules and "torch._dynamo.utils" not in sys.modules
from torchvision.ops.roi_align import is_compile_supported
print(is_compile_supported("cpu"), "torch._dynamo" in sys.modules)
"""
_BEFORE = """
import torch._dynamo.utils
torchvision_models()
from torchvision.ops.roi_align import is_compile_supported
print(is_compile_supported is torch._dynamo.utils.is_compile_supported, "torch._dynamo" in sys.modules)
"""
_MEANWHILE = """
from tvmflow.sources.networks.without_dynamo import without_dynamo
with without_dynamo():
    from torch._dynamo.utils import counters
    import torch._dynamo
print(counters is torch._dynamo.utils.counters, "torch._dynamo" in sys.modules)
"""
_AFTER = """
import torch
network = torchvision_models().resnet18().eval()
program = torch.export.export(network, (torch.zeros(1, 3, 32, 32),))
print(bool(torch.isfinite(program.module()(torch.zeros(1, 3, 32, 32))).all()), "torch._dynamo" in sys.modules)
"""


_TRAINED = """
import numpy as np, torch
from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.networks.training import train
def trained():
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 3)
    x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    settings = {"seed": 1, "learning_rate": 0.01, "epochs": 3, "batch_size": 8}
    train(network, Samples((x,), np.arange(32) % 3), settings, lambda *_: None)
    return network.weight.detach()
first = trained()
without = "torch._dynamo" not in sys.modules
import torch._dynamo
assert torch._dynamo.config is not None
print(without, torch.equal(first, trained()))
"""


@pytest.mark.parametrize("code", [_ALONE, _BEFORE, _MEANWHILE, _AFTER, _TRAINED])
def test_dynamo_comes_where_it_is_asked_for(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", _HEAD + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.split() == ["True", "True"], done.stderr
