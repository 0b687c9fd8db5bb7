"""Keep every index that is data inside of its tensor: of lookups, gathers, scatters, regions and kernels.

TVM reads and writes at any address: a token that is not in the vocabulary would crash the process, or worse. An index
outside reads or writes the nearest place, and the comparison with the source framework shows whether that differs.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_map, structural_walk

from tvmflow.ir.relax.index_bounds import bound, unbounded_index
from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tvm_compat import Call, IRModule, dtype_of, load_class, loaded, operator_of

_AS_KERNELS = ("relax.image.grid_sample", "relax.vision.roi_pool")  # whose indices are numbers within the kernel


@mutator
class _Bounder(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = operator_of(call)
        if name in _AS_KERNELS:
            return call.op.get_attr("FLegalize")(self.builder_, call)
        if name == "relax.take" and unbounded_index(call, self._value):
            axis = call.attrs.axis
            return relax.op.take(call.args[0], call.args[1], None if axis is None else int(axis), mode="clip")
        return bound(call, self.builder_.emit, self._value)

    def _value(self, value: Any) -> Any:
        found = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        return value if found is None else found


@tvm.transform.module_pass(opt_level=0, name="BoundIndices")
class BoundIndices:
    """IRModule -> IRModule that reads and writes inside of its tensors, whatever its indices are."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        bounder = _Bounder(mod)
        main = bounder.visit_expr(mod["main"])
        mod = bounder.builder_.get()  # with new kernels
        mod.update_func(mod.get_global_var("main"), main)
        return transform_kernels(
            mod,
            lambda _: True,
            lambda kernel: kernel.with_body(structural_map(kernel.body, ((load_class(), _clamp),), order="pre")),
        )


def _clamp(load: Any) -> Any:
    """Return a load of a kernel whose indices that are data, as those of a deformable convolution, are clamped."""
    buffer = loaded(load)
    indices = [
        tirx.Max(tirx.Min(index, tirx.const(int(extent) - 1, dtype_of(index))), tirx.const(0, dtype_of(index)))
        if _is_data(index) and not isinstance(index, tirx.Max | tirx.Min)
        else index
        for index, extent in zip(load.indices, buffer.shape, strict=True)
    ]
    if all(new.same_as(old) for new, old in zip(indices, load.indices, strict=True)):
        return load
    return tirx.BufferLoad(buffer, indices)


def _is_data(index: Any) -> bool:
    found: list[Any] = []
    structural_walk(index, (load_class(), lambda one: found.append(one)))
    return bool(found)
