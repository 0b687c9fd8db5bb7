"""Generate GLSL for Vulkan: types, literals, missing functions and parameters.

Parameter k is the storage buffer of set 0, binding k, or a texel buffer there; texel buffers of single values are at
binding 64 + k. Sizes, strides and loops are constants, so that a shader needs no other inputs.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tvmflow.gpu_codegen.kernel_source import text_of
from tvmflow.gpu_codegen.language import APPROXIMATE, EXACT, FLOOR_FUNCTIONS, KernelParts, Language, Used
from tvmflow.gpu_codegen.memory import SINGLE_TEXELS, VECTOR, Memory
from tvmflow.gpu_codegen.types import FLOAT32, LANES, KernelType
from tvmflow.ir.tir.erf import ERF_IS_ONE, ERF_LARGE, ERF_SMALL

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import PrimFunc

# dtype -> (register type, memory type, prefix of register vectors, prefix of memory vectors)
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
    **dict.fromkeys(("int8", "uint8", "bool"), ("GL_EXT_shader_8bit_storage",)),
    "int64": _WIDE,
    "uint64": _WIDE,
}
_COMPARED = {
    "==": "equal",
    "!=": "notEqual",
    "<": "lessThan",
    "<=": "lessThanEqual",
    ">": "greaterThan",
    ">=": "greaterThanEqual",
}
_REINTERPRETED = {
    ("float32", "int32"): "intBitsToFloat",
    ("float32", "uint32"): "uintBitsToFloat",
    ("int32", "float32"): "floatBitsToInt",
    ("uint32", "float32"): "floatBitsToUint",
    ("int32", "uint32"): "int",
    ("uint32", "int32"): "uint",
}


def _polynomial(coefficients: Sequence[float], variable: str) -> str:
    """Return a polynomial by Horner's rule. coefficients: lowest power first."""
    first, *others = coefficients
    return f"{first!r} + {variable} * ({_polynomial(others, variable)})" if others else repr(first)


_ERF = f"""\
float erf(float x) {{
  float a = min(abs(x), {ERF_IS_ONE!r}), z = x * x;
  float small = x * ({_polynomial(ERF_SMALL, "z")});
  float q = {_polynomial(ERF_LARGE, "a")};
  return abs(x) < 1.0 ? small : sign(x) * (1.0 - exp(-q));
}}"""
_ERF4 = "vec{n} erf(vec{n} x) {{ return vec{n}({each}); }}"
# OpSDot of packed bytes, for which GLSL has no function; the numbers are those of SPIR-V.
_DOT = """\
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int dot_words(int a, int b, spirv_literal int format);"""
# A reduction over all threads of a workgroup of one or several subgroups.
_TOTAL = """\
shared {type} parts_{name}[gl_WorkGroupSize.x];
{type} {name}({type} x) {{
  x = subgroup{operation}(x);
  if (gl_NumSubgroups <= 1u) return x;
  if (subgroupElect()) parts_{name}[gl_SubgroupID] = x;
  memoryBarrierShared();
  barrier();
  x = parts_{name}[0];
  for (uint i = 1u; i < gl_NumSubgroups; ++i) x = {both};
  barrier();
  return x;
}}"""
_OPERATIONS = {"add": "x + {part}", "max": "max(x, {part})", "min": "min(x, {part})"}
_TOTALS = {
    f"{operation}_{kind}s": _TOTAL.format(
        type=kind,
        name=f"{operation}_{kind}s",
        operation=operation.capitalize(),
        both=both.format(part=f"parts_{operation}_{kind}s[i]"),
    )
    for operation, both in _OPERATIONS.items()
    for kind in ("float", "int")
}
_SUBGROUPS = ("GL_KHR_shader_subgroup_basic", "GL_KHR_shader_subgroup_arithmetic")
_FUNCTIONS = {
    **_TOTALS,
    "erf": "\n".join([_ERF, *(_ERF4.format(n=n, each=", ".join(f"erf(x.{c})" for c in LANES[:n])) for n in (2, 3, 4))]),
    **FLOOR_FUNCTIONS,
    "dot4": "int dot4(int a, int b) { return dot_words(a, b, 0); }",
    "dot4_in_4": (
        "ivec4 dot4_in_4(ivec4 a, ivec4 b) { return ivec4(dot4(a.x, b.x), dot4(a.y, b.y), dot4(a.z, b.z), "
        "dot4(a.w, b.w)); }"
    ),
    "unpack_int8": "ivec4 unpack_int8(uint v) { int s = int(v); return ivec4(s << 24, s << 16, s << 8, s) >> 24; }",
    "unpack_uint8": "uvec4 unpack_uint8(uint v) { return (uvec4(v) >> uvec4(0u, 8u, 16u, 24u)) & 255u; }",
    "pack_int8": (
        "uint pack_int8(ivec4 v) { uvec4 u = uvec4(v) & 255u; return u.x | u.y << 8 | u.z << 16 | u.w << 24; }"
    ),
    "pack_uint8": "uint pack_uint8(uvec4 v) { uvec4 u = v & 255u; return u.x | u.y << 8 | u.z << 16 | u.w << 24; }",
}


def glsl_of(function: PrimFunc, most_texels: int = 0, *, computes_float16: bool = True) -> str:
    """Return the shader of a device function, a PrimFunc of launched threads.

    most_texels: read-only parameters of at most so many elements become texel buffers (the device's
    maxTexelBufferElements; every device supports 65536). computes_float16: otherwise float16 is computed in float32 and
    rounded when it is stored. Raises StageError for unsupported nodes, with their names.
    """
    return text_of(function, Glsl(), "main", most_texels=most_texels, is_wide=not computes_float16)


class Glsl(Language):
    """GLSL 4.50."""

    name = "GLSL"
    functions = _FUNCTIONS
    exact: ClassVar[Mapping[str, str]] = {
        **EXACT,
        "round": "roundEven",
        "nearbyint": "roundEven",
        "fabs": "abs",
    }
    approximate: ClassVar[Mapping[str, str]] = {**APPROXIMATE, "rsqrt": "inversesqrt"}
    axes: ClassVar[Mapping[str, str]] = {
        f"{tag}.{axis}": f"int({builtin}.{axis})"
        for tag, builtin in (("blockIdx", "gl_WorkGroupID"), ("threadIdx", "gl_LocalInvocationID"))
        for axis in "xyz"
    }
    barrier = ("memoryBarrierShared();", "barrier();")
    shared = "shared"

    def register(self, kind: KernelType) -> str:
        scalar, _, vector, _ = _SCALARS["float32" if kind.is_wide and kind.is_float else kind.dtype]
        return scalar if kind.lanes == 1 else f"{vector}{kind.lanes}"

    def float_literal(self, value: float, kind: KernelType) -> str:
        is_half = kind.computed == "float16"
        if math.isnan(value) or math.isinf(value):
            bits = 0x7FC00000 if math.isnan(value) else 0x7F800000 if value > 0 else 0xFF800000
            text = f"uintBitsToFloat({bits:#x}u)"
            return f"float16_t({text})" if is_half else text
        text = format_exactly(value, kind)
        if is_half:
            return f"float16_t({text})"
        return f"({text})" if text.startswith("-") else text

    def int_literal(self, value: int, kind: KernelType) -> str:
        if kind.dtype == "bool":
            return "true" if value else "false"
        suffix = {"uint32": "u", "int64": "L", "uint64": "UL"}.get(kind.computed, "")
        if kind.computed == "int32" and value == -(1 << 31):
            return "int(0x80000000u)"
        if kind.computed == "int64" and value == -(1 << 63):
            return "int64_t(0x8000000000000000UL)"
        return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"

    def convert(self, kind: KernelType, given: KernelType, text: str) -> str:
        return f"{self.register(kind)}({text})"

    def broadcast(self, kind: KernelType, text: str) -> str:
        return f"{self.register(kind)}({text})"

    def vector(self, kind: KernelType, elements: Sequence[str]) -> str:
        return f"{self.register(kind)}({', '.join(elements)})"

    def component(self, kind: KernelType, text: str, lane: int) -> str:
        return f"{text}.{LANES[lane]}"

    def compare(self, sign: str, given: KernelType, a: str, b: str) -> str:
        return f"({a} {sign} {b})" if given.lanes == 1 else f"{_COMPARED[sign]}({a}, {b})"

    def combine_conditions(self, sign: str, kind: KernelType, a: str, b: str) -> str:
        if kind.lanes == 1:
            return f"({a} {sign} {b})"
        return self.vector(kind, [f"{a}.{c} {sign} {b}.{c}" for c in LANES[: kind.lanes]])

    def negate(self, kind: KernelType, text: str) -> str:
        return f"(!{text})" if kind.lanes == 1 else f"not({text})"

    def select(self, kind: KernelType, condition: str, lanes: int, yes: str, no: str) -> str:
        if kind.computed in ("int64", "uint64"):
            return f"({condition} ? {yes} : {no})"
        if kind.lanes != 1 and lanes == 1:
            condition = f"bvec{kind.lanes}({condition})"
        return f"mix({no}, {yes}, {condition})"

    def reinterpret(self, kind: KernelType, given: KernelType, text: str) -> str:
        function = _REINTERPRETED.get((kind.dtype, given.dtype))
        return f"{function}({text})" if function else ""

    def load(self, memory: Memory, index: str, kind: KernelType, used: Used) -> str:
        register = self.register(kind)
        if memory.texel_lanes:
            text = f"texelFetch({memory.name}, {index})" + (".x" if memory.texel_lanes == 1 else "")
            return f"{register}({text})" if kind.computed == "float16" else text
        text = f"{memory.name}[{index}]"
        if memory.in_words:
            used.functions.add(f"unpack_{memory.kind.dtype}")
            return f"unpack_{memory.kind.dtype}({text})"
        if memory.kind.dtype == "bool":
            lanes = f"uvec{kind.lanes}"
            return f"(uint({text}) != 0u)" if kind.lanes == 1 else f"notEqual({lanes}({text}), {lanes}(0u))"
        return text if _memory_type(kind) == register else f"{register}({text})"

    def store(self, memory: Memory, index: str, value: str, kind: KernelType, used: Used) -> str:
        to = f"{memory.name}[{index}]"
        if memory.in_words:
            used.functions.add(f"pack_{memory.kind.dtype}")
            return f"{to} = pack_{memory.kind.dtype}({value});"
        made = _memory_type(memory.kind.with_lanes(kind.lanes))
        return f"{to} = {value};" if made == self.register(kind) else f"{to} = {made}({value});"

    def load_word(self, memory: Memory, index: str, used: Used) -> str:
        if memory.in_words:
            return f"int({memory.name}[{index}])"
        return self.word(self.load(memory, index, memory.kind.with_lanes(VECTOR), used), used)

    def word(self, text: str, used: Used) -> str:
        used.functions.add("pack_int8")
        return f"int(pack_int8({text}))"

    def reduce_over_threads(self, operation: str, kind: KernelType, text: str, used: Used) -> str:
        given = FLOAT32 if kind.is_float else kind
        name = f"{operation}_{self.register(given)}s"
        used.functions.add(name)
        text = f"{name}({text if kind.computed == given.computed else self.convert(given, kind, text)})"
        return text if kind.computed == given.computed else self.convert(kind, given, text)

    def coordinates(self, x: str, y: str) -> str:
        raise NotImplementedError("texel buffers have a single index")

    def assemble(self, kernel: KernelParts) -> str:
        parameters, used = kernel.parameters, kernel.used
        names = [one for kind in used.types for one in _arithmetic_extensions(kind)]
        in_buffers = [
            memory for memory in parameters if memory.accesses and not memory.texel_lanes and not memory.in_words
        ]
        names += [one for memory in in_buffers for one in _IN_MEMORY.get(memory.kind.dtype, ())]
        names += _SUBGROUPS if used.functions & _TOTALS.keys() else ()
        x, y, z = kernel.extents.group_size()
        lines = [
            "#version 450",
            *(f"#extension {one} : require" for one in sorted(set(names))),
            f"layout(local_size_x = {x}, local_size_y = {y}, local_size_z = {z}) in;",
            *(_block_of(memory) for memory in parameters),
            *kernel.shared,
            *([_DOT] if "dot4" in used.functions else []),
            *(self.functions[one] for one in sorted(used.functions)),
        ]
        return "\n".join([*lines, f"void {kernel.name}() {{", *kernel.body, "}"]) + "\n"


def format_exactly(value: float, kind: KernelType) -> str:
    """Return a finite float with as many digits as its dtype needs."""
    form = "<f" if kind.dtype == "float32" else "<e"
    return repr(struct.unpack(form, struct.pack(form, value))[0])


def _arithmetic_extensions(kind: KernelType) -> tuple[str, ...]:
    """Return the extensions that GLSL needs to compute with a type."""
    return () if kind.is_wide and kind.is_float else _IN_REGISTERS.get(kind.dtype, ())


def _memory_type(kind: KernelType) -> str:
    """Return the type of an element in a buffer."""
    _, scalar, _, vector = _SCALARS[kind.dtype]
    return scalar if kind.lanes == 1 else f"{vector}{kind.lanes}"


def _block_of(memory: Memory) -> str:
    """Return the declaration of a parameter's buffer."""
    if memory.texel_lanes:
        binding = memory.binding + (SINGLE_TEXELS if memory.texel_lanes == 1 else 0)
        prefix = {"float": "", "int": "i", "uint": "u"}[re.sub("[^a-z]", "", memory.kind.dtype)]
        return f"layout(set = 0, binding = {binding}) uniform {prefix}samplerBuffer {memory.name};"
    element = (
        "uint"
        if memory.in_words
        else _memory_type(memory.kind.with_lanes(VECTOR if memory.in_vectors else memory.kind.lanes))
    )
    access = "" if memory.is_read and memory.is_written else "writeonly " if memory.is_written else "readonly "
    return (
        f"layout(std430, set = 0, binding = {memory.binding}) restrict {access}buffer Block{memory.binding} "
        f"{{ {element} {memory.name}[]; }};"
    )
