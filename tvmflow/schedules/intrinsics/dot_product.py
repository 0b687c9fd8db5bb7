"""Define tensor intrinsics of dot product instructions that accumulate into wider lanes.

int8_dot4, four products into int32: x86 VNNI (in 512 bits, or AVX-VNNI in 256), arm64 sdot and usdot. int16_dot2, two
into int32: x86 without VNNI, by pmaddwd and an addition, with weights widened as they are loaded. bf16_dot2, two into
float32: AVX512-BF16, arm64 bfdot. TVM ships some of them; its VNNI intrinsic does not pass LLVM 22's verifier, and
importing its table takes seconds. TVM's passes replace bfloat16 by 16-bit integers, which LLVM's intrinsics do not
accept; so those are functions in LLVM IR.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvmflow.ir.tir.blocks import IMPORTED_LLVM
from tvmflow.schedules.template import decompose_init, is_named_in, register_intrinsic
from tvmflow.targets.cpu_features import CpuFeatures

_SOURCE = """
@T.prim_func(s_tir=True)
def function(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (T.int64({group}),), "{data}", offset_factor=1)
    B = T.match_buffer(b, (T.int64({lanes}), T.int64({group})), "{weight}", offset_factor=1)
    C = T.match_buffer(c, (T.int64({lanes}),), "{total}", offset_factor=1, scope="local")
    with T.sblock("root"):
        T.reads(C[T.int64(0):T.int64({lanes})], A[T.int64(0):T.int64({group})],
                B[T.int64(0):T.int64({lanes}), T.int64(0):T.int64({group})])
        T.writes(C[T.int64(0):T.int64({lanes})])
{body}
"""
_MEANING = """
        for i in range(T.int64(0), T.int64({lanes})):
            for k in range(T.int64(0), T.int64({group})):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.Cast("{total}", A[vk]) * T.Cast("{total}", B[vi, vk])
"""
_INT8_DOT4_VNNI = """
        word = T.reinterpret(A.vload([0], "uint8x4"), dtype="int32")
        C[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.{bits}"), C.vload([0], dtype="int32x{lanes}"),
            T.reinterpret(T.broadcast(word, {lanes}), dtype="int8x{bytes}"),
            B.vload([0, 0], dtype="int8x{bytes}"), dtype="int32x{lanes}")
"""
_INT8_DOT4_NEON = """
        word = T.reinterpret(A.vload([0], "{data}x4"), dtype="int32")
        C[T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.{name}"), C.vload([0], dtype="int32x4"),
            {operands}, dtype="int32x4")
"""
_INT16_DOT2 = """
        word = T.reinterpret(A.vload([0], "int16x2"), dtype="int32")
        C[T.ramp(T.int32(0), 1, {lanes})] = T.call_extern(
            "int32x{lanes}", "tvmflow_dot_{name}", C.vload([0], dtype="int32x{lanes}"), T.broadcast(word, {lanes}),
            B.vload([0, 0], dtype="int8x{values}"))
"""
_INT16_DOT2_IN_LLVM = """
define weak_odr <{lanes} x i32> @tvmflow_dot_{name}\
(<{lanes} x i32> %sum, <{lanes} x i32> %a, <{values} x i8> %b) alwaysinline nounwind {{
  %x = bitcast <{lanes} x i32> %a to <{values} x i16>
  %y = sext <{values} x i8> %b to <{values} x i16>
  %p = call <{lanes} x i32> @{llvm}(<{values} x i16> %x, <{values} x i16> %y)
  %r = add <{lanes} x i32> %sum, %p
  ret <{lanes} x i32> %r
}}
declare <{lanes} x i32> @{llvm}(<{values} x i16>, <{values} x i16>)
"""

# A.data is passed so that TVM does not widen the buffer to float32, which it does if it only sees loads and stores.
_BF16_DOT2 = """
        word = T.reinterpret(A.vload([0], "bfloat16x2"), dtype="int32")
        C[T.ramp(T.int32(0), 1, {lanes})] = T.call_extern(
            "float32x{lanes}", "tvmflow_dot_{name}", C.vload([0], dtype="float32x{lanes}"), T.broadcast(word, {lanes}),
            T.reinterpret(B.vload([0, 0], dtype="bfloat16x{values}"), dtype="int32x{lanes}"), A.data{seen})
"""
_BF16_DOT2_IN_LLVM = """
define weak_odr <{lanes} x float> @tvmflow_dot_{name}\
(<{lanes} x float> %sum, <{lanes} x i32> %a, <{lanes} x i32> %b, ptr %0{seen}) alwaysinline nounwind {{
  %x = bitcast <{lanes} x i32> %a to <{values} x bfloat>
  %y = bitcast <{lanes} x i32> %b to <{values} x bfloat>
  %r = call <{lanes} x float> @{llvm}(<{lanes} x float> %sum, <{values} x bfloat> %x, <{values} x bfloat> %y)
  ret <{lanes} x float> %r
}}
declare <{lanes} x float> @{llvm}(<{lanes} x float>, <{values} x bfloat>, <{values} x bfloat>)
"""


@dataclass(frozen=True)
class Dot:
    """A dot product instruction.

    number: value of the knob `dot`; lanes: sums in a register; data: type of the activations; needs: see
    CpuFeatures.dots; llvm: name of the intrinsic, if it is called through a function of ours; of_made: whether the
    kernel computes the weights, too, so that they must not be widened.
    """

    number: int
    name: str
    lanes: int
    data: str
    needs: str
    llvm: str = ""
    both_computed: bool = False

    @property
    def is_bf16_dot2(self) -> bool:
        return self.data == "bfloat16"

    @property
    def group(self) -> int:
        """Return how many products an instruction sums."""
        return 4 if self.data in ("int8", "uint8") else 2

    @property
    def intrinsic_name(self) -> str:
        return f"tvmflow.dot_{self.name}"

    @property
    def imports(self) -> str:
        """Return LLVM code of the function that the kernel calls, '' for none."""
        if not self.llvm:
            return ""
        seen = ", ptr %1" if self.both_computed else ""
        text = _BF16_DOT2_IN_LLVM if self.is_bf16_dot2 else _INT16_DOT2_IN_LLVM
        return text.format(lanes=self.lanes, values=2 * self.lanes, name=self.name, llvm=self.llvm, seen=seen)


VNNI = Dot(1, "vnni", 16, "uint8", "vnni")
SDOT = Dot(2, "sdot", 4, "int8", "dotprod")
USDOT = Dot(3, "usdot", 4, "uint8", "i8mm")
AVX512_BF16 = Dot(4, "avx512bf16", 16, "bfloat16", "avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.512")
BFDOT = Dot(5, "bfdot", 4, "bfloat16", "bf16", "llvm.aarch64.neon.bfdot.v4f32.v8bf16")
# x86 without AVX-512's VNNI.
_X86 = (
    Dot(66, "avxvnni", 8, "uint8", "avxvnni"),
    Dot(67, "madd512", 16, "int16", "madd512", "llvm.x86.avx512.pmaddw.d.512"),
    Dot(68, "madd256", 8, "int16", "madd256", "llvm.x86.avx2.pmadd.wd"),
    Dot(69, "madd128", 4, "int16", "madd128", "llvm.x86.sse2.pmadd.wd"),
)
# For groups of a convolution with fewer channels than a register: registers as wide as a group.
_FOR_GROUPS = (
    Dot(60, "vnni_by8", 8, "uint8", "vnni"),
    Dot(61, "vnni_by4", 4, "uint8", "vnni"),
    Dot(70, "avxvnni_by4", 4, "uint8", "avxvnni"),
    Dot(62, "avx512bf16_by8", 8, "bfloat16", "avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.256"),
    Dot(63, "avx512bf16_by4", 4, "bfloat16", "avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.128"),
)
# For matmuls of two computed operands.
_FOR_COMPUTED = (
    Dot(64, "avx512bf16_made", 16, "bfloat16", "avx512bf16", AVX512_BF16.llvm, both_computed=True),
    Dot(65, "bfdot_made", 4, "bfloat16", "bf16", BFDOT.llvm, both_computed=True),
)
DOTS = (VNNI, SDOT, USDOT, AVX512_BF16, BFDOT, *_X86, *_FOR_GROUPS, *_FOR_COMPUTED)


def find_dot(cpu: CpuFeatures, data: str, lanes: int, both_computed: bool = False) -> Dot | None:
    """Return the instruction of a CPU for activations of a type, None if it has none."""
    rows = (dot for dot in DOTS if (dot.data, dot.both_computed) == (data, both_computed))
    return next((dot for dot in rows if dot.needs in cpu.dots and lanes % dot.lanes == 0), None)


def get_dot(number: int) -> Dot:
    return next(dot for dot in DOTS if dot.number == number)


def tensorize_dot(schedule: Any, dot: Dot, block: Any, lane: Any, reduction: Any, outermost: Any) -> None:
    """Tensorize the loop `lane` of a block; sums are initialized before the loop `reduction`."""
    groups, summed = schedule.split(lane, [None, dot.lanes])
    schedule.unroll(groups)
    init = decompose_init(schedule, block, reduction)
    schedule.vectorize(schedule.get_loops(init)[-1])
    schedule.tensorize(summed, register_dot(dot))
    if dot.imports:
        schedule.annotate(outermost, IMPORTED_LLVM, dot.imports)


def register_dots_in(trace: str) -> None:
    """Register the instructions that a trace names."""
    for dot in dots_in(trace):
        register_dot(dot)


def dots_in(trace: str) -> list[Dot]:
    """Return the instructions that a trace names."""
    return [dot for dot in DOTS if is_named_in(dot.intrinsic_name, trace)]


@cache
def register_dot(dot: Dot) -> str:
    """Register the intrinsic of an instruction with TVM and return its name."""
    if dot.is_bf16_dot2:
        body = _BF16_DOT2
    elif dot.data == "int16":
        body = _INT16_DOT2
    elif dot.needs in (VNNI.needs, "avxvnni"):
        body = _INT8_DOT4_VNNI
    else:
        data, weight = 'T.reinterpret(T.broadcast(word, 4), dtype="int8x16")', 'B.vload([0, 0], dtype="int8x16")'
        # usdot takes the unsigned operand first, sdot takes either
        body = _INT8_DOT4_NEON.replace("{operands}", f"{data}, {weight}")
    names = {
        "data": dot.data,
        "lanes": dot.lanes,
        "name": dot.name,
        "values": 2 * dot.lanes,
        "weight": "bfloat16" if dot.is_bf16_dot2 else "int8",
        "total": "float32" if dot.is_bf16_dot2 else "int32",
        "group": dot.group,
        "bits": 32 * dot.lanes,
        "bytes": 4 * dot.lanes,
        "seen": ", B.data" if dot.both_computed else "",
    }
    return register_intrinsic(dot.intrinsic_name, _SOURCE, _MEANING, body, names)
