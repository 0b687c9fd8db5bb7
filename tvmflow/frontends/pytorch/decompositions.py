"""Write operators that have no converter in terms of others, in PyTorch: these run while a program is decomposed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tvmflow.frontends.pytorch.fused_layers import FUSED_LAYERS
from tvmflow.frontends.pytorch.linear_algebra import LINEAR_ALGEBRA


def decompositions() -> Any:
    """Return PyTorch's table of decompositions into core operators, with ours."""
    table = torch.export.default_decompositions()
    for name, function in _OWN.items():
        table.update(dict.fromkeys(_overloads(name), function))
    return table


def _overloads(name: str) -> Iterator[Any]:
    """Yield the overloads of an operator that do not write into an argument, or the one that is named."""
    name, _, wanted = name.partition(".")
    packet = getattr(torch.ops.aten, name)
    if wanted:
        yield getattr(packet, wanted)
        return
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if not found._schema.is_mutable and not overload.endswith("out"):
            yield found


def _float(x: Any) -> Any:
    """Return integers as floats."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _addmv(x: Any, matrix: Any, vector: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _times((matrix @ vector.unsqueeze(-1)).squeeze(-1), alpha)
    return product if beta == 0 else product + _times(x, beta)


def _addbmm(x: Any, one: Any, other: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _times((one @ other).sum(0, dtype=one.dtype), alpha)
    return product if beta == 0 else product + _times(x, beta)


def _times(x: Any, factor: Any) -> Any:
    """Return x times a number, which becomes an integer where x is of integers."""
    factor = factor if x.is_floating_point() else int(factor)
    return x if factor == 1 else x * factor


def _dot(one: Any, other: Any) -> Any:
    return (one * other).sum(dtype=one.dtype)  # of integers, a plain sum is int64


def _is_negative(x: Any) -> Any:
    """Return whether the sign is set, also that of zero."""
    if not x.is_floating_point():
        return x < 0
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _copysign(x: Any, other: Any) -> Any:
    sign = other if isinstance(other, torch.Tensor) else torch.full((), other)
    size = _float(x).abs()
    return torch.where(_is_negative(sign), -size, size)


def _ignoring_nan(choose: str) -> Callable[..., Any]:
    def extreme(one: Any, other: Any) -> Any:
        found = getattr(torch, choose)(one, other)
        if not found.is_floating_point():
            return found
        return torch.where(one.isnan(), other, torch.where(other.isnan(), one, found))

    return extreme


_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
_SHIFT = 8  # from which on Stirling's series is exact in float32


def _lgamma(x: Any) -> Any:
    """Return log |gamma(x)| by Stirling's series; below 8 by recursion, below 1/2 by reflection."""
    x = _float(x)
    reflected = x < 0.5
    y = torch.where(reflected, 1 - x, x)
    small = y < _SHIFT
    product = torch.ones_like(y)
    for step in range(_SHIFT):
        product = product * torch.where(small, y + step, 1.0)
    z = torch.where(small, y + _SHIFT, y)
    series = sum(factor * z ** -(2 * place + 1) for place, factor in enumerate(_STIRLING))
    found = (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + series - product.log()
    found = torch.where(y == math.inf, y, found)
    sine = (math.pi * (x - x.round())).sin().abs()
    found = torch.where(reflected, math.log(math.pi) - sine.log() - found, found)
    return torch.where(x == -math.inf, math.inf, found)


_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240)


def _digamma(x: Any) -> Any:
    """Return the derivative of log gamma by its series; below 8 by recursion, below zero by reflection."""
    x = _float(x)
    reflected = x < 0
    y = torch.where(reflected, 1 - x, x)
    small = y < _SHIFT
    steps = torch.zeros_like(y)
    for step in range(_SHIFT):
        steps = steps + torch.where(small, 1 / (y + step), 0.0)
    z = torch.where(small, y + _SHIFT, y)
    series = sum(factor * z ** -(2 * place + 2) for place, factor in enumerate(_DIGAMMA))
    found = z.log() - 0.5 / z - series - steps
    turned = math.pi * (x - x.round())
    found = torch.where(reflected, found - math.pi * turned.cos() / turned.sin(), found)
    return torch.where(reflected & (x == x.round()), math.nan, found)


# M. Giles, Approximating the erfinv function, 2010: single precision.
_ERFINV_CENTRE: tuple[float, ...] = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087)
_ERFINV_CENTRE += (-0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_ERFINV_TAIL: tuple[float, ...] = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773)
_ERFINV_TAIL += (-0.0076224613, 0.00943887047, 1.00167406, 2.83297682)


def _erfinv(x: Any) -> Any:
    x = _float(x)
    return _erfinv_of(x, -((1 - x) * (1 + x)).log())


def _ndtri(x: Any) -> Any:
    """Return the quantiles of the normal distribution; near 0 and 1 the difference from it is exact."""
    x = _float(x)
    return math.sqrt(2) * _erfinv_of(2 * x - 1, -(4 * x * (1 - x)).log())


def _erfinv_of(x: Any, w: Any) -> Any:
    """Return the inverse of the error function at x, of which w is -log(1 - x^2)."""
    centre, tail = w - 2.5, w.clamp(min=5).sqrt() - 3
    near = torch.full_like(x, _ERFINV_CENTRE[0])
    far = torch.full_like(x, _ERFINV_TAIL[0])
    for one, other in zip(_ERFINV_CENTRE[1:], _ERFINV_TAIL[1:], strict=True):
        near, far = one + near * centre, other + far * tail
    found = torch.where(w < 5, near, far) * x
    return torch.where(x.abs() == 1, x * math.inf, found)


def _logcumsumexp(x: Any, axis: int) -> Any:
    """Return the logarithm of the running sum of exponentials, each sum by itself."""
    if not x.ndim:
        return x.clone()
    moved = x.movedim(axis, -1)
    extent = moved.shape[-1]
    before = torch.ones(extent, extent, dtype=torch.bool).tril()
    spread = torch.where(before, moved.unsqueeze(-2), -math.inf)
    return spread.logsumexp(-1).movedim(-1, axis)


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Return the sum, mean (1) or maximum (2) of the rows of each bag: by which bag every index belongs to."""
    bags = offsets.shape[0] - include_last_offset
    places = torch.arange(indices.shape[0])
    bag = (places[:, None] >= offsets[:bags]).sum(-1) - 1
    member = bag == torch.arange(bags)[:, None]  # (bags, indices)
    if padding_idx >= 0:
        member = member & (indices != padding_idx)
    rows = weight.index_select(0, indices)
    count = member.sum(-1)
    largest = torch.zeros_like(offsets)  # which rows of the table they are; undefined but for maxima
    if mode == 2:
        of_bag = torch.where(member[..., None], rows, -math.inf)
        found = torch.where(count[:, None] > 0, of_bag.amax(1), 0.0)
        largest = torch.where(count[:, None] > 0, indices[of_bag.argmax(1)], 0)
    else:
        rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
        found = member.to(rows.dtype) @ rows
        found = found / count.clamp(min=1)[:, None] if mode == 1 else found
    return found, bag, count, largest


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = torch.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def _round_to_decimals(x: Any, *, decimals: int = 0) -> Any:
    """Round to a number of decimals."""
    if not x.is_floating_point():
        return x.clone()
    scale = 10.0 ** abs(decimals)
    return (x * scale).round() / scale if decimals > 0 else (x / scale).round() * scale


def _var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    axes = list(range(x.dim())) if dim is None else dim
    return x.var(axes, correction=1 if correction is None else correction, keepdim=keepdim), x.mean(axes, keepdim)


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_flags: bool,
) -> Any:
    return torch.ops.aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def _trilinear(
    one: Any,
    other: Any,
    weight: Any,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    _unroll_dim: int = 1,
) -> Any:
    """Return the sum of products of three tensors over dimensions, each first expanded by others: nn.Bilinear."""
    expanded = []
    for tensor, places in ((one, expand1), (other, expand2), (weight, expand3)):
        for place in sorted(places):
            tensor = tensor.unsqueeze(place)
        expanded.append(tensor)
    product = expanded[0] * expanded[1] * expanded[2]
    return product.sum(sumdim, dtype=product.dtype) if sumdim else product


def _ldexp(x: Any, exponent: Any) -> Any:
    return x * torch.pow(2.0, exponent)


def _unbind(x: Any, dim: int = 0) -> Any:
    return tuple(x.select(dim, place) for place in range(x.shape[dim]))


def _rrelu(x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any) -> Any:
    """Without training the slope is the mean of its bounds."""
    if training:
        return NotImplemented
    return torch.where(x > 0, x, x * ((lower + upper) / 2))


def _rrelu_functional(x: Any, noise: Any, *options: Any, generator: Any = None) -> Any:
    found = _rrelu(x, noise, *options)
    return found if found is NotImplemented else (found, noise)


_OWN: dict[str, Callable[..., Any]] = {
    **FUSED_LAYERS,
    **LINEAR_ALGEBRA,
    "special_ndtri": _ndtri,
    "rrelu_with_noise": _rrelu,
    "rrelu_with_noise_functional": _rrelu_functional,
    "_trilinear": _trilinear,
    "ldexp": _ldexp,
    "view_copy": lambda x, size: x.reshape(size),
    "permute_copy": lambda x, axes: x.permute(axes),
    "narrow_copy": lambda x, dim, start, length: x.narrow(dim, start, length),
    "unbind_copy": _unbind,
    "_convolution": _convolution,
    "var_mean.correction": _var_mean,
    "addmv": _addmv,
    "addbmm": _addbmm,
    "dot": _dot,
    "vdot": _dot,
    "mv": lambda matrix, vector: (matrix * vector).sum(-1, dtype=matrix.dtype),
    "signbit": lambda x: torch.zeros_like(x) if x.dtype == torch.bool else _is_negative(x),
    "copysign": _copysign,
    "fmax": _ignoring_nan("maximum"),
    "fmin": _ignoring_nan("minimum"),
    "exp2": lambda x: torch.pow(2.0, _float(x)),
    "lgamma": _lgamma,
    "digamma": _digamma,
    "erfinv": _erfinv,
    "logcumsumexp": _logcumsumexp,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "put": _put,
    "round.decimals": _round_to_decimals,
}


def decomposed_names() -> frozenset[str]:
    """Return the names, without overloads, of the operators decomposed here."""
    return frozenset(name.split(".")[0] for name in _OWN)
