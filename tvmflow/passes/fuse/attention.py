"""Fuse attention, softmax(Q K^T * factors + biases) V, and other batched matmuls into one kernel each.

Frameworks export attention as two batched matmuls with a softmax between them, a scale on either operand or for each
head (cosine attention), added masks, and reshapes and transposes around all of it. The pass runs on the packed module,
so that a kernel reads its operands where a dense layer wrote them, and writes where the next dense layer reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.views import View, index_of, is_rearrangement, view_of, views_of
from tvmflow.ir.tvm_compat import Call, IRModule, constant_value, operator_of, shape_of, type_of
from tvmflow.passes.fuse.attention_calls import (
    FLOATS,
    by_rows,
    casts_float,
    compose_views,
    factor_of,
    is_over_last_axis,
    is_zero,
    keeps_element_order,
    multiplied_type,
    number_of,
    swaps_rows_and_columns,
    variables_of,
)
from tvmflow.passes.fuse.replace_calls import Replacement, replace_calls
from tvmflow.passes.legalize.attention import Attention, Step, attention_kernel, fits_padding
from tvmflow.passes.legalize.batch_matmul import BatchMatmul, Operand, batch_matmul_kernel
from tvmflow.passes.legalize.tiled_attention import MOST_KEYS_OF_HALF, tiled_attention_kernel
from tvmflow.passes.legalize.tiled_product import tiled_product_kernel

# The operators that test for rows of nothing but minus infinity, from the condition upward.
_MASKED = ("relax.logical_not", "relax.astype", "relax.max", "relax.astype", "relax.logical_not", "relax.equal")

_MOST_PLACES = 1 << 25  # elements of a matrix that is added to the scores: its index map is fitted to an array of them


class _Fused(NamedTuple):
    """An attention and the Relax values that its kernel reads.

    flipped: whether the network computes its transpose, V^T by the transposed weights.
    """

    attention: Attention
    values: tuple[Any, ...]
    flipped: bool


class _Read(NamedTuple):
    """A Relax value and the index map by which a kernel reads matrices from it.

    sizes: batch, rows, columns; factor: by what the kernel multiplies the matrices.
    """

    value: Any
    operand: Operand
    sizes: tuple[int, ...]
    factor: float


class _Scores(NamedTuple):
    """The scores of an attention: the product of q and k, times a factor, then `steps`.

    steps: values that are added, or multiplied (True); rounded: the type that q and k are rounded to, and sums of
    float16.
    """

    q: _Read
    k: _Read
    steps: tuple[tuple[_Read, bool], ...]
    factor: float
    rounded: str

    @property
    def matrix(self) -> tuple[int, int]:
        """Return the rows and columns of the scores: queries and keys."""
        return self.q.sizes[1], self.k.sizes[1]


class _Function:
    """A Relax function, its bindings by variable, and the attentions and batched matmuls in it."""

    def __init__(self, function: Any, lanes: int, pairs: bool, tiles: Sequence[str]) -> None:
        self.lanes, self.pairs, self.tiles = lanes, pairs, tiles
        self.bindings = [binding for block in function.body.blocks for binding in block.bindings]
        self.bound = {binding.var: binding.value for binding in self.bindings}
        self.users: dict[Any, list[Any]] = {}
        self.scores: dict[Any, _Scores | None] = {}  # memoized: chains may read a value twice in each step
        for binding in self.bindings:
            for value in variables_of(binding.value):
                self.users.setdefault(value, []).append(binding)
        for value in variables_of(function.body.body):
            self.users.setdefault(value, []).append(None)

    def resolve(self, value: Any) -> Any:
        """Return the expression that a variable is bound to; any other value as it is."""
        while isinstance(value, relax.Var) and value in self.bound:
            value = self.bound[value]
        return value

    def find_attentions(self) -> dict[Any, Replacement]:
        """Return the kernels of attentions, by the expression that each replaces."""
        found: dict[Any, Replacement] = {}
        for binding in self._matmul_bindings():
            fused = self._match_attention(binding.value)
            if fused is not None:
                last = self._last_copy(binding.var)
                placed = self._move_output(fused, last)
                of, values = (placed or fused)[:2]
                kernel = tiled_attention_kernel(of) if of.tiled else attention_kernel(of)
                found[self.resolve(last if placed else binding.var)] = Replacement("attention", kernel, values)
        return found

    def find_matmuls(self) -> dict[Any, Replacement]:
        """Return the kernels of batched matmuls of two computed operands, by the expression that each replaces."""
        found: dict[Any, Replacement] = {}
        for binding in self._matmul_bindings():
            product = self._match_matmul(binding.value)
            if product is not None:
                matmul, values = product
                kernel = tiled_product_kernel(matmul) if matmul.tiled else batch_matmul_kernel(matmul)
                found[binding.value] = Replacement("batched_product", kernel, values)
        return found

    def _matmul_bindings(self) -> list[Any]:
        """Return the bindings of matmuls of floats whose right operand is computed, not a dense layer's weight."""
        return [
            binding
            for binding in self.bindings
            if operator_of(binding.value) == "relax.matmul"
            and min(len(shape_of(one)) for one in binding.value.args) > 1
            and constant_value(binding.value.args[1]) is None
            and {str(type_of(one).dtype) for one in (binding.value, *binding.value.args)} <= set(FLOATS)
        ]

    def _match_matmul(self, call: Call) -> tuple[BatchMatmul, tuple[Any, ...]] | None:
        *batch, rows, columns = shape = shape_of(call)
        depth = shape_of(call.args[0])[-1]
        if batch and len(shape_of(call.args[1])) == 2:
            return None  # the same matrix for the whole batch
        a = self._match_operand(call.args[0], (*batch, rows, depth), scaled=True)
        b = self._match_operand(call.args[1], (*batch, depth, columns), scaled=True)
        if a is None or b is None:
            return None
        sizes = (math.prod(batch), rows, depth, columns)
        half = multiplied_type(call) == "float16" and depth <= MOST_KEYS_OF_HALF
        matmul = BatchMatmul(
            a.operand,
            b.operand,
            sizes,
            a.factor * b.factor,
            shape,
            str(type_of(call).dtype),
            self.lanes,
            self._summed(half) if columns >= self.lanes else "",
        )
        return matmul, (a.value, b.value)

    def _last_copy(self, value: Any) -> Any:
        """Return the last variable of a chain of reshapes and transposes, each of which is the only reader of the one
        before.
        """
        while len(users := self.users.get(value, [])) == 1 and users[0] is not None:
            if not is_rearrangement(users[0].value) and not isinstance(users[0].value, relax.Var):
                break
            value = users[0].var
        return value

    def _move_output(self, fused: _Fused, value: Any) -> _Fused | None:
        """Return the attention that writes the value at the end of a chain of copies directly, None if it cannot."""
        of, view = fused.attention, view_of(value, self.resolve)
        written = np.flatnonzero(view.places.ravel() >= 0)
        places = np.full(of.batch * of.queries * of.width, -1)
        if written.size != places.size:
            return None
        places[view.places.ravel()[written]] = written
        index = index_of(by_rows(places, (of.batch, of.queries, of.width), fused.flipped), view.places.shape)
        if index is None:
            return None
        moved = replace(of, out=Operand(view.places.shape, of.out.dtype, index))
        return fused._replace(attention=moved) if written.size == view.places.size or fits_padding(moved) else None

    def _match_attention(self, product: Any) -> _Fused | None:
        left, values = product.args
        weights, safe = self._match_softmax(left)
        flipped = weights is None and swaps_rows_and_columns(swap := self.resolve(values))
        if flipped:
            left, values = swap.args[0], left
            weights, safe = self._match_softmax(left)
        scores = self._find_scores(weights) if weights is not None else None
        if scores is None:
            return None
        if shape_of(left)[-2:] != scores.matrix or shape_of(weights)[-1] != scores.matrix[1]:
            return None  # a reshape changed the rows or the reduced axis
        v = self._match_operand(values, (*shape_of(product)[:-2], *shape_of(values)[-2:]), transposed=flipped)
        if v is None or v.sizes[0] != scores.q.sizes[0]:
            return None
        reads = (scores.q, scores.k, v, *(read for read, _ in scores.steps))
        batch, queries, depth = scores.q.sizes
        shape = (batch, queries, v.sizes[2])
        out = index_of(by_rows(np.arange(math.prod(shape)), shape, flipped), shape_of(product))
        assert out is not None
        steps = tuple(Step(read.operand, multiplies) for read, multiplies in scores.steps)
        paired = self.pairs and scores.rounded == "bfloat16" == multiplied_type(product)
        attention = Attention(
            batch,
            queries,
            v.sizes[1],
            depth,
            shape[2],
            scores.q.operand,
            scores.k.operand,
            v.operand,
            steps,
            Operand(shape_of(product), str(type_of(product).dtype), out),
            scores.factor,
            safe,
            self.lanes,
            paired,
            "" if paired else self._tiled(scores, product),
        )
        return _Fused(attention, tuple(read.value for read in reads), flipped)

    def _tiled(self, scores: _Scores, product: Any) -> str:
        """Return the type in which tiles compute an attention, '' for none."""
        half = scores.rounded == "float16" == multiplied_type(product)
        return self._summed(half and scores.matrix[1] <= MOST_KEYS_OF_HALF)

    def _summed(self, half: bool) -> str:
        """Return the type of the sums of tiles, '' where the processor has none. half: whether float16 is enough."""
        return next((kind for kind in ("float16",) * half + ("float32",) if kind in self.tiles), "")

    def _match_operand(
        self,
        value: Any,
        shape: tuple[int, ...],
        transposed: bool = False,
        scaled: bool = False,
        matrix: tuple[int, ...] = (),
    ) -> _Read | None:
        """Return how a kernel reads matrices of a broadcast shape, from the earliest value that has an index map.

        None if the value is not floating point. scaled: also skip multiplications by a number; matrix: rows and columns
        if these are not the last two axes of the shape.
        """
        if math.prod(shape) > _MOST_PLACES:
            return None
        views: list[tuple[View, float]] = []
        outside, product = None, 1.0
        while True:
            for view in views_of(value, self.resolve):
                views.append(
                    (view if outside is None else View(view.source, compose_views(outside, view.places)), product)
                )
            call = self.resolve(views[-1][0].source)
            factor = 1.0 if casts_float(call) else factor_of(call) if scaled else None
            if factor is None:
                break
            value, outside, product = call.args[0], views[-1][0].places, product * factor
        for view, product in reversed(views):
            places = np.broadcast_to(view.places, shape).reshape(-1, *(matrix or shape[-2:]))
            places = places.transpose(0, 2, 1) if transposed else places
            index = index_of(places, shape_of(view.source))
            dtype = str(type_of(view.source).dtype)
            if index is not None and dtype in FLOATS:
                return _Read(view.source, Operand(shape_of(view.source), dtype, index), places.shape, product)
        return None

    def _skip_reshapes(self, value: Any) -> Any:
        """Return the first value of a chain of reshapes and casts between floats that keep the order of elements."""
        while isinstance(value, relax.Var) and (casts_float(call := self.resolve(value)) or keeps_element_order(call)):
            value = call.args[0]
        return value

    def _match_softmax(self, value: Any) -> tuple[Any, bool]:
        """Return the input of a softmax over the last axis, None for anything else, and whether masked rows become
        zeros.
        """
        call, safe = self.resolve(self._skip_reshapes(value)), False
        if operator_of(call) == "relax.where":
            condition, zeros = call.args[0], self.resolve(call.args[1])
            zeros = zeros.args[1] if operator_of(zeros) == "relax.full_like" else zeros
            call, safe = self.resolve(call.args[2]), True
            if not is_zero(zeros) or not self._tests_for_masked_rows(condition, call):
                return None, False
        if operator_of(call) != "relax.nn.softmax" or int(call.attrs.axis) not in (-1, len(shape_of(call)) - 1):
            return None, False
        return call.args[0], safe

    def _tests_for_masked_rows(self, condition: Any, softmax: Any) -> bool:
        """Whether a condition tests that a row of the softmax's input is all minus infinity."""
        for name in _MASKED:
            call = self.resolve(condition)
            if operator_of(call) != name or (name == "relax.max" and not is_over_last_axis(call)):
                return False
            condition = call.args[0]
        return (
            number_of(call.args[1]) == -math.inf
            and operator_of(softmax) == "relax.nn.softmax"
            and condition.same_as(softmax.args[0])
        )

    def _find_scores(self, value: Any) -> _Scores | None:
        if value not in self.scores:
            self.scores[value] = self._match_scores(value)
        return self.scores[value]

    def _match_scores(self, value: Any) -> _Scores | None:
        call = self.resolve(self._skip_reshapes(value))
        name = operator_of(call)
        factor = factor_of(call)
        if factor is not None:
            found = self._find_scores(call.args[0])
            return found._replace(factor=found.factor * factor) if found is not None and not found.steps else None
        if name in ("relax.add", "relax.multiply"):
            for inner, other in ((0, 1), (1, 0)):
                found = self._find_scores(call.args[inner])
                if found is not None and shape_of(call.args[inner]) == shape_of(call):
                    read = self._match_operand(call.args[other], shape_of(call), matrix=found.matrix)
                    if read is None:
                        return None
                    return found._replace(steps=(*found.steps, (read, name == "relax.multiply")))
            return None
        if name != "relax.matmul" or len(shape_of(call)) < 3:
            return None
        (rows, depth), keys, batch = shape_of(call.args[0])[-2:], shape_of(call)[-1], shape_of(call)[:-2]
        q, k = (
            self._match_operand(call.args[0], (*batch, rows, depth), scaled=True),
            self._match_operand(call.args[1], (*batch, depth, keys), True, True),
        )
        return (
            _Scores(q, k, (), q.factor * k.factor, multiplied_type(call)) if q is not None and k is not None else None
        )


@tvm.transform.module_pass(opt_level=0, name="FuseAttention")
class FuseAttention:
    """IRModule -> IRModule.

    lanes: columns of a matrix in one vector; pairs: whether the target has a dot product of two neighbouring bfloat16
    values; tiles: types in which it sums tiles (tiled_attention).
    """

    def __init__(self, lanes: int, pairs: bool = False, tiles: Sequence[str] = ()) -> None:
        self.lanes, self.pairs, self.tiles = lanes, pairs, tuple(tiles)

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        fused = replace_calls(mod, _Function(mod["main"], self.lanes, self.pairs, self.tiles).find_attentions())
        return replace_calls(fused, _Function(fused["main"], self.lanes, self.pairs, self.tiles).find_matmuls())
