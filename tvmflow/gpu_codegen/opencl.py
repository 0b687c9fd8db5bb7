"""Generate OpenCL C. Parameters are buffers, or read-only or write-only images of vectors of four."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from tvmflow.gpu_codegen.glsl import format_exactly
from tvmflow.gpu_codegen.kernel_source import text_of
from tvmflow.gpu_codegen.language import APPROXIMATE, EXACT, FLOOR_FUNCTIONS, KernelParts, Language, Used
from tvmflow.gpu_codegen.memory import VECTOR, Memory
from tvmflow.gpu_codegen.types import LANES, KernelType
from tvmflow.support.errors import StageError

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import PrimFunc

# dtype -> (register type, memory type)
_SCALARS = {
    "float32": ("float", "float"),
    "float16": ("half", "half"),
    "int32": ("int", "int"),
    "uint32": ("uint", "uint"),
    "int64": ("long", "long"),
    "uint64": ("ulong", "ulong"),
    "int16": ("int", "short"),
    "uint16": ("uint", "ushort"),
    "int8": ("int", "char"),
    "uint8": ("uint", "uchar"),
    "bool": ("int", "uchar"),
}
_IMAGES = {
    "float32": "f",
    "float16": "f",
    "int32": "i",
    "int8": "i",
    "uint8": "ui",
}  # suffixes of read_image and write_image
_INTS = {
    "float16": "short",
    "int64": "long",
    "uint64": "long",
}  # types in which vectors of other than 32 bits are compared
_LONGEST_NAME = 100
_HALF = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable"
_SAMPLER = "const sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;"
_DOT = """\
#if defined(cl_khr_integer_dot_product)
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
int dot4(int a, int b) { return dot_4x8packed_ss_int(as_uint(a), as_uint(b)); }
#elif defined(cl_arm_integer_dot_product_int8)
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_int8 : enable
int dot4(int a, int b) { return arm_dot(as_char4(a), as_char4(b)); }
#else
int dot4(int a, int b) { int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b)); return p.x + p.y + p.z + p.w; }
#endif"""
_GUARDED = "#ifndef HAS_{name}\n#define HAS_{name}\n{code}\n#endif"


def short_name(name: str) -> str:
    """Return a function's name shortened for drivers: PoCL uses names as file names, which have at most 255 bytes."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}_{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def opencl_of(
    function: PrimFunc, name: str, widths: Mapping[int, int] | None = None, *, computes_float16: bool = True
) -> str:
    """Return the source of a device function, a PrimFunc of launched threads; several sources can be joined to a
    program.

    widths: parameter -> row length in vectors of the image that replaces it; computes_float16: otherwise float16 is
    computed in float32, which needs no extension, and rounded when it is stored. Raises StageError for unsupported
    nodes, with their names.
    """
    return text_of(function, OpenClC(), name, widths=widths, is_wide=not computes_float16)


class OpenClC(Language):
    """OpenCL C 1.2. Conditions are ints: 1 or 0, in vectors -1 or 0."""

    name = "OpenCL C"
    functions: ClassVar[Mapping[str, str]] = {
        "dot4": _DOT,
        "dot4_in_4": (
            "int4 dot4_in_4(int4 a, int4 b) { return (int4)(dot4(a.x, b.x), dot4(a.y, b.y), dot4(a.z, b.z), "
            "dot4(a.w, b.w)); }"
        ),
        **FLOOR_FUNCTIONS,
    }
    exact: ClassVar[Mapping[str, str]] = {
        **EXACT,
        "round": "rint",
        "nearbyint": "rint",
        "fabs": "fabs",
    }
    approximate = APPROXIMATE
    axes: ClassVar[Mapping[str, str]] = {
        f"{tag}.{axis}": f"(int){function}({at})"
        for tag, function in (("blockIdx", "get_group_id"), ("threadIdx", "get_local_id"))
        for at, axis in enumerate("xyz")
    }
    barrier = ("barrier(CLK_LOCAL_MEM_FENCE);",)
    shared = "__local"

    def register(self, kind: KernelType) -> str:
        return _vector_type(_SCALARS[kind.computed][0], kind.lanes)

    def float_literal(self, value: float, kind: KernelType) -> str:
        if math.isnan(value) or math.isinf(value):
            text = "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
        else:
            text = f"{format_exactly(value, kind)}f"
            text = f"({text})" if text.startswith("-") else text
        return f"((half){text})" if kind.computed == "float16" else text

    def int_literal(self, value: int, kind: KernelType) -> str:
        if kind.dtype == "bool":
            return str(int(bool(value)))
        suffix = {"uint32": "u", "int64": "L", "uint64": "UL"}.get(kind.computed, "")
        bits = {"int32": 31, "int64": 63}.get(kind.computed, 0)
        if bits and value == -(1 << bits):
            return f"({value + 1}{suffix} - 1)"
        return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"

    def convert(self, kind: KernelType, given: KernelType, text: str) -> str:
        if given.dtype == "bool" and kind.lanes > 1:
            text = text if kind.dtype == "bool" else f"({text} & 1)"
        elif kind.dtype == "bool":
            return f"({text} != 0)" if kind.lanes == 1 else self._condition(given, f"({text} != 0)")
        if self.register(kind) == self.register(given):
            return text
        return f"(({self.register(kind)}){text})" if kind.lanes == 1 else f"convert_{self.register(kind)}({text})"

    def broadcast(self, kind: KernelType, text: str) -> str:
        return f"(({self.register(kind)})({f'-({text})' if kind.dtype == 'bool' else text}))"

    def vector(self, kind: KernelType, elements: Sequence[str]) -> str:
        each = [f"-({one})" for one in elements] if kind.dtype == "bool" else elements
        return f"(({self.register(kind)})({', '.join(each)}))"

    def component(self, kind: KernelType, text: str, lane: int) -> str:
        element = f"{text}.{LANES[lane]}"
        return f"({element} & 1)" if kind.dtype == "bool" else element

    def _condition(self, given: KernelType, text: str) -> str:
        """Return a condition on vectors as ints of 32 bits. given: type of the compared values."""
        return f"convert_int{given.lanes}({text})" if given.computed in _INTS else text

    def compare(self, sign: str, given: KernelType, a: str, b: str) -> str:
        text = f"({a} {sign} {b})"
        return text if given.lanes == 1 else self._condition(given, text)

    def combine_conditions(self, sign: str, kind: KernelType, a: str, b: str) -> str:
        return f"({a} {sign} {b})"

    def negate(self, kind: KernelType, text: str) -> str:
        return f"(!{text})"

    def select(self, kind: KernelType, condition: str, lanes: int, yes: str, no: str) -> str:
        if lanes == 1:
            return f"({condition} ? {yes} : {no})"
        wide = _INTS.get(kind.computed)
        return f"select({no}, {yes}, {f'convert_{wide}{lanes}({condition})' if wide else condition})"

    def reinterpret(self, kind: KernelType, given: KernelType, text: str) -> str:
        return (
            f"as_{self.register(kind)}({text})" if {kind.dtype, given.dtype} <= {"float32", "int32", "uint32"} else ""
        )

    def load(self, memory: Memory, index: str, kind: KernelType, used: Used) -> str:
        dtype = memory.kind.dtype
        if memory.width:
            text = f"read_image{_IMAGES[dtype]}({memory.name}, nearest, {index})"
            return f"convert_half4({text})" if kind.computed == "float16" else text
        if dtype == "float16" and kind.computed != "float16":
            return f"vload_half{_lanes(kind.lanes)}({index}, {memory.name})"
        text = f"{memory.name}[{index}]"
        if dtype == "bool":
            return f"({text} != 0)" if kind.lanes == 1 else f"(convert_int{kind.lanes}({text}) != 0)"
        return text if _memory_type(kind) == self.register(kind) else self._from_memory(kind, text)

    def _from_memory(self, kind: KernelType, text: str) -> str:
        return (
            f"((int){text})"
            if kind.lanes == 1 and kind.computed == "int32"
            else f"convert_{self.register(kind)}({text})"
        )

    def store(self, memory: Memory, index: str, value: str, kind: KernelType, used: Used) -> str:
        dtype = memory.kind.dtype
        if memory.width:
            given = f"convert_float4({value})" if kind.computed == "float16" else value
            return f"write_image{_IMAGES[dtype]}({memory.name}, {index}, {given});"
        if dtype == "float16" and kind.computed != "float16":
            return f"vstore_half{_lanes(kind.lanes)}_rte({value}, {index}, {memory.name});"
        made = _memory_type(memory.kind.with_lanes(kind.lanes))
        if made == self.register(kind):
            return f"{memory.name}[{index}] = {value};"
        given = f"({value} & 1)" if dtype == "bool" and kind.lanes > 1 else value
        return f"{memory.name}[{index}] = {f'({made})({given})' if kind.lanes == 1 else f'convert_{made}({given})'};"

    def load_word(self, memory: Memory, index: str, used: Used) -> str:
        if memory.width:
            return self.word(self.load(memory, index, memory.kind.with_lanes(VECTOR), used), used)
        return f"as_int({memory.name}[{index}])"

    def word(self, text: str, used: Used) -> str:
        return f"as_int(convert_char4({text}))"

    def reduce_over_threads(self, operation: str, kind: KernelType, text: str, used: Used) -> str:
        raise StageError("a kernel reduces over the threads of a workgroup", "Vulkan's subgroups")

    def coordinates(self, x: str, y: str) -> str:
        return f"(int2)({x}, {y})"

    def assemble(self, kernel: KernelParts) -> str:
        parameters, used = kernel.parameters, kernel.used
        size = ", ".join(str(one) for one in kernel.extents.group_size())
        lines = [_HALF] if any(kind.computed == "float16" for kind in used.types) else []
        lines += [_GUARDED.format(name=one, code=self.functions[one]) for one in sorted(used.functions)]
        lines.append(f"__kernel __attribute__((reqd_work_group_size({size})))")
        lines.append(f"void {kernel.name}({', '.join(map(_parameter, parameters))}) {{")
        local = [
            *([_SAMPLER] if any(memory.width and not memory.is_written for memory in parameters) else []),
            *kernel.shared,
        ]
        return "\n".join([*lines, *(f"  {line}" for line in local), *kernel.body, "}"]) + "\n"


def _lanes(lanes: int) -> str:
    return "" if lanes == 1 else str(lanes)


def _vector_type(scalar: str, lanes: int) -> str:
    return f"{scalar}{_lanes(lanes)}"


def _memory_type(kind: KernelType) -> str:
    """Return the type of an element in a buffer."""
    return _vector_type(_SCALARS[kind.dtype][1], kind.lanes)


def _parameter(memory: Memory) -> str:
    if memory.width:
        return f"{'__write_only' if memory.is_written else '__read_only'} image2d_t {memory.name}"
    is_apart = memory.kind.dtype == "float16" and memory.kind.is_wide  # vload_half reads scalars
    element = _memory_type(
        memory.kind.with_lanes(1 if is_apart else VECTOR if memory.in_vectors else memory.kind.lanes)
    )
    return f"__global {'' if memory.is_written else 'const '}{element} *restrict {memory.name}"
