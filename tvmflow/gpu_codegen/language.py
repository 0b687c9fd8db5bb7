"""Define what differs between GPU languages; the rest of a kernel's source is the same in all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tvmflow.gpu_codegen.memory import Extents, Memory
from tvmflow.gpu_codegen.types import KernelType


@dataclass
class Used:
    """Types in registers and functions of `Language.functions` that a kernel uses."""

    types: set[KernelType] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class KernelParts:
    """What a kernel's source is made of. shared: declarations of shared memory; body: lines of statements."""

    name: str
    parameters: Sequence[Memory]
    extents: Extents
    shared: Sequence[str]
    body: Collection[str]
    used: Used


# Functions that several languages lack, or have by the same name.
FLOOR_FUNCTIONS = {
    "floor_div": "int floor_div(int a, int b) { int q = a / b; return q * b != a && (a < 0) != (b < 0) ? q - 1 : q; }",
    "floor_mod": (
        "int floor_mod(int a, int b) { int q = a / b; return q * b != a && (a < 0) != (b < 0) ? a - (q - 1) "
        "* b : a - q * b; }"
    ),
}
EXACT = {name: name for name in ("sqrt", "floor", "ceil", "trunc")}
APPROXIMATE = {name: name for name in "exp exp2 log log2 rsqrt sin cos tan atan asin acos sinh cosh erf".split()}


class Language(ABC):
    """Generate the parts of a kernel that depend on the language. Expressions are strings, in
    parentheses where needed.
    """

    name: ClassVar[str]
    functions: ClassVar[Mapping[str, str]]  # name -> definition of a function that the language lacks
    exact: ClassVar[Mapping[str, str]]  # TIR's unary function -> its name in the language
    approximate: ClassVar[Mapping[str, str]]  # the same for approximate functions, which compute float16 in float32
    axes: ClassVar[Mapping[str, str]]  # such as `blockIdx.x` -> expression of the index
    barrier: ClassVar[Sequence[str]]
    shared: ClassVar[str]  # qualifier of shared memory

    @abstractmethod
    def register(self, kind: KernelType) -> str:
        """Return the type in which values are computed."""

    @abstractmethod
    def float_literal(self, value: float, kind: KernelType) -> str:
        """Return a float literal that the compiler reads back exactly."""

    @abstractmethod
    def int_literal(self, value: int, kind: KernelType) -> str:
        """Return an integer literal of a scalar type."""

    @abstractmethod
    def convert(self, kind: KernelType, given: KernelType, text: str) -> str:
        """Return a value converted to another type with as many lanes."""

    @abstractmethod
    def broadcast(self, kind: KernelType, text: str) -> str:
        """Return a vector of equal elements."""

    @abstractmethod
    def vector(self, kind: KernelType, elements: Sequence[str]) -> str:
        """Return a vector of the given elements."""

    @abstractmethod
    def component(self, kind: KernelType, text: str, lane: int) -> str:
        """Return an element of a vector in a register."""

    @abstractmethod
    def compare(self, sign: str, given: KernelType, a: str, b: str) -> str:
        """Return a comparison. sign: the operator in C."""

    @abstractmethod
    def combine_conditions(self, sign: str, kind: KernelType, a: str, b: str) -> str:
        """Return && or

        of conditions.
        """

    @abstractmethod
    def negate(self, kind: KernelType, text: str) -> str:
        """Return the negation of a condition."""

    @abstractmethod
    def select(self, kind: KernelType, condition: str, lanes: int, yes: str, no: str) -> str:
        """Return a selection of two values, both of which may be evaluated. lanes: of the condition."""

    @abstractmethod
    def reinterpret(self, kind: KernelType, given: KernelType, text: str) -> str:
        """Return the bits of a 32-bit value as another type, "" if that is impossible."""

    @abstractmethod
    def load(self, memory: Memory, index: str, kind: KernelType, used: Used) -> str:
        """Return the value of an entry of a parameter, in its register type."""

    @abstractmethod
    def store(self, memory: Memory, index: str, value: str, kind: KernelType, used: Used) -> str:
        """Return the statement that stores a register to an entry of a parameter."""

    @abstractmethod
    def load_word(self, memory: Memory, index: str, used: Used) -> str:
        """Return the four int8 of an entry of a parameter as an int."""

    @abstractmethod
    def word(self, text: str, used: Used) -> str:
        """Return a vector of four int8 in a register as an int."""

    @abstractmethod
    def reduce_over_threads(self, operation: str, kind: KernelType, text: str, used: Used) -> str:
        """Return the reduction of a value over a workgroup. operation: add, max or min; kind: float or int32."""

    @abstractmethod
    def coordinates(self, x: str, y: str) -> str:
        """Return the coordinates of an entry of an image."""

    @abstractmethod
    def assemble(self, kernel: KernelParts) -> str:
        """Return the source of a kernel."""
