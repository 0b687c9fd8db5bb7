"""Use the converters of TVM's importer for the operators that they convert correctly."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Mapping
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map, onnx_input

from tvmflow.frontends.onnx.nodes import Converter, Node, expression

# Checked by the node tests (`python -m bench.conformance onnx`).
CORRECT: frozenset[str] = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Ceil Concat Cos DepthToSpace Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND
    Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization
    HardSigmoid HardSwish Hardmax InstanceNormalization LRN LeakyRelu Less LessOrEqual Log LogSoftmax MatMul
    MaxRoiPool MeanVarianceNormalization Mish Mul Neg Not Or PRelu RMSNormalization Reciprocal ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Reshape Round ScatterND Selu
    Sigmoid Sin Softmax Softplus Softsign Split Sqrt Sub Tan Tanh ThresholdedRelu Tile Transpose Trilu
    Where Xor
    """.split()
)


@functools.cache
def _table() -> dict[str, Any]:
    return dict(_get_convert_map())


def converter_of(key: tuple[str, str], versions: Mapping[str, int]) -> Converter | None:
    """Return TVM's converter of an operator; None if it has none that is right."""
    domain, op = key
    return None if domain or op not in CORRECT else converter_in_tvm(op, versions.get("", 1))


def converter_in_tvm(op: str, version: int) -> Converter:
    """Return TVM's converter of an operator, also where ours prepares its node."""
    return functools.partial(_convert, _table()[op].get_converter(version))


def _convert(converter: Any, node: Node) -> Any:
    builder = node.emitter.builder
    attributes = {name: tuple(v) if isinstance(v, list) else v for name, v in node.attributes.items()}
    attributes["tvm_custom"] = {"name": node.name, "num_outputs": node.outputs}
    with contextlib.redirect_stdout(io.StringIO()):
        found = converter(builder, onnx_input(expression(value) for value in node.inputs), attributes, [{}, {}])
    if isinstance(found, relax.Tuple):
        return tuple(found.fields)
    found = builder.normalize(found)
    if isinstance(found.ty, relax.TupleType):
        return tuple(builder.emit(relax.TupleGetItem(found, place)) for place in range(len(found.ty.fields)))
    return found
