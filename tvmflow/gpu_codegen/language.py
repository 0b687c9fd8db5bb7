"""What the languages of GPUs' kernels differ in. The rest of a kernel's text is the same in all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tvmflow.gpu_codegen.memory import Extents, Memory
from tvmflow.gpu_codegen.types import KernelType


@dataclass
class Used:
    """What a kernel uses. types: in registers; functions: of `Language.functions`."""

    types: set[KernelType] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


class Language(ABC):
    """Expressions are texts, in parentheses wherever that could matter."""

    name: ClassVar[str]
    functions: ClassVar[Mapping[str, str]]  # name -> what defines it, for what the language has no function of
    exact: ClassVar[Mapping[str, str]]  # TIR's function of one argument -> its name
    approximate: ClassVar[Mapping[str, str]]  # the same for approximations; float16 is computed in float32 there
    axes: ClassVar[Mapping[str, str]]  # as `blockIdx.x` -> which group or thread it is
    barrier: ClassVar[Sequence[str]]
    shared: ClassVar[str]  # before what the threads of a group share

    @abstractmethod
    def register(self, kind: KernelType) -> str:
        """Return the type in which values are computed."""

    @abstractmethod
    def float_literal(self, value: float, kind: KernelType) -> str:
        """Return a number as the compiler reads back the same."""

    @abstractmethod
    def int_literal(self, value: int, kind: KernelType) -> str:
        """Return an integer of a type that is not a vector."""

    @abstractmethod
    def converted(self, kind: KernelType, given: KernelType, text: str) -> str:
        """Return values of one type as those of another, of as many lanes."""

    @abstractmethod
    def broadcast(self, kind: KernelType, text: str) -> str:
        """Return a vector of one value."""

    @abstractmethod
    def vector(self, kind: KernelType, elements: Sequence[str]) -> str:
        """Return a vector of elements of its type."""

    @abstractmethod
    def component(self, kind: KernelType, text: str, lane: int) -> str:
        """Return an element of a vector that is in a register."""

    @abstractmethod
    def compared(self, sign: str, given: KernelType, a: str, b: str) -> str:
        """Return how values compare. sign: as C has it."""

    @abstractmethod
    def both(self, sign: str, kind: KernelType, a: str, b: str) -> str:
        """Return && or || of conditions."""

    @abstractmethod
    def negated(self, kind: KernelType, text: str) -> str:
        """Return the opposite of a condition."""

    @abstractmethod
    def selected(self, kind: KernelType, condition: str, lanes: int, yes: str, no: str) -> str:
        """Return one of two values, which may both be computed. lanes: of the condition."""

    @abstractmethod
    def reinterpreted(self, kind: KernelType, given: KernelType, text: str) -> str:
        """Return the value whose bits are those of another of 32 bits; "" where it cannot be said."""

    @abstractmethod
    def loaded(self, memory: Memory, index: str, kind: KernelType, used: Used) -> str:
        """Return what lies at an entry of a parameter, as a register has it."""

    @abstractmethod
    def stored(self, memory: Memory, index: str, value: str, kind: KernelType, used: Used) -> str:
        """Return the statement that stores at an entry of a parameter what is in a register."""

    @abstractmethod
    def loaded_word(self, memory: Memory, index: str, used: Used) -> str:
        """Return the four int8 of an entry of a parameter as an int."""

    @abstractmethod
    def word(self, text: str, used: Used) -> str:
        """Return a vector of four int8 that is in a register as an int."""

    @abstractmethod
    def total(self, operation: str, kind: KernelType, text: str, used: Used) -> str:
        """Return what the numbers of all threads of a group make. operation: add, max or min; kind: float or int32."""

    @abstractmethod
    def coordinates(self, x: str, y: str) -> str:
        """Return the index of an entry of an image."""

    @abstractmethod
    def whole(
        self,
        name: str,
        parameters: Sequence[Memory],
        extents: Extents,
        shared: Sequence[str],
        body: Collection[str],
        used: Used,
    ) -> str:
        """Return the text of a kernel."""
