"""Describe convolutions for VTA as blocks of channels, taps and phases.

The form is the same for plain, grouped and transposed convolutions. Output rows are divided into phases: in a
transposed convolution with stride s, row s*y + p reads only the taps that fall on a pixel. A plain convolution has one
phase with all taps; its stride applies to the input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import Conv, Shape, packed_shape

Array = np.ndarray[Any, Any]
MAX_DENSE_CHANNELS = 64
"""Groups that do not fit the blocks are filled up to a plain convolution, if it has no more channels than this."""


@dataclass(frozen=True)
class Axis:
    """One spatial axis. phases: for each, (tap, input offset); out index = dst * i + phase, in index = src * i +
    offset.
    """

    size: int
    out: int
    dst: int
    src: int
    phases: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def is_sparse(self) -> bool:
        """Whether only every src-th index is read at all."""
        return self.src > 1 and len(self.phases) == 1 and len(self.phases[0]) == 1

    def window(self, first: int, count: int) -> tuple[int, int]:
        """Return (first, count) of the input indices that `count` outputs from `first` on read; may lie outside."""
        turns, start = -(-count // self.dst), first // self.dst
        offsets = [offset for phase in self.phases for _, offset in phase]
        low = start * self.src + min(offsets)
        return low, (start + turns - 1) * self.src + max(offsets) - low + 1


@dataclass(frozen=True)
class Geometry:
    """A convolution in blocks: co_group output blocks read the same ci_group input blocks, groups of them."""

    n: int
    groups: int
    ci_group: int
    co_group: int
    rows: Axis
    columns: Axis
    kernel: tuple[int, int]

    @property
    def ci(self) -> int:
        return self.groups * self.ci_group

    @property
    def co(self) -> int:
        return self.groups * self.co_group

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def gemm(self) -> int:
        """Return how many micro-ops multiply, padding included: what gemm_counter must say."""
        pairs = sum(len(phase) * _count(self.rows, p) for p, phase in enumerate(self.rows.phases))
        pairs *= sum(len(phase) * _count(self.columns, p) for p, phase in enumerate(self.columns.phases))
        return self.n * self.groups * self.ci_group * self.co_group * pairs


def _count(axis: Axis, phase: int) -> int:
    return -(-(axis.out - phase) // axis.dst)


def axis(size: int, out: int, stride: int, kernel: int, pad: int, transposed: bool) -> Axis:
    if not transposed:
        return Axis(size, out, 1, stride, (tuple((tap, tap - pad) for tap in range(kernel)),))
    phases = tuple(
        tuple((tap, (phase + pad - tap) // stride) for tap in range(kernel) if (phase + pad - tap) % stride == 0)
        for phase in range(min(stride, out))
    )
    return Axis(size, out, stride, 1, phases)


def geometry(config: VtaConfig, conv: Conv, data: Shape) -> Geometry:
    """Return the block form. Raises ProgramError for groups that cannot be formed from blocks, or a phase without
    taps.
    """
    _, c, h, w = data
    groups, _, _ = blocked_groups(config, conv)
    _, _, oh, ow = conv.shape_of(data)
    kh, kw = conv.weight.shape[2:]
    rows = axis(h, oh, conv.strides[0], kh, conv.padding[0], conv.transposed)
    columns = axis(w, ow, conv.strides[1], kw, conv.padding[1], conv.transposed)
    if not all(phase for axis in (rows, columns) for phase in axis.phases):
        raise ProgramError(f"{conv.name}: a stride beyond the kernel leaves outputs without inputs", "kernel >= stride")
    outputs = conv.shape_of(data)[1]
    blocks = [-(-channels // config.block) for channels in (c, outputs)]
    return Geometry(
        packed_shape(config, data)[0], groups, blocks[0] // groups, blocks[1] // groups, rows, columns, (kh, kw)
    )


def blocked_groups(config: VtaConfig, conv: Conv) -> tuple[int, int, str]:
    """Return (groups of blocks, how many groups of the network form one, how): whole, merged or dense. Raises
    ProgramError.
    """
    block, groups = config.block, conv.groups
    if conv.transposed:
        inputs, outputs = conv.weight.shape[0] // groups, conv.weight.shape[1]
    else:
        outputs, inputs = conv.weight.shape[0] // groups, conv.weight.shape[1]
    if groups == 1:
        return 1, 1, "whole"
    if inputs % block == 0 and outputs % block == 0:
        return groups, 1, "whole"
    merged = block // math.gcd(inputs, outputs, block)
    wide = -(-groups // merged)
    if all(wide * merged * size // block == -(-groups * size // block) for size in (inputs, outputs)):
        return wide, merged, "merged"
    if max(inputs, outputs) * groups <= MAX_DENSE_CHANNELS:
        return 1, groups, "dense"
    raise ProgramError(
        f"{conv.name}: {groups} groups of {inputs} to {outputs} channels",
        f"groups that fill blocks of {block} channels, or at most {MAX_DENSE_CHANNELS} channels",
    )


def pack_weight(config: VtaConfig, conv: Conv) -> Array:
    """Return int8 (CO, CI of its group, KH, KW, o, i); channels and groups that do not fill a block are filled with
    zeros.
    """
    block, groups = config.block, conv.groups
    kh, kw = conv.weight.shape[2:]
    if conv.transposed:  # (I, O/groups) -> (groups, O/groups, I/groups)
        grouped = conv.weight.reshape(groups, conv.weight.shape[0] // groups, -1, kh, kw).swapaxes(1, 2)
    else:
        grouped = conv.weight.reshape(groups, -1, conv.weight.shape[1], kh, kw)
    wide, merged, _ = blocked_groups(config, conv)
    outputs, inputs = grouped.shape[1:3]
    full = np.zeros((wide, merged * outputs, merged * inputs, kh, kw), np.int8)
    for group in range(groups):  # side by side on the diagonal
        outer, inner = divmod(group, merged)
        full[outer, inner * outputs : (inner + 1) * outputs, inner * inputs : (inner + 1) * inputs] = grouped[group]
    co, ci = (-(-size // block) for size in full.shape[1:3])
    filled = np.zeros((wide, co * block, ci * block, kh, kw), np.int8)
    filled[:, : full.shape[1], : full.shape[2]] = full
    split = filled.reshape(wide, co, block, ci, block, kh, kw).transpose(0, 1, 3, 5, 6, 2, 4)
    return np.ascontiguousarray(split.reshape(wide * co, ci, kh, kw, block, block))


def pack_vector(config: VtaConfig, values: Array) -> Array:
    """Return int32 (C,) as (C/block, batch, block)."""
    blocks = -(-len(values) // config.block)
    filled = np.zeros(blocks * config.block, np.int32)
    filled[: len(values)] = values
    return np.ascontiguousarray(
        np.broadcast_to(filled.reshape(blocks, 1, config.block), (blocks, config.batch, config.block))
    )
