"""Write LLVM functions that pass sums through a text of assembly, in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_FUNCTION = """
define weak_odr i32 @{name}({parameters}, ptr %0) alwaysinline nounwind {{
{before}
  %all = call {returned} asm sideeffect "{text}", "{constraints}"({arguments})
{after}
  ret i32 0
}}
"""


@dataclass(frozen=True)
class LoadedBias:
    """A function in LLVM's language that loads a vector of `lanes` integers of 32 bits into two registers."""

    name: str = "tvmflow_loaded_bias"
    lanes: int = 8
    text: str = """
define weak_odr <8 x i32> @tvmflow_loaded_bias(ptr %place) alwaysinline nounwind {
  %two = call { <4 x i32>, <4 x i32> } asm sideeffect "ldp ${0:q}, ${1:q}, [$2]", "=w,=w,r"(ptr %place)
  %low = extractvalue { <4 x i32>, <4 x i32> } %two, 0
  %high = extractvalue { <4 x i32>, <4 x i32> } %two, 1
  %all = shufflevector <4 x i32> %low, <4 x i32> %high,
    <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  ret <8 x i32> %all
}
"""


LOADED_BIAS = LoadedBias()


@dataclass(frozen=True)
class AssemblyCall:
    """A text of assembly, and what it gets: its first operands are `sums` vectors of a kind, then those of `moved`.

    moved: kind and value of pointers and counters that the text changes; inputs: constraint and argument of what it
    only reads, after the first operands once more; changed: registers, flags or memory. The steps before the call
    compute the address %cN of each sum and load it as %sN.
    """

    kind: str
    sums: int
    moved: Sequence[tuple[str, str]]
    inputs: Sequence[tuple[str, str]]
    changed: Sequence[str]
    lines: Sequence[str]

    def function(self, name: str, parameters: str, before: Sequence[str]) -> str:
        """Return a function in LLVM's language that takes these steps, makes the call and stores the sums."""
        operands = [(self.kind, f"%s{at}") for at in range(self.sums)] + list(self.moved)
        returned = f"{{ {', '.join(kind for kind, _ in operands)} }}"
        constraints = ["=&w"] * self.sums + ["=&r"] * len(self.moved) + [str(at) for at in range(len(operands))]
        constraints += [constraint for constraint, _ in self.inputs] + [f"~{{{one}}}" for one in self.changed]
        after = [
            line
            for at in range(self.sums)
            for line in (
                f"  %r{at} = extractvalue {returned} %all, {at}",
                f"  store {self.kind} %r{at}, ptr %c{at}, align 16",
            )
        ]
        arguments = [f"{kind} {value}" for kind, value in operands] + [argument for _, argument in self.inputs]
        return _FUNCTION.format(
            name=name,
            parameters=parameters,
            before="\n".join(before),
            after="\n".join(after),
            returned=returned,
            text="\\0A".join(self.lines),
            constraints=",".join(constraints),
            arguments=", ".join(arguments),
        )
