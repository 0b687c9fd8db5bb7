"""Pack the channels of a whole network, NCHW{block}c, from its first convolution to its head.

Each 4-D value gets a packed version (N, C/block, H, W, block); rows, (N, C) or (B, N, C), get one as an image of one
row of pixels. Channels are padded with zeros to whole blocks, and the weights of the next convolution are zero there.
Weights are packed at compile time. Operators that work in either layout are computed on packed channels. Operators that
cannot be packed (a flatten of an image, a concat of partial blocks) read the plain layout, which is computed for them
only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.elementwise import BROADCASTING, DIVISIONS, UNARY, finite_at_zero
from tvmflow.ir.relax.emit import constant, rebuild_call
from tvmflow.ir.relax.graph import Argument, Array, Graph, Ref, Step, axes_of_permutation, is_concat, read_graph
from tvmflow.ir.relax.recurrent import RECURRENT, recurrence_of, recurrent
from tvmflow.ir.relax.views import keeps_order
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.passes.layout.channel_permute import permute_channels
from tvmflow.passes.layout.dense import is_dense, pixels_as_rows, rows_as_pixels
from tvmflow.passes.layout.dilated_convolution import convolve_by_taps, multiplies_mostly_padding
from tvmflow.passes.layout.few_outputs import convolve_by_lanes, convolve_columns, convolves_to_few
from tvmflow.passes.layout.first_layer import choose_row_combination, pack_image
from tvmflow.passes.layout.grouped_convolution import spread_groups
from tvmflow.passes.layout.norm import NORMS, pack_norm
from tvmflow.passes.layout.packed_values import PackedValues
from tvmflow.passes.layout.pool_resize_pad import POOLS, absorb_padding, pad, pads_image, pool, resize
from tvmflow.passes.layout.transposed_convolution import pack_transposed_convolution
from tvmflow.passes.layout.weights import (
    choose_first_layer_lanes,
    image_shape,
    pack_both,
    pack_constant,
    pack_groups,
    pack_outputs,
    row_constants,
    rows_to_image,
)

_REDUCTIONS = {"relax.mean", "relax.sum", "relax.max", "relax.min"}


@tvm.transform.module_pass(opt_level=0, name="PackChannels")
class PackChannels:
    """IRModule -> IRModule with `block` channels packed.

    few_as_words: pack int8 images of few channels by words; lane_moves: permute channels of partial blocks by vector
    shuffles; tiles: AMX tiles multiply int8; plain: steps in plain layout.
    """

    def __init__(
        self,
        block: int,
        few_as_words: bool = False,
        lane_moves: bool = True,
        tiles: bool = False,
        plain: frozenset[str] = frozenset(),
    ) -> None:
        self.block, self.few_as_words, self.lane_moves, self.tiles, self.plain = (
            block,
            few_as_words,
            lane_moves,
            tiles,
            plain,
        )

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        return _Packer(read_graph(mod), self).rewrite()


class _Packer(PackedValues):
    def __init__(self, graph: Graph, options: PackChannels) -> None:
        super().__init__(graph, options.block, options.lane_moves)
        self.few_as_words, self.tiles, self.kept = options.few_as_words, options.tiles, options.plain
        self.steps = {step.name: step for step in graph.steps}

    def _rewrite_step(self, step: Step) -> None:
        is_permutation = self.permutations.add_step(step, self.packed)
        for name in step.refs if not is_permutation or step.op == "relax.concat" else ():
            if name in self.permutations.steps and len(self.shapes[name]) == 4:
                self._get_packed(name)
        handled = is_permutation or self._pack_rows(step) or self._reduce_channels(step)
        if handled or self._convolve_to_few(step) or self._pack_gates(step):
            return
        converted = self._convert(step)
        if converted is not None:
            value = converted()  # reuse the variable of an already packed value: a second binding would prevent fusion
            self.packed[step.name] = value if isinstance(value, relax.Var) else self.builder.emit(value, step.name)
            return
        self._emit_plain(step)

    def _pack_rows(self, step: Step) -> bool:
        """Keep values as packed rows where dense layers can read them; return whether the step was handled.

        Handles rows reshaped to four axes, elementwise operators on them, and images transposed to channels-last.
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
            self.rows[step.name] = self.builder.emit(rebuild_call(step, self.rows.__getitem__), step.name)
            return True
        if step.op in NORMS and source in self.rows:
            norm = pack_norm(self.builder, step, self.rows[source], self.block, rows=True)
            if norm is not None:
                self.rows[step.name] = self.builder.emit(norm(), step.name)
            return norm is not None
        if step.op == "relax.matmul" and source in self.rows and is_dense(step):
            self.rows[step.name] = self.builder.emit(self._emit_dense(step, self.rows[source]), step.name)
            return True
        if step.op in BROADCASTING and all(name in self.rows and self.shapes[name] == step.shape for name in step.refs):
            again = Step(step.name, step.op, row_constants(step, self.block), step.call, step.shape, step.dtype)
            self.rows[step.name] = self.builder.emit(rebuild_call(again, self.rows.__getitem__), step.name)
            return True
        if (
            step.op == "relax.permute_dims"
            and shape[0] == 1
            and axes_of_permutation(step) == [0, 2, 3, 1]
            and source in self.packed
        ):
            self.rows[step.name] = pixels_as_rows(self.builder, self.packed[source])
            return True
        if step.op != "relax.reshape" or shape[-1] != step.shape[-1]:
            return False
        rows = self.rows.get(source) if len(shape) == 4 else self.packed.get(source)
        if rows is not None:
            self.rows[step.name] = rows
        return rows is not None

    def _reduce_channels(self, step: Step) -> bool:
        """Emit a reduction over the channels of a pixel, over blocks, then lanes; return whether it was handled."""
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

    def _convolve_to_few(self, step: Step) -> bool:
        """Emit a convolution to few channels, whose result is plain; return whether the step was handled."""
        weight = step.args[1] if step.op == "relax.nn.conv2d" else None
        if not isinstance(weight, np.ndarray) or not convolves_to_few(step, weight, self.block):
            return False
        (data, padding), made = absorb_padding(step, self.steps), None
        if data in self.packed or weight.shape[1] >= self.block:
            made = convolve_by_lanes(self.builder, step, weight, padding, self._get_packed(data), self.block)
        else:
            image = (self._get_plain(data), self.shapes[data])
            made = convolve_columns(self.builder, step, weight, padding, *image, self.block)
        if made is not None:
            self.plain[step.name] = made
        return made is not None

    def _pack_gates(self, step: Step) -> bool:
        """Let a recurrent layer read its gates as its dense layer packs them; return whether the step was handled."""
        if step.op != RECURRENT:
            return False
        recurrence = recurrence_of(step.call)
        at = recurrence.operands.index("gates")
        gates = step.args[at]
        if not isinstance(gates, Ref) or gates.name not in self.packed or recurrence.hidden % self.block:
            return False
        packed = replace(recurrence, packed_times=self.shapes[gates.name][0])
        call = rebuild_call(step, lambda name: self.packed[name] if name == gates.name else self._get_plain(name))
        operands = dict(zip(recurrence.operands, call.args, strict=True))
        self.plain[step.name] = self.builder.emit(recurrent(packed, operands), step.name)
        return True

    def _convert(self, step: Step) -> Callable[[], Any] | None:
        """Return a function that emits the step on packed channels, None if it is computed in the plain layout."""
        if step.op == "relax.nn.conv2d":
            return self._convert_convolution(step)
        if step.op == "relax.matmul" and len(self.shapes[step.refs[0]]) in (2, 3) and is_dense(step):
            return lambda: self._emit_dense(step, self._get_packed(step.refs[0]))
        if step.op == "relax.nn.conv2d_transpose":
            return self._convert_transposed_convolution(step)
        if step.op in NORMS and len(step.shape) in (2, 3, 4) and step.refs[0] in self.packed:
            return pack_norm(self.builder, step, self.packed[step.refs[0]], self.block)
        if step.op == "relax.permute_dims":
            return self._convert_transpose(step)
        if step.op == "relax.reshape" and len(step.shape) in (2, 3) and step.refs[0] in (*self.packed, *self.rows):
            return self._convert_flatten(step)
        pools = step.op in POOLS and str(step.call.attrs.layout) == "NCHW"
        if pools and (step.refs[0] in self.packed or step.shape[1] >= self.block):
            return lambda: pool(step, self._get_packed(step.refs[0]), self.block)
        if not any(name in self.packed for name in step.refs):
            return None
        if step.op in UNARY and self._allows_padding(step):
            return lambda: rebuild_call(step, self._get_packed)
        if step.op in BROADCASTING and self._allows_padding(step):
            return self._convert_binary(step)
        if step.op == "relax.nn.adaptive_avg_pool2d" and str(step.call.attrs.layout) == "NCHW":
            size = [int(d) for d in step.shape[2:]]
            layout = f"NCHW{self.block}c"
            return lambda: relax.op.nn.adaptive_avg_pool2d(self.packed[step.refs[0]], size, layout=layout)
        if step.op == "relax.image.resize2d" and str(step.call.attrs.layout) == "NCHW":
            if step.name in self.graph.outputs:  # unpack the small image, not the large one
                return None
            return lambda: resize(step, self.packed[step.refs[0]], self.block)
        if step.op in _REDUCTIONS:
            return self._convert_reduction(step)
        if len(step.shape) == 4 and is_concat(step, axis=1):
            return self._convert_concat(step)
        if pads_image(step):
            return lambda: pad(step, self.packed[step.refs[0]])
        return None

    def _allows_padding(self, step: Step) -> bool:
        """Whether an elementwise step is finite on the zeros that pad channels; zero weights multiply that later."""
        if len(step.shape) not in (2, 3, 4):
            return False
        return finite_at_zero(step) or image_shape(step.shape)[1] % self.block == 0

    def _convert_convolution(self, step: Step) -> Callable[[], Any] | None:
        attrs, weight = step.call.attrs, step.args[1]
        if not isinstance(weight, np.ndarray) or str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "OIHW":
            return None
        b, groups = self.block, int(attrs.groups)
        data, padding = absorb_padding(step, self.steps)
        outputs, inputs = weight.shape[0], weight.shape[1] * groups
        if inputs >= b and multiplies_mostly_padding(step, weight, padding, self.shapes[data]):
            return lambda: convolve_by_taps(self.builder, step, weight, padding, self._get_packed(data))
        if groups == 1 and (2 * outputs >= b or data in self.packed):
            few = choose_first_layer_lanes(inputs, weight.dtype, b)
            rows = (
                choose_row_combination(self.graph, data, step, padding)
                if self.tiles and data not in self.packed
                else None
            )
            if rows is not None:
                return lambda: rows.emit(self.builder, self._get_plain(rows.source.name), b, step.dtype)
            if data not in self.packed and few:
                return lambda: self._emit_convolution(
                    step, self._pack_first_layer(data, few), padding, f"NCHW{few}c", pack_both(weight, b, few), 1
                )
            if data not in self.packed and inputs < b:  # a first layer has too few channels to pack
                return lambda: self._emit_convolution(
                    step, self._get_plain(data), padding, "NCHW", pack_outputs(weight, b), 1
                )
            return lambda: self._emit_convolution(
                step, self._get_packed(data), padding, f"NCHW{b}c", pack_both(weight, b), 1
            )
        if groups == inputs and weight.shape[1] == 1 and 2 * outputs >= b and (inputs == outputs or self.lane_moves):
            filled = self._round_up(outputs)
            return lambda: self._emit_convolution(
                step,
                self._repeat_channels(data, outputs // inputs),
                padding,
                f"NCHW{b}c",
                pack_outputs(weight, b),
                filled,
            )
        packed = pack_groups(weight, groups, b) if groups > 1 else None
        if packed is not None:
            return lambda: self._emit_convolution(step, self._get_packed(data), padding, f"NCHW{b}c", *packed)
        return self._spread_groups(step, data, padding) if groups > 1 and self.lane_moves and 2 * inputs >= b else None

    def _spread_groups(self, step: Step, data: str, padding: list[int]) -> Callable[[], Any]:
        spread = spread_groups(np.asarray(step.args[1]), int(step.call.attrs.groups), self.block)
        weight, layout = pack_both(spread.weight, self.block), f"NCHW{self.block}c"
        return lambda: spread.emit(
            self.builder,
            self._get_packed(data),
            lambda image: self._emit_convolution(step, image, padding, layout, weight, spread.groups),
        )

    def _repeat_channels(self, name: str, times: int) -> Any:
        """Return a packed image with each channel repeated, for depthwise convolutions with several outputs per
        channel.
        """
        if times == 1:
            return self._get_packed(name)
        channels = [(0, at // times) for at in range(times * self.shapes[name][1])]
        return self.builder.emit(permute_channels(self.builder, [self._get_packed(name)], channels))

    def _pack_first_layer(self, name: str, lanes: int) -> Any:
        """Return an image of few channels with the channels of a pixel in one block, (N, 1, H, W, lanes)."""
        few = pack_image(self.builder, self.graph, self._get_plain, name, lanes, self.few_as_words)
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

    def _convert_binary(self, step: Step) -> Callable[[], Any] | None:
        moved: list[Argument] = []
        for argument in step.args:
            if isinstance(argument, Ref):
                shape = self.shapes[argument.name]
                if len(shape) != len(step.shape) or (shape[1] != step.shape[1] and (len(shape), shape[1]) != (4, 1)):
                    return None
                is_padded = argument.name not in self.packed and shape[-1] % self.block
                if len(shape) == 3 and (shape != step.shape or is_padded):
                    # keep the sum in rows: a norm that reads it would include padded channels
                    return None
                moved.append(argument)
            elif isinstance(argument, np.ndarray):
                image = argument if len(step.shape) == 4 else rows_to_image(argument, step.shape)
                moved.append(pack_constant(image, self.block, 1 if step.op in DIVISIONS else 0))
            else:
                return None
        again = Step(step.name, step.op, tuple(moved), step.call, step.shape, step.dtype)
        return lambda: rebuild_call(again, lambda name: self._get_operand(name, step.shape))

    def _get_operand(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return an operand packed; one with a single channel, (N, 1, H, W), as (N, 1, H, W, 1)."""
        own = self.shapes[name]
        if len(own) != 4 or own[1] == shape[1]:
            return self._get_packed(name)
        return self.builder.emit(relax.op.reshape(self._get_plain(name), (*own, 1)))

    def _convert_reduction(self, step: Step) -> Callable[[], Any] | None:
        attrs, shape = step.call.attrs, self.shapes[step.refs[0]]
        if len(shape) != 4 or attrs.axis is None or sorted(int(a) % 4 for a in attrs.axis) != [2, 3]:
            return None
        operator = getattr(relax.op, step.op.split(".")[-1])
        of_image = operator(self._get_packed(step.refs[0]), axis=[2, 3], keepdims=True)
        if len(step.shape) == 4 or step.shape[0] == 1:
            return lambda: of_image
        images = relax.op.permute_dims(self.builder.emit(of_image), [2, 1, 0, 3, 4])  # as pixels of one image
        return lambda: pixels_as_rows(self.builder, self.builder.emit(images))

    def _convert_concat(self, step: Step) -> Callable[[], Any] | None:
        if any(self.shapes[name][1] % self.block for name in step.refs):
            return None
        return lambda: relax.op.concat([self._get_packed(name) for name in step.refs], axis=1)

    def _convert_flatten(self, step: Step) -> Callable[[], Any] | None:
        shape = self.shapes[step.refs[0]]
        if step.refs[0] in self.rows and shape[-1] == step.shape[-1]:
            return lambda: self.rows[step.refs[0]]
        if len(shape) in (2, 3) and shape[-1] == step.shape[-1]:
            return lambda: self.packed[step.refs[0]]  # the packed image is the same
        if len(shape) != 4 or shape[2:] != (1, 1) or step.shape != shape[:2] or shape[0] > 1:
            return None
        return lambda: self.packed[step.refs[0]]

    def _convert_transpose(self, step: Step) -> Callable[[], Any] | None:
        """Return how to emit a transpose on packed values: one that keeps the order of elements, or one between images
        and rows.
        """
        source, axes = step.refs[0], axes_of_permutation(step)
        shape = self.shapes[source]
        if source in self.flat and axes == [0, 2, 1]:
            return lambda: pixels_as_rows(self.builder, self.packed[self.flat[source]])
        if source in self.rows and shape[0] == 1 and axes == [0, 3, 1, 2]:
            return lambda: rows_as_pixels(self.builder, self.rows[source], *shape[1:3])
        keeps = len(shape) in (2, 3) and axes[-1:] == [len(shape) - 1] and keeps_order(shape, axes)
        return (lambda: self.packed[source]) if keeps and source in self.packed else None

    def _convert_transposed_convolution(self, step: Step) -> Callable[[], Any] | None:
        made = pack_transposed_convolution(self.builder, step, self._get_packed(step.refs[0]), self.block)
        return None if made is None else lambda: made

    def _emit_dense(self, step: Step, rows: Any) -> Any:
        """Emit a dense layer as a 1x1 convolution over one row of pixels, one pixel for each row."""
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
