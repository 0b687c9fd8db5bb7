"""Write builtin operators of the format in the place of a custom one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Place:
    """A custom operator of a model, and what is written in its place."""

    schema: Any
    model: Any
    graph: Any
    operator: Any

    @property
    def version(self) -> int:
        """The version of the custom operator."""
        return int(self.model.operatorCodes[self.operator.opcodeIndex].version)

    @property
    def inputs(self) -> list[int]:
        return [int(index) for index in self.operator.inputs]

    @property
    def output(self) -> int:
        return int(self.operator.outputs[0])

    def named_options(self) -> dict[str, Any]:
        """Return custom options that are a flexbuffer of names and values."""
        from flatbuffers import flexbuffers

        found = flexbuffers.Loads(bytes(np.asarray(self.operator.customOptions, np.uint8)))
        if not isinstance(found, dict):
            raise ValueError("its options have no names")
        return found

    def options(self, count: int) -> tuple[int, ...]:
        """Return the first integers of the custom options."""
        return struct.unpack_from(f"<{count}i", bytes(np.asarray(self.operator.customOptions, np.uint8)))

    def shape(self, tensor: int) -> list[int]:
        return [int(size) for size in self.graph.tensors[tensor].shape]

    def constant(self, values: Any, kind: str) -> int:
        """Add a tensor of known values; return its number."""
        array = np.asarray(values)
        self.model.buffers.append(self.schema.BufferT(data=np.frombuffer(array.tobytes(), np.uint8)))
        return self.value(array.shape, kind, len(self.model.buffers) - 1)

    def value(self, shape: Sequence[int], kind: str, buffer: int = 0) -> int:
        """Add a tensor; return its number."""
        self.graph.tensors.append(
            self.schema.TensorT(
                shape=np.asarray(shape, np.int32),
                type=getattr(self.schema.TensorType, kind),
                buffer=buffer,
                name=f"of_{int(self.operator.outputs[0])}_{len(self.graph.tensors)}",
                hasRank=True,
            )
        )
        return len(self.graph.tensors) - 1

    def emit(
        self, name: str, inputs: Sequence[int], output: int, options: str = "", version: int = 1, **fields: Any
    ) -> int:
        """Write a builtin operator that makes a tensor; return the tensor."""
        schema, code = self.schema, getattr(self.schema.BuiltinOperator, name)
        first = min(code, schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
        self.model.operatorCodes.append(
            schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=first, version=version)
        )
        made = schema.OperatorT(
            opcodeIndex=len(self.model.operatorCodes) - 1,
            inputs=np.asarray(inputs, np.int32),
            outputs=np.asarray([output], np.int32),
        )
        if options:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            made.builtinOptions = getattr(schema, f"{options}T")(**fields)
        self.graph.operators.append(made)
        return output

    # -- expressions of float32 ---------------------------------------------------------------------------------------

    def number(self, value: Any) -> int:
        return self.constant(np.asarray(value, np.float32), "FLOAT32")

    def made(self, name: str, inputs: Sequence[int], options: str = "", kind: str = "FLOAT32", **fields: Any) -> int:
        """Write an elementwise operator with broadcasting; return its result."""
        shape = np.broadcast_shapes(*(tuple(self.shape(one)) for one in inputs))
        return self.emit(name, inputs, self.value(shape, kind), options, **fields)

    def add(self, *terms: int) -> int:
        total = terms[0]
        for term in terms[1:]:
            total = self.made("ADD", [total, term], "AddOptions")
        return total

    def subtract(self, one: int, other: int) -> int:
        return self.made("SUB", [one, other], "SubOptions")

    def multiply(self, one: int, other: int) -> int:
        return self.made("MUL", [one, other], "MulOptions")

    def cast(self, value: int, before: str, after: str) -> int:
        kinds = self.schema.TensorType
        fields = {"inDataType": getattr(kinds, before), "outDataType": getattr(kinds, after)}
        return self.made("CAST", [value], "CastOptions", after, **fields)

    def gather(self, value: int, places: Sequence[int], axis: int) -> int:
        """Return the values at places along an axis."""
        shape = self.shape(value)
        if not all(0 <= place < shape[axis] for place in places):
            raise ValueError("a place outside of its tensor")
        shape[axis] = len(places)
        index = self.constant(np.asarray(places, np.int32), "INT32")
        return self.emit("GATHER", [value, index], self.value(shape, "FLOAT32"), "GatherOptions", axis=axis)

    def reshape(self, value: int, shape: Sequence[int], output: int | None = None) -> int:
        made = self.value(shape, "FLOAT32") if output is None else output
        return self.emit("RESHAPE", [value, self.constant(np.asarray(shape, np.int32), "INT32")], made)
