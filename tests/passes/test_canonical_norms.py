"""Test decomposed norms, and group and instance norms: fused to operators, and accurate for large means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize

LAYER, RMS = "relax.nn.layer_norm", "relax.nn.rms_norm"


def _mean(x: Any, axis: int) -> Any:
    return x.mean(axis, keepdim=True)


def _centered(x: Any, axis: int) -> Any:
    return x - _mean(x, axis)


FORMS = {
    "divided by a root": (
        LAYER,
        lambda x, a, w, b: w * (_centered(x, a) / (_mean(_centered(x, a) ** 2, a) + 1e-5).sqrt()) + b,
    ),
    "times an inverse root": (
        LAYER,
        lambda x, a, w, b: b + _centered(x, a) * torch.rsqrt(_mean(_centered(x, a).square(), a) + 1e-5) * w,
    ),
    "weights before the root": (
        LAYER,
        lambda x, a, w, b: w * _centered(x, a) / torch.sqrt(1e-5 + _mean(_centered(x, a) * _centered(x, a), a)) + b,
    ),
    "a variance": (
        LAYER,
        lambda x, a, w, b: _centered(x, a) / torch.sqrt(x.var(a, keepdim=True, unbiased=False) + 1e-5) * w + b,
    ),
    "without weights": (LAYER, lambda x, a, w, b: _centered(x, a) / torch.sqrt(_mean(_centered(x, a) ** 2, a) + 1e-5)),
    "root mean square": (RMS, lambda x, a, w, b: w * (x * torch.rsqrt(_mean(x.pow(2), a) + 1e-6))),
    "over the root mean square": (RMS, lambda x, a, w, b: x / torch.sqrt(_mean(x * x, a) + 1e-6) * w),
    "the mean of others": (
        None,
        lambda x, a, w, b: (x - _mean(w * x, a)) / (_mean(_centered(x, a) ** 2, a) + 1e-5).sqrt(),
    ),
    "the root of others": (None, lambda x, a, w, b: w * x / torch.sqrt(_mean((x + b) ** 2, a) + 1e-6)),
    "a standard deviation and a number": (
        None,
        lambda x, a, w, b: _centered(x, a) / (x.std(a, keepdim=True, unbiased=False) + 1e-3) * w,
    ),
}


class _Normed(nn.Module):
    """A layer, a norm that is written out over its channels, and another layer; on rows (N, L, C) or an image."""

    def __init__(self, form: Any, channels: int, is_image: bool) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.form, self.axis = form, 1 if is_image else -1
        layer = (lambda a, b: nn.Conv2d(a, b, 1)) if is_image else nn.Linear
        self.first, self.last = layer(24, channels), layer(channels, 5)
        shape = (channels, 1, 1) if is_image else (channels,)
        self.weight, self.bias = nn.Parameter(torch.rand(shape) + 0.5), nn.Parameter(torch.rand(shape))

    def forward(self, x: Any) -> Any:
        return self.last(self.form(self.first(x), self.axis, self.weight, self.bias))


def _errors(network: nn.Module, x: Any) -> tuple[float, float, set[str]]:
    """Return our largest error to float64, that of PyTorch in float32, and the operators of the canonical module."""
    exported = ExportedModel(network.eval(), (TensorSpec("x", x.shape),))
    module = canonicalize(exported.to_relax())
    (ours,) = LocalRunner(host_backend().pack(module, None)[0], host_backend()).run(x)
    (theirs,) = exported.run(x)
    with torch.no_grad():
        exact = network.double()(torch.from_numpy(x).double()).numpy()
    largest = np.abs(exact).max()
    found = {step.op for step in read_graph(module).steps}
    return float(np.abs(ours - exact).max() / largest), float(np.abs(theirs - exact).max() / largest), found


@pytest.mark.few(8)
@pytest.mark.parametrize("is_image", [False, True], ids=["rows", "image"])
@pytest.mark.parametrize("channels", [32, 37])
@pytest.mark.parametrize("form", FORMS)
def test_norms_that_are_written_out(form: str, channels: int, is_image: bool) -> None:
    operator, function = FORMS[form]
    shape = (2, 24, 5, 7) if is_image else (2, 9, 24)
    x = np.random.default_rng(channels).standard_normal(shape, dtype=np.float32) + 3
    ours, theirs, found = _errors(_Normed(function, channels, is_image), x)
    assert found & {LAYER, RMS} == ({operator} if operator else set())
    assert "relax.sqrt" not in found or not operator
    assert ours < 3 * theirs + 1e-6


class _Middle(nn.Module):
    def __init__(self, norm: nn.Module, channels: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.layer = norm, nn.Conv2d(channels, channels, 3, groups=channels)
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 1.5)

    def forward(self, x: Any) -> Any:
        return self.norm(x) if x.ndim != 4 else self.norm(self.layer(x))


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", [(1, 24, 9, 6), (3, 32, 5, 5), (2, 12, 30), (1, 40, 8, 8)], ids=str)
@pytest.mark.parametrize("groups", [1, 4, None], ids=["one group", "groups", "instances"])
def test_group_and_instance_norms_of_a_large_mean(groups: int | None, shape: tuple[int, ...]) -> None:
    channels, is_image = shape[1], len(shape) == 4
    instances = nn.InstanceNorm2d if is_image else nn.InstanceNorm1d
    norm = instances(channels, affine=True) if groups is None else nn.GroupNorm(groups, channels)
    x = np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32) + 100
    ours, theirs, _ = _errors(_Middle(norm, channels), x)
    assert ours < 3 * theirs + 1e-6


class _OverPadding(nn.Module):
    """A norm of channels that fill their last block in part, which a sigmoid makes 0.5; large means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.first, self.last = nn.Conv2d(24, channels, 1), nn.Conv2d(channels, 5, 1)
        self.norm = nn.LayerNorm(channels)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias)

    def forward(self, x: Any) -> Any:
        y = torch.sigmoid(self.first(x)) + 30
        return self.last(self.norm(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


@pytest.mark.parametrize("channels", [13, 23, 40])
def test_a_norm_of_a_part_of_a_block_stays_packed(channels: int) -> None:
    x = np.random.default_rng(channels).standard_normal((1, 24, 6, 8), dtype=np.float32)
    network = _OverPadding(channels)
    exported = ExportedModel(network.eval(), (TensorSpec("x", x.shape),))
    packed = host_backend().pack(canonicalize(exported.to_relax()), None)[0]
    assert [str(name.name_hint) for name in packed.functions if "norm" in str(name)] == ["packed_norm"]
    ours, theirs, _ = _errors(network, x)
    assert ours < 3 * theirs + 1e-6
