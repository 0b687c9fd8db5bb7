"""The least time that a network's arithmetic and weights allow on this machine, and the share of it that untuned networks reach.

    python -m bench.bounds [NAME ...] [--precision float32] [--threads 2] [--kernels 5]

Ceilings are measured here (bench/ceilings.c, x86 with AVX2 or more): multiply-adds in registers, of the type that is multiplied, and reads of a buffer that no cache holds. The arithmetic is that of
the kernels as they are built, so Winograd's products count, and what they save does not. `arithmetic` and `memory` are the two bounds in ms, memory for all weights once, as if no cache held them
between two runs; `share` is the arithmetic bound over the measured time. Below each network the kernels that lose most beside their own bound.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tvm import relax

from bench.networks import converted
from bench.zoo import NETWORKS
from tvmflow.backends.cpu import CpuBackend
from tvmflow.building.library import schedule_lowered
from tvmflow.building.lower import lower
from tvmflow.building.self_contained import Network, write_network
from tvmflow.compilers import Command
from tvmflow.frontends.exported import ExportedModel
from tvmflow.ir.tvm_names import buffer_of, constant_value, return_type
from tvmflow.kernels.workloads import extract_workloads, operations
from tvmflow.network_binding import network_binding
from tvmflow.passes.canonicalize import canonicalize
from tvmflow.targets.resolve import host_target
from tvmflow.tuning.algorithms import unmeasured

_BOUNDS = {"float32": 2.0e-5, "bfloat16": 1.0e-2}
_ROUNDS = 300_000  # a millisecond and less
_LEAST_S = 2.0
_READ = 1 << 26  # float32 values, 256 MiB
_RUNS = 30


@dataclass(frozen=True)
class Ceilings:
    """operations: type -> operations a second; nbytes: bytes a second."""

    operations: dict[str, float]
    nbytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--precision", choices=("float32", "bfloat16", "int8"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", type=int, default=5)
    options = parser.parse_args()
    ceilings = measured_ceilings(options.threads)
    speeds = ", ".join(f"{dtype} {speed / 1e9:.0f}" for dtype, speed in ceilings.operations.items())
    print(f"G operations/s: {speeds}; reads {ceilings.nbytes / 1e9:.1f} GB/s; {options.threads} threads")
    print(f"{'network':31}{'ms':>9}{'arithmetic':>11}{'memory':>8}{'share':>7}")
    for name in options.names:
        _show(name, ceilings, options)


def measured_ceilings(threads: int) -> Ceilings:
    """Return the most that this machine reaches in several tries; types that it has no instruction for have float32's."""
    with tempfile.TemporaryDirectory() as folder:
        path, source = Path(folder) / "ceilings.so", Path(__file__).with_name("ceilings.c")
        flags = ["-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run(["gcc", *flags, "-o", str(path), str(source)], check=True)
        library = ctypes.CDLL(str(path))
    found = {}
    for dtype in ("float32", "bfloat16", "int8"):
        call = getattr(library, f"ceiling_{dtype}")
        call.restype, call.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_long]
        found[dtype] = _most(lambda call=call: call(threads, _ROUNDS))  # type: ignore[misc]
    data = np.ones(_READ + 64, np.float32)
    first = data.ctypes.data + -data.ctypes.data % 64
    read = library.ceiling_read
    read.restype, read.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_void_p, ctypes.c_long]
    return Ceilings(
        {dtype: speed or found["float32"] for dtype, speed in found.items()}, _most(lambda: read(threads, first, _READ))
    )


def _most(call: Callable[[], float]) -> float:
    """Return the most that a function does in a second, by what it says to have done."""
    speeds, end = [], time.perf_counter() + _LEAST_S
    while time.perf_counter() < end:
        begin = time.perf_counter()
        done = call()
        speeds.append(done / (time.perf_counter() - begin))
    return max(speeds)


def _show(name: str, ceilings: Ceilings, options: argparse.Namespace) -> None:
    entry = NETWORKS[name]
    network = ExportedModel(entry.make(), entry.inputs)
    module = converted(canonicalize(network.to_relax()), entry, options.precision)
    backend = CpuBackend(replace(host_target(), threads=options.threads))
    packed = backend.pack(module, None)[0]
    lowered = lower(packed, backend, winograd=unmeasured(packed, backend, _BOUNDS))
    workloads = extract_workloads(lowered)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.so"
        scheduled = schedule_lowered(lowered, backend, {})
        kind = return_type(lowered["main"])
        outputs = tuple(f"output{at}" for at in range(len(kind.fields) if hasattr(kind, "fields") else 1))
        described = Network("bench@cpu:float32", entry.inputs, outputs, options.threads)
        write_network(path, scheduled, described, Command(("gcc",)))
        instance, inputs = network_binding().Network(path), entry.samples()
        times = []
        for _ in range(_RUNS):
            begin = time.perf_counter()
            instance(*inputs)
            times.append(time.perf_counter() - begin)
    arithmetic = sum(w.calls * _least_s(w.function, ceilings) for w in workloads)
    memory = _weights(lowered) / ceilings.nbytes
    took = median(times)
    print(f"{name:31}{took * 1e3:9.2f}{arithmetic * 1e3:11.2f}{memory * 1e3:8.2f}{arithmetic / took:7.0%}", flush=True)
    instance.profile(True)
    with instance:
        for _ in range(_RUNS):
            instance(*inputs)
        profiled = instance.profile(False)
    rows = []
    for kernel, calls, nanoseconds in profiled:
        function = lowered[kernel]
        least, spent = _least_s(function, ceilings), nanoseconds / max(calls, 1) * 1e-9
        rows.append((spent - least, kernel, spent, least))
    for _, kernel, spent, least in sorted(rows, reverse=True)[: options.kernels]:
        print(
            f"  {kernel[:60]:60} {spent * 1e6:8.1f} us, at least {least * 1e6:8.1f} ({least / spent:4.0%})", flush=True
        )


def _least_s(function: Any, ceilings: Ceilings) -> float:
    """Return the least time of a call: its operations at the ceiling of what it multiplies."""
    dtypes = {str(buffer.dtype) for given in function.params if (buffer := buffer_of(function, given)) is not None}
    kind = "int8" if "int8" in dtypes else "bfloat16" if "bfloat16" in dtypes else "float32"
    return operations(function) / ceilings.operations[kind]


def _weights(lowered: Any) -> int:
    """Return the bytes of a module's constants."""
    found = []

    def visit(expression: Any) -> None:
        if (value := constant_value(expression)) is not None:
            found.append(value.numpy().nbytes)

    relax.analysis.post_order_visit(lowered["main"], visit)
    return sum(found)


if __name__ == "__main__":
    main()
