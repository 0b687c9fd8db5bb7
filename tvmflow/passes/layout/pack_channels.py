"""PackChannels: let a whole network compute on packed channels, NCHW{block}c, from its first convolution to its head.

Every 4-D value, and all rows, (N, C) or (B, N, C), as an image of one row of pixels, get a packed twin (N, C/block, H,
W, block); channels that do not divide are filled up with zeros, which the weights of the next convolution ignore.
Weights are transformed here, once. Operators that do not care are computed on the twin; what cannot be packed (a
flatten of an image, an odd concatenation) reads the plain layout, which is made there only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.elementwise import BROADCASTING, DIVISIONS, UNARY, finite_at_zero
from tvmflow.ir.relax.emit import call_again, constant
from tvmflow.ir.relax.graph import Argument, Array, Graph, Ref, Step, joins, read_graph
from tvmflow.ir.relax.views import keeps_order
from tvmflow.passes.layout.channel_permute import moved_channels
from tvmflow.passes.layout.dense import is_dense, pixels_as_rows, rows_as_pixels
from tvmflow.passes.layout.dilated_convolution import convolution_by_taps, sees_little
from tvmflow.passes.layout.first_layer import few_rows, image_of_few
from tvmflow.passes.layout.grouped_convolution import spread_groups
from tvmflow.passes.layout.norm import NORMS, packed_norm
from tvmflow.passes.layout.packed_values import PackedValues
from tvmflow.passes.layout.pool_resize_pad import POOLS, pad, pads_image, pool, resize, through_padding
from tvmflow.passes.layout.transposed_convolution import deconvolution
from tvmflow.passes.layout.weights import (
    as_image,
    few_lanes,
    pack_both,
    pack_constant,
    pack_groups,
    pack_outputs,
    rows_as_image,
)

_REDUCTIONS = {"relax.mean", "relax.sum", "relax.max", "relax.min"}


@tvm.transform.module_pass(opt_level=0, name="PackChannels")
class PackChannels:
    """IRModule -> IRModule; `block` channels side by side. few_as_words: images of bytes with few channels are moved by
    words; lane_moves: so are channels that fill no blocks, by vectors; tiles: matrix tiles sum int8.
    """

    def __init__(self, block: int, few_as_words: bool = False, lane_moves: bool = True, tiles: bool = False) -> None:
        self.block, self.few_as_words, self.lane_moves, self.tiles = block, few_as_words, lane_moves, tiles

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return _Packer(read_graph(mod), self).module()


class _Packer(PackedValues):
    def __init__(self, graph: Graph, options: PackChannels) -> None:
        super().__init__(graph, options.block, options.lane_moves)
        self.few_as_words, self.tiles = options.few_as_words, options.tiles
        self.steps = {step.name: step for step in graph.steps}

    def _step(self, step: Step) -> None:
        moves = self.moves.take(step, self.packed)
        for name in step.refs if not moves or step.op == "relax.concat" else ():
            if name in self.moves.steps and len(self.shapes[name]) == 4:
                self._as_packed(name)
        if moves or self._keeps_rows(step) or self._reduces_channels(step):
            return
        twin = self._twin(step)
        if twin is not None:
            value = twin()  # a variable where it is what another step packed: a second name would keep kernels apart
            self.packed[step.name] = value if isinstance(value, relax.Var) else self.builder.emit(value, step.name)
            return
        self._emit_plain(step)

    def _keeps_rows(self, step: Step) -> bool:
        """Keep packed rows that get four axes, and what is computed of each of their values, as rows, and pixels whose
        channels go last: dense layers go on with them.
        """
        if not step.refs:
            return False
        source = step.refs[0]
        shape = self.shapes[source]
        flattens = step.op == "relax.reshape" and len(shape) == 4 and step.shape == (1, shape[1], math.prod(shape[2:]))
        if flattens and source in self.packed:
            self.flat[step.name] = source
            return True
        if len(step.shape) != 4:
            return False
        if step.op in UNARY and source in self.rows:
            self.rows[step.name] = self.builder.emit(call_again(step, self.rows.__getitem__), step.name)
            return True
        if step.op in NORMS and source in self.rows:
            norm = packed_norm(step, self.rows[source], self.block)
            if norm is not None:
                self.rows[step.name] = self.builder.emit(norm(), step.name)
            return norm is not None
        if step.op == "relax.matmul" and source in self.rows and is_dense(step):
            self.rows[step.name] = self.builder.emit(self._dense(step, self.rows[source]), step.name)
            return True
        if step.op in BROADCASTING and all(name in self.rows and self.shapes[name] == step.shape for name in step.refs):
            again = Step(step.name, step.op, self._row_constants(step), step.call, step.shape, step.dtype)
            self.rows[step.name] = self.builder.emit(call_again(again, self.rows.__getitem__), step.name)
            return True
        if step.op == "relax.permute_dims" and shape[0] == 1 and _axes(step) == [0, 2, 3, 1] and source in self.packed:
            self.rows[step.name] = pixels_as_rows(self.builder, self.packed[source])
            return True
        if step.op != "relax.reshape" or shape[-1] != step.shape[-1]:
            return False
        rows = self.rows.get(source) if len(shape) == 4 else self.packed.get(source)
        if rows is not None:
            self.rows[step.name] = rows
        return rows is not None

    def _reduces_channels(self, step: Step) -> bool:
        """Compute what is one number of all channels of a pixel: of all blocks first, in vectors, of their lanes
        last.
        """
        if step.op not in _REDUCTIONS or step.refs[0] not in self.packed or len(self.shapes[step.refs[0]]) != 4:
            return False
        if step.call.attrs.axis is None or [int(axis) % 4 for axis in step.call.attrs.axis] != [1]:
            return False
        if self.shapes[step.refs[0]][1] % self.block:
            return False
        value = self.packed[step.refs[0]]
        for axis in (1, 4):
            value = self.builder.emit(getattr(relax.op, step.op.split(".")[-1])(value, axis=[axis], keepdims=True))
        self.plain[step.name] = self.builder.emit(relax.op.reshape(value, step.shape), step.name)
        return True

    def _twin(self, step: Step) -> Callable[[], Any] | None:
        """Return how to compute the step on packed channels, None where it is computed on the plain layout."""
        if step.op == "relax.nn.conv2d":
            return self._convolution(step)
        if step.op == "relax.matmul" and len(self.shapes[step.refs[0]]) in (2, 3) and is_dense(step):
            return lambda: self._dense(step, self._as_packed(step.refs[0]))
        if step.op == "relax.nn.conv2d_transpose":
            return self._deconvolution(step)
        if step.op in NORMS and len(step.shape) in (2, 3, 4) and step.refs[0] in self.packed:
            return packed_norm(step, self.packed[step.refs[0]], self.block, 1 if len(step.shape) == 4 else -1)
        if step.op == "relax.permute_dims":
            return self._permuted(step)
        if step.op == "relax.reshape" and len(step.shape) in (2, 3) and step.refs[0] in (*self.packed, *self.rows):
            return self._flatten(step)
        pools = step.op in POOLS and str(step.call.attrs.layout) == "NCHW"
        if pools and (step.refs[0] in self.packed or step.shape[1] >= self.block):
            return lambda: pool(step, self._as_packed(step.refs[0]), self.block)
        if not any(name in self.packed for name in step.refs):
            return None
        if step.op in UNARY and self._may_be_packed(step):
            return lambda: call_again(step, self._as_packed)
        if step.op in BROADCASTING and self._may_be_packed(step):
            return self._binary(step)
        if step.op == "relax.nn.adaptive_avg_pool2d" and str(step.call.attrs.layout) == "NCHW":
            size = [int(d) for d in step.shape[2:]]
            layout = f"NCHW{self.block}c"
            return lambda: relax.op.nn.adaptive_avg_pool2d(self.packed[step.refs[0]], size, layout=layout)
        if step.op == "relax.image.resize2d" and str(step.call.attrs.layout) == "NCHW":
            if step.name in self.graph.outputs:  # the small image is unpacked, not the large one
                return None
            return lambda: resize(step, self.packed[step.refs[0]], self.block)
        if step.op in _REDUCTIONS:
            return self._reduction(step)
        if len(step.shape) == 4 and joins(step, axis=1):
            return self._concat(step)
        if pads_image(step):
            return lambda: pad(step, self.packed[step.refs[0]])
        return None

    def _may_be_packed(self, step: Step) -> bool:
        """Return whether a step on single elements may see the zeros that fill channels: what it makes of them is
        multiplied with zeros later.
        """
        if len(step.shape) not in (2, 3, 4):
            return False
        return finite_at_zero(step) or as_image(step.shape)[1] % self.block == 0

    def _convolution(self, step: Step) -> Callable[[], Any] | None:
        attrs, weight = step.call.attrs, step.args[1]
        if not isinstance(weight, np.ndarray) or str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "OIHW":
            return None
        b, groups = self.block, int(attrs.groups)
        data, padding = through_padding(step, self.steps)
        outputs, inputs = weight.shape[0], weight.shape[1] * groups
        if inputs >= b and sees_little(step, weight, padding, self.shapes[data]):
            return lambda: convolution_by_taps(self.builder, step, weight, padding, self._as_packed(data))
        if groups == 1 and (2 * outputs >= b or data in self.packed):
            few = few_lanes(inputs, weight.dtype, b)
            rows = few_rows(self.graph, data, step, padding) if self.tiles and data not in self.packed else None
            if rows is not None:
                return lambda: rows.convolution(self.builder, self._as_plain(rows.source.name), b, step.dtype)
            if data not in self.packed and few:
                return lambda: self._emit_convolution(
                    step, self._as_few(data, few), padding, f"NCHW{few}c", pack_both(weight, b, few), 1
                )
            if data not in self.packed and inputs < b:  # a first layer: too few channels to pack
                return lambda: self._emit_convolution(
                    step, self._as_plain(data), padding, "NCHW", pack_outputs(weight, b), 1
                )
            return lambda: self._emit_convolution(
                step, self._as_packed(data), padding, f"NCHW{b}c", pack_both(weight, b), 1
            )
        if groups == inputs and weight.shape[1] == 1 and 2 * outputs >= b and (inputs == outputs or self.lane_moves):
            filled = self._filled(outputs)
            return lambda: self._emit_convolution(
                step, self._repeated(data, outputs // inputs), padding, f"NCHW{b}c", pack_outputs(weight, b), filled
            )
        packed = pack_groups(weight, groups, b) if groups > 1 else None
        if packed is not None:
            return lambda: self._emit_convolution(step, self._as_packed(data), padding, f"NCHW{b}c", *packed)
        return self._spread(step, data, padding) if groups > 1 and self.lane_moves and 2 * inputs >= b else None

    def _spread(self, step: Step, data: str, padding: list[int]) -> Callable[[], Any]:
        spread = spread_groups(np.asarray(step.args[1]), int(step.call.attrs.groups), self.block)
        weight, layout = pack_both(spread.weight, self.block), f"NCHW{self.block}c"
        return lambda: spread.around(
            self.builder,
            self._as_packed(data),
            lambda image: self._emit_convolution(step, image, padding, layout, weight, spread.groups),
        )

    def _repeated(self, name: str, times: int) -> Any:
        """Return an image packed, each of its channels several times, for convolutions that make several of each."""
        if times == 1:
            return self._as_packed(name)
        channels = [(0, at // times) for at in range(times * self.shapes[name][1])]
        return self.builder.emit(moved_channels(self.builder, [self._as_packed(name)], channels))

    def _as_few(self, name: str, lanes: int) -> Any:
        """Return an image of few channels with its channels side by side, (N, 1, H, W, lanes)."""
        few = image_of_few(self.builder, self.graph, self._as_plain, name, lanes, self.few_as_words)
        return self.builder.emit(few, f"{name}_few")

    def _emit_convolution(
        self, step: Step, data: Any, padding: list[int], layout: str, weight: Array, groups: int
    ) -> Any:
        attrs, b = step.call.attrs, self.block
        return relax.op.nn.conv2d(
            data,
            constant(weight, str(weight.dtype)),
            strides=list(attrs.strides),
            padding=padding,
            dilation=list(attrs.dilation),
            groups=groups,
            data_layout=layout,
            out_layout=f"NCHW{b}c",
            kernel_layout=f"OIHW{weight.shape[4]}i{b}o" if weight.ndim == 6 else f"OIHW{b}o",
            out_dtype=step.dtype,
        )

    def _binary(self, step: Step) -> Callable[[], Any] | None:
        moved: list[Argument] = []
        for argument in step.args:
            if isinstance(argument, Ref):
                shape = self.shapes[argument.name]
                if len(shape) != len(step.shape) or (shape[1] != step.shape[1] and (len(shape), shape[1]) != (4, 1)):
                    return None
                added_late = argument.name not in self.packed and shape[-1] % self.block
                if len(shape) == 3 and (shape != step.shape or added_late):
                    # what is added to rows is needed as rows again, by norms that filled channels would be part of
                    return None
                moved.append(argument)
            elif isinstance(argument, np.ndarray):
                image = argument if len(step.shape) == 4 else rows_as_image(argument, step.shape)
                moved.append(pack_constant(image, self.block, 1 if step.op in DIVISIONS else 0))
            else:
                return None
        again = Step(step.name, step.op, tuple(moved), step.call, step.shape, step.dtype)
        return lambda: call_again(again, lambda name: self._as_operand(name, step.shape))

    def _as_operand(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return a value packed, or what has one number for all channels of a pixel, (N, 1, H, W), as (N, 1, H, W,
        1).
        """
        own = self.shapes[name]
        if len(own) != 4 or own[1] == shape[1]:
            return self._as_packed(name)
        return self.builder.emit(relax.op.reshape(self._as_plain(name), (*own, 1)))

    def _reduction(self, step: Step) -> Callable[[], Any] | None:
        attrs, shape = step.call.attrs, self.shapes[step.refs[0]]
        if len(shape) != 4 or attrs.axis is None or sorted(int(a) % 4 for a in attrs.axis) != [2, 3]:
            return None
        operator = getattr(relax.op, step.op.split(".")[-1])
        of_image = operator(self._as_packed(step.refs[0]), axis=[2, 3], keepdims=True)
        if len(step.shape) == 4 or step.shape[0] == 1:
            return lambda: of_image
        images = relax.op.permute_dims(self.builder.emit(of_image), [2, 1, 0, 3, 4])  # side by side, as pixels of one
        return lambda: pixels_as_rows(self.builder, self.builder.emit(images))

    def _concat(self, step: Step) -> Callable[[], Any] | None:
        if any(self.shapes[name][1] % self.block for name in step.refs):
            return None
        return lambda: relax.op.concat([self._as_packed(name) for name in step.refs], axis=1)

    def _flatten(self, step: Step) -> Callable[[], Any] | None:
        shape = self.shapes[step.refs[0]]
        if step.refs[0] in self.rows and shape[-1] == step.shape[-1]:
            return lambda: self.rows[step.refs[0]]
        if len(shape) in (2, 3) and shape[-1] == step.shape[-1]:
            return lambda: self.packed[step.refs[0]]  # other rows, the same image
        if len(shape) != 4 or shape[2:] != (1, 1) or step.shape != shape[:2] or shape[0] > 1:
            return None
        return lambda: self.packed[step.refs[0]]

    def _permuted(self, step: Step) -> Callable[[], Any] | None:
        """Return how to transpose what keeps its order, rows of four axes whose channels go first, and an image's
        pixels whose channels go last.
        """
        source, axes = step.refs[0], _axes(step)
        shape = self.shapes[source]
        if source in self.flat and axes == [0, 2, 1]:
            return lambda: pixels_as_rows(self.builder, self.packed[self.flat[source]])
        if source in self.rows and shape[0] == 1 and axes == [0, 3, 1, 2]:
            return lambda: rows_as_pixels(self.builder, self.rows[source], *shape[1:3])
        keeps = len(shape) in (2, 3) and axes[-1:] == [len(shape) - 1] and keeps_order(shape, axes)
        return (lambda: self.packed[source]) if keeps and source in self.packed else None

    def _deconvolution(self, step: Step) -> Callable[[], Any] | None:
        made = deconvolution(self.builder, step, self._as_packed(step.refs[0]), self.block)
        return None if made is None else lambda: made

    def _dense(self, step: Step, rows: Any) -> Any:
        """A dense layer is a convolution of one row of pixels, one for each of its rows, with one pixel."""
        weight, b = step.args[1], self.block
        assert isinstance(weight, np.ndarray)
        kernel = pack_both(weight.T[:, :, None, None], b)
        return relax.op.nn.conv2d(
            rows,
            constant(kernel, str(weight.dtype)),
            data_layout=f"NCHW{b}c",
            out_layout=f"NCHW{b}c",
            kernel_layout=f"OIHW{b}i{b}o",
            out_dtype=step.dtype,
        )

    def _row_constants(self, step: Step) -> tuple[Argument, ...]:
        """Return the arguments of a step on rows of four axes, its constants as rows of packed channels have them."""
        filling = 1 if step.op in DIVISIONS else 0
        return tuple(
            pack_constant(rows_as_image(one, step.shape), self.block, filling) if isinstance(one, np.ndarray) else one
            for one in step.args
        )


def _axes(step: Step) -> list[int]:
    axes = step.call.attrs.axes
    return [int(axis) for axis in axes] if axes is not None else []
