"""Determine the versions of tools, which are part of the recipe keys of the stages that use them.

Versions come from package metadata, so that a key can be computed without importing TVM. What only TVM knows (LLVM's
version, this machine's CPU name and missing features) is queried once per installed wheel and cached.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from tvmflow.support.errors import TvmflowError, UnknownNameError
from tvmflow.support.files import digest_of, write_atomic
from tvmflow.toolchain.compilers import compiler_named
from tvmflow.toolchain.environments import toolchain_file

_PACKAGES = {
    "tvm": "apache-tvm",
    "ffi": "apache-tvm-ffi",
    "tflite": "tflite",
    "ai-edge-litert": "ai-edge-litert",
    "torch": "torch",
    "torchvision": "torchvision",
    "keras": "keras",
    "onnx": "onnx",
    "onnxscript": "onnxscript",
    "onnxruntime": "onnxruntime",
    "numpy": "numpy",
    "scikit-learn": "scikit-learn",
    "xgboost": "xgboost-cpu",
    "pillow": "pillow",
}
_OTHER_DISTRIBUTIONS = {"xgboost-cpu": ("xgboost",), "mlflow": ("mlflow-skinny",)}  # the same code under another name
# Raised when code generation after scheduling changes the speed of kernels: earlier measurements are then
# replayed, as after an upgrade of TVM. 2: rounding in vectors. 3: bfloat16 rounded by one
# instruction. 4: exp in vectors. 6: sums that lie on the stack, tiles of arm64. 8: limits and depthwise sums of arm64.
# 10: copies of a padding, pixel by pixel. 12: bytes of arm64 by narrowing. 14: sums of arm64 from offsets. 16: max
# pools of arm64. 18: Winograd of arm64 by lanes. 25: attention, batched products and norms of packed rows, erf as a
# quotient. 27: tiles of AMX that get their shapes once. 34: norms of packed images. 35: tanh as a quotient, limits by
# instruction. 37: Winograd's transforms without zeros, by columns. 39: relu and clip return NaN for NaN. 40:
# so do maxima and max pools. 46: depthwise int8 of arm64 by dot products, its attention by lanes, exp of float16 in
# vectors. 47: sigmoid of AVX-512 in fewer steps, rows of one thread in a loop for each axis. 48: batch norms and
# residual sums of int8 by factors of 16 bits. 49: int8 of arm64: bounded sums narrowed by uzp1, biases loaded. 50:
# dense blocks joined in place, GELU and erf of AVX-512 by pieces, transposed tiles, attention of arm64 in assembly.
# 51: x * sigmoid(x) of AVX-512 as one, assembly of arm64's functions is moved out of loops. 52: its temporaries in the
# first registers. 53: stacks of AVX-512 aligned. 54: kernels without checks of arguments, products of two images and
# moves by arm64's tiles, order of its loops by traffic. 56: weights of arm64's tiles loaded ahead, one block of
# channels by loops over its axes. 58: sums over several axes in vectors where the last one takes none.
_CODEGEN = "58"
# LLVM features used by schedules and vectors, with their names in Linux.
_EXTENSIONS = {
    "avx2": "avx2",
    "fma": "fma",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512vbmi": "avx512vbmi",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
_PROBE = """
import json, sys
sys.modules["torch"] = None  # TVM would import it, for two seconds
import tvm
from tvm.target import codegen
cpu = str(codegen.llvm_get_system_cpu())
def features(**options):
    return {str(f) for f in codegen.llvm_get_cpu_features(tvm.target.Target({"kind": "llvm", **options}))}
known = {}
for name in ARCHITECTURES:
    triple, cpus = "wasm32-wasi" if name == "wasm32" else f"{name}-linux-gnu", {}
    for cpu_name in codegen.llvm_get_cpu_archlist(tvm.target.Target({"kind": "llvm", "mtriple": triple})):
        cpus[str(cpu_name)] = features(mtriple=triple, mcpu=str(cpu_name))
    # The list for x86-64 has processors of 32 bits too, that of 32-bit Arm some without vectors.
    wanted = {"x86_64": "64bit", "armv7a": "neon"}.get(name)
    cpus = {name: has for name, has in cpus.items() if wanted is None or wanted in has}
    known[f"{name}_cpus"], known[f"{name}_features"] = ",".join(cpus), ",".join(sorted(set().union(*cpus.values())))
version = str(codegen.llvm_version_major())
print(json.dumps({"llvm": version, "host_cpu": cpu, "features": sorted(features(mcpu=cpu)), **known}))
"""
ARCHITECTURES = ("x86_64", "aarch64", "armv7a", "wasm32")  # that kernels are scheduled for
_LISTS = tuple(f"{name}_{what}" for name in ARCHITECTURES for what in ("cpus", "features"))


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _host_name() -> str:
    lines = _cpu_lines()
    return "|".join(sorted({x for x in lines if x.startswith(("model name", "flags", "Features", "CPU part"))}))


def attributes_beside(features: set[str], cpu_lines: list[str]) -> str:
    """Return the difference between a processor and LLVM's features of its name, such as "+amx-tile,-avx512bf16"; ''
    for none.

    features: LLVM's for the name; cpu_lines: of /proc/cpuinfo. Virtual machines hide extensions, and names are guessed.
    """
    flags = next((set(line.partition(":")[2].split()) for line in cpu_lines if line.startswith("flags")), None)
    if flags is None:
        return ""
    differ = (llvm for llvm, linux in _EXTENSIONS.items() if (llvm in features) != (linux in flags))
    return ",".join(f"{'-' if llvm in features else '+'}{llvm}" for llvm in differ)


def missing_features(features: set[str]) -> list[str]:
    """Return the processor features used by kernels that this machine lacks."""
    return [name[1:] for name in attributes_beside(features, _cpu_lines()).split(",") if name.startswith("-")]


def missing_flags(flags: Iterable[str]) -> list[str]:
    """Return those of the flags of /proc/cpuinfo that this machine's processor lacks; none where it does not say."""
    lines = [line.partition(":") for line in _cpu_lines()]
    found = next((set(text.split()) for name, _, text in lines if name.strip() in ("flags", "Features")), None)
    return [] if found is None else [flag for flag in flags if flag not in found]


@functools.cache
def probe() -> dict[str, str]:
    """Query the installed TVM: LLVM's major version, this machine's CPU name and attributes.

    Also, separated by commas, the processors and features of each architecture that LLVM knows.
    """
    wheel = metadata.distribution("apache-tvm")
    identity = digest_of([wheel.version, str(wheel.locate_file("tvm")), _host_name()])
    path = toolchain_file()
    known = _known_facts(path)
    if known.get(identity, {}).keys() == {"llvm", "host_cpu", "host_attributes", *_LISTS}:
        return known[identity]
    code = f"ARCHITECTURES = {ARCHITECTURES!r}\n{_PROBE}"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise TvmflowError(
            f"TVM {wheel.version} does not start: {done.stderr.strip()[-400:]}",
            "an apache-tvm and apache-tvm-ffi that fit each other",
            "run 'tvmflow doctor'",
        )
    printed = json.loads(done.stdout.strip().splitlines()[-1])
    facts: dict[str, str] = {
        "llvm": printed["llvm"],
        "host_cpu": printed["host_cpu"],
        "host_attributes": attributes_beside(set(printed["features"]), _cpu_lines()),
        **{name: printed[name] for name in _LISTS},
    }
    try:
        write_atomic(path, json.dumps({**known, identity: facts}))
    except OSError:
        pass  # only a cache: without it the next process queries again
    return facts


def _known_facts(path: Path) -> dict[str, dict[str, str]]:
    """Return the facts of every TVM that was queried, so that two environments do not forget each other's."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): dict(facts) for name, facts in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def known_processors(architecture: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return LLVM's processor and feature names of an architecture."""
    probed = probe()
    cpus, features = (frozenset(probed[f"{architecture}_{what}"].split(",")) for what in ("cpus", "features"))
    return cpus, features


def installed_version(package: str) -> str:
    """Return the version of an installed package, or of another distribution of it; 'absent' without one."""
    return _installed_version(package, _state_of_path())


def _state_of_path() -> tuple[int, ...]:
    """Return when each folder of packages was changed."""
    return tuple(_changed_ns(folder) for folder in sys.path)


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116 (a Path takes longer than asking for its time)
    except OSError:
        return 0


@functools.cache
def _installed_version(package: str, _state_of_path: tuple[int, ...]) -> str:
    """Read a version again only after an installation: that takes milliseconds, and a sweep needs thousands."""
    for name in (package, *_OTHER_DISTRIBUTIONS.get(package, ())):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "absent"


def version(tool: str) -> str:
    """Return the version of one tool of the table, 'absent' if it is not installed."""
    if tool == "llvm":
        return probe()["llvm"]
    if tool == "codegen":
        return _CODEGEN
    if tool.startswith("cc:"):
        return compiler_named(tool[3:]).version()
    if tool.startswith("tool:"):
        from tvmflow.toolchain.environments import tool_version

        return tool_version(tool[5:])
    if tool not in _PACKAGES:
        raise UnknownNameError(f"no tool {tool!r}", legal=[*_PACKAGES, "llvm", "codegen", "cc:NAME"])
    return installed_version(_PACKAGES[tool])


def versions(tools: tuple[str, ...]) -> dict[str, str]:
    """Return name -> version for the tools of a stage."""
    state = _state_of_path()
    return {tool: _installed_version(_PACKAGES[tool], state) if tool in _PACKAGES else version(tool) for tool in tools}
