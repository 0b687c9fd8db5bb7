"""Define tensor intrinsics of dot product instructions that accumulate into wider lanes.

int8_dot4, four products into int32: x86 VNNI (in 512 bits, or AVX-VNNI in 256), arm64 sdot and usdot. int16_dot2, two
into int32: x86 without VNNI by pmaddwd, WebAssembly by its dot, and an addition, with weights widened as they are
loaded. bf16_dot2, two into
float32: AVX512-BF16, arm64 bfdot. TVM ships some of them; its VNNI intrinsic does not pass LLVM 22's verifier, and
importing its table takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvmflow.schedules.intrinsics.intrinsic import Instruction, Intrinsic, Operand, find_instruction
from tvmflow.targets.cpu_features import CpuFeatures

_INT8_DOT4_VNNI = """
        word = T.reinterpret(A.vload([0], "uint8x4"), dtype="int32")
        C[T.ramp(T.int32(0), 1, {lanes})] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.{bits}"), C.vload([0], dtype="int32x{lanes}"),
            T.reinterpret(T.broadcast(word, {lanes}), dtype="int8x{bytes}"),
            B.vload([0, 0], dtype="int8x{bytes}"), dtype="int32x{lanes}")
"""
# usdot takes the unsigned operand first, sdot takes either
_INT8_DOT4_NEON = """
        word = T.reinterpret(A.vload([0], "{data}x4"), dtype="int32")
        C[T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.{name}"), C.vload([0], dtype="int32x4"),
            T.reinterpret(T.broadcast(word, 4), dtype="int8x16"), B.vload([0, 0], dtype="int8x16"), dtype="int32x4")
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
_BF16_DOT2 = """
        word = T.reinterpret(A.vload([0], "bfloat16x2"), dtype="int32")
        C[T.ramp(T.int32(0), 1, {lanes})] = T.call_extern(
            "float32x{lanes}", "tvmflow_dot_{name}", C.vload([0], dtype="float32x{lanes}"), T.broadcast(word, {lanes}),
            T.reinterpret(B.vload([0, 0], dtype="bfloat16x{values}"), dtype="int32x{lanes}"), A.data{seen})
"""
_BF16_DOT2_IN_LLVM = """
define weak_odr <{lanes} x float> @tvmflow_dot_{name}\
(<{lanes} x float> %sum, <{lanes} x i32> %a, <{lanes} x i32> %b, ptr %0{passed}) alwaysinline nounwind {{
  %x = bitcast <{lanes} x i32> %a to <{values} x bfloat>
  %y = bitcast <{lanes} x i32> %b to <{values} x bfloat>
  %r = call <{lanes} x float> @{llvm}(<{lanes} x float> %sum, <{values} x bfloat> %x, <{values} x bfloat> %y)
  ret <{lanes} x float> %r
}}
declare <{lanes} x float> @{llvm}(<{lanes} x float>, <{values} x bfloat>, <{values} x bfloat>)
"""


@dataclass(frozen=True)
class Dot(Instruction):
    """A dot product instruction, of int8 or uint8 (four products), int16 or bfloat16 (two).

    lanes: sums in a register; llvm: name of LLVM's intrinsic, if it is called through a function of ours;
    both_computed: whether the kernel computes the weights, too, so that they must not be widened.
    """

    lanes: int
    llvm: str = ""
    both_computed: bool = False

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on data (group,), weights (lanes, group) and sums (lanes,)."""
        is_bf16_dot2, function = self.data == "bfloat16", ""
        if is_bf16_dot2:
            body, function = _BF16_DOT2, _BF16_DOT2_IN_LLVM
        elif self.data == "int16":
            body, function = _INT16_DOT2, _INT16_DOT2_IN_LLVM
        else:
            body = _INT8_DOT4_VNNI if "vnni" in self.needs else _INT8_DOT4_NEON
        group = 4 if self.data in ("int8", "uint8") else 2
        texts = {
            **vars(self),
            "values": 2 * self.lanes,
            "bits": 32 * self.lanes,
            "bytes": 4 * self.lanes,
            "seen": ", B.data" if self.both_computed else "",
            "passed": ", ptr %1" if self.both_computed else "",
        }
        return Intrinsic(
            f"tvmflow.dot_{self.name}",
            "ik",
            (self.lanes, group),
            Operand(self.data, (group,), "vk"),
            Operand("bfloat16" if is_bf16_dot2 else "int8", (self.lanes, group), "vi, vk"),
            Operand("float32" if is_bf16_dot2 else "int32", (self.lanes,), "vi"),
            body.format(**texts),
            function.format(**texts),
        )


AVX512_BF16 = Dot(4, "avx512bf16", "avx512bf16", "bfloat16", 16, "llvm.x86.avx512bf16.dpbf16ps.512")
_BFDOT = Dot(5, "bfdot", "bf16", "bfloat16", 4, "llvm.aarch64.neon.bfdot.v4f32.v8bf16")
DOTS = (
    Dot(1, "vnni", "vnni", "uint8", 16),
    Dot(2, "sdot", "dotprod", "int8", 4),
    Dot(3, "usdot", "i8mm", "uint8", 4),
    AVX512_BF16,
    _BFDOT,
    # x86 without AVX-512's VNNI
    Dot(66, "avxvnni", "avxvnni", "uint8", 8),
    Dot(67, "madd512", "madd512", "int16", 16, "llvm.x86.avx512.pmaddw.d.512"),
    Dot(68, "madd256", "madd256", "int16", 8, "llvm.x86.avx2.pmadd.wd"),
    Dot(69, "madd128", "madd128", "int16", 4, "llvm.x86.sse2.pmadd.wd"),
    Dot(71, "wasm", "wasm_dot", "int16", 4, "llvm.wasm.dot"),
    # registers as wide as a group of a convolution, for groups of fewer channels than a register
    Dot(60, "vnni_by8", "vnni", "uint8", 8),
    Dot(61, "vnni_by4", "vnni", "uint8", 4),
    Dot(70, "avxvnni_by4", "avxvnni", "uint8", 4),
    Dot(62, "avx512bf16_by8", "avx512bf16", "bfloat16", 8, "llvm.x86.avx512bf16.dpbf16ps.256"),
    Dot(63, "avx512bf16_by4", "avx512bf16", "bfloat16", 4, "llvm.x86.avx512bf16.dpbf16ps.128"),
    # matmuls of two computed operands
    Dot(64, "avx512bf16_made", "avx512bf16", "bfloat16", 16, AVX512_BF16.llvm, both_computed=True),
    Dot(65, "bfdot_made", "bf16", "bfloat16", 4, _BFDOT.llvm, both_computed=True),
)


def find_dot(cpu: CpuFeatures, data: str, lanes: int, both_computed: bool = False) -> Dot | None:
    """Return the instruction of a CPU for activations of a type, None if it has none."""
    return find_instruction(DOTS, cpu, data, lambda dot: dot.both_computed == both_computed and lanes % dot.lanes == 0)


def sum_lanes(schedule: Any, dot: Dot | None, block: Any, lane: Any, reduction: Any, outermost: Any) -> None:
    """Compute the loop `lane` of a block in vectors, by an instruction if one is given; sums are initialized before the
    loop `reduction`.
    """
    if dot is None:
        schedule.vectorize(lane)
        schedule.decompose_reduction(block, reduction)
        return
    groups, summed = schedule.split(lane, [None, dot.lanes])
    schedule.unroll(groups)
    dot.intrinsic.tensorize(schedule, block, reduction, summed, outermost)
