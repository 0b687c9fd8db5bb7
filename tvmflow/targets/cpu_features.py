"""Determine vector registers and instructions of a CPU from its LLVM name, for all schedules.

Features come from LLVM's table of processors, so that they hold for absent boards; the compiling machine is not probed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from tvmflow.support.errors import UsageError
from tvmflow.targets.processors import architecture_of
from tvmflow.targets.resolve import Processor, ResolvedTarget
from tvmflow.toolchain.triples import ARM32

_TILES = {"avx512f", "amx-tile"}
# LLVM's names that mean other instructions in 32-bit Arm (16 registers of four lanes): renamed to neon32 etc., which no
# schedule uses explicitly.
_OTHER_IN_ARM32 = frozenset(("neon", "dotprod", "i8mm", "bf16", "fullfp16"))
_DOTS = (
    ("vnni", {"avx512vnni", "avx512bw", "avx512f"}),
    ("avxvnni", {"avxvnni"}),
    ("madd512", {"avx512bw", "avx512f"}),
    ("madd256", {"avx2"}),
    ("madd128", {"sse2"}),
    ("dotprod", {"dotprod"}),
    ("i8mm", {"i8mm"}),
    ("avx512bf16", {"avx512bf16"}),
    ("bf16", {"neon", "bf16"}),
    ("amx-int8", _TILES | {"amx-int8"}),
    ("amx-bf16", _TILES | {"amx-bf16", "avx512bf16"}),
    ("wasm_dot", {"simd128"}),
    ("neon", {"neon"}),
    ("fp16", {"neon", "fullfp16"}),
)
TILES_FOR = {
    "uint8": "amx-int8",
    "int8": "amx-int8",
    "bfloat16": "amx-bf16",
}  # type of the values -> name of the instruction in `dots`
PAIRS_FOR = {
    "uint8": "i8mm",
    "int8": "i8mm",
    "bfloat16": "bf16",
}  # the same for matrix multiply-accumulates of two pixels x two channels (arm64)


_Vectors = tuple[int, int, int, Literal["uint8", "int8"]]
# Architecture, feature -> lanes, registers, l2_bytes, activations of CpuFeatures; the first match counts.
_VECTORS: tuple[tuple[str, str, _Vectors], ...] = (
    ("x86_64", "avx512f", (16, 32, 1 << 20, "uint8")),
    ("x86_64", "avx2", (8, 16, 1 << 19, "uint8")),
    ("x86_64", "sse2", (4, 16, 1 << 18, "uint8")),
    ("aarch64", "i8mm", (4, 32, 1 << 19, "uint8")),
    ("aarch64", "neon", (4, 32, 1 << 19, "int8")),
    ("armv7a", "neon32", (4, 16, 1 << 18, "int8")),
    ("wasm32", "simd128", (4, 16, 1 << 18, "int8")),  # registers of x86-64 engines; those of arm64 have more
)

# Beginnings of LLVM's names of arm64 cores whose data cache has 64 KiB or more; all others have 32 KiB.
_LARGE_L1 = (
    *("cortex-a76", "cortex-a77", "cortex-a78", "cortex-a710", "cortex-a715", "cortex-a720", "cortex-a725"),
    *("cortex-x", "neoverse-n", "neoverse-v", "apple-"),
)


INTEGER_DOT = "integer_dot"  # key in a GPU's target


@dataclass(frozen=True)
class CpuFeatures:
    """The features of a CPU that schedules depend on.

    lanes: float32 values in a vector register; registers: their number; l1_bytes, l2_bytes: of a core's own L1 and L2.
    dots: multiplication instructions: int8_dot4 by vnni, avxvnni, dotprod, i8mm; int16_dot2 by madd512, madd256,
    madd128, wasm_dot; bf16_dot2 by avx512bf16, bf16; AMX tiles by amx-int8, amx-bf16; matrix multiply-accumulate by
    i8mm, bf16; multiply by a lane of a register by neon, and fp16. activations: 8-bit dtype that is fastest with int8
    weights: arm64 has no instruction for uint8 times int8 before i8mm.
    """

    lanes: int
    registers: int
    threads: int
    l2_bytes: int
    dots: tuple[str, ...] = ()
    activations: Literal["uint8", "int8"] = "uint8"
    l1_bytes: int = 32 << 10

    def accumulators(self, block: int, spare: int = 3) -> int:
        """Return how many vectors of `block` float32 values fit into registers, less `spare` for operands."""
        return max((self.registers - spare) * self.lanes // max(block, self.lanes), 1)

    @property
    def broadcasts_in_registers(self) -> bool:
        """Whether a value that several blocks of channels multiply is broadcast to a register: in WebAssembly, and on
        x86, where AVX-512 could read it from memory in each multiplication: a core loads no more often than it
        multiplies.
        """
        return bool({"madd128", "wasm_dot"} & set(self.dots))

    @property
    def channel_block(self) -> int:
        """Return the number of channels to pack: a full register, at least 8."""
        return max(self.lanes, 8)


@cache
def features_of(mcpu: str, mtriple: str, mattr: tuple[str, ...]) -> frozenset[str]:
    """Return LLVM's features of a processor."""
    import tvm

    options: dict[str, object] = {"kind": "llvm", "mcpu": mcpu, "mtriple": mtriple}
    if mattr:
        options["mattr"] = list(mattr)
    return _features(tvm.target.Target(options))


def _features(target: Any) -> frozenset[str]:
    """Return LLVM's features of a tvm.target.Target; none for other targets than CPUs."""
    from tvm.target import codegen

    if not is_cpu(target):
        return frozenset()
    found = (str(feature) for feature in codegen.llvm_get_cpu_features(target))
    if str(target.attrs.get("mtriple", "")).startswith(ARM32):
        return frozenset(f"{name}32" if name in _OTHER_IN_ARM32 else name for name in found)
    return frozenset(found)


def is_cpu(target: Any) -> bool:
    """Whether a tvm.target.Target is a CPU."""
    return str(target.kind.name) == "llvm"


def has_word_dot(target: Any) -> bool:
    """Whether a tvm.target.Target is a GPU with dot products of words of four int8; see backends/gpu.py."""
    return INTEGER_DOT in {str(key) for key in target.keys}


def has_amx(target: Any, dtype: str) -> bool:
    """Whether the processor of a tvm.target.Target has AMX for int8 or bfloat16 values."""
    return TILES_FOR.get(dtype, "") in _dots(_features(target))


def has_mmla(target: Any, dtype: str) -> bool:
    """Whether the processor of a tvm.target.Target has matrix multiply-accumulates of int8 or bfloat16 (arm64)."""
    return PAIRS_FOR.get(dtype, "") in _dots(_features(target))


def _dots(features: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name, wanted in _DOTS if wanted <= features)


def multiplies_by_lane(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target multiplies by a lane (arm64's NEON, 32 registers of four lanes)."""
    return "neon" in _features(target)


def has_lane_dot(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target has arm64's dot products of int8 by int8."""
    return {"dotprod", "neon"} <= set(_dots(_features(target)))


def computes_in_float16(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target has NEON with arithmetic of float16."""
    return "fp16" in _dots(_features(target))


def has_few_registers(target: Any) -> bool:
    """Whether a tile of the processor of a tvm.target.Target has at most 6 pixels of 8 channels: WebAssembly."""
    return "simd128" in _features(target)


def has_wide_vectors(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target has registers of 16 float32 values (AVX-512)."""
    return "avx512f" in _features(target)


def reduces_floats(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target subtracts the floor of 16 float32 values (AVX512-DQ)."""
    return "avx512dq" in _features(target)


def looks_up_bytes(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target permutes bytes of two 64-byte registers (AVX512-VBMI)."""
    return "avx512vbmi" in _features(target)


def only_widens(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target has NEON, which multiplies int8 into 16 bits, but no
    dot products.
    """
    features = _features(target)
    return "neon" in features and not features & {"dotprod", "i8mm"}


def only_multiplies_int16(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target has dot products of int16 (x86, WebAssembly), but not of int8
    (VNNI).
    """
    dots = set(_dots(_features(target)))
    return bool({"madd128", "wasm_dot"} & dots) and not {"vnni", "avxvnni"} & dots


def computes_in_bfloat16(target: Any) -> bool:
    """Whether the processor of a tvm.target.Target has bf16_dot2 and an instruction that rounds to bfloat16."""
    return bool(_features(target) & {"avx512bf16", "bf16"})


def activations_of(processor: Processor) -> Literal["uint8", "int8"]:
    """Return the 8-bit dtype that is fastest with int8 weights on a processor."""
    return _vectors_of(processor)[-1]


def cpu_features_of(target: ResolvedTarget) -> CpuFeatures:
    """Return the features of the target's processor."""
    features = features_of(target.mcpu, target.mtriple, target.mattr)
    lanes, registers, l2_bytes, activations = _vectors_of(Processor(target.mcpu, target.mtriple, target.mattr))
    l1_bytes = 64 << 10 if target.mcpu.startswith(_LARGE_L1) else 32 << 10
    return CpuFeatures(lanes, registers, target.threads, l2_bytes, _dots(features), activations, l1_bytes)


def _vectors_of(processor: Processor) -> _Vectors:
    """Return lanes, registers, l2_bytes and activations of CpuFeatures."""
    architecture = architecture_of(processor.mtriple)
    features = features_of(processor.mcpu, processor.mtriple, processor.mattr)
    for where, feature, found in _VECTORS:
        if where == architecture and feature in features:
            return found
    raise UsageError(
        f"a target {processor.mcpu} of {processor.mtriple} without vectors", "a processor with vector registers"
    )
