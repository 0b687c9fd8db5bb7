"""Convert a network to mixed precision by lists of operators that compute in 16 bits or float32.

Other operators follow their inputs. float16 accumulates in float16; float16_acc32 and bfloat16 accumulate in float32,
add bias and residual and apply the activation there, and round once, when the value is stored. Input and output of the
network stay float32. Weights are rounded once, here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import build_main, constant, convolution, rebuild_call, transposed_convolution
from tvmflow.ir.relax.graph import Argument, Graph, Ref, Step, operators_named, read_graph
from tvmflow.ir.tvm_compat import IRModule, type_of
from tvmflow.support.dtypes import numpy_dtype

_GEMM = ("relax.nn.conv2d", "relax.matmul", "relax.nn.conv2d_transpose", "relax.nn.conv1d", "relax.nn.conv3d")
# Operators that may be fused into the kernel of a float32 sum before it is rounded.
_EPILOGUE = operators_named(
    """
    add subtract multiply divide maximum minimum clip sigmoid tanh nn.relu nn.leakyrelu nn.silu nn.gelu
    nn.gelu_tanh
    """
)
_RESHAPE = "relax.reshape"
# Averages accumulate in float32, and TVM 0.27 compiles neither the initial value of a maximum nor a power in bfloat16.
# Their results are rounded.
_THROUGH_FLOAT32 = operators_named(
    """
    max min power nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d
    nn.adaptive_avg_pool3d nn.adaptive_max_pool1d nn.adaptive_max_pool2d nn.adaptive_max_pool3d
    """
)
# Operators that compute in 16 bits if all operands do. TVM refuses many others in bfloat16, or sorts incorrectly.
_FOLLOW_INPUTS = (
    _EPILOGUE
    | _THROUGH_FLOAT32
    | frozenset(_GEMM)
    | operators_named(
        """
        reshape permute_dims strided_slice concat split take squeeze expand_dims broadcast_to flip negative
        abs square nn.prelu nn.pad nn.max_pool1d nn.max_pool2d nn.max_pool3d image.resize2d
        """
    )
)
_PART = "get_item."  # prefix of the parts of a split


@dataclass(frozen=True)
class MixedPrecision:
    """The rules of mixed precision.

    low: operators (conv2d, matmul, ...) that compute in dtype. high: operators that need float32. accumulate: dtype of
    sums of products. All others compute in 16 bits if they can and their operands do.
    """

    dtype: str
    accumulate: str
    low: tuple[str, ...]
    high: tuple[str, ...]


def to_mixed_precision(mod: IRModule, rules: MixedPrecision) -> Any:
    """Return the module in mixed precision. mod: float32, with constant weights."""
    return _MixedPrecisionRewriter(read_graph(mod), rules).rewrite()


def count_low_steps(mod: IRModule, dtype: str) -> tuple[int, int]:
    """Return how many steps of a module compute values of dtype, and how many there are."""
    steps = read_graph(mod).steps
    return sum(step.dtype == dtype for step in steps), len(steps)


class _MixedPrecisionRewriter:
    def __init__(self, graph: Graph, rules: MixedPrecision) -> None:
        self.graph, self.rules = graph, rules
        self.builder = relax.BlockBuilder()
        self.high: dict[str, Any] = {}
        self.low: dict[str, Any] = {}
        self.sums: set[str] = set()  # low values that are still float32 in `high`, for their only reader
        self.readers = Counter(ref for step in graph.steps for ref in step.refs)
        self.readers.update(graph.outputs)
        self.reader = {ref: step for step in graph.steps for ref in step.refs}  # for values with a single reader
        self.diamonds = self._find_diamonds()

    def rewrite(self) -> Any:
        return build_main(self.builder, self.graph, self._emit_body)

    def _emit_body(self, parameters: dict[str, Any]) -> list[Any]:
        self.high |= parameters
        for step in self.graph.steps:
            self._rewrite_step(step)
        return [self._get_as(name, "float32") for name in self.graph.outputs]

    def _rewrite_step(self, step: Step) -> None:
        low = self._is_low(step)
        dtype = self.rules.dtype if low else "float32"
        if step.op == "constant":
            value = constant(np.asarray(step.args[0]), step.dtype)
        elif low and step.op in _GEMM:
            value, dtype = self._emit_gemm(step)
        elif low and (
            step.op in _THROUGH_FLOAT32 or (self.sums.intersection(step.refs) and self._is_in_epilogue(step))
        ):
            value, dtype = rebuild_call(self._cast_constants(step, "float32"), self._widen_for_reader), "float32"
        else:
            value = rebuild_call(self._cast_constants(step, dtype), lambda name: self._get_as(name, dtype))
        result = self.builder.emit(value, step.name)
        if low and dtype == "float32":
            self._store_sum(step, result)
        else:
            (self.low if low else self.high)[step.name] = result

    def _is_in_epilogue(self, step: Step) -> bool:
        """Whether a step is fused into the kernel of its operand; a reshape is if a step behind it is."""
        while step.op == _RESHAPE and self._stays_in_kernel(step.name) and step.name in self.reader:
            step = self.reader[step.name]
        return step.op in _EPILOGUE

    def _stays_in_kernel(self, name: str) -> bool:
        return self.readers[name] == 1 or name in self.diamonds

    def _find_diamonds(self) -> set[str]:
        """Return the values with several readers that no kernel stores: their readers meet in one step, as x *
        sigmoid(x).
        """
        found: set[str] = set()
        for at, step in enumerate(self.graph.steps):
            unread = Counter({step.name: self.readers[step.name]}) if self.readers[step.name] > 1 else Counter()
            for reader in self.graph.steps[at + 1 :] if unread else ():
                if not unread.keys() & set(reader.refs):
                    continue
                if reader.op not in _EPILOGUE or reader.shape != step.shape or not unread.keys() >= set(reader.refs):
                    break
                unread.subtract(reader.refs)
                if not any(unread.values()):
                    found |= unread.keys()
                    break
                unread[reader.name] = self.readers[reader.name]
        return found

    def _store_sum(self, step: Step, result: Any) -> None:
        """Keep a value in float32 for readers in the same kernel; otherwise round it for storage."""
        if self._stays_in_kernel(step.name):
            self.high[step.name] = result
            self.sums.add(step.name)
        else:
            self.low[step.name] = self._cast(result, self.rules.dtype, step.name)

    def _is_low(self, step: Step) -> bool:
        name = step.op.split(".")[-1]
        if step.dtype not in ("float32", "tuple") or step.op == "constant":
            return False
        if name in self.rules.low:
            return True
        if name in self.rules.high or not step.refs or not (step.op in _FOLLOW_INPUTS or step.op.startswith(_PART)):
            return False
        return all(ref in self.low or ref in self.sums for ref in step.refs)

    def _cast(self, value: Any, dtype: str, name: str) -> Any:
        return self.builder.emit(relax.op.astype(value, dtype), f"{name}_{dtype}")

    def _get_as(self, name: str, dtype: str) -> Any:
        """Return a value in float32 or in the low dtype; values other than floats have one dtype only."""
        have, other = (self.high, self.low) if dtype == "float32" else (self.low, self.high)
        if name not in have:
            if self.graph.kind(name).dtype != "float32":
                return other[name]
            have[name] = self._cast(other[name], dtype, name)
        return have[name]

    def _widen_for_reader(self, name: str) -> Any:
        """Return a value in float32 for one reader, whose kernel casts it: memory holds the low dtype only."""
        return self.high[name] if name in self.high else self._cast(self.low[name], "float32", name)

    def _cast_constants(self, step: Step, dtype: str) -> Step:
        def cast(argument: Argument) -> Argument:
            if isinstance(argument, np.ndarray) and argument.dtype == np.float32:
                return argument.astype(numpy_dtype(dtype))
            return tuple(cast(item) for item in argument) if isinstance(argument, tuple) else argument

        return Step(step.name, step.op, tuple(cast(a) for a in step.args), step.call, step.shape, step.dtype)

    def _emit_gemm(self, step: Step) -> tuple[Any, str]:
        """Return the accumulated value of a convolution or matmul and its dtype."""
        dtype, total = self.rules.dtype, self.rules.accumulate
        operands = [
            self._get_as(a.name, dtype)
            if isinstance(a, Ref)
            else constant(np.asarray(a).astype(numpy_dtype(dtype)), dtype)
            for a in step.args
        ]
        if step.op == "relax.matmul":
            return relax.op.matmul(*operands, out_dtype=total), total
        if step.op == "relax.nn.conv2d":
            return convolution(step, operands[0], operands[1], total), total
        if step.op == "relax.nn.conv2d_transpose":
            return transposed_convolution(step, operands[0], operands[1], total), total
        value = self.builder.emit(
            rebuild_call(self._cast_constants(step, dtype), lambda name: self._get_as(name, dtype))
        )
        return value, str(type_of(value).dtype)
