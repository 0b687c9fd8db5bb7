"""Describe a call of a PyTorch operator to its converter: arguments by name, shapes, types, and a builder of Relax.

Sizes are numbers; a call with dynamic sizes is converted by TVM's importer, through `Call.by_tvm`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tvmflow.frontends.emitter import Emitter, type_name
from tvmflow.ir.tvm_compat import type_of

NARROW = ("float16", "bfloat16")


class Builder(Emitter):
    """Emits operators of Relax, with conversions that do nothing where nothing changes."""

    def cast(self, value: Any, dtype: str) -> Any:
        """Return a value in a type; numbers other than zero are true."""
        found = type_name(value)
        if found == dtype:
            return value
        return self.not_equal(value, constant(0, found)) if dtype == "bool" else self.astype(value, dtype)

    def shaped(self, value: Any, shape: Sequence[int]) -> Any:
        return value if shape_of(value) == tuple(shape) else self.reshape(value, tuple(shape))

    def expanded(self, value: Any, shape: Sequence[int]) -> Any:
        return value if shape_of(value) == tuple(shape) else self.broadcast_to(value, tuple(shape))

    def as_row(self, value: Any) -> Any:
        """Return a number as a row of one, other values as they are."""
        return value if shape_of(value) else self.reshape(value, (1,))

    def with_axis_last(self, value: Any, axis: int) -> tuple[Any, list[int]]:
        """Return a value with an axis moved to the end, and the order that moves it back, empty if it was there."""
        rank = len(shape_of(value))
        axis %= rank
        if axis == rank - 1:
            return value, []
        order = [at for at in range(rank) if at != axis] + [axis]
        return self.permute_dims(value, order), [order.index(at) for at in range(rank)]

    def moved_back(self, value: Any, order: list[int]) -> Any:
        return self.permute_dims(value, order) if order else value

    def rows_times(self, value: Any, matrix: Any) -> Any:
        """Return the product of the last axis with a constant matrix."""
        shape = shape_of(value)
        rows = self.reshape(value, (math.prod(shape[:-1]), shape[-1]))
        product = self.matmul(rows, constant(matrix, type_name(value)))
        return self.reshape(product, (*shape[:-1], matrix.shape[1]))


def constant(value: Any, dtype: str) -> Any:
    from tvm import relax

    return relax.const(np.asarray(value).astype(dtype), dtype)


def is_float(dtype: str) -> bool:
    return "float" in dtype


def lowest(dtype: str) -> Any:
    return -np.inf if is_float(dtype) else np.iinfo(dtype).min


def highest(dtype: str) -> Any:
    return np.inf if is_float(dtype) else np.iinfo(dtype).max


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a Relax value. Raises NotImplementedError for a dynamic size."""
    sizes = tuple(type_of(value).shape)
    if not all(hasattr(size, "value") for size in sizes):
        raise NotImplementedError("dynamic sizes")
    return tuple(int(size.value) for size in sizes)


class Call:
    """A call of an operator in a torch.export program.

    node: the torch.fx.Node; r: the builder of Relax.
    """

    def __init__(self, node: Any, importer: Any) -> None:
        self.node, self._importer, self.r = node, importer, Builder(importer.block_builder)

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """Return the arguments by the names of the operator's schema, with its defaults."""
        return {
            parameter.name: self.node.args[place]
            if place < len(self.node.args)
            else self.node.kwargs.get(
                parameter.name, parameter.default_value if parameter.has_default_value() else None
            )
            for place, parameter in enumerate(self.node.target._schema.arguments)
        }

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name)

    def is_tensor(self, name: str) -> bool:
        return hasattr(self[name], "meta")

    def value(self, name: str, dtype: str | None = None) -> Any:
        """Return the Relax value of an argument, a tensor or a number, in a type."""
        return self.of(self[name], dtype)

    def of(self, argument: Any, dtype: str | None = None) -> Any:
        """Return the Relax value of a node or number, in a type."""
        if not hasattr(argument, "meta"):
            return constant(argument, dtype or self.dtype)
        value = self._importer.env[argument]
        return value if dtype is None else self.r.cast(value, dtype)

    def values(self, name: str) -> list[Any]:
        """Return the Relax values of a list of tensors."""
        return [self.of(one) for one in self[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        return node_shape(self[name])

    def type(self, name: str) -> str:
        return node_type(self[name])

    @property
    def out_shape(self) -> tuple[int, ...]:
        return node_shape(self.node)

    @property
    def dtype(self) -> str:
        """Return the element type of the result, of the first for several."""
        found = self.node.meta["val"]
        return _name(found[0] if isinstance(found, (tuple, list)) else found)

    @property
    def promoted(self) -> str:
        """Return the common type of `self` and `other`."""
        return promoted_type(self["self"], self["other"])

    def uses(self, place: int) -> bool:
        """Return whether the program reads this part of a result of several."""
        return any(
            user.args[1] == place for user in self.node.users if getattr(user.target, "__name__", "") == "getitem"
        )

    @contextmanager
    def replacing(self, change: Callable[[Any], Any]) -> Iterator[None]:
        """Change the values of the arguments within a context."""
        env, nodes = self._importer.env, self.node.all_input_nodes
        before = {node: env[node] for node in nodes}
        try:
            env.update({node: change(value) for node, value in before.items()})
            yield
        finally:
            env.update(before)

    def by_tvm(self) -> Any:
        """Convert as TVM's importer does, 16-bit floats in float32: its products are float32 whatever they multiply.

        Operators of several results are converted in the type that they have.
        """
        importer = self._importer
        convert = type(importer).create_convert_map(importer)[self.node.target.__name__]
        several = isinstance(self.node.meta.get("val"), (tuple, list))
        if several or not any(type_name(importer.env[node]) in NARROW for node in self.node.all_input_nodes):
            return convert(self.node)
        with self.replacing(lambda value: self.r.cast(value, "float32") if type_name(value) in NARROW else value):
            return convert(self.node)


def _name(value: Any) -> str:
    """Return the element type of a tensor; of a complex one, that of its parts."""
    name = str(value.dtype).removeprefix("torch.")
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


def promoted_type(one: Any, other: Any) -> str:
    """Return the common type of two nodes or numbers."""
    values = [part.meta["val"] if hasattr(part, "meta") else part for part in (one, other)]
    return str(torch.result_type(*values)).removeprefix("torch.")


def node_type(node: Any) -> str:
    return _name(node.meta["val"])


def node_shape(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's value. Raises NotImplementedError for a dynamic size."""
    shape = tuple(node.meta["val"].shape)
    if not all(isinstance(extent, int) for extent in shape):
        raise NotImplementedError("dynamic sizes")
    return shape


def has_dynamic_sizes(node: Any) -> bool:
    """Return whether a size of a node's result or tensors is no number."""
    found = [part.meta.get("val") for part in (node, *node.all_input_nodes)]
    parts = [part for one in found for part in (one if isinstance(one, (tuple, list)) else [one])]
    return any(not isinstance(extent, int) for part in parts if hasattr(part, "shape") for extent in part.shape) or any(
        hasattr(part, "node") and not hasattr(part, "shape") for part in parts
    )


Convert = Callable[[Call], Any]
