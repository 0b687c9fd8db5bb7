"""Analyze the memory accesses of a GPU kernel: vectors, texel buffers, images and local arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tvm
from tvm import ir, tirx
from tvm_ffi import structural_map, structural_walk

from tvmflow.gpu_codegen.types import KernelType, type_of
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import Expr, PrimFunc

VECTOR = 4
SINGLE_TEXELS = 64  # added to the binding of a texel buffer of single values
_IN_TEXELS = ("float32", "float16", "int32", "int8", "uint8")
_MOST_UNROLLED = 64  # iterations of a loop over a thread-local array
_MOST_VARIABLES = 512


@dataclass(frozen=True)
class Access:
    """An access. lanes: 1, or those of a Ramp; residue: of the first index modulo 4; constant: the first index; None if
    unknown.
    """

    lanes: int
    stride: int
    residue: int | None
    constant: int | None
    stores: bool


@dataclass
class Memory:
    """A buffer. scope: global (a parameter), local or shared; binding: of a parameter.

    most_texels: a read-only parameter of at most so many texels becomes a texel buffer, of four values if possible.
    width: row length in vectors of the image that replaces a parameter, 0 for a buffer.
    """

    name: str
    kind: KernelType
    count: int
    scope: str
    binding: int = -1
    most_texels: int = 0
    width: int = 0
    accesses: list[Access] = field(default_factory=list)

    @property
    def is_read(self) -> bool:
        return any(not one.stores for one in self.accesses)

    @property
    def is_written(self) -> bool:
        return any(one.stores for one in self.accesses)

    @property
    def in_vectors(self) -> bool:
        """Whether all accesses are whole aligned vectors of four, or components of one at known positions."""
        if self.kind.lanes != 1 or not self.accesses or self.count % VECTOR or self.kind.dtype not in _IN_TEXELS:
            return False
        whole = [one.lanes == VECTOR and one.stride == 1 and one.residue == 0 for one in self.accesses]
        if self.scope == "global" and self.is_written:
            return all(whole)
        known = all(
            is_whole or (one.lanes == 1 and one.residue is not None)
            for is_whole, one in zip(whole, self.accesses, strict=True)
        )
        if not known or (self.is_written and self.kind.narrow_bits):
            return False
        return any(whole) or {one.residue for one in self.accesses} == set(range(VECTOR))

    @property
    def may_be_image(self) -> bool:
        """Whether an image of vectors of four can replace it: it is read or written, not both."""
        return self.in_vectors and self.is_read != self.is_written

    @property
    def as_variables(self) -> bool:
        """Whether it is a thread-local array with constant indices only."""
        return (
            self.scope == "local"
            and self.count <= _MOST_VARIABLES
            and all(one.constant is not None for one in self.accesses)
        )

    @property
    def texel_lanes(self) -> int:
        """Return the values of a texel: 4, 1, or 0 if it is a storage buffer."""
        if self.scope != "global" or self.is_written or self.kind.dtype not in _IN_TEXELS:
            return 0
        lanes = VECTOR if self.in_vectors else self.kind.lanes
        return lanes if lanes in (1, VECTOR) and self.count * self.kind.lanes // lanes <= self.most_texels else 0

    @property
    def in_words(self) -> bool:
        """Whether four values of 8 bits are accessed as one of 32."""
        return self.scope == "global" and self.in_vectors and self.kind.narrow_bits == 8 and not self.texel_lanes


@dataclass(frozen=True)
class Extents:
    """Axis of threads or workgroups (such as `blockIdx.x`) -> extent."""

    of: dict[str, int]

    def group_size(self) -> tuple[int, int, int]:
        x, y, z = (self.of.get(f"threadIdx.{axis}", 1) for axis in "xyz")
        return x, y, z


def constant_of(expression: Expr) -> int | None:
    """Return the value of a constant expression, None for any other."""
    return int(expression.value) if type(expression).__name__ == "IntImm" else None


def unroll_local_loops(body: Any) -> Any:
    """Unroll loops over thread-local arrays, so that these can be variables."""
    variables: set[Any] = set()

    def note(buffer: Any, indices: Any) -> None:
        if buffer.scope() == "local":
            for index in indices:
                structural_walk(index, ((tirx.Var, variables.add),))

    structural_walk(
        body,
        (
            (_load_type(), lambda load: note(load.source, load.indices)),
            (tirx.BufferStore, lambda store: note(store.buffer, store.indices)),
        ),
    )

    def mark(loop: Any) -> Any:
        extent = constant_of(loop.extent)
        if (
            loop.loop_var not in variables
            or extent is None
            or extent > _MOST_UNROLLED
            or loop.kind != tirx.ForKind.SERIAL
        ):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body)

    return structural_map(body, ((tirx.For, mark),)) if variables else body


def _load_type() -> type:
    return tvm.ir.TensorLoad  # type: ignore[no-any-return]


def memory_of(
    function: PrimFunc, analyzer: Any, most_texels: int, widths: Mapping[int, int], *, is_wide: bool
) -> tuple[dict[Any, Memory], Extents]:
    """Return the buffers of a device function with all accesses, and bind all variables in the analyzer. Raises
    StageError.
    """
    buffers: dict[Any, Memory] = {}
    extents: dict[str, int] = {}
    positions = {parameter.name: i for i, parameter in enumerate(function.params)}
    names = _names()

    def declare(statement: Any) -> None:
        buffer, binding = statement.buffer, positions.get(getattr(statement.data, "name", ""), -1)
        if binding < 0:
            buffers[buffer] = buffers[_same_memory(statement, buffers)]
            return
        kind, width = type_of(buffer.dtype, is_wide), widths.get(binding, 0)
        buffers[buffer] = Memory(names(buffer.name), kind, _count(buffer), "global", binding, most_texels, width)

    def allocate(statement: Any) -> None:
        buffer = statement.buffer
        scope = buffer.scope()
        if scope not in ("local", "shared"):
            raise StageError(f"a kernel allocates memory of scope {scope!r}", "local or shared")
        buffers[buffer] = Memory(names(buffer.name), type_of(buffer.dtype, is_wide), _count(buffer), scope)

    def attribute(statement: Any) -> None:
        if statement.attr_key == "thread_extent":
            extent = constant_of(statement.value)
            if extent is None:
                raise StageError(f"a kernel has {statement.value} threads or groups", "a number")
            extents[statement.node.thread_tag] = extent
            _bind_range(analyzer, statement.node.var, 0, extent)

    def reach(buffer: Any, indices: Any, *, stores: bool) -> None:
        if buffer not in buffers:
            raise StageError(
                f"a kernel uses buffer {buffer.name}, which it does not declare", "parameters and allocations"
            )
        buffers[buffer].accesses.append(_access(indices, stores, analyzer))

    steps: dict[type, Callable[[Any], None]] = {
        tirx.DeclBuffer: declare,
        tirx.AllocBuffer: allocate,
        tirx.AttrStmt: attribute,
        tirx.For: lambda loop: _bind_range(analyzer, loop.loop_var, loop.min, loop.extent),
        tirx.Bind: lambda bound: _bind(analyzer, bound),
        ir.TensorLoad: lambda load: reach(load.source, load.indices, stores=False),
        tirx.BufferStore: lambda store: reach(store.buffer, store.indices, stores=True),
    }
    seen: list[Any] = []  # collected first: TVM would replace an exception raised during the walk
    structural_walk(function.body, ((tuple(steps), seen.append),), order="pre")
    for node in seen:
        steps[type(node)](node)
    return buffers, Extents(extents)


def aliased_buffer(data: Any) -> Any:
    """Return the buffer whose memory an expression names, None for a parameter."""
    is_buffer = type(data).__name__ == "Call" and str(getattr(data.op, "name", "")) == "tirx.buffer_data"
    return data.args[0] if is_buffer else None


def _same_memory(statement: Any, buffers: Mapping[Any, Memory]) -> Any:
    """Return the buffer of which a declared one is an alias."""
    buffer, seen = statement.buffer, aliased_buffer(statement.data)
    if seen not in buffers or str(seen.dtype) != str(buffer.dtype) or _count(seen) != _count(buffer):
        raise StageError(f"a kernel sees buffer {buffer.name} in another's memory", "buffers of its parameters")
    return seen


def _bind_range(analyzer: Any, variable: Any, begin: Any, extent: Any) -> None:
    analyzer.bind(variable, ir.Range.from_min_extent(begin, extent), allow_override=True)


def _bind(analyzer: Any, bound: Any) -> None:
    if str(bound.var.ty.dtype) in ("int32", "int64"):
        analyzer.bind(bound.var, bound.value, allow_override=True)


def _names() -> Any:
    given: Iterator[int] = iter(range(1 << 30))
    return lambda name: f"{sanitize_name(name)}_b{next(given)}"


def sanitize_name(name: str) -> str:
    """Return a name reduced to letters that every GLSL compiler accepts; a suffix must follow."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in str(name))
    while "__" in kept:
        kept = kept.replace("__", "_")
    kept = kept.strip("_")[:40].strip("_")
    return kept if kept[:1].isalpha() and not kept.startswith("gl") else f"v{kept}"


def _count(buffer: Any) -> int:
    extents = [constant_of(extent) for extent in buffer.shape]
    if any(extent is None for extent in extents):
        raise StageError(f"buffer {buffer.name} of a kernel has shape {buffer.shape}", "numbers")
    return math.prod(extent for extent in extents if extent is not None)


def _access(indices: Any, stores: bool, analyzer: Any) -> Access:
    if len(indices) != 1:
        raise StageError(f"a kernel has a buffer of {len(indices)} axes", "one: TVM flattens them")
    (index,) = indices
    lanes, stride, base = 1, 1, index
    if type(index).__name__ == "Ramp":
        lanes, base = int(index.lanes), index.base
        stride = constant_of(index.stride) or 0
    elif type_of(index.ty.dtype).lanes != 1:
        return Access(type_of(index.ty.dtype).lanes, 0, None, None, stores)
    steps = analyzer.modular_set(base)
    residue = int(steps.base) % VECTOR if int(steps.coeff) % VECTOR == 0 else None
    return Access(lanes, stride, residue, constant_of(analyzer.simplify(base)), stores)
