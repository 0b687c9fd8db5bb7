"""Name the instructions that a library may use as Linux does in /proc/cpuinfo, so that an app can check them."""

from __future__ import annotations

from tvmflow.targets.cpu_features import features_of
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.triples import WASM, triple_of

# LLVM's features beyond those that every processor of the architecture has -> Linux's names.
_FLAGS = {
    "x86_64": {
        "ssse3": "ssse3",
        "sse4.1": "sse4_1",
        "sse4.2": "sse4_2",
        "popcnt": "popcnt",
        "avx": "avx",
        "f16c": "f16c",
        "avx2": "avx2",
        "fma": "fma",
        "bmi": "bmi1",
        "bmi2": "bmi2",
        "avxvnni": "avx_vnni",
        "avx512f": "avx512f",
        "avx512bw": "avx512bw",
        "avx512cd": "avx512cd",
        "avx512dq": "avx512dq",
        "avx512vl": "avx512vl",
        "avx512vnni": "avx512_vnni",
        "avx512vbmi": "avx512vbmi",
        "avx512vbmi2": "avx512_vbmi2",
        "avx512ifma": "avx512ifma",
        "avx512bitalg": "avx512_bitalg",
        "avx512vpopcntdq": "avx512_vpopcntdq",
        "avx512bf16": "avx512_bf16",
        "avx512fp16": "avx512_fp16",
        "amx-tile": "amx_tile",
        "amx-int8": "amx_int8",
        "amx-bf16": "amx_bf16",
    },
    "aarch64": {
        "lse": "atomics",
        "rdm": "asimdrdm",
        "fullfp16": "asimdhp",
        "dotprod": "asimddp",
        "i8mm": "i8mm",
        "bf16": "bf16",
        "sve": "sve",
        "sve2": "sve2",
    },
    "armv7a": {"neon32": "neon", "vfp4": "vfpv4"},
}


# LLVM's names of processors have these, and virtual machines hide them, though kernels hardly contain them.
_NOT_JUDGED = {"avx512cd", "avx512_vbmi2", "avx512ifma", "avx512_bitalg", "avx512_vpopcntdq"}


def judged_flags(target: ResolvedTarget) -> tuple[str, ...]:
    """Return the flags without which a library refuses to run."""
    return tuple(flag for flag in required_flags(target) if flag not in _NOT_JUDGED)


def required_flags(target: ResolvedTarget) -> tuple[str, ...]:
    """Return the flags that a processor needs for the CPU's kernels of a target; none without /proc/cpuinfo, as for
    WebAssembly and Apple's systems.
    """
    architecture = triple_of(target.mtriple).architecture
    if architecture == WASM or triple_of(target.mtriple).is_apple:
        return ()
    features = features_of(target.mcpu, target.mtriple, tuple(target.mattr))
    return tuple(flag for feature, flag in _FLAGS.get(architecture, {}).items() if feature in features)
