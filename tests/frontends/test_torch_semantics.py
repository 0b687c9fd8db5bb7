"""Test edge cases of PyTorch operators: signs, types, NaN, ties, empty tensors, scalars."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bench.conformance.tflite import interpret
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.pipeline import canonicalize

Functions = dict[str, Callable[..., Any]]
_NAN, _INF = math.nan, math.inf


class _Many(torch.nn.Module):
    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = list(functions.values())

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(*inputs) for function in self.functions)


def check(functions: Functions, *inputs: torch.Tensor, in_numpy: bool = False) -> None:
    """Compare functions of tensors with PyTorch. in_numpy: without compilation, for many small kernels."""
    check_network(_Many(functions).eval(), list(functions), *inputs, in_numpy=in_numpy)


def check_network(network: torch.nn.Module, names: list[str], *inputs: torch.Tensor, in_numpy: bool = False) -> None:
    specs = tuple(
        TensorSpec(f"x{place}", tuple(one.shape), str(one.dtype).removeprefix("torch."))
        for place, one in enumerate(inputs)
    )
    module = canonicalize(ExportedModel(network, specs).to_relax())
    arrays = [one.numpy() for one in inputs]
    outputs = interpret(module, arrays) if in_numpy else LocalRunner.of_plain(module, host_backend()).run(*arrays)
    with torch.no_grad():
        expected = network(*inputs)
    for name, ours, theirs in zip(names, outputs, expected, strict=True):
        wanted = theirs.numpy()
        assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), name
        np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=2e-5, err_msg=name)


INTEGERS: Functions = {
    "floor": lambda a, b: a // b,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "quotient": lambda a, b: a / b,
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
    "power": lambda a, b: a ** b.abs(),
    "negative power": lambda a, b: a**b,
    "cube": lambda a, b: a**3,
    "shifts": lambda a, b: (a << b.abs() % 4) + (a >> 70 + b) + (a >> 2),
    "root": lambda a, b: a.abs().sqrt() + a.sigmoid(),
    "sum of booleans": lambda a, b: (a > 0) + (b > 0),
    "product of booleans": lambda a, b: (a > 0) * (b > 0),
    "order of booleans": lambda a, b: (a > 0) < (b > 0),
    "clamped": lambda a, b: a.clamp(-3, 2) + a.clamp(min=b) + a.clamp(1, -1),
    "products": lambda a, b: a.reshape(2, 4) @ b.reshape(4, 2),
}
FLOATS: Functions = {
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": lambda a, b: a % b,
    "rounded": lambda a, b: (a * 2).round() / 2 + torch.round(a, decimals=1),
    "larger": torch.maximum,
    "smaller": torch.minimum,
    "larger number": torch.fmax,
    "clamped": lambda a, b: a.clamp(min=b),
    "upper bound below the lower": lambda a, b: a.nan_to_num().clamp(1, -1),
    "tests": lambda a, b: a.isnan().int() + 2 * a.isinf().int() + 4 * a.isfinite().int(),
    "signs": lambda a, b: torch.copysign(b, a) + a.signbit(),
    "near zero": lambda a, b: torch.log1p(b * 1e-4) * 1e4 + torch.expm1(b * 1e-4) * 1e4,
    "factors": lambda a, b: torch.add(b, b, alpha=3) - torch.sub(b, 1, alpha=2),
    "gamma": lambda a, b: torch.lgamma(b.abs() + 0.1) + torch.digamma(b.abs() + 0.1),
    "inverse of erf": lambda a, b: torch.erfinv((b / 8).clamp(-0.99, 0.99)),
}


@pytest.mark.slow
def test_integers() -> None:
    a = torch.tensor([7, -7, 7, -7, 0, 5, 1, -1])
    b = torch.tensor([2, 2, -2, -2, 3, -5, -3, 3])
    check(INTEGERS, a, b)


def test_floats() -> None:
    a = torch.tensor([7.5, -7.5, 0.5, _NAN, _INF, -_INF, -0.0, 2.5])
    b = torch.tensor([2.0, 2.0, -0.3, 1.0, 3.0, 3.0, 1.5, _NAN]).nan_to_num(0.7)
    check(FLOATS, a, b)


@pytest.mark.slow
def test_ties_and_orders() -> None:
    x = torch.tensor([[3, 1, 3, 2, 1], [5, 5, 5, 5, 5]])
    functions: Functions = {
        "largest": lambda x: x.argmax(1),
        "smallest": lambda x: x.argmin(),
        "largest of each": lambda x: x.max(1)[1],
        "sorted": lambda x: torch.sort(x, dim=1, stable=True)[1],
        "sorted down": lambda x: torch.sort(x, dim=1, descending=True, stable=True)[1],
        "third": lambda x: x.kthvalue(3, 1)[0],
        "median": lambda x: x.median(1)[0],
        "running largest": lambda x: torch.cummax(x, 1)[1],
        "running product": lambda x: x.cumprod(1),
        "place": lambda x: torch.bucketize(x, torch.tensor([1, 3, 4]), right=True),
        "of booleans": lambda x: (x > 2).sum(1) + (x > 2).cumsum(1).amax(1),
    }
    check(functions, x)


def test_tensors_without_elements_and_without_axes() -> None:
    functions: Functions = {
        "sum of nothing": lambda x, e: e.sum(0),
        "mean of nothing": lambda x, e: e.mean(),
        "all of nothing": lambda x, e: e.bool().all(),
        "joined": lambda x, e: torch.cat([e, x.expand(2, 3)]),
        "sum of a number": lambda x, e: x.sum(0) + x.amax(-1) + x.cumsum(0),
        "place of a number": lambda x, e: x.argmax(0) + x.sort(0)[1],
        "constant": lambda x, e: torch.zeros_like(x.expand(2)),
    }
    check(functions, torch.tensor(2.5), torch.zeros(0, 3))


def test_writes_by_places() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    places = torch.tensor([[2, 0, 1, 2], [1, 1, 0, 0]])
    functions: Functions = {
        "added": lambda x, p: x.scatter_add(0, p, x[:2]),
        "written": lambda x, p: x.scatter(0, p[:1], x[:2] + 50),
        "value": lambda x, p: x.scatter(0, p[:1], 7.0),
        "mean": lambda x, p: x.scatter_reduce(0, p, x[:2], "mean", include_self=False),
        "largest": lambda x, p: x.scatter_reduce(0, p, x[:2], "amax"),
        "rows": lambda x, p: x.index_add(0, p[0, :2], x[1:]),
        "columns": lambda x, p: x.index_copy(1, p[0, :2], x[:, :2] * 2),
        "put": lambda x, p: torch.index_put(x, (p[1, :2], p[0, :2]), x[0, :2], accumulate=True),
        "by a mask": lambda x, p: torch.index_put(x, (x > 4,), torch.tensor(-1.0)),
        "a row by a mask": lambda x, p: torch.index_put(x, (x[:, 0] > 3,), x[0]),
        "angle": lambda x, p: (x - 5).angle(),
        "slice": lambda x, p: x.slice_scatter(x[:, :2] * 3, 1, 0, 4, 2),
        "row": lambda x, p: x.select_scatter(x[0] * 2, 0, -1),
        "bags": lambda x, p: F.embedding_bag(p.reshape(-1), x, torch.tensor([0, 3]), mode="mean"),
        "rows of maxima": lambda x, p: torch.embedding_bag(x, p.reshape(-1), torch.tensor([0, 3, 3]), False, 2)[3],
    }
    check(functions, x, places)


@pytest.mark.slow
def test_distances_and_transforms() -> None:
    x = torch.randn(2, 6, 10, generator=torch.Generator().manual_seed(1))
    functions: Functions = {
        "distances": lambda x: torch.cdist(x, x[:, :3] + 1),
        "bilinear": lambda x: F.bilinear(x[:, :3], x[:, 3:, :4], x[:, :4].transpose(1, 2), x[0, 0, :2]),
        "times powers of two": lambda x: torch.ldexp(x, (x * 4).to(torch.int32)),
        "copies": lambda x: torch.unbind_copy(torch.permute_copy(torch.narrow_copy(x, 1, 2, 3), (2, 0, 1)), 0)[1],
        "largest distances": lambda x: torch.cdist(x, x[:, :3] + 1, p=_INF),
        "spectrum": lambda x: torch.fft.rfft(x).abs(),
        "power of a short time": lambda x: torch.stft(x[0], 4, 2, return_complex=True).abs() ** 2,
        "filtered": lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * 2, n=9, norm="ortho"),
        "in two axes": lambda x: torch.view_as_real(torch.fft.fft2(x)),
        "phase": lambda x: torch.fft.rfft(x)[..., 1:3].angle(),
    }
    check(functions, x)


@pytest.mark.slow
def test_resizes_follow_a_given_scale() -> None:
    x = torch.arange(1.0, 41.0).reshape(1, 2, 4, 5)
    functions: Functions = {
        mode: lambda x, mode=mode: F.interpolate(x, scale_factor=(0.6, 1.5), mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
    }
    functions["of a signal"] = lambda x: F.interpolate(x[0], scale_factor=0.7, mode="linear")
    functions["recomputed"] = lambda x: F.interpolate(x, scale_factor=0.6, mode="bilinear", recompute_scale_factor=True)
    functions["corners"] = lambda x: F.interpolate(x, (3, 3), mode="bicubic", align_corners=True)
    check(functions, x)


def test_pixels() -> None:
    x = torch.randint(0, 256, (1, 2, 5, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    functions: Functions = {
        "larger": lambda x: F.interpolate(x, (7, 9), mode="bilinear"),
        "negative": lambda x: -x,
        "product": lambda x: x[0, 0] @ x[0, 1, 0],
        "sums": lambda x: torch.addbmm(x[0, :, :, 0], x[:, 0, :2, :3], x[:, 0, :3, :5]),
    }
    check(functions, x)


@pytest.mark.slow
def test_pools() -> None:
    x = torch.randn(1, 2, 7, 9, generator=torch.Generator().manual_seed(2))
    functions: Functions = {
        "last windows": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        "dilated": lambda x: F.max_pool2d(x, 2, 2, 1, dilation=2),
        "places": lambda x: F.max_pool2d(x, 3, 2, return_indices=True)[1],
        "mean without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "mean of last windows": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        "divided": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        "mean of parts": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        "largest of parts": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
        "places of parts": lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True)[1],
        "of three axes": lambda x: F.max_pool3d(x[None], (1, 2, 3)) + F.avg_pool3d(x[None], (1, 2, 3)),
        "signal": lambda x: F.max_pool1d(x[0], 3, 2, 1, ceil_mode=True),
        "folded": lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2), (7, 9), 3, padding=1, stride=2),
    }
    check(functions, x)


def test_pools_with_more_windows_stay_pools() -> None:
    """A window that ceil_mode adds reads padding behind the image; a copy of all windows is many times slower."""
    functions: Functions = {
        "largest": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
        "means": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "signal": lambda x: F.avg_pool1d(x.flatten(0, 1), 2, 2, ceil_mode=True),
    }
    x = torch.randn(1, 2, 8, 9, generator=torch.Generator().manual_seed(2))
    check(functions, x)
    specs = (TensorSpec("x", tuple(x.shape)),)
    text = ExportedModel(_Many(functions).eval(), specs).to_relax().script()
    assert "take" not in text and all(f"{kind}_pool" in text for kind in ("max", "avg"))
