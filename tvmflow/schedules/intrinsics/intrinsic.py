"""Define what all tensor intrinsics share: their type, the tables of instructions, and how loops are replaced.

TVM's passes replace bfloat16 by 16-bit integers, which LLVM's intrinsics do not accept; so bodies call functions in
LLVM IR. They pass A.data so that TVM does not widen a buffer of bfloat16 or float16 to float32, which it does if it
only sees loads and stores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar

from tvm.s_tir import TensorIntrin

from tvmflow.ir.tir.blocks import IMPORTED_LLVM, extents
from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.schedules.template import FROM_BIAS, Knobs, decompose_init
from tvmflow.targets.cpu_features import CpuFeatures

_SOURCE = """
@T.prim_func(s_tir=True)
def function({handles}) -> None:
    {strides}
    {buffers}
    with T.sblock("root"):
        T.reads({reads})
        T.writes({sums})
{body}
"""
_MEANING = """
        for {loops} in T.grid({extents}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                {statement}
"""


@dataclass(frozen=True)
class Operand:
    """A buffer of an intrinsic.

    index: of the value of a product, by the letters of axes: vo for the axis o. strides: numbers and names, which the
    body may use; '' if it is contiguous.
    """

    dtype: str
    shape: tuple[int, ...]
    index: str
    strides: str = ""


@dataclass(frozen=True)
class Intrinsic:
    """A tensor intrinsic that adds products of data and weights to sums, the buffers A, B and C.

    axes: a letter for each of the axes, whose sizes are `sizes`. body: TVMScript of the instructions. imports: LLVM IR
    of the functions that bodies call. start: the body of a second intrinsic, which initializes the sums; '' for none.
    from_bias: whether sums that start from a bias load it for each pixel (passes/kernel/load_biases.py).
    """

    name: str
    axes: str
    sizes: tuple[int, ...]
    data: Operand
    weights: Operand
    sums: Operand
    body: str
    imports: str = ""
    start: str = ""
    from_bias: bool = False

    @cache
    def register(self) -> str:
        """Register the intrinsic with TVM and return its name; the one with the suffix _zero initializes its sums."""
        total, kind = f"C[{self.sums.index}]", self.sums.dtype
        product = f'T.Cast("{kind}", A[{self.data.index}]) * T.Cast("{kind}", B[{self.weights.index}])'
        operands = {"A": self.data, "B": self.weights, "C": self.sums}
        _register(self.name, operands, self._meaning(f"{total} = {total} + {product}"), self.body)
        if self.start:
            _register(f"{self.name}_zero", {"C": self.sums}, self._meaning(f"{total} = T.{kind}(0)"), self.start)
        return self.name

    def tensorize(self, schedule: Any, block: Any, reduction: Any, loop: Any, outermost: Any) -> None:
        """Replace a loop of a block; sums are initialized before the loop `reduction`.

        outermost: the loop that is annotated with the LLVM IR that the body calls.
        """
        init = decompose_init(schedule, block, reduction)
        name, spatial = self.register(), self._looped(self.sums.index)
        if self.start:
            schedule.tensorize(schedule.get_loops(init)[-len(spatial)], f"{name}_zero")
        elif self.from_bias:
            schedule.annotate(schedule.get_loops(init)[-1], FROM_BIAS, 1)
        else:
            schedule.vectorize(schedule.get_loops(init)[-1])
        schedule.tensorize(loop, name)
        if self.imports:
            _import(schedule, outermost, self.imports)

    def tensorize_tile(self, schedule: Any, block: Any, outermost: Any) -> None:
        """Replace the nine innermost loops of a convolution: four over outputs, five over the reduction.

        Unit loops are left out of the intrinsic: TVM drops them on one side of its comparison only.
        """
        loops = schedule.get_loops(block)[-9:]
        sizes = extents(schedule, loops)
        once = [loop for loop, size in zip(loops, sizes, strict=True) if size == 1]
        summed_once = [loop for loop, size in zip(loops[4:], sizes[4:], strict=True) if size == 1]
        inner = [loop for loop, size in zip(loops, sizes, strict=True) if size > 1]
        schedule.reorder(*once, *inner)
        self.tensorize(schedule, block, [*summed_once, *inner][0], inner[0], outermost)

    def _looped(self, text: str) -> dict[str, int]:
        """Return the axes that a text names and their sizes, without unit axes, which have no loop and the index 0."""
        axes = zip(self.axes, self.sizes, strict=True)
        return {axis: size for axis, size in axes if size > 1 and f"v{axis}" in text}

    def _meaning(self, statement: str) -> str:
        """Return the TVMScript of a statement in the loops over the axes that it names."""
        looped = self._looped(statement)
        for axis in set(self.axes) - set(looped):
            statement = statement.replace(f"v{axis}", "0")
        return _MEANING.format(
            loops=", ".join(looped),
            extents=", ".join(map(str, looped.values())),
            axes=", ".join(f"v{axis}" for axis in looped),
            kinds="".join("S" if f"v{axis}" in self.sums.index else "R" for axis in looped),
            statement=statement,
        )


def _import(schedule: Any, loop: Any, text: str) -> None:
    """Annotate a loop with LLVM IR, behind the text of another intrinsic below it."""
    known = str(schedule.get(loop).annotations.get(IMPORTED_LLVM) or "")
    if text in known:
        return
    if known:  # annotate does not overwrite
        schedule.unannotate(loop, IMPORTED_LLVM)
    schedule.annotate(loop, IMPORTED_LLVM, known + text)


def _register(name: str, operands: dict[str, Operand], meaning: str, instructions: str) -> None:
    """Register a tensor intrinsic with TVM; C is written, and read unless it is the only operand."""
    *read, sums = (f"{key}[{', '.join(f'0:{size}' for size in one.shape)}]" for key, one in operands.items())
    names = dict.fromkeys(re.findall("[a-z]+", " ".join(operand.strides for operand in operands.values())))
    parts = [
        _SOURCE.format(
            handles=", ".join(f"{key.lower()}: T.handle" for key in operands),
            strides="; ".join(f"{stride} = T.int64()" for stride in names),
            buffers="\n    ".join(_match(key, operand) for key, operand in operands.items()),
            reads=", ".join((sums, *read) if read else ()),
            sums=sums,
            body=body,
        )
        for body in (meaning, instructions)
    ]
    TensorIntrin.register(name, *map(parsed, parts), override=True)


def _match(name: str, operand: Operand) -> str:
    """Return the TVMScript that declares an operand; sums are in registers."""
    strides = f", strides=[{operand.strides}]" if operand.strides else ""
    scope = ', scope="local"' if name == "C" else ""
    shape = f'{name.lower()}, {operand.shape}, "{operand.dtype}"'
    return f"{name} = T.match_buffer({shape}{strides}, offset_factor=1{scope})"


_Size = TypeVar("_Size", bound="Sized")


@dataclass(frozen=True)
class Sized:
    """The sizes of an intrinsic, in the order in which its name has them.

    PREFIX: of the name; SIZES: regular expression of the rest.
    """

    PREFIX: ClassVar[str]
    SIZES: ClassVar[str]

    @property
    def name(self) -> str:
        return "_".join(map(str, (self.PREFIX, *astuple(self))))

    @property
    def is_possible(self) -> bool:
        """Whether the registers suffice, and the sizes are supported."""
        raise NotImplementedError

    @property
    def intrinsic(self) -> Intrinsic:
        raise NotImplementedError

    @classmethod
    def named_in(cls: type[_Size], trace: str) -> list[_Size]:
        """Return the sizes of the intrinsics that a trace names, without impossible ones."""
        found = [
            cls(*(int(size) if size.isdecimal() else size for size in name.split("_")[1:]))
            for name in dict.fromkeys(re.findall(rf"{re.escape(cls.PREFIX)}{cls.SIZES}(?!\d)", trace))
        ]
        return [sizes for sizes in found if sizes.is_possible]


@dataclass(frozen=True)
class Instruction:
    """An instruction for sums of products.

    number: value of the knob `dot`; needs: see CpuFeatures.dots; data: dtype of the image.
    """

    number: int
    name: str
    needs: str
    data: str


_Row = TypeVar("_Row", bound=Instruction)


def instruction_of(table: Iterable[_Row], knobs: Knobs) -> _Row | None:
    """Return the instruction that a schedule's knobs choose, None if it is not in the table."""
    return next((row for row in table if row.number == knobs.get("dot")), None)


def find_instruction(
    table: Iterable[_Row], cpu: CpuFeatures, data: str, fits: Callable[[_Row], bool] = lambda _: True
) -> _Row | None:
    """Return a CPU's first instruction of a table for images of a dtype that fits, None if there is none."""
    return next((row for row in table if row.data == data and row.needs in cpu.dots and fits(row)), None)
