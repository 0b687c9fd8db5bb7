"""Choose the tensors of a network that are stored in textures: OpenCL images of vectors of four.

A tensor can be in a texture if every kernel accesses it by whole vectors. Kernels are compiled for the row length of
their textures, so that all tensors of one parameter need rows of the same length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

VECTOR = 4
MOST_EXTENT = 8192  # vectors in a row, and rows, that every OpenCL 1.2 device of the full profile supports


@dataclass(frozen=True)
class Texture:
    """A texture. width: vectors of four in a row; height: rows."""

    width: int
    height: int


class _Tensor(Protocol):
    @property
    def memory(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def size(self) -> int: ...


class _Call(Protocol):
    """A call. kernel: a function of the device; given: indices of its arguments."""

    @property
    def kernel(self) -> str: ...
    @property
    def given(self) -> tuple[int, ...]: ...


_Node = int | tuple[str, int]  # a memory, or a parameter of a function


def texture_for(shape: Sequence[int]) -> Texture | None:
    """Return a texture of a compact tensor: a row is its last axis but the lanes, or several of it; None if it is too
    large.

    shape: of a tensor whose number of elements is a multiple of four.
    """
    count = 1
    for extent in shape:
        count *= extent
    vectors = count // VECTOR
    row = shape[-2] if len(shape) > 1 and shape[-1] == VECTOR else 1
    widths = sorted(width for width in range(1, min(vectors, MOST_EXTENT) + 1) if vectors % width == 0)
    fitting = [width for width in widths if vectors // width <= MOST_EXTENT]
    best = next((width for width in fitting if width % row == 0), fitting[0] if fitting else 0)
    return Texture(best, vectors // best) if best else None


def choose_textures(
    sizes: Sequence[int],
    values: Sequence[_Tensor],
    calls: Iterable[_Call],
    copies: Iterable[tuple[int, int]],
    allowed: Mapping[str, Sequence[bool]],
) -> dict[int, Texture]:
    """Return the memories of a plan that are textures.

    sizes: of the memories, bytes; copies: pairs of values that are copied as bytes; allowed: as
    `GpuExecutable.may_be_images`.
    """
    if not allowed:
        return {}
    parents: dict[_Node, _Node] = {}
    refused: set[_Node] = set()
    touched: set[int] = set()

    def root(node: _Node) -> _Node:
        while parents.setdefault(node, node) != node:
            node = parents[node]
        return node

    for value in values:
        if value.offset or value.size != sizes[value.memory]:
            refused.add(value.memory)
    refused.update(values[at].memory for copy in copies for at in copy)
    for call in calls:
        function, given = call.kernel, call.given
        touched.update(values[at].memory for at in given)
        for parameter, at in enumerate(given):
            if not allowed[function][parameter]:
                refused.add(values[at].memory)
            parents[root(values[at].memory)] = root((function, parameter))
    unfit = {root(node) for node in refused}
    members: dict[_Node, list[_Tensor]] = {}
    for value in values:
        if root(value.memory) not in unfit and value.memory in touched:
            members.setdefault(root(value.memory), []).append(value)
    found: dict[int, Texture] = {}
    for held in members.values():
        texture = texture_for(held[0].shape)
        if texture and len({(one.dtype, one.size) for one in held}) == 1:
            found.update((one.memory, texture) for one in held)
    return found
