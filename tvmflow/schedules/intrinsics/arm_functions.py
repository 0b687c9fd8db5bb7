"""Define sigmoid, GELU and powers of two of arm64's vectors, each as one text of assembly.

LLVM keeps a register for each constant of a polynomial, and computes several vectors at once until it spills them. Here
coefficients are lanes of a register, and a vector is done before the next one begins. float16 is computed in float16,
eight values at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir.custom_operators import register_operator
from tvmflow.ir.tvm_compat import Call, dtype_of
from tvmflow.targets.cpu_features import computes_in_float16, multiplies_by_lane

SIGMOID, GELU, POWER = "tirx.sigmoid", "tvmflow.gelu", "tvmflow.power_of_two"
_REGISTERS = (4, 2, 1)  # of a vector that a function takes; those of several call that of half of them

_FUNCTION = """
define weak_odr {vector} @{name}({vector} %x) alwaysinline nounwind {{
  %r = call {vector} asm "{text}", "{constraints}"({arguments}) nounwind willreturn memory(none)
  ret {vector} %r
}}
"""
_HALVES = """
define weak_odr {vector} @{name}({vector} %x) alwaysinline nounwind {{
  %a = shufflevector {vector} %x, {vector} poison, <{half} x i32> <{low}>
  %b = shufflevector {vector} %x, {vector} poison, <{half} x i32> <{high}>
  %c = call <{half} x {element}> @{called}(<{half} x {element}> %a)
  %d = call <{half} x {element}> @{called}(<{half} x {element}> %b)
  %r = shufflevector <{half} x {element}> %c, <{half} x {element}> %d, <{lanes} x i32> <{all}>
  ret {vector} %r
}}
"""


@dataclass(frozen=True)
class _Kind:
    """Vectors of a dtype. suffix: of a register and of a lane in assembly; constraint: of registers with lanes."""

    element: str
    lanes: int
    suffix: tuple[str, str]
    constraint: str


_KINDS = {
    "float32": _Kind("float", 4, ("4s", "s"), "w"),
    "float16": _Kind("half", 8, ("8h", "h"), "x"),  # a lane is one of the first 16 registers
}


@dataclass(frozen=True)
class _Function:
    """Instructions from `x` to `r`, operands apart by spaces; other names than those of constants are temporaries.

    whole, lanes: constants in all lanes of a register, and those that are a lane. Temporaries are the first registers,
    so that the constants of float16, whose lanes reach only half of the registers, find theirs among the others.
    """

    whole: dict[str, float]
    lanes: dict[str, float]
    lines: tuple[str, ...]

    @property
    def temporaries(self) -> list[str]:
        known = {"x", "r", *self.whole, *self.lanes}
        names = [name for line in self.lines for name in line.split()[1:] if name[0] != "#" and name not in known]
        return list(dict.fromkeys(names))

    def llvm(self, name: str, dtype: str) -> str:
        """Return the function of one register in LLVM's language."""
        kind = _KINDS[dtype]
        places = {one: f"${at}.{kind.suffix[0]}" for at, one in enumerate(("r", "x", *self.whole))}
        first, values = len(places), list(self.lanes.values())
        places |= {one: f"v{at}.{kind.suffix[0]}" for at, one in enumerate(self.temporaries)}
        for at, one in enumerate(self.lanes):
            places[one] = f"${first + at // kind.lanes}.{kind.suffix[1]}[{at % kind.lanes}]"
        packed = [values[at : at + kind.lanes] for at in range(0, len(values), kind.lanes)]
        vector = f"<{kind.lanes} x {kind.element}>"
        constants = [[value] * kind.lanes for value in self.whole.values()] + [
            [*some, *[0.0] * (kind.lanes - len(some))] for some in packed
        ]
        arguments = [f"{vector} %x", *(f"{vector} <{_listed(some, dtype)}>" for some in constants)]
        inputs = ["w"] * (1 + len(self.whole)) + [kind.constraint] * len(packed)
        changed = [f"~{{v{at}}}" for at in range(len(self.temporaries))]
        return _FUNCTION.format(
            vector=vector,
            name=name,
            text="\\0A".join(_assembled(line, places) for line in self.lines),
            constraints=",".join(["=&w", *inputs, *changed]),
            arguments=", ".join(arguments),
        )


def _listed(values: Sequence[float], dtype: str) -> str:
    """Return constants of LLVM: bits of a double, which are those of a float exactly, or of a half."""
    import numpy as np

    if dtype == "float16":
        return ", ".join(f"half 0xH{int(np.float16(value).view(np.uint16)):04X}" for value in values)
    return ", ".join(f"float 0x{int(np.float64(np.float32(value)).view(np.uint64)):016X}" for value in values)


def _assembled(line: str, places: dict[str, str]) -> str:
    name, *operands = line.split()
    found = [places.get(one, one) for one in operands]
    if name == "mov":  # of a whole register
        found = [f"{one.partition('.')[0]}.16b" for one in found]
    return f"{name} {', '.join(found)}"


_LOG2_E = 1.4426950408889634
# 2**f = 1 + f * p(f) for |f| <= 1/2, minimax in relative error (9e-8 and 1.0e-4), lowest power first.
_POWERS = {
    "float32": (1.0, 0.69314698, 0.24022242, 0.05550734, 0.00967152, 0.00132647),
    "float16": (1.0, 0.69328301, 0.24221106, 0.05500829),
}
# GELU is x * (1/2 + y * p(y**2) / q(y**2)), y clamped to an end where that is 1 or 0; lowest power first. Errors of the
# second factor: 1.1e-7 and 1.1e-4.
_GELU_END = {"float32": 5.256, "float16": 3.62}
_GELU_NUMERATOR = {
    "float32": (0.39894159, 0.065339231, 0.0064307434, 0.00046571549, 6.0249661e-06, -1.7616664e-08),
    "float16": (0.39840002, 0.098878395, 0.002852008),
}
_GELU_DENOMINATOR = {
    "float32": (1.0, 0.33043655, 0.046213189, 0.0035672238, 0.00015671581),
    "float16": (1.0, 0.40971063, 0.054986635),
}
# Bits of the mantissa, and the exponent of 1: a number plus 1.5 * 2**bits is rounded to an integer in the lowest bits.
_FORMATS = {"float32": (23, 127), "float16": (10, 15)}


def _named(letter: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{letter}{at}": value for at, value in enumerate(values)}


def _polynomial(of: str, letter: str, degree: int, x: str, square: str, fourth: str, one: str = "") -> list[str]:
    """Return the steps of a polynomial of a degree up to 5 into the register `of`.

    one: the step to the first coefficient, if that is no lane.
    """
    lines = [one or f"dup {of} {letter}0", f"fmla {of} {x} {letter}1"]
    for at, power in ((2, square), (4, fourth)):
        if at == degree:
            lines.append(f"fmla {of} {power} {letter}{at}")
        elif at < degree:
            part = f"{of}{at}"
            lines += [
                f"dup {part} {letter}{at}",
                f"fmla {part} {x} {letter}{at + 1}",
                f"fmla {of} {power} {part}",
            ]
    return lines


def _power_steps(of: str, dtype: str, x: str, one: str) -> list[str]:
    """Return the steps of the polynomial of 2**x, with the coefficients named p."""
    degree = len(_POWERS[dtype]) - 1
    if degree == 3:
        return [f"fmul s {x} {x}", *_polynomial(of, "p", 3, x, "s", "", one)]
    # c0 + c1 x + x**2 (c2 + c3 x + x**2 (c4 + c5 x)): one power of x less than by pairs
    return [
        f"fmul s {x} {x}",
        *[one, f"fmla {of} {x} p1", "dup b p2", f"fmla b {x} p3", "dup d p4", f"fmla d {x} p5"],
        *["fmla b s d", f"fmla {of} s b"],
    ]


def _sigmoid(dtype: str) -> _Function:
    """1 / (1 + 2**-t), t = x * log2(e): 2**n by the bits of the exponent, 0 and infinity at the ends."""
    bits, bias = _FORMATS[dtype]
    end = math.log(2) * (bias + 1.03 if dtype == "float32" else bias + 1.014)
    powers = [-value if at % 2 else value for at, value in enumerate(_POWERS[dtype])]  # of -f
    lines = (
        "fmin c x hi",
        "fmax c c lo",
        "mov u magic",
        "fmla u c k",
        "fsub n u magic",
        "fmls n c k",
        f"shl u u #{bits}",
        *_power_steps("a", dtype, "n", "mov a one"),
        "mov r one",
        "fmla r a u",
        "fdiv r one r",
    )
    whole = {"hi": end - math.log(2), "lo": -end, "magic": 1.5 * 2**bits + bias, "one": 1.0}
    return _Function(whole, {"k": -_LOG2_E, **dict(list(_named("p", powers).items())[1:])}, lines)


def _gelu(dtype: str) -> _Function:
    top, bottom = _GELU_NUMERATOR[dtype], _GELU_DENOMINATOR[dtype]
    end = _GELU_END[dtype]
    lines = (
        "fmin y x hi",
        "fmax y y lo",
        "fmul s y y",
        "fmul t s s",
        *(["fmul w t t"] if len(top) > 4 else []),
        *_polynomial("a", "p", len(top) - 1, "s", "t", "w"),
        *_polynomial("d", "q", len(bottom) - 1, "s", "t", "w", "fmov d #1.0"),
        "fmul y y a",
        "fdiv y y d",
        "fmul r x half",
        "fmla r x y",
    )
    lanes = {**_named("p", top), **dict(list(_named("q", bottom).items())[1:]), "half": 0.5}
    return _Function({"hi": end, "lo": -end}, lanes, lines)


def _power(dtype: str) -> _Function:
    """2**x of numbers that are not above 0: results below the smallest normal float32 are 0, of float16 rounded.

    Of float16 the polynomial is smaller and the power of two larger by a factor, so that the latter is a normal number.
    """
    bits, bias = _FORMATS[dtype]
    moved = 0 if dtype == "float32" else 11
    powers = [value * 2.0**-moved for value in _POWERS[dtype]]
    lines = (
        "fmax r x lo",
        "fadd u r magic",
        "fsub n u magic",
        "fsub n r n",
        f"shl u u #{bits}",
        *_power_steps("a", dtype, "n", "dup a p0"),
        "fmul r a u",
    )
    whole = {"lo": float(-bias - moved), "magic": 1.5 * 2**bits + bias + moved}
    return _Function(whole, _named("p", powers), lines)


_MADE = {SIGMOID: _sigmoid, GELU: _gelu, POWER: _power}


def _name(operator: str, dtype: str) -> str:
    return f"tvmflow_arm_{operator.partition('.')[2]}_{dtype}"


def functions_text(operator: str, dtype: str) -> str:
    """Return the LLVM functions of an operator for vectors of a dtype, of one register and of several."""
    kind, name = _KINDS[dtype], _name(operator, dtype)
    texts = [_MADE[operator](dtype).llvm(f"{name}x{kind.lanes}", dtype)]
    for registers in sorted(_REGISTERS)[1:]:
        lanes = kind.lanes * registers
        half = lanes // 2
        listed = [", ".join(f"i32 {at}" for at in some) for some in (range(half), range(half, lanes), range(lanes))]
        texts.append(
            _HALVES.format(
                vector=f"<{lanes} x {kind.element}>",
                name=f"{name}x{lanes}",
                half=half,
                low=listed[0],
                high=listed[1],
                all=listed[2],
                element=kind.element,
                called=f"{name}x{half}",
                lanes=lanes,
            )
        )
    return "".join(texts)


def has_function(dtype: str, target: Any) -> bool:
    """Whether the processor of a tvm.target.Target computes the functions of a dtype as here."""
    fits = {"float32": multiplies_by_lane, "float16": computes_in_float16}.get(dtype)
    return fits is not None and target is not None and bool(fits(target))


def call_function(call: Call) -> Any:
    """Return the call of the function for the lanes of an operator's call, None if there is none."""
    dtype, operator = dtype_of(call), str(call.op.name)
    base, _, lanes = dtype.partition("x")
    if not lanes or not has_function(base, tvm.target.Target.current()):
        return None
    if int(lanes) not in [count * _KINDS[base].lanes for count in _REGISTERS]:
        return None
    return tirx.call_pure_extern(dtype, f"{_name(operator, base)}x{lanes}", *call.args)


def _lower_gelu(call: Call) -> Any:
    found, dtype = call_function(call), dtype_of(call)
    if found is not None:
        return found
    wide = dtype.replace("float16", "float32")
    x = call.args[0].astype(wide)
    factor = tirx.call_intrin(wide, "tirx.erf", x * tirx.const(math.sqrt(0.5), wide))
    half = tirx.const(0.5, wide)
    return (x * (half + factor * half)).astype(dtype)


def _lower_power(call: Call) -> Any:
    found, dtype = call_function(call), dtype_of(call)
    if found is not None:
        return found
    wide = dtype.replace("float16", "float32")
    return tirx.call_intrin(wide, "tirx.exp", call.args[0].astype(wide) * tirx.const(math.log(2), wide)).astype(dtype)


register_operator(GELU, "x times the normal distribution's share below x", 1, _lower_gelu)
register_operator(POWER, "2 to the power of a number that is not above 0", 1, _lower_power)
