"""Describe the part of a network that VTA computes as a short list of integer operators.

Values are int8 images (N, C, H, W). An operator ends in a tail: shift, bias, rounding shift, clip. `run_region` is the
numpy reference that programs must match bit for bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tvmflow.ir.relax.numpy_convolution import convolve, convolve_transposed, pad_image, sliding_windows
from tvmflow.support.errors import ProgramError, first_line
from tvmflow.vta.isa import fields
from tvmflow.vta.isa.config import VtaConfig

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class Tail:
    """int32 sum -> int8: ((x << left) + bias + half) >> right, clipped to [low, high], low 8 bits; right < 0 shifts
    left.

    bias: int32 (C,) or None. half: what rounds, 2^(right - 1), or 0. saturates: False leaves the clip out, and the cast
    wraps.
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
                n,
                self.weight.shape[1] * self.groups,
                (h - 1) * self.strides[0] - top - bottom + kh + self.output_padding[0],
                (w - 1) * self.strides[1] - left - right + kw + self.output_padding[1],
            )
        return (
            n,
            self.weight.shape[0],
            (h + top + bottom - kh) // self.strides[0] + 1,
            (w + left + right - kw) // self.strides[1] + 1,
        )


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
            n,
            c,
            (h + top + bottom - self.kernel[0]) // self.strides[0] + 1,
            (w + left + right - self.kernel[1]) // self.strides[1] + 1,
        )


Operator = Conv | Sum | MaxPool


@dataclass(frozen=True)
class Region:
    """inputs: name -> (N, C, H, W); operators in order; outputs: names of values that the rest of the network reads."""

    inputs: Mapping[str, Shape]
    operators: tuple[Operator, ...]
    outputs: tuple[str, ...]

    def shapes(self) -> dict[str, Shape]:
        """Return the shape of every value."""
        shapes = dict(self.inputs)
        for operator in self.operators:
            shapes[operator.name] = operator.shape_of(shapes[operator.inputs[0]])
        return shapes

    def users(self) -> dict[str, list[Operator]]:
        """Return who reads each value."""
        users: dict[str, list[Operator]] = {name: [] for name in (*self.inputs, *(op.name for op in self.operators))}
        for operator in self.operators:
            for name in operator.inputs:
                users[name].append(operator)
        return users


def run_region(region: Region, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return every value of a region for its inputs, in numpy."""
    results = dict(values)
    for operator in region.operators:
        data = [results[name] for name in operator.inputs]
        results[operator.name] = _run(operator, data)
    return results


def _run(operator: Operator, data: list[Array]) -> Array:
    if isinstance(operator, Sum):
        parts = [x.astype(np.int32) << np.int32(left) for x, left in zip(data, operator.lefts, strict=True)]
        return operator.tail.apply(np.asarray(np.sum(parts, axis=0, dtype=np.int32)))
    if isinstance(operator, MaxPool):
        view = sliding_windows(pad_image(data[0], list(operator.padding)), operator.kernel, operator.strides, (1, 1))
        return np.asarray(view.max(axis=(4, 5)))
    if operator.transposed:
        return operator.tail.apply(_transposed(operator, data[0]))
    total = convolve(data[0], operator.weight, operator.strides, list(operator.padding), (1, 1), operator.groups)
    return operator.tail.apply(total)


def _transposed(operator: Conv, x: Array) -> Array:
    return convolve_transposed(
        x, operator.weight, operator.strides, operator.padding, operator.output_padding, operator.groups
    )


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
    described = np.frombuffer(json.dumps({"kind": kind, **text}, sort_keys=True).encode(), np.uint8)
    payload = save({"description": described, **{k: np.ascontiguousarray(v) for k, v in arrays.items()}})
    return hashlib.sha256(payload).digest() + bytes(payload)


def from_blob(blob: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return description and arrays. Raises ProgramError when the bytes are not those that were written."""
    if len(blob) > MAX_BLOB_BYTES or hashlib.sha256(blob[_DIGEST_BYTES:]).digest() != blob[:_DIGEST_BYTES]:
        raise ProgramError(
            "a VTA program or region whose bytes were altered", "the bytes that graph_pack or build wrote"
        )
    try:
        arrays = load(blob[_DIGEST_BYTES:])
        described = arrays.pop("description").tobytes()
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ProgramError(f"a damaged VTA program or region: {first_line(error)}", fields.WRITTEN_BY) from None
    return fields.parse(described), arrays


def region_to_blob(region: Region, notes: Mapping[str, Any] | None = None) -> bytes:
    """Return a region as bytes; notes: `layers` and `reasons`, see `notes_from`."""
    arrays: dict[str, Array] = {}
    operators = []
    for operator in region.operators:
        entry: dict[str, Any] = {"type": type(operator).__name__, **vars(operator)}
        if isinstance(operator, Conv):
            arrays[f"{operator.name}.weight"] = operator.weight
            del entry["weight"]
        if not isinstance(operator, MaxPool):
            tail = dict(vars(operator.tail))
            if operator.tail.bias is not None:
                arrays[f"{operator.name}.bias"] = operator.tail.bias
            del tail["bias"]
            entry["tail"] = tail
        operators.append(entry)
    text = {
        "inputs": [[name, shape] for name, shape in region.inputs.items()],  # in the order of a call
        "operators": operators,
        "outputs": region.outputs,
        "notes": dict(notes or {}),
    }
    return to_blob("region", text, arrays)


def notes_from(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return what graph_pack noted about a region: `layers` on the accelerator, `reasons` why others are not."""
    notes = text.get("notes")
    if not isinstance(notes, dict) or not set(notes) <= {"layers", "reasons"}:
        raise fields.wrong("notes", notes, "an object of layers and reasons")
    layers, reasons = notes.get("layers", []), notes.get("reasons", {})
    if not isinstance(reasons, dict) or not all(isinstance(why, str) for why in reasons.values()):
        raise fields.wrong("notes.reasons", reasons, "an object of texts")
    return {"layers": list(fields.names("notes.layers", layers)), "reasons": reasons}


def region_from(text: Mapping[str, Any], arrays: Mapping[str, Array]) -> Region:
    """Return the region of a description and its arrays. Raises ProgramError when they are not what `region_to_blob`
    writes.
    """
    members = fields.members("region", dict(text), {"kind", "inputs", "operators", "outputs", "notes"})
    notes_from(text)
    if members["kind"] != "region":
        raise fields.wrong("kind", members["kind"], "region")
    pairs = [fields.items("inputs", pair, 2, 2) for pair in fields.items("inputs", members["inputs"], 1)]
    names = fields.names("inputs", [name for name, _ in pairs], 1)
    sides = (fields.wholes(name, shape, 4, (1, _MAX_SIDE)) for name, (_, shape) in zip(names, pairs, strict=True))
    inputs = {name: _bounded(name, shape) for name, shape in zip(names, sides, strict=True)}
    shapes, operators, used = dict(inputs), [], set[str]()
    for entry in fields.items("operators", members["operators"], 1):
        operator = _operator(entry, arrays, shapes, used)
        shapes[operator.name] = _bounded(operator.name, operator.shape_of(shapes[operator.inputs[0]]))
        operators.append(operator)
    outputs = fields.names("outputs", members["outputs"], 1)
    if set(arrays) != used or not set(outputs) <= {operator.name for operator in operators}:
        raise fields.wrong("arrays and outputs", (sorted(arrays), outputs), "those of the operators")
    return Region(inputs, tuple(operators), outputs)


_MAX_SIDE, MAX_ELEMENTS = 1 << 20, 1 << 28
_KERNEL = (1, 1 << 10)
_TAIL = {
    "left": (0, 31),
    "half": (-(1 << 31), (1 << 31) - 1),
    "right": (-31, 31),
    "low": (-128, 127),
    "high": (-128, 127),
}


def _bounded(where: str, shape: tuple[int, ...]) -> Shape:
    if min(shape) < 1 or math.prod(shape) > MAX_ELEMENTS:
        raise fields.wrong(where, shape, f"sides of 1 and more, {MAX_ELEMENTS:,} elements at most")
    return shape[0], shape[1], shape[2], shape[3]


def _operator(entry: Any, arrays: Mapping[str, Array], shapes: Mapping[str, Shape], used: set[str]) -> Operator:
    """Return one operator over values that exist; `used` gathers the names of its arrays."""
    kind = entry.get("type") if isinstance(entry, dict) else None
    kinds: dict[str, type[Operator]] = {"Conv": Conv, "Sum": Sum, "MaxPool": MaxPool}
    if not isinstance(kind, str) or kind not in kinds:
        raise fields.wrong("operators.type", kind, "one of " + ", ".join(kinds))
    own = {field.name for field in dataclasses.fields(kinds[kind])} - {"weight"}
    values = fields.members("operators", entry, {"type", *own})
    name = fields.name("operators.name", values["name"])
    inputs = values["inputs"] if kind == "Sum" else [values["data"]]
    data = tuple(fields.name(f"{name}.inputs", item) for item in fields.items(f"{name}.inputs", inputs, 1, 2))
    if name in shapes or any(value not in shapes or shapes[value] != shapes[data[0]] for value in data):
        raise fields.wrong(f"{name}.inputs", data, "earlier values, of one shape, and a new name")
    if kind == "Sum":
        lefts = fields.wholes(f"{name}.lefts", values["lefts"], len(data), (0, 31))
        return Sum(name, data, lefts, _tail(name, values["tail"], arrays, shapes[data[0]][1], used))
    strides = _pair(name, values["strides"], _KERNEL)
    padding = fields.wholes(f"{name}.padding", values["padding"], 4, (0, _KERNEL[1]))
    pads = (padding[0], padding[1], padding[2], padding[3])
    n, c, h, w = shapes[data[0]]
    _bounded(f"{name}, padded", (n, c, h + pads[0] + pads[2], w + pads[1] + pads[3]))
    if kind == "MaxPool":
        return MaxPool(name, data[0], _pair(name, values["kernel"], _KERNEL), strides, pads)
    weight = fields.array(f"{name}.weight", arrays, f"{name}.weight", "int8", 4)
    used.add(f"{name}.weight")
    groups, transposed = fields.whole(f"{name}.groups", values["groups"], 1, _MAX_SIDE), values["transposed"]
    if type(transposed) is not bool:
        raise fields.wrong(f"{name}.transposed", transposed, "true or false")
    channels, own_inputs = shapes[data[0]][1], weight.shape[0] if transposed else weight.shape[1] * groups
    if own_inputs != channels or min(weight.shape) < 1 or weight.shape[0] % groups:
        raise fields.wrong(f"{name}.weight", weight.shape, f"{channels} input channels in {groups} groups")
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if transposed:
        _bounded(f"{name}, spread", (n, c, h * strides[0], w * strides[1]))
    tail = _tail(name, values["tail"], arrays, outputs, used)
    extra = _pair(name, values["output_padding"], (0, _KERNEL[1]))
    return Conv(name, data[0], weight, tail, strides, pads, groups, transposed, extra)


def _pair(where: str, value: object, bounds: tuple[int, int]) -> tuple[int, int]:
    pair = fields.wholes(where, value, 2, bounds)
    return pair[0], pair[1]


def _tail(name: str, value: object, arrays: Mapping[str, Array], channels: int, used: set[str]) -> Tail:
    members = fields.members(f"{name}.tail", value, {*_TAIL, "saturates"})
    numbers = {key: fields.whole(f"{name}.tail.{key}", members[key], *bounds) for key, bounds in _TAIL.items()}
    if type(members["saturates"]) is not bool or numbers["low"] > numbers["high"]:
        raise fields.wrong(f"{name}.tail", members, "saturates true or false, low up to high")
    bias = None
    if f"{name}.bias" in arrays:
        bias = fields.array(f"{name}.bias", arrays, f"{name}.bias", "int32", 1)
        used.add(f"{name}.bias")
        if bias.shape != (channels,):
            raise fields.wrong(f"{name}.bias", bias.shape, f"({channels},)")
    return Tail(bias, **numbers, saturates=members["saturates"])
