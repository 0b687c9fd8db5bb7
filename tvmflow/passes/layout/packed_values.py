"""Keep values of a network in two layouts, plain and packed channels, each converted on first use."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tvmflow.ir.relax.graph import Graph
from tvmflow.ir.tvm_compat import type_of
from tvmflow.passes.layout.channel_shuffle import ChannelPermutations
from tvmflow.passes.layout.dense import pack_rows
from tvmflow.passes.layout.layout_rewriter import LayoutRewriter
from tvmflow.passes.layout.weights import image_shape


class PackedValues(LayoutRewriter):
    """Values in packed channels, and their conversion from and to the plain layout.

    packed: values (N, C/block, H, W, block), by name; rows: packed rows of values (A, B, D, C) that are rows, not
    images; flat: values (1, C, H * W), by the names of the images (1, C, H, W) that they flatten.
    """

    def __init__(self, graph: Graph, block: int, lane_moves: bool) -> None:
        super().__init__(graph)
        self.block, self.lane_moves = block, lane_moves
        self.packed: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}
        self.flat: dict[str, str] = {}
        self.permutations = ChannelPermutations(graph, block, lane_moves)

    def _round_up(self, channels: int) -> int:
        return -(-channels // self.block) * self.block

    def _get_packed(self, name: str) -> Any:
        """Return a value in packed channels, converted on first use."""
        if name not in self.packed and name in self.permutations.steps and self.lane_moves:
            self.packed[name] = self.builder.emit(
                self.permutations.emit_packed(self.builder, name, self.packed), f"{name}_packed"
            )
        if name not in self.packed:
            value = self._emit_permuted(name) if name in self.permutations.steps else self._get_plain(name)
            shape = self.shapes[name]
            if len(shape) != 4:
                rows = pack_rows(self.builder, value, shape, self.block)
                self.packed[name] = self.builder.emit(rows, f"{name}_packed")
                return self.packed[name]
            n, c, h, w = shape
            fill = self._round_up(c) - c
            if fill:
                value = self.builder.emit(relax.op.nn.pad(value, [0, 0, 0, fill, 0, 0, 0, 0]))
            blocks = (c + fill) // self.block
            if (h, w) == (1, 1):
                made = relax.op.reshape(value, (n, blocks, 1, 1, self.block))
            else:
                made = relax.op.permute_dims(relax.op.reshape(value, (n, blocks, self.block, h, w)), [0, 1, 3, 4, 2])
            self.packed[name] = self.builder.emit(made, f"{name}_packed")
        return self.packed[name]

    def _get_plain(self, name: str) -> Any:
        if name not in self.plain and name in self.flat:
            flat = relax.op.reshape(self._get_plain(self.flat[name]), self.shapes[name])
            self.plain[name] = self.builder.emit(flat, f"{name}_plain")
        elif name not in self.plain:
            unread = name in self.permutations.steps and name not in self.packed
            value = self._emit_permuted(name) if unread else self._emit_unpacked(name)
            self.plain[name] = self.builder.emit(value, f"{name}_plain")
        return self.plain[name]

    def _emit_unpacked(self, name: str) -> Any:
        whole = self.shapes[name]
        shape = (math.prod(whole[:-1]), whole[-1]) if name in self.rows else whole
        n, c, h, w = image_shape(shape)
        value, rows = self.rows[name] if name in self.rows else self.packed[name], n
        if len(shape) != 4:
            n, rows = w, math.prod(shape[:-1])
            if w > 1:
                value = relax.op.permute_dims(value, [3, 1, 0, 2, 4])
        elif (h, w) != (1, 1):
            value = relax.op.permute_dims(value, [0, 1, 4, 2, 3])
        value = relax.op.reshape(value, (n, self._round_up(c), *(shape[2:] if len(shape) == 4 else ())))
        value = self._remove_padding(value, rows, c)
        return relax.op.reshape(self.builder.emit(value), whole) if len(shape) == 3 or shape != whole else value

    def _emit_permuted(self, name: str) -> Any:
        """Emit a channel permutation again for one reader, from packed channels where they exist."""
        if name in self.packed:
            return self.builder.emit(self._emit_unpacked(name))
        if name not in self.permutations.steps:
            return self._get_plain(name)
        return self.builder.emit(self.permutations.emit_step(name, self._emit_permuted))

    def _remove_padding(self, value: Any, rows: int, channels: int) -> Any:
        value = self.builder.emit(value)
        if [rows, channels] == [int(extent) for extent in type_of(value).shape][:2]:
            return value
        return relax.op.strided_slice(value, axes=[0, 1], begin=[0, 0], end=[rows, channels])
