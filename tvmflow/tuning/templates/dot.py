"""Instructions that sum four products of bytes into int32, as tensor intrinsics: x86 VNNI, arm64 sdot and usdot.

TVM ships some of them; its VNNI one does not pass LLVM 22's verifier, and importing its table takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tvmflow.targets.machine import Machine

_SOURCE = """
@T.prim_func(s_tir=True)
def function(a: T.handle, b: T.handle, c: T.handle) -> None:
    A = T.match_buffer(a, (T.int64(4),), "{data}", offset_factor=1)
    B = T.match_buffer(b, (T.int64({lanes}), T.int64(4)), "int8", offset_factor=1)
    C = T.match_buffer(c, (T.int64({lanes}),), "int32", offset_factor=1, scope="local")
    with T.sblock("root"):
        T.reads(C[T.int64(0):T.int64({lanes})], A[T.int64(0):T.int64(4)], B[T.int64(0):T.int64({lanes}), T.int64(0):T.int64(4)])
        T.writes(C[T.int64(0):T.int64({lanes})])
{body}
"""
_MEANING = """
        for i in range(T.int64(0), T.int64({lanes})):
            for k in range(T.int64(0), T.int64(4)):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.Cast("int32", A[vk]) * T.Cast("int32", B[vi, vk])
"""
_VNNI = """
        word = T.reinterpret(A.vload([0], "uint8x4"), dtype="int32")
        C[T.ramp(T.int32(0), 1, 16)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.x86.avx512.vpdpbusd.512"), C.vload([0], dtype="int32x16"),
            T.reinterpret(T.broadcast(word, 16), dtype="int8x64"), B.vload([0, 0], dtype="int8x64"), dtype="int32x16")
"""
_NEON = """
        word = T.reinterpret(A.vload([0], "{data}x4"), dtype="int32")
        C[T.ramp(T.int32(0), 1, 4)] = T.call_llvm_pure_intrin(
            T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.{name}"), C.vload([0], dtype="int32x4"),
            {operands}, dtype="int32x4")
"""


@dataclass(frozen=True)
class Dot:
    """number: value of the knob `dot`; lanes: int32 sums in a register; data: type of the activations."""

    number: int
    name: str
    lanes: int
    data: str
    needs: str


VNNI = Dot(1, "vnni", 16, "uint8", "vnni")
SDOT = Dot(2, "sdot", 4, "int8", "dotprod")
USDOT = Dot(3, "usdot", 4, "uint8", "i8mm")
DOTS = (VNNI, SDOT, USDOT)


def dot_for(machine: Machine, data: str, lanes: int) -> Dot | None:
    """Return the instruction of a machine for activations of a type, None where it has none."""
    return next((d for d in DOTS if d.needs in machine.int8_dot and d.data == data and lanes % d.lanes == 0), None)


def dot_numbered(number: int) -> Dot:
    return DOTS[number - 1]


@cache
def intrinsic(dot: Dot) -> str:
    """Register an instruction with TVM and return its name."""
    from tvm.s_tir import TensorIntrin
    from tvm.script import from_source
    from tvm.script import tirx as T

    if dot is VNNI:
        body = _VNNI
    else:
        data, weight = 'T.reinterpret(T.broadcast(word, 4), dtype="int8x16")', 'B.vload([0, 0], dtype="int8x16")'
        # usdot takes the unsigned operand first, sdot takes either
        body = _NEON.format(data=dot.data, name=dot.name, operands=f"{data}, {weight}")
    parts = [
        from_source(
            _SOURCE.format(data=dot.data, lanes=dot.lanes, body=text.format(lanes=dot.lanes)), extra_vars={"T": T}
        )
        for text in (_MEANING, body)
    ]
    name = f"tvmflow.dot_{dot.name}"
    TensorIntrin.register(name, parts[0], parts[1], override=True)
    return name
