"""Map a device's cores and features to LLVM's processor name and additional attributes."""

from __future__ import annotations

from dataclasses import dataclass

from tvmflow.support.errors import WrongProcessorError
from tvmflow.targets.cpu_features import features_of
from tvmflow.targets.processors import architecture_of
from tvmflow.toolchain.versions import attributes_beside, known_processors

# LLVM's features that kernels depend on -> their names in /proc/cpuinfo. Kernels of phones hide SVE.
_LINUX_NAMES = {
    "aarch64": {
        "dotprod": "asimddp",
        "fullfp16": "asimdhp",
        "i8mm": "i8mm",
        "bf16": "bf16",
        "sve": "sve",
        "sve2": "sve2",
    },
    "armv7a": {"vfp4": "vfpv4", "hwdiv-arm": "idiva", "hwdiv": "idivt"},
}
_X86_LEVELS = (
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
    ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma movbe"),
    ("x86-64-v2", "cx16 popcnt sse4_1 sse4_2 ssse3"),
    ("x86-64", ""),
)
_WITHOUT_NAME = {"aarch64": "generic", "armv7a": "cortex-a8"}
_MACHINES = {"armv7a": ("armv7l", "armv8l", "aarch64")}  # names by uname, if other than the architecture's


@dataclass(frozen=True)
class DeviceFacts:
    """The facts of a device. machine: by uname, or our architecture, "" if unknown; core: LLVM's name of the fastest,
    or numbers; features: of /proc/cpuinfo.
    """

    machine: str
    core: str
    features: str


def processor_from(facts: DeviceFacts, mtriple: str) -> tuple[str, tuple[str, ...]]:
    """Return LLVM's name of a processor and additional attributes. Raises WrongProcessorError if the triple does not
    match.
    """
    architecture = architecture_of(mtriple)
    if facts.machine and facts.machine not in (architecture, *_MACHINES.get(architecture, ())):
        raise WrongProcessorError(
            f"the device is a {facts.machine}, and the target compiles for {mtriple}",
            "a triple of the device's architecture",
            "correct mtriple: of the target",
        )
    has = set(facts.features.split())
    if architecture == "x86_64":
        mcpu = next(name for name, needed in _X86_LEVELS if set(needed.split()) <= has)
        beside = attributes_beside(set(features_of(mcpu, mtriple, ())), [f"flags : {facts.features}"])
        return mcpu, tuple(beside.split(",")) if beside else ()
    mcpu = facts.core if facts.core in known_processors(architecture)[0] else _WITHOUT_NAME[architecture]
    llvms = features_of(mcpu, mtriple, ())
    names = _LINUX_NAMES[architecture].items() if has else ()
    differ = (llvm for llvm, linux in names if (llvm in llvms) != (linux in has))
    return mcpu, tuple(f"{'-' if llvm in llvms else '+'}{llvm}" for llvm in differ)
