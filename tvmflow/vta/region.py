"""The part of a network that VTA computes, as a short list of integer operators; and what each of them means.

Values are int8 images (N, C, H, W). An operator ends in a tail: shift, bias, rounding shift, clip. `run_region` is the
definition that programs are held against, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmflow.errors import ProgramError
from tvmflow.vta.config import VtaConfig

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Tail:
    """int32 sum -> int8: ((x << left) + bias + half) >> right, clipped to [low, high], low 8 bits; right < 0 shifts left.

    bias: int32 (C,) or None. half: what rounds, 2^(right - 1), or 0. saturates: False leaves the clip out, and the cast wraps.
    """

    bias: Array | None = None
    left: int = 0
    half: int = 0
    right: int = 0
    low: int = -127
    high: int = 127
    saturates: bool = True

    def apply(self, total: Array) -> Array:
        """Return int8 of an int32 sum (N, C, H, W); int32 wraps as the accumulator does."""
        x = total.astype(np.int32) << np.int32(self.left)
        if self.bias is not None:
            x = x + self.bias.astype(np.int32)[None, :, None, None]
        x = x + np.int32(self.half)
        x = x >> np.int32(self.right) if self.right >= 0 else x << np.int32(-self.right)
        if self.saturates:
            x = np.clip(x, self.low, self.high)
        elif self.low >= 0:
            x = np.maximum(x, self.low)
        return np.asarray(x).astype(np.int8)


@dataclass(frozen=True)
class Conv:
    """weight int8: (O, I/groups, KH, KW), transposed: (I, O/groups, KH, KW). padding: top, left, bottom, right.

    output_padding: rows and columns that a transposed convolution adds at the end.
    """

    name: str
    data: str
    weight: Array
    tail: Tail
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, int] = (0, 0)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.data,)

    def shape_of(self, data: Shape) -> Shape:
        n, _, h, w = data
        top, left, bottom, right = self.padding
        kh, kw = self.weight.shape[2:]
        if self.transposed:
            return (
                n, self.weight.shape[1] * self.groups, (h - 1) * self.strides[0] - top - bottom + kh + self.output_padding[0],
                (w - 1) * self.strides[1] - left - right + kw + self.output_padding[1],
            )  # fmt: skip
        return (
            n, self.weight.shape[0], (h + top + bottom - kh) // self.strides[0] + 1,
            (w + left + right - kw) // self.strides[1] + 1,
        )  # fmt: skip


@dataclass(frozen=True)
class Sum:
    """inputs[0] << lefts[0] + inputs[1] << lefts[1], or one input alone; then the tail."""

    name: str
    inputs: tuple[str, ...]
    lefts: tuple[int, ...]
    tail: Tail

    def shape_of(self, data: Shape) -> Shape:
        return data


@dataclass(frozen=True)
class MaxPool:
    """padding may be other than 0 only where no input is negative: the machine pads with zeros."""

    name: str
    data: str
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.data,)

    def shape_of(self, data: Shape) -> Shape:
        n, c, h, w = data
        top, left, bottom, right = self.padding
        return (
            n, c, (h + top + bottom - self.kernel[0]) // self.strides[0] + 1,
            (w + left + right - self.kernel[1]) // self.strides[1] + 1,
        )  # fmt: skip


Operator = Conv | Sum | MaxPool


@dataclass(frozen=True)
class Region:
    """inputs: name -> (N, C, H, W); operators in order; outputs: names of values that the rest of the network reads."""

    inputs: Mapping[str, Shape]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]

    def shapes(self) -> dict[str, Shape]:
        """Return the shape of every value."""
        found = dict(self.inputs)
        for operator in self.operators:
            found[operator.name] = operator.shape_of(found[operator.inputs[0]])
        return found

    def users(self) -> dict[str, list[Operator]]:
        """Return who reads each value."""
        found: dict[str, list[Operator]] = {name: [] for name in (*self.inputs, *(op.name for op in self.operators))}
        for operator in self.operators:
            for name in operator.inputs:
                found[name].append(operator)
        return found


def run_region(region: Region, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return every value of a region for its inputs, in numpy."""
    found = dict(values)
    for operator in region.operators:
        data = [found[name] for name in operator.inputs]
        found[operator.name] = _run(operator, data)
    return found


def _run(operator: Operator, data: list[Array]) -> Array:
    from tvmflow.quantization.definition import convolve, padded, windows

    if isinstance(operator, Sum):
        parts = [x.astype(np.int32) << np.int32(left) for x, left in zip(data, operator.lefts, strict=True)]
        return operator.tail.apply(np.asarray(np.sum(parts, axis=0, dtype=np.int32)))
    if isinstance(operator, MaxPool):
        view = windows(padded(data[0], list(operator.padding)), operator.kernel, operator.strides, (1, 1))
        return np.asarray(view.max(axis=(4, 5)))
    if operator.transposed:
        return operator.tail.apply(_transposed(operator, data[0]))
    total = convolve(data[0], operator.weight, operator.strides, list(operator.padding), (1, 1), operator.groups)
    return operator.tail.apply(total)


def _transposed(operator: Conv, x: Array) -> Array:
    """A transposed convolution is a plain one over an image with zeros between its pixels, its filters turned round."""
    from tvmflow.quantization.definition import convolve

    n, c, h, w = x.shape
    (sh, sw), (kh, kw), groups = operator.strides, operator.weight.shape[2:], operator.groups
    apart = np.zeros((n, c, (h - 1) * sh + 1, (w - 1) * sw + 1), x.dtype)
    apart[:, :, ::sh, ::sw] = x
    top, left, bottom, right = operator.padding
    pads = [
        kh - 1 - top, kw - 1 - left, kh - 1 - bottom + operator.output_padding[0],
        kw - 1 - right + operator.output_padding[1],
    ]  # fmt: skip
    per_group = operator.weight.reshape(groups, c // groups, -1, kh, kw).swapaxes(1, 2)[..., ::-1, ::-1]
    weight = np.ascontiguousarray(per_group).reshape(-1, c // groups, kh, kw)
    return convolve(apart, weight, (1, 1), pads, (1, 1), groups)


# -- layout -----------------------------------------------------------------------------------------------------------


def packed_shape(config: VtaConfig, shape: Shape) -> tuple[int, ...]:
    """Return (N/batch, C/block, H, W, batch, block), both filled up."""
    n, c, h, w = shape
    return (-(-n // config.batch), -(-c // config.block), h, w, config.batch, config.block)


def pack(config: VtaConfig, x: Array) -> Array:
    """Return (N, C, H, W) as VTA has it; what is filled up is zero."""
    n, c, h, w = x.shape
    outer_n, outer_c, _, _, batch, block = packed_shape(config, (n, c, h, w))
    full = np.zeros((outer_n * batch, outer_c * block, h, w), x.dtype)
    full[:n, :c] = x
    split = full.reshape(outer_n, batch, outer_c, block, h, w)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 1, 3))


def unpack(x: Array, shape: Shape) -> Array:
    """Return (N, C, H, W) of what VTA has."""
    outer_n, outer_c, h, w, batch, block = x.shape
    full = x.transpose(0, 4, 1, 5, 2, 3).reshape(outer_n * batch, outer_c * block, h, w)
    return np.ascontiguousarray(full[: shape[0], : shape[1]])


# -- bytes ------------------------------------------------------------------------------------------------------------

_DIGEST_BYTES = 32
MAX_BLOB_BYTES = 1 << 30


def to_blob(kind: str, text: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Return a sha256 and, behind it, a description and arrays in the safetensors format, which cannot carry code."""
    from safetensors.numpy import save

    described = np.frombuffer(json.dumps({"kind": kind, **text}, sort_keys=True).encode(), np.uint8)
    payload = save({"description": described, **{k: np.ascontiguousarray(v) for k, v in arrays.items()}})
    return hashlib.sha256(payload).digest() + bytes(payload)


def from_blob(blob: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return description and arrays. Raises ProgramError when the bytes are not those that were written."""
    from safetensors.numpy import load

    if len(blob) > MAX_BLOB_BYTES or hashlib.sha256(blob[_DIGEST_BYTES:]).digest() != blob[:_DIGEST_BYTES]:
        raise ProgramError(
            "a VTA program or region whose bytes were altered", "the bytes that graph_pack or build wrote"
        )
    try:
        arrays = load(blob[_DIGEST_BYTES:])
        text = json.loads(arrays.pop("description").tobytes())
    except (ValueError, KeyError) as error:
        raise ProgramError(f"a damaged VTA program or region: {error}") from None
    return text, arrays


def region_to_blob(region: Region, notes: Mapping[str, Any] | None = None) -> bytes:
    """Return a region as bytes; notes: anything JSON-able worth keeping with it."""
    arrays: dict[str, Array] = {}
    operators = []
    for operator in region.operators:
        fields: dict[str, Any] = {"type": type(operator).__name__, **vars(operator)}
        if isinstance(operator, Conv):
            arrays[f"{operator.name}.weight"] = operator.weight
            del fields["weight"]
        if not isinstance(operator, MaxPool):
            tail = dict(vars(operator.tail))
            if operator.tail.bias is not None:
                arrays[f"{operator.name}.bias"] = operator.tail.bias
            del tail["bias"]
            fields["tail"] = tail
        operators.append(fields)
    text = {
        "inputs": dict(region.inputs),
        "operators": operators,
        "outputs": region.outputs,
        "notes": dict(notes or {}),
    }
    return to_blob("region", text, arrays)


def region_from(text: Mapping[str, Any], arrays: Mapping[str, Array]) -> Region:
    """Return the region of a description and its arrays."""
    kinds: dict[str, Callable[..., Operator]] = {"Conv": Conv, "Sum": Sum, "MaxPool": MaxPool}
    operators: list[Operator] = []
    for entry in text["operators"]:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k != "type"}
        if entry["type"] == "Conv":
            fields["weight"] = arrays[f"{entry['name']}.weight"]
        if "tail" in fields:
            fields["tail"] = replace(Tail(**fields["tail"]), bias=arrays.get(f"{entry['name']}.bias"))
        operators.append(kinds[entry["type"]](**fields))
    inputs: dict[str, Shape] = {name: tuple(shape) for name, shape in text["inputs"].items()}
    return Region(inputs, tuple(operators), tuple(text["outputs"]))
