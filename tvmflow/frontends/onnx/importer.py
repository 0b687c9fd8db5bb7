"""Convert an ONNX model with inputs of fixed shapes to Relax, node by node.

Every value is a constant or has a fixed shape, so what depends on constants and shapes only is evaluated on the way by
ONNX's own reference: shape arithmetic, `If` with a known condition, `Loop` with a known count. Operators are converted
by tvmflow's converters, else by ONNX's own function body, else by TVM's converter; `coverage.py` has the table. Types
and shapes of every result are compared with ONNX's inference.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import inliner
from tvm import relax

from tvmflow.frontends.onnx import control_flow, tvm_converters
from tvmflow.frontends.onnx.converters import BODIES, CONVERTERS, RANDOM, REFUSALS
from tvmflow.frontends.onnx.nodes import Node, NodeEmitter, RefusedNodeError, Value, dims, dtype_of, expression
from tvmflow.frontends.onnx.reference import evaluate, infer_types, type_of_value
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.support.errors import UnsupportedOperatorError, first_line

MAX_FOLDED_ELEMENTS = 1 << 24  # of a constant that is larger than the constants it is made of
_WRONG_INFERENCE = frozenset({"STFT"})  # onnx 1.23 forgets that `onesided` is the default
_SHOWN = 12  # refused nodes in one message

Scope = ChainMap[str, Value]


@dataclass(frozen=True)
class Refusal:
    """A node that cannot be converted. reason: '' if only its operator is unknown."""

    op: str
    name: str
    reason: str


class _Unknown:
    """The value of a node that was refused."""


_UNKNOWN = _Unknown()


def import_model(model: Any, inputs: Sequence[TensorSpec], fixed: Mapping[str, Value] | None = None) -> Any:
    """Return an IRModule with `main`, its parameters in the order of `inputs`. Raises UnsupportedOperatorError.

    fixed: the inputs that are constants.
    """
    prepared = inliner.inline_local_functions(model) if model.functions else model
    return GraphImporter(prepared).convert(inputs, fixed or {})


class GraphImporter:
    """Converts the nodes of one model."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.versions = {
            entry.domain if entry.domain != "ai.onnx" else "": entry.version for entry in model.opset_import
        }
        self.builder = relax.BlockBuilder()
        self.emitter = NodeEmitter(self.builder)
        self.refusals: list[Refusal] = []

    def convert(self, inputs: Sequence[TensorSpec], fixed: Mapping[str, Value]) -> Any:
        parameters = _parameters(inputs)
        scope: Scope = ChainMap({**_initializers(self.graph), **fixed})
        for spec, parameter in zip(inputs, parameters, strict=True):
            # Nothing can depend on a tensor without elements.
            scope[spec.name] = parameter if math.prod(spec.shape) else np.zeros(spec.shape, spec.dtype)
        with self.builder.function("main", params=parameters):
            with self.builder.dataflow():
                self.run_nodes(self.graph.node, scope)
                self._raise_refusals()
                outputs = [expression(self._output(value, scope)) for value in self.graph.output]
                result = self.builder.emit_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
            self.builder.emit_func_output(result)
        module = self.builder.get()
        module["main"] = module["main"].with_attrs({"num_input": len(parameters)})
        return module

    def _output(self, value: Any, scope: Scope) -> Value:
        found = scope.get(value.name)
        what = "left out" if found is None else "a sequence" if isinstance(found, list) else ""
        if not what and 0 in dims(found):
            what = f"without elements (shape {list(dims(found))})"
        if what:
            maker = next((node.op_type for node in self.graph.node if value.name in node.output), "the graph")
            raise UnsupportedOperatorError(
                f"the output {value.name!r} of {maker} is {what}",
                "tensors with elements as outputs",
                "export the model without this output",
            )
        return found

    def run_nodes(self, nodes: Iterable[Any], scope: Scope) -> None:
        """Convert nodes in order; values are added to the scope. A refused node is noted, and what reads it skipped."""
        for node in nodes:
            inputs = [scope[name] if name else None for name in node.input]
            if any(value is _UNKNOWN for value in inputs) or control_flow.reads(node, scope, _UNKNOWN):
                self._skip(node, scope)
                continue
            try:
                values = self._run_node(node, inputs, scope)
            except RefusedNodeError as error:
                self._refuse(node, str(error))
                values = (_UNKNOWN,) * len(node.output)
            except Exception as error:  # TVM and ONNX raise anything, and a converter meets anything in a file
                self._refuse(node, f"{type(error).__name__}: {first_line(error)}")
                values = (_UNKNOWN,) * len(node.output)
            scope.update((name, value) for name, value in zip(node.output, values, strict=False) if name)

    def _skip(self, node: Any, scope: Scope) -> None:
        """Note a node whose inputs are unknown if its operator is."""
        if self._way_of(node) is None:
            self._refuse(node, "")
        scope.update((name, _UNKNOWN) for name in node.output if name)

    def _refuse(self, node: Any, reason: str) -> None:
        name = node.name or next((output for output in node.output if output), "")
        refusal = Refusal(node.op_type, name, reason or REFUSALS.get((_domain(node), node.op_type), ""))
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    def _raise_refusals(self) -> None:
        if not self.refusals:
            return
        shown = [
            f"{one.op} (node {one.name!r})" + (f": {one.reason}" if one.reason else "")
            for one in self.refusals[:_SHOWN]
        ]
        more = len(self.refusals) - len(shown)
        raise UnsupportedOperatorError(
            "the ONNX importer does not support " + "; ".join(shown) + (f"; and {more} more nodes" if more else ""),
            "operators and attributes of docs/onnx_operators.md",
            "replace these operators in the model, or split the model there",
        )

    # -- one node -----------------------------------------------------------------------------------------------------

    def _run_node(self, node: Any, inputs: list[Value], scope: Scope) -> Sequence[Value]:
        if (special := control_flow.SPECIAL.get((_domain(node), node.op_type))) is not None:
            return special(self, node, inputs, scope)
        schema = self._schema(node)
        types = infer_types(schema, node, inputs, self.versions) if schema else {}
        if schema and self._folds(node, inputs, types):
            folded = evaluate(node, inputs, self.versions)
            if folded is not None:
                return folded
        if any(isinstance(value, np.ndarray) and value.dtype.kind in "OSU" for value in inputs):
            raise RefusedNodeError("strings; take the numbers before as outputs, and look texts up in your program")
        values = self._convert(node, inputs, schema)
        for name, value in zip(node.output, values, strict=False):
            if name and name in types and node.op_type not in _WRONG_INFERENCE:
                _check_type(value, types[name])
        return values

    def _folds(self, node: Any, inputs: list[Value], types: dict[str, Any]) -> bool:
        """Whether to evaluate a node now: constants, or only tensors without elements, and no huge result."""
        if not all(value is None or isinstance(value, np.ndarray) for value in inputs):
            return False
        if node.op_type in RANDOM:
            return False
        if node.op_type == "DequantizeLinear" and str(inputs[0].dtype) in ("int8", "uint8", "int32"):
            return False  # a cell in int8 keeps these integers
        largest = max((value.size for value in inputs if value is not None), default=0)
        shapes = [shape for kind in types.values() if (shape := type_of_value(kind)[1]) is not None]
        sizes = [math.prod(size or 0 for size in shape) for shape in shapes if None not in shape]
        return all(size <= max(MAX_FOLDED_ELEMENTS, largest) for size in sizes)

    def _way_of(self, node: Any) -> Any:
        key = (_domain(node), node.op_type)
        if key in REFUSALS:
            return None
        return (
            control_flow.SPECIAL.get(key)
            or CONVERTERS.get(key)
            or (key in BODIES or None)
            or tvm_converters.converter_of(key, self.versions)
        )

    def _convert(self, node: Any, inputs: list[Value], schema: Any) -> Sequence[Value]:
        key = (_domain(node), node.op_type)
        if key in REFUSALS:
            raise RefusedNodeError(REFUSALS[key])
        converter = CONVERTERS.get(key)
        if converter is None and key in BODIES:
            return self.run_body(node, inputs, schema)
        converter = converter or tvm_converters.converter_of(key, self.versions)
        if converter is None:
            raise RefusedNodeError("")
        version = self.versions.get(key[0], 1)
        attributes = attributes_of(node, schema)
        given = Node(
            node.op_type, key[0], version, node.name, tuple(inputs), attributes, len(node.output), self.emitter
        )
        found = converter(given)
        values = found if isinstance(found, tuple) else (found,)
        return tuple(self._bound(value) if _is_expression(value) else value for value in values)

    def _bound(self, value: Any) -> Any:
        """Return a value as a variable: TVM's converters read the kind of their inputs."""
        value = self.builder.normalize(value)
        return self.builder.emit(value) if isinstance(value, relax.Call | relax.TupleGetItem) else value

    def run_body(self, node: Any, inputs: list[Value], schema: Any) -> Sequence[Value]:
        """Convert a node by the function body in ONNX's definition of the operator."""
        from tvmflow.frontends.onnx.bodies import body_of

        body = body_of(node, inputs, schema, self.versions)
        inner: Scope = ChainMap(dict.fromkeys(body.input))
        inner.update(zip(body.input, inputs, strict=False))
        outer, before = self.versions, len(self.refusals)
        self.versions = outer | {entry.domain: entry.version for entry in body.opset_import}
        try:
            self.run_nodes(body.node, inner)
        finally:
            self.versions = outer
        if refused := self.refusals[before:]:
            del self.refusals[before:]
            raise RefusedNodeError("; ".join(f"its part {one.op}: {one.reason}" for one in refused))
        return [inner.get(name) for name in body.output]

    def _schema(self, node: Any) -> Any:
        domain = _domain(node)
        try:
            return onnx.defs.get_schema(node.op_type, self.versions.get(domain, 1), domain)
        except onnx.defs.SchemaError:
            return None


def _is_expression(value: Value) -> bool:
    return value is not None and not isinstance(value, (np.ndarray, list))


def _domain(node: Any) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _parameters(inputs: Sequence[TensorSpec]) -> list[Any]:
    taken: set[str] = set()
    parameters = []
    for spec in inputs:
        stem = name = "".join(c if c.isalnum() and c.isascii() else "_" for c in spec.name) or "input"
        if not name[0].isalpha() and name[0] != "_":
            stem = name = f"input_{name}"
        count = 1
        while name in taken:
            name, count = f"{stem}_{count}", count + 1
        taken.add(name)
        parameters.append(relax.Var(name, relax.TensorType(spec.shape, spec.dtype)))
    return parameters


def _initializers(graph: Any) -> dict[str, Value]:
    values: dict[str, Value] = {one.name: np.asarray(onnx.numpy_helper.to_array(one)) for one in graph.initializer}
    for sparse in graph.sparse_initializer:
        values[sparse.values.name] = control_flow.dense_of(sparse)
    return values


def attributes_of(node: Any, schema: Any) -> dict[str, Any]:
    """Return the attributes of a node by name, with the defaults of its schema."""
    defaults = {} if schema is None else schema.attributes
    values = {
        name: onnx.helper.get_attribute_value(one.default_value)
        for name, one in defaults.items()
        if one.default_value.type != onnx.AttributeProto.UNDEFINED
    }
    return values | {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}


def _check_type(value: Value, kind: Any) -> None:
    """Raise RefusedNodeError if a converted value has another type than ONNX says."""
    if value is None or isinstance(value, list):
        return
    dtype, shape = type_of_value(kind)
    if dtype is not None and dtype_of(value) != dtype:
        raise RefusedNodeError(f"converted to {dtype_of(value)}, where ONNX says {dtype}")
    found = dims(value)
    if shape is not None and (
        len(shape) != len(found) or any(a not in (None, b) for a, b in zip(shape, found, strict=True))
    ):
        raise RefusedNodeError(f"converted to shape {list(found)}, where ONNX says {list(shape)}")
