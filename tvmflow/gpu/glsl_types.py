"""What TIR's types and numbers are in GLSL, and the functions that GLSL lacks.

Integers of 8 and 16 bits are computed in 32 bits, so that a device needs them in memory alone.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

from tvmflow.errors import StageError

# dtype -> (in a register, in memory, prefix of vectors in registers, of vectors in memory)
_SCALARS = {
    "float32": ("float", "float", "vec", "vec"),
    "float16": ("float16_t", "float16_t", "f16vec", "f16vec"),
    "int32": ("int", "int", "ivec", "ivec"),
    "uint32": ("uint", "uint", "uvec", "uvec"),
    "int64": ("int64_t", "int64_t", "i64vec", "i64vec"),
    "uint64": ("uint64_t", "uint64_t", "u64vec", "u64vec"),
    "int16": ("int", "int16_t", "ivec", "i16vec"),
    "uint16": ("uint", "uint16_t", "uvec", "u16vec"),
    "int8": ("int", "int8_t", "ivec", "i8vec"),
    "uint8": ("uint", "uint8_t", "uvec", "u8vec"),
    "bool": ("bool", "uint8_t", "bvec", "u8vec"),
}
_WIDE = ("GL_EXT_shader_explicit_arithmetic_types_int64",)
_IN_REGISTERS = {"float16": ("GL_EXT_shader_explicit_arithmetic_types_float16",), "int64": _WIDE, "uint64": _WIDE}
_IN_MEMORY = {
    **dict.fromkeys(("float16", "int16", "uint16"), ("GL_EXT_shader_16bit_storage",)),
    **dict.fromkeys(("int8", "uint8", "bool"), ("GL_EXT_shader_8bit_storage",)), "int64": _WIDE, "uint64": _WIDE,
}  # fmt: skip
_DTYPE = re.compile(r"(bool|float\d+|u?int\d+)(?:x(\d+))?")
MOST_LANES = 4
LANES = "xyzw"


@dataclass(frozen=True)
class GlslType:
    """A TIR type of `lanes` values. is_wide: float16 is computed in float32, and rounded where it is stored."""

    dtype: str
    lanes: int = 1
    is_wide: bool = False

    @property
    def register(self) -> str:
        """Return the type in which values are computed."""
        scalar, _, vector, _ = _SCALARS["float32" if self.is_wide and self.is_float else self.dtype]
        return scalar if self.lanes == 1 else f"{vector}{self.lanes}"

    @property
    def memory(self) -> str:
        """Return the type of an element in a buffer."""
        _, scalar, _, vector = _SCALARS[self.dtype]
        return scalar if self.lanes == 1 else f"{vector}{self.lanes}"

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def narrow_bits(self) -> int:
        """Return the bits of an integer that is computed in more, else 0."""
        bits = int(re.sub(r"\D", "", self.dtype) or 0)
        return bits if not self.is_float and 0 < bits < 32 else 0

    @property
    def memory_extensions(self) -> tuple[str, ...]:
        """Return what GLSL needs to have it in a buffer."""
        return _IN_MEMORY.get(self.dtype, ())

    @property
    def arithmetic_extensions(self) -> tuple[str, ...]:
        """Return what GLSL needs to compute with it."""
        return () if self.is_wide and self.is_float else _IN_REGISTERS.get(self.dtype, ())

    def scalar(self) -> GlslType:
        return self.of_lanes(1)

    def of_lanes(self, lanes: int) -> GlslType:
        return GlslType(self.dtype, lanes, self.is_wide)


def type_of(dtype: object, is_wide: bool = False) -> GlslType:
    """Return what a TIR dtype is. is_wide: as GlslType has it. Raises StageError for one that no kernel may have."""
    found = _DTYPE.fullmatch(str(dtype))
    lanes = int(found[2] or 1) if found else 0
    if not found or found[1] not in _SCALARS or not 1 <= lanes <= MOST_LANES:
        raise StageError(
            f"a kernel computes with {dtype}", f"{', '.join(_SCALARS)}, in vectors of at most {MOST_LANES}"
        )
    return GlslType(found[1], lanes, is_wide)


def float_literal(value: float, kind: GlslType) -> str:
    """Return a number as GLSL reads back the same."""
    is_half = kind.register == "float16_t"
    if math.isnan(value) or math.isinf(value):
        bits = 0x7FC00000 if math.isnan(value) else 0x7F800000 if value > 0 else 0xFF800000
        text = f"uintBitsToFloat({bits:#x}u)"
        return f"float16_t({text})" if is_half else text
    form = "<f" if kind.dtype == "float32" else "<e"
    text = repr(struct.unpack(form, struct.pack(form, value))[0])
    if is_half:
        return f"float16_t({text})"
    return f"({text})" if text.startswith("-") else text


def int_literal(value: int, kind: GlslType) -> str:
    """Return an integer of a type that is not a vector."""
    if kind.dtype == "bool":
        return "true" if value else "false"
    suffix = {"uint": "u", "int64_t": "L", "uint64_t": "UL"}.get(kind.register, "")
    if kind.register == "int" and value == -(1 << 31):
        return "int(0x80000000u)"
    if kind.register == "int64_t" and value == -(1 << 63):
        return "int64_t(0x8000000000000000UL)"
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


# erf: polynomials fitted to erf(x)/x in x^2 for |x| < 1 and to -log(erfc(x)) up to 4; the largest error in float32 is 1.3e-7.
_ERF = """\
float erf(float x) {
  float a = min(abs(x), 4.0), z = x * x;
  float small = x * (1.12837917 + z * (-0.376126269 + z * (0.112835975 + z * (-0.0268543288 + z * (0.00518931194 + z * (-0.000801885499 + z * 7.88249711e-05))))));
  float q = -0.000303212969 + a * (1.13016668 + a * (0.631937094 + a * (0.109978245 + a * (-0.0263647174 + a * (0.00474022234 + a * (-0.000592769538
    + a * (4.55906224e-05 + a * -1.6140616e-06)))))));
  return abs(x) < 1.0 ? small : sign(x) * (1.0 - exp(-q));
}"""
_ERF4 = "vec{n} erf(vec{n} x) {{ return vec{n}({each}); }}"
FUNCTIONS = {
    "erf": "\n".join([_ERF, *(_ERF4.format(n=n, each=", ".join(f"erf(x.{c})" for c in LANES[:n])) for n in (2, 3, 4))]),
    "floor_div": "int floor_div(int a, int b) { int q = a / b; return q * b != a && (a < 0) != (b < 0) ? q - 1 : q; }",
    "floor_mod": "int floor_mod(int a, int b) { int q = a / b; return q * b != a && (a < 0) != (b < 0) ? a - (q - 1) * b : a - q * b; }",
    "unpack_int8": "ivec4 unpack_int8(uint v) { int s = int(v); return ivec4(s << 24, s << 16, s << 8, s) >> 24; }",
    "unpack_uint8": "uvec4 unpack_uint8(uint v) { return (uvec4(v) >> uvec4(0u, 8u, 16u, 24u)) & 255u; }",
    "pack_int8": "uint pack_int8(ivec4 v) { uvec4 u = uvec4(v) & 255u; return u.x | u.y << 8 | u.z << 16 | u.w << 24; }",
    "pack_uint8": "uint pack_uint8(uvec4 v) { uvec4 u = v & 255u; return u.x | u.y << 8 | u.z << 16 | u.w << 24; }",
}
"""Name -> what defines it, for what GLSL has no function of."""
