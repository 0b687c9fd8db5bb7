"""Rewrite the variables of a .tflite file to inputs and outputs, so that LiteRT runs each step independently.

VAR_HANDLE names a variable, READ_VARIABLE and ASSIGN_VARIABLE use it, and CALL_ONCE runs a graph that assigns its first
value. What an operator reads of a run before becomes an input of the graph, what the run leaves an output.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmflow.frontends.tensorflow.tflite_files import flatbuffer
from tvmflow.frontends.tensorflow.tflite_graph import Array, Tensor, int_list, read_tensor, text_of
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

HANDLE, READ, ASSIGN, CALL_ONCE = "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE"
VARIABLE_OPERATORS = frozenset({HANDLE, READ, ASSIGN, CALL_ONCE})


@dataclass(frozen=True)
class Variable:
    """A variable that is a state: its name, and its first value as stored, None for zeros."""

    name: str
    initial: Array | None


def make_variables_explicit(content: bytes) -> tuple[bytes, tuple[Variable, ...]]:
    """Return the file with the variables of its first graph as its last inputs and outputs, in their order.

    A variable that no run assigns becomes a constant. Raises UnsupportedOperatorError for a use that is not static.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = flatbuffer(content)
    codes = {model.OperatorCodes(at).BuiltinCode() for at in range(model.OperatorCodesLength())}
    if not codes & {getattr(schema.BuiltinOperator, name) for name in (HANDLE, CALL_ONCE)}:
        return content, ()
    import flatbuffers

    try:
        found = schema.ModelT.InitFromPackedBuf(content, 0)
        rewriter = _Rewriter(schema, found)
        variables = rewriter.rewrite()
        builder = flatbuffers.Builder(len(content))
        builder.Finish(found.Pack(builder), file_identifier=b"TFL3")
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, struct.error) as error:
        raise ModelFileError(f"a variable of the file is damaged: {error}", "a whole .tflite file") from error
    return bytes(builder.Output()), variables


@dataclass
class _Uses:
    """The uses of one variable. given: the tensor first read, None if it is assigned before; now: its value's tensor;
    tensors: all that hold it.
    """

    given: int | None = None
    now: int | None = None
    tensors: list[int] = field(default_factory=list)


class _Rewriter:
    """Rewrites the first graph of a model."""

    def __init__(self, schema: Any, model: Any) -> None:
        self.model, self.graph = model, model.subgraphs[0]
        self.names = {number: name for name, number in vars(schema.BuiltinOperator).items() if name.isupper()}
        self.uses: dict[str, _Uses] = {}
        self.initial: dict[str, Tensor] = {}

    def rewrite(self) -> tuple[Variable, ...]:
        handles: dict[int, str] = {}
        same: dict[int, int] = {}  # tensors that are read -> those that were assigned
        kept = []
        for operator in self.graph.operators or ():
            name = self.name_of(operator)
            inputs = [same.get(int(at), int(at)) for at in int_list(operator.inputs)]
            if name == CALL_ONCE:
                self._assign_first(self.model.subgraphs[int(operator.builtinOptions.initSubgraphIndex)])
            elif name == HANDLE:
                handles[int(operator.outputs[0])] = _shared_name(operator)
            elif name == READ:
                self._read(handles[inputs[0]], int(operator.outputs[0]), same)
            elif name == ASSIGN:
                use = self.uses.setdefault(handles[inputs[0]], _Uses())
                use.now = inputs[1]
                use.tensors.append(inputs[1])
            else:
                operator.inputs = np.asarray(inputs, np.int32)
                kept.append(operator)
        self.graph.operators = kept
        self.graph.outputs = np.asarray([same.get(int(at), int(at)) for at in int_list(self.graph.outputs)], np.int32)
        return tuple(self._states())

    def name_of(self, operator: Any) -> str:
        code = self.model.operatorCodes[operator.opcodeIndex]
        return str(self.names.get(max(int(code.builtinCode), int(code.deprecatedBuiltinCode)), ""))

    def _assign_first(self, graph: Any) -> None:
        """Read what a graph of CALL_ONCE assigns."""
        handles = {}
        for operator in graph.operators or ():
            name = self.name_of(operator)
            if name == HANDLE:
                handles[int(operator.outputs[0])] = _shared_name(operator)
            elif name == ASSIGN:
                variable, value = (int(at) for at in operator.inputs)
                self.initial[handles[variable]] = read_tensor(self.model, graph.tensors[value], value)
            else:
                raise _refused(CALL_ONCE, f"runs {name}", "constants that are assigned to variables")

    def _read(self, variable: str, output: int, same: dict[int, int]) -> None:
        use = self.uses.setdefault(variable, _Uses())
        use.tensors.append(output)
        if use.now is None:
            use.given = use.now = output
        else:
            same[output] = use.now

    def _states(self) -> list[Variable]:
        found, inputs, outputs = [], int_list(self.graph.inputs), int_list(self.graph.outputs)
        for name, use in self.uses.items():
            if use.given is None or use.now is None:
                continue  # each run assigns it before it reads it
            self._check_kinds(name, use)
            value = self.initial[name].data if name in self.initial else None
            if use.now == use.given:
                self._make_constant(use.given, value)
                continue
            self.graph.tensors[use.given].name = name
            inputs.append(use.given)
            outputs.append(use.now)
            found.append(Variable(name, value if value is not None and np.any(value) else None))
        self.graph.inputs, self.graph.outputs = (np.asarray(ends, np.int32) for ends in (inputs, outputs))
        return found

    def _check_kinds(self, name: str, use: _Uses) -> None:
        """Check that all tensors of a variable have one shape, type and quantization."""
        tensors = [read_tensor(self.model, self.graph.tensors[at], at) for at in use.tensors]
        if name in self.initial:
            if self.initial[name].data is None:
                raise _refused(CALL_ONCE, f"assigns {name!r} a value that is computed", "a constant")
            tensors.append(self.initial[name])
        first = tensors[0]
        if not all(_has_kind_of(tensor, first) for tensor in tensors):
            raise _refused(READ, f"of {name!r} finds several shapes, types or scales", "one of each")

    def _make_constant(self, tensor: int, value: Array | None) -> None:
        found = self.graph.tensors[tensor]
        if value is None:
            raise _refused(READ, f"of {text_of(found.name)!r}, which nothing assigns", "a variable with a first value")
        from ai_edge_litert import schema_py_generated as schema

        self.model.buffers.append(schema.BufferT(data=np.frombuffer(value.tobytes(), np.uint8)))
        found.buffer = len(self.model.buffers) - 1


def _has_kind_of(tensor: Tensor, other: Tensor) -> bool:
    scales = tensor.quantization, other.quantization
    same = scales[0].equals(scales[1]) if scales[0] is not None else scales[1] is None
    return same and (tensor.shape, tensor.kind) == (other.shape, other.kind)


def _shared_name(operator: Any) -> str:
    options = operator.builtinOptions
    return text_of(options.sharedName) or text_of(options.container) or f"variable_{int(operator.outputs[0])}"


def _refused(operator: str, what: str, expected: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"TFLite operator {operator} {what}", expected, "export the model again, or to ONNX with explicit states"
    )
